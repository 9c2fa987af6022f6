"""How matrix instructions spread their matrices over the lanes and registers of a wave.

One formula fits every matrix of every family. One dimension of the matrix lies across lanes: a row
of A, a column of B, a column of C and D belongs to one lane of each group of lanes. The other
dimension (K of A and B, rows of C and D) goes to the groups in turn, a run of consecutive elements
at a time. Only the length of a run and the number of groups differ.

    MFMA                   A, B    64 / M groups; a run is all that a lane has of K, but 16
                                   elements where it has 32 of 8 bits (f8f6f4)
                           C, D    64 / N groups, runs of 4 rows
    WMMA, RDNA3            A, B    one group: lanes 16 to 31 hold the same as lanes 0 to 15
                           C, D    2 groups, runs of 1 row: register i has rows 2i and 2i + 1
    WMMA, RDNA4            A, B    2 groups; a run is all that a lane has of K
                           C, D    2 groups, runs of 8 rows
    WMMA, gfx1250          A, B    2 groups; a run is 2 elements of 32 bits, 8 of 16, 16 of 8,
                                   32 of fewer bits
                           C, D    2 groups, runs of 8 rows

A scale of a block of K belongs to a row of A or a column of B. For MFMA it lies in the lane of
group k // 32; for WMMA (gfx1250) it is byte k // 32 of a lane of the first or the second group.

Sources: AMD's matrix instruction calculator (ROCm/amd_matrix_instruction_calculator) for MFMA; the
RDNA3 and RDNA4 ISA manuals, "WMMA"; Triton's LinearLayoutConversions.cpp for Triton's view of them,
scales included; AMD's emulator rocjitsu (ROCm/rocm-systems, shared/mma/layout.h), which gives
rdna3's and gfx1250's operands and the 16 elements of f8f6f4. A permutation of K that is the same
for A and B changes no result, except through scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.emulate.waves import Array
from tilewright.listing.target import Generation

MFMA_ROWS = 4
"""Consecutive rows of C and D in a lane of MFMA."""
SCALED = 32
"""Elements of K that share a scale."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a matrix are in a wave.

    across: elements of the dimension that lies across lanes; along: of the other dimension.
    run: consecutive elements of the other dimension in a lane. groups: of `across` lanes.
    """

    across: int
    along: int
    run: int
    groups: int

    @property
    def elements(self) -> int:
        """Elements in each lane."""
        return self.along // self.groups

    def lanes(self) -> Array:
        """int (across, along): the lane of each element, the first if several have it."""
        outer, inner = np.ogrid[: self.across, : self.along]
        return np.asarray(outer + self.across * (inner // self.run % self.groups))

    def places(self) -> Array:
        """int (across, along): the place of each element among its lane's elements, counted from
        the lowest bits of the first register."""
        inner = np.arange(self.along)
        place = inner % self.run + inner // (self.run * self.groups) * self.run
        return np.broadcast_to(place, (self.across, self.along))


def operand(generation: Generation, across: int, depth: int, bits: int) -> Layout:
    """The layout of A (across: its rows) or B (across: its columns).

    depth: K. bits: of an element.
    """
    if generation == "rdna3":
        return Layout(across, depth, depth, 1)
    if generation == "rdna4":
        return Layout(across, depth, depth // 2, 2)
    if generation == "gfx1250":
        return Layout(across, depth, {32: 2, 16: 8, 8: 16}.get(bits, 32), 2)
    groups = 64 // across
    whole = depth // groups
    return Layout(across, depth, 16 if bits == 8 and whole > 16 else whole, groups)


def result(generation: Generation, rows: int, columns: int) -> Layout:
    """The layout of C and D, with rows along: `Layout.lanes` and `Layout.places` are (columns,
    rows)."""
    if generation == "rdna3":
        return Layout(columns, rows, 1, 2)
    if generation in ("rdna4", "gfx1250"):
        return Layout(columns, rows, 8, 2)
    return Layout(columns, rows, MFMA_ROWS, 64 // columns)
