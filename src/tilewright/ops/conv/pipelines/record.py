"""`Pipeline`: everything about a way to convolve that is not in its kernels' own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.parts import Part
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import KernelSource, Step, Temporary

Sources = Callable[[ConvConfig, Arch], Mapping[str, KernelSource]]
"""What to compile, by part, but for the kernel that adds up parts."""

Launch = Callable[[ConvConfig, ConvProblem, Device, int, int], Sequence[Step]]
"""The steps of a launch, but for that kernel's: for a number of parts, and of workgroups under
stream-K."""

Row = tuple[Any, ...]
"""An algorithm of a space: the first fields of `spaces.ALGORITHM`; the others are as `spaces.AXES`
says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The kernels of one pipeline, in all directions: what they need, accept and take. No field has
    a default, so a record that forgets one is a `TypeError` that names the field.

    name: the word in `ConvConfig.pipeline` and in kernels' names.
    needs: what an architecture must have, in the words of `Arch.has`.
    sibling: a config in Triton that computes the same, which the interpreter runs; the config
        itself if it is in Triton.
    merges_groups: whether a tile may hold several groups.
    objection: why an architecture cannot build a config, by the pipeline's own rules, or None.
    refusal: why a config cannot compute a problem, by its own rules, or None.
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
    totals: the kernel that adds up parts where a second one does (`ConvConfig.two_stage`).
    temporaries: of a launch, but for those that parts of sums meet in.
    rows: of the default space, or of a tuning's.
    """

    name: str
    needs: tuple[str, ...]
    sibling: Callable[[ConvConfig], ConvConfig]
    merges_groups: bool
    objection: Callable[[ConvConfig, Arch], str | None]
    refusal: Callable[[ConvConfig, ConvProblem], str | None]
    odd: Callable[[ConvConfig], tuple[str, ...]]
    sums: Callable[[ConvConfig], int]
    shared_memory: Callable[[ConvConfig, Arch], int]
    alignments: Callable[[ConvProblem], tuple[int, int]]
    tiles: Callable[[ConvConfig, ConvProblem], int]
    steps: Callable[[ConvConfig, ConvProblem], int]
    splits: Callable[[ConvConfig, ConvProblem, Device], int]
    meetings: Callable[[ConvConfig], int]
    totals: Part
    sources: Sources
    launch: Launch
    temporaries: Callable[[ConvProblem], tuple[Temporary, ...]]
    rows: Callable[[ConvProblem, Arch, bool], Iterator[Row]]

    def runs_on(self, arch: Arch) -> bool:
        """Whether an architecture has what the kernels need."""
        return all(map(arch.has, self.needs))
