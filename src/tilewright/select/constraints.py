"""`Constraints`: what the caller asks of a kernel besides being right."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch, archs
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, UnsupportedProblem, nearest
from tilewright.verdict import YES, Verdict, no

CHOSEN_FOR = 256
"""The M that a batch-invariant choice is made for, whatever M is asked for."""

SERVED = (1, 8193)
"""Ms that a batch-invariant kernel serves too: one row, and more than a tile has, of a number that
nothing divides. The family's default space is that of the last."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a kernel must keep to. Applied before any selector sees the candidates, so that all
    honour it; a kernel that does not is refused by the name of the field.

    graph_capturable: its launch can be captured in a CUDA graph (see `Launch.capturable`); so far
    all can, so this refuses none.
    deterministic: it gives the same bits in every run. batch_invariant: one kernel serves every M,
    and gives a row the same bits however many rows are computed with it; the choice is made for M =
    `CHOSEN_FOR`. max_workspace: bytes of scratch memory that a launch may take; None for any.
    pipelines: those allowed; () for all. blocked: names of kernels, or shell patterns of names,
    that are not used.

    Raises `BadArgument` for values that cannot be meant.
    """

    graph_capturable: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    max_workspace: int | None = None
    pipelines: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

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
        known = {name for a in archs() for name in arch(a).pipelines} if self.pipelines else set()
        for name in self.pipelines:
            if name not in known:
                listed = ", ".join(sorted(known))
                raise BadArgument(f"no pipeline '{name}'{nearest(name, known)}; known: {listed}")

    def stated(self, problem: Any) -> Sequence[Any]:
        """The problems that a kernel has to serve: `problem`, or, batch-invariant, the same with
        other Ms. The choice is made for the first; the last has the least that kernels can rely on.
        Raises `UnsupportedProblem` where there are no such problems."""
        if not self.batch_invariant:
            return (problem,)
        family = ops.family(problem.family)
        try:
            return tuple(family.with_rows(problem, m) for m in (CHOSEN_FOR, *SERVED))
        except BadArgument as error:
            raise UnsupportedProblem(
                f"{problem} has no kernel that is the same for every M (batch_invariant): {error}"
            ) from None

    def allows(self, config: Any, problem: Any, device: Device) -> Verdict:
        """Whether `config`, which serves `problem`, keeps to all this."""
        for pattern in self.blocked:
            if fnmatch.fnmatchcase(config.name, pattern):
                return no("blocked", f"is blocked by '{pattern}'")
        if self.pipelines and config.pipeline not in self.pipelines:
            return no("pipelines", f"is of pipeline {config.pipeline}, not {_or(self.pipelines)}")
        family = ops.family(problem.family)
        for wanted, name, judge in (
            (self.deterministic, "deterministic", family.repeats),
            (self.batch_invariant, "batch_invariant", family.keeps_rows),
        ):
            if wanted and not (verdict := judge(config)):
                return no(name, verdict.reason)
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
