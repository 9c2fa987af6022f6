"""`Pipeline`: everything about the kernels of a backward pass that is not in their own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.binder import Part, Value

KERNELS = "tilewright.ops.attention_backward.kernels"

ROW_WARPS = 4
"""Warps of kernels that go along rows alone, of up to 128 elements; longer rows have twice as many:
for sm_100 `row_sums` else spills 16 bytes."""


def tile_options(c: AttentionBackwardConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The config's warps and stages."""
    return ("num_warps", c.num_warps), ("num_stages", c.num_stages)


def row_options(c: AttentionBackwardConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The warps and stages of kernels that go along rows alone."""
    warps = ROW_WARPS * (2 if max(c.head_dim, c.head_dim_v) > 128 else 1)
    return ("num_warps", warps), ("num_stages", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the estimate knows of the speed of kernels (docs/notes/attention-estimate.md).

    one_pass: whether all gradients are of one pass over the pairs of queries and keys.
    share: of the published matrix rate that products reach.
    ordered: factor on that rate where sums are added in turns.
    """

    one_pass: bool
    share: float
    ordered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The kernels of a config, and which configs and problems they are for.

    name: the word in `AttentionBackwardConfig.pipeline` and in kernels' names.
    parts: in the order in which they run.
    needs: what an architecture must have, in the words of `Arch.has`.
    rules: its own rules of legality, by name: a reason against a config, or None.
    supports: its own rules of support, by name: a reason against a problem, or None.
    pace: how fast its kernels are, for the estimate.
    repeats: whether the same operands give the same bits in every run.
    algorithms: fields of the algorithm that the default space has for a problem on an architecture.
    tuned: the further ones that a tuning tries.
    """

    name: str
    parts: tuple[Part, ...]
    needs: tuple[str, ...]
    rules: Mapping[str, Callable[[AttentionBackwardConfig, Arch], str | None]]
    supports: Mapping[
        str, Callable[[AttentionBackwardConfig, AttentionBackwardProblem], str | None]
    ]
    pace: Pace
    repeats: Callable[[AttentionBackwardConfig], bool]
    algorithms: Callable[[AttentionBackwardProblem, Arch], Sequence[Mapping[str, Any]]]
    tuned: Callable[[AttentionBackwardProblem, Arch], Sequence[Mapping[str, Any]]]

    def runs_on(self, arch: Arch) -> bool:
        """Whether an architecture has what the kernels need."""
        return all(map(arch.has, self.needs))
