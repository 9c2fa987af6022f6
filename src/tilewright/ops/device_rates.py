"""The figures of devices that estimates of several families use beside data sheets: rates, shares,
latencies. Each comment names the figure's class; `ops/gemm/rates.py` explains the classes."""

from __future__ import annotations

LAUNCH_US = 4.35
"""Time of a kernel that does nothing, as events measure it. Fitted."""

LATENCY_US = 0.55
"""From requesting a tile to its arrival, under load. Fitted."""

PORT_BYTES_PER_CLOCK = 64
"""The most that a compute unit takes in from L2 on NVIDIA GPUs; assumed for AMD's too."""

PORT_SHARE = 0.755
"""Share of that it reaches. Fitted; 12.5 TB/s on an H200."""

ROW_BYTES, SECTOR_BYTES = 128, 32
"""Bytes of a row of a box that the copy engine moves, a swizzle's span; and of a sector, by which
L2 is read."""

ASKEW_ROW_US, OUTSIDE_ROW_US = 0.0024, 0.005
"""What the copy engine takes for a row where rows of the array are no multiple of a sector apart,
and for one that is outside the array, in whole or in part, and filled with zeros. A row inside
takes 1.4 ns at the port's rate. Read off the convolutions with filters of 1 that were tuned on an
H200. Rows of A past M in tiles taller than M do not count: with them the estimate chose worse."""

STORE_SHARE = 0.44
"""Share of that rate at which a tile is stored when nothing overlaps the store. Fitted."""

SHARED_BYTES_PER_CLOCK = 128
"""Bandwidth of a compute unit's shared memory: 32 banks of 4 bytes. A free fit gave 119 to 128."""

POWER_SHARE = 0.78
"""Share of the published matrix rate that power lets the whole device sustain, whatever the kernel.
A wave that leaves the other share of compute units idle reaches the full rate. Fitted."""

LEAST_PART = 32
"""Columns that a matrix instruction of sm_90 takes the time of at least: those in which it reads 64
rows of A, 2 KB, from shared memory (see `SHARED_BYTES_PER_CLOCK`). Derived, not timed."""

SERIAL_PRODUCTS = 0.3
"""Share of a step's products that loads do not overlap, where warps feed the matrix units through
registers. Fitted."""

BASIC, TMA = 0.745, 0.91
"""Shares of the published matrix rate that steps of these pipelines reach when nothing else holds
them up. Fitted. The other pipelines' shares are in their records (`pipelines`), and are ratios; no
architecture measured has tma_ws."""

SECOND_US = 2.0
"""A kernel that follows another without a gap on the host. A guess."""

READ_APART = 1.7
"""Factor on the time of reading where no two workgroups read the same bytes at the same time, so
that L2 answers each by itself. Fitted to searches."""
