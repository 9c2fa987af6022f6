"""The figures that attention's estimate uses beside data sheets, and beside those that GEMM's
estimate fitted to a device (`tilewright.ops.device_rates`): launch, latency, L2.

Those that a comment does not derive, and the paces of pipelines in their records, were fitted to
559 medians of an H200. For other GPUs they are what that one's were. How good the fits are:
docs/notes/attention-estimate.md.
"""

from __future__ import annotations

SERIAL = 0.5
"""Share of the shorter of products and softmax that the longer does not hide (`Pace`), of kernels
in Triton, which leave that to several workgroups on a compute unit."""

SMALL_DOT = 0.47
"""Factor on the matrix rate where an architecture multiplies tiles of 64 rows by instructions of
their own (wgmma) and the tile has fewer rows: the others (mma.sync) have about that rate."""

SCORE_INSTRUCTIONS = 16
"""Vector instructions for each score besides its exponential (`Pace`), of kernels that take the
maximum before the weights."""

FEATURE_INSTRUCTIONS = {"softcap": 18, "bias": 4, "alibi": 8, "dropout": 10}
"""Further ones, by feature. Dropout: a Philox of ten rounds gives sixteen random bytes, about 100
instructions for 16 scores, and the comparison."""

FEATURE_EXPONENTIALS = {"softcap": 2}
"""Further transcendental operations for each score: tanh takes an exponential and a reciprocal."""

MASK_INSTRUCTIONS = 4
"""Further ones for each score of a step that the mask cuts."""

STEP_US = 0.1
"""What a workgroup needs for each step beside products and softmax: barriers, and reductions along
rows. Other workgroups on its compute unit hide it."""

MEMORY_US = 1.0
"""From asking a busy memory for a line to having it."""

COMBINE_US = 5.9
"""Time of each further step of a launch: a kernel that follows another without a gap on the
host."""

EMPTY_US = 0.4
"""Time of a workgroup that finds nothing to do: beyond a sequence's length, or all masked."""

PAGE_US = 0.37
"""From asking for an entry of a page table to having it; then its rows are asked for."""

PAGE_INSTRUCTIONS = 15
"""Scalar instructions to find a page, for each page of a step and each warp."""

L2_KEPT = 0.6
"""Share of L2 that holds keys and values while others stream through it."""

L2_MISSED = 0.02
"""Share of the reads after the first that L2 misses although it could have kept the line: the tiles
that read the same keys do not run in step."""

RESIDENT_REGISTERS = 49
"""Registers of a thread beside scores and sums."""

NARROW = {16: 1.0, 8: 1.1, 4: 1.3, 2: 1.8, 1: 1.8}
"""Factor on the time of reading where rows are only so aligned, by bytes."""
