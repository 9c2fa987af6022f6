"""`Pipeline`: everything about the kernels of a backward pass that is not in their own files; and
`Part`, one kernel of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tilewright.arch.model import Arch
from tilewright.ops.attention.arguments import Value
from tilewright.ops.attention.pipelines.record import Box, Described
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.nouns import Temporary

ROW_WARPS = 4
"""Warps of kernels that go along rows alone, of up to 128 elements; longer rows have twice as many:
for sm_100 `row_sums` else spills 16 bytes."""


def tile_options(c: AttentionBackwardConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The config's warps and stages."""
    return ("num_warps", c.num_warps), ("num_stages", c.num_stages)


def row_options(c: AttentionBackwardConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """Of kernels that go along rows alone."""
    warps = ROW_WARPS * (2 if max(c.head_dim, c.head_dim_v) > 128 else 1)
    return ("num_warps", warps), ("num_stages", 1)


def no_boxes(c: AttentionBackwardConfig) -> Mapping[str, Box]:
    """Of kernels of plain pointers."""
    return {}


def no_views(c: AttentionBackwardConfig, p: AttentionBackwardProblem) -> Mapping[str, Described]:
    """Of kernels of plain pointers."""
    return {}


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel.

    name: of the part, and of the kernel's function. module: where it is.
    makes: the gradients for which it runs; (): for any.
    features: one of which a config must have for it to run; (): none.
    grid: workgroups, for a config and a problem.
    arguments, constants: names in the catalogue (`arguments`), in the kernel's order.
    options: for the compiler.
    own_constants: constants that depend on the architecture, by the name that the kernel gives.
    language: the compiler's front end.
    boxes: for each operand that it reaches by a descriptor, the tile that one copy moves.
    views: the descriptors' views, for the same operands.
    """

    name: str
    module: str
    makes: tuple[str, ...]
    grid: Callable[[AttentionBackwardConfig, AttentionBackwardProblem], int]
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    options: Callable[[AttentionBackwardConfig, Arch], tuple[tuple[str, Value], ...]]
    own_constants: Mapping[str, Callable[[AttentionBackwardConfig, Arch], Value]] = field(
        default_factory=dict
    )
    features: tuple[str, ...] = ()
    language: Literal["triton", "gluon"] = "triton"
    boxes: Callable[[AttentionBackwardConfig], Mapping[str, Box]] = no_boxes
    views: Callable[
        [AttentionBackwardConfig, AttentionBackwardProblem], Mapping[str, Described]
    ] = no_views

    def runs(self, config: AttentionBackwardConfig) -> bool:
        """Whether a config has it."""
        asked = (self.makes, self.features)
        return all(not words or not config.words.isdisjoint(words) for words in asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The kernels of a config, and which configs and problems they are for.

    name: the word in `AttentionBackwardConfig.pipeline` and in kernels' names.
    parts: in the order in which they run.
    needs: what an architecture must have, in the words of `Arch.has`.
    rules: its own rules of legality, by name: a reason against a config, or None.
    supports: its own rules of support, by name: a reason against a problem, or None.
    temporaries: beside `delta`, `distances` and `order`.
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
    temporaries: Callable[
        [AttentionBackwardConfig, AttentionBackwardProblem], tuple[Temporary, ...]
    ]
    repeats: Callable[[AttentionBackwardConfig], bool]
    algorithms: Callable[[AttentionBackwardProblem, Arch], Sequence[Mapping[str, Any]]]
    tuned: Callable[[AttentionBackwardProblem, Arch], Sequence[Mapping[str, Any]]]

    def runs_on(self, arch: Arch) -> bool:
        """Whether an architecture has what the kernels need."""
        return all(map(arch.has, self.needs))
