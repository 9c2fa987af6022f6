"""`Pipeline`: everything about a way to convolve that is not in its kernels' own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.ops.binder import Context, Part
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections

ALGORITHM = (
    "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "pipeline", "scheduler", "group_m",
    "merged", "alignment", "alignment_out", "box", "held", "merged_groups", "runs", "spread",
    "classes", "grouped",
)  # fmt: skip
LINKED = (*ALGORITHM, "reduction", "index_bits", "gemm", "turned")
"""The axes whose values go together in a space."""

Row = tuple[Any, ...]
"""An algorithm of a space: the first fields of `ALGORITHM`; the others are as `spaces.AXES` says.
"""

WORDS = frozenset({"depthwise", "several_filters", "holds_filter", "merges_groups", "vector_units"})
"""What records say of their kernels: they are for one filter of its own for every channel, on the
vector units or in tiles of several filters' rows; or for several filters a channel too; they are
written out for a filter, which the config names (`ConvConfig.held`); a tile may hold several
groups; they multiply any layer on the vector units, and a tile is of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The kernels of one pipeline, in all directions: what they need, accept and take.

    name: the word in `ConvConfig.pipeline` and in kernels' names.
    kind: the pipeline whose rules of support and estimates these are; by default itself.
    parts: its kernels, by direction and in the order in which they run, but for that which adds up
        parts. A launch runs them once for each of its cases (`classes`).
    totals: the kernels that add up parts where a second one does (`ConvConfig.two_stage`), of which
        a launch has one.
    words: of `WORDS`, those that its kernels are.
    needs: what an architecture must have, in the words of `Arch.has`.
    sibling: a config in Triton that computes the same, which the interpreter runs; the config
        itself if it is in Triton.
    objection: why an architecture cannot build a config, by the pipeline's own rules, or None.
    tile: the same of its tile's elements.
    refusal: what its own rules say of configs and a problem.
    odd: fields that `objection` judges and that need not be powers of two.
    sums: that a workgroup keeps in registers.
    shared_memory: bytes of a workgroup.
    alignments: bytes of alignment that a problem has of what its kernels read in vectors, and of
        what they make. Of runs, `runs.alignments`.
    tiles: that workgroups walk, of whole sums.
    steps: of the pixels of a tile, in gradients of weights.
    splits: parts of a tile that would fill the device, in gradients of weights under scheduler
        ``split``.
    meetings: pieces of a tile whose parts meet on their own, each with its flags.
    by_class: whether a launch runs its parts once for each residue class of the result's pixels,
        where a config does not say that they make several (`ConvConfig.classes`).
    rows: of the default space, or of a tuning's.
    estimates: how long launches should take, of a context whose config is `Columns`.
    """

    name: str
    kind: str = ""
    parts: Callable[[ConvConfig], tuple[Part, ...]]
    totals: tuple[Part, ...]
    words: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    sibling: Callable[[ConvConfig], ConvConfig] = lambda c: c
    objection: Callable[[ConvConfig, Arch], str | None]
    tile: Callable[[ConvConfig, Arch], str | None] = lambda c, arch: None
    refusal: Callable[[Any, ConvProblem], Objections] = lambda c, p: iter(())
    odd: Callable[[ConvConfig], tuple[str, ...]] = lambda c: ()
    sums: Callable[[ConvConfig], int] = lambda c: c.tile_m * c.tile_n
    shared_memory: Callable[[ConvConfig, Arch], int]
    alignments: Callable[[ConvProblem], tuple[int, int]]
    tiles: Callable[[Any, ConvProblem], Each]
    steps: Callable[[Any, ConvProblem], Each]
    splits: Callable[[Any, ConvProblem, Device], Each] = lambda c, p, device: 1
    meetings: Callable[[ConvConfig], int] = lambda c: 1
    by_class: bool = False
    rows: Callable[[ConvProblem, Arch, bool], Iterator[Row]]
    estimates: Callable[[Context], Estimates]

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.kind or self.name)

    def runs_on(self, arch: Arch) -> bool:
        """Whether an architecture has what the kernels need."""
        return all(map(arch.has, self.needs))

    def has(self, word: str) -> bool:
        """Whether it says one of `WORDS`."""
        assert word in WORDS, word
        return word in self.words
