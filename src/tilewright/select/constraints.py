"""`Constraints`: what the caller asks of a kernel besides a right result."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch, archs
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, UnsupportedProblem, nearest
from tilewright.ops.library import library_of
from tilewright.ops.nearby import Invariance
from tilewright.verdict import YES, Verdict, no


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a kernel must keep to. Constraints are applied before any selector sees the candidates,
    so every selector honours them. A kernel that breaks one is refused by the name of its field.

    graph_capturable: the launch can be captured in a CUDA graph (see `Launch.capturable`). All
        launches can but those of MIOpen.
    deterministic: the kernel gives the same bits in every run.
    batch_invariant: one kernel serves the problem whatever its batch is, and each part of the
        result has the same bits whatever is computed with it. The family says what that means for
        a problem (`Family.invariance`); for GEMM, a kernel for every M.
    max_workspace: most bytes of scratch memory that a launch may take; None for no limit.
    pipelines: pipelines allowed; () for all.
    blocked: names of kernels, or shell patterns of names, that are not used.
    only_ours: only kernels that are built here, no algorithms of the vendor's library.

    Raises `BadArgument` for values that make no sense.
    """

    graph_capturable: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    max_workspace: int | None = None
    pipelines: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    only_ours: bool = False

    def __post_init__(self) -> None:
        limit = self.max_workspace
        if limit is not None and (
            not isinstance(limit, int) or isinstance(limit, bool) or limit < 0
        ):
            raise BadArgument(f"max_workspace = {limit!r} is not a number of bytes, 0 or more")
        for field in ("pipelines", "blocked"):
            words = getattr(self, field)
            if isinstance(words, str) or not all(isinstance(word, str) for word in words):
                raise BadArgument(f"{field} = {words!r} is not several words")
            object.__setattr__(self, field, tuple(words))
        known = {name for a in archs() for name in ops.pipelines(arch(a))} if self.pipelines else ()
        for name in self.pipelines:
            if name not in known:
                listed = ", ".join(sorted(known))
                raise BadArgument(f"no pipeline '{name}'{nearest(name, known)}; known: {listed}")

    @property
    def one_kernel(self) -> bool:
        """Whether results have to have the same bits in every run, so that no other kernel may
        stand in for the one that is chosen."""
        return self.deterministic or self.batch_invariant

    def invariance(self, problem: Any) -> Invariance | None:
        """What a kernel must serve besides `problem`; None unless `batch_invariant`. Raises
        `UnsupportedProblem` where no kernel can be batch-invariant for such problems."""
        if not self.batch_invariant:
            return None
        try:
            return ops.family(problem.family).invariance(problem)
        except BadArgument as error:
            raise UnsupportedProblem(
                f"{problem} has no batch-invariant kernel (batch_invariant): {error}"
            ) from None

    def allows(self, config: Any, problem: Any, device: Device) -> Verdict:
        """Whether `config`, which serves `problem`, keeps to these constraints."""
        for pattern in self.blocked:
            if fnmatch.fnmatchcase(config.name, pattern):
                return no("blocked", f"is blocked by '{pattern}'")
        if self.only_ours and (library := library_of(config)):
            return no("only_ours", f"is an algorithm of {library}, the vendor's library")
        if self.pipelines and config.pipeline not in self.pipelines:
            return no("pipelines", f"is of pipeline {config.pipeline}, not {_or(self.pipelines)}")
        of_sums = self.deterministic or self.batch_invariant
        if not of_sums and self.max_workspace is None and not self.graph_capturable:
            return YES
        family = ops.family(problem.family)
        if self.deterministic and not (verdict := family.repeats(config)):
            return no("deterministic", verdict.reason)
        if self.batch_invariant and not (verdict := family.invariant(config)):
            return no("batch_invariant", verdict.reason)
        if self.max_workspace is None and not self.graph_capturable:
            return YES
        launch = family.launch(config, problem, device)
        if self.graph_capturable and not launch.capturable:
            return no("graph_capturable", "cannot be captured in a CUDA graph")
        need, most = launch.workspace_bytes, self.max_workspace
        if most is not None and need > most:
            return no("max_workspace", f"needs a workspace of {need} bytes, over {most}")
        return YES


def _or(words: Sequence[str]) -> str:
    return " or ".join(words)
