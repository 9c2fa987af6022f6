"""The figures that a GEMM's estimate uses beside data sheets: rates, shares, latencies.

Each figure is of one of these classes, which its comment names.

Fitted: to one sweep of an H200. The figures are shares of a data sheet's, or clocks, or a latency,
so that they can be used for other GPUs. That they hold there is an assumption until somebody
measures.

Fitted to searches: later, to the measurements of a tuning.

Ratios: of a pipeline that the sweep did not have to a pipeline that it had, guessed or read off
single measurements.

Guesses: round figures.

Counted: instructions of machine code for AMD GPUs, executed by the emulator.

What was measured, and what each fit gained: docs/notes/gemm-estimate.md.
"""

from __future__ import annotations

# --- the device: fitted, and taken for all of them -----------------------------------------

FEW_LAUNCH_US = 4.0
"""`LAUNCH_US` of kernels for few rows on the matrix units, which store C from registers. Read off
single measurements."""

PORT_L2_BYTES = (60 << 20) / 132
"""Bytes of L2 that an H200 has for each compute unit. An H100 has 50 MB, and so five sixths of the
slices that answer. Single waves and short kernels reach the shares below on an H100 too."""

SHORT_PORT_SHARE, SHORT_US = 0.82, 80.0
"""`PORT_SHARE` where reading takes less than `SHORT_US`, so that power does not slow the clock yet.
Fitted to searches."""

COLD_US, COLD_FULL_US = 1.0, 0.55
"""From requesting a tile to its arrival where every workgroup has one part at most, so that all of
A and B come from memory while they are waited for: on an idle device, and what a full one adds.
Read off rings of 3 to 13 stages: a step takes this over the stages, until something else is slower.
Fitted, with the figures below, to 868 medians."""

COLD_PORT_SHARE, COLD_PORT_SHARE_APART = 0.975, 0.85
"""`PORT_SHARE` there. The second where a sum is split: then fewer workgroups read the same tile.
The second, `COLUMNS_AT_PEAK` and `MEETING_US` are fitted to 23,475 medians of a tuning on H200s."""

COLD_STREAM_US = 2.5
"""What stream-K takes there beyond its meeting."""

COLD_LEAST_ROWS = 65
"""Fewest rows and columns of C for which these hold. Kernels for fewer, which read B alone from
memory, go by `LATENCY_US`, with which the estimate chooses better for them."""

ASKEW_POINTERS_US = 0.003
"""`ASKEW_ROW_US` for rows that warps load through pointers. Fitted to 102 kernels on 42
products."""

WARP_CLOCKS = 12
"""Clocks that each warp adds to every step of K: barriers and the loop. Fitted."""

COPY_CLOCKS = 4
"""Clocks that each load of 16 bytes a lane adds, where warps load through pointers. Fitted."""

COLUMNS_AT_PEAK = {8: 30, 16: 30, 32: 38}
"""Columns for which a wider accumulator takes as much power as one of so few beside others: A is
read once for each. Without these, tiles such as 128x160 are the first choice for large products."""

POINTER_REGISTERS = 60
"""Registers that a matrix kernel takes beside its accumulators where it loads through pointers; the
compiler took 56 to 74 (sm_90). With descriptors: `sizes.OVERHEAD_REGISTERS`."""

# --- pipelines -----------------------------------------------------------------------------

MX_CONVERTED = 0.5
"""Factor on the rate of pipeline mx where the compiler first multiplies 8-bit elements by scales,
for bf16 instructions. A ratio."""

CONVERTING = {"e4m3fn": 26, "e4m3fnuz": 26, "e5m2": 2, "e5m2fnuz": 12}
"""Vector instructions for each element that an AMD GPU without instructions for its type converts
to fp16 first. Each wave converts what it multiplies. Counted (25 to 27, 1.8 to 2.0, 12)."""

SHARED_OF_VECTORS = 14.0
"""Factor on the time of shared memory where an AMD GPU multiplies tiles on its vector units: lanes
read elements one by one, from the same banks. Counted for fp32 on RDNA (11 to 20)."""

SCALED = 0.55
"""Factor on the rate of a kernel that adds scaled products while the matrix units wait. A ratio."""

SCALED_BETWEEN = 0.66
"""`SCALED` of basic and tma with wgmma, beside the clocks below: then a workgroup alone reaches
0.34 of the matrix rate with tma, 0.28 with basic and 0.40 if three share a compute unit (64x128
tiles; measured: 0.36, 0.29 and 0.49)."""

SCALING_CLOCKS, SCALING_COLUMN_CLOCKS, SCALING_SHOWS = 170, 1.13, 0.72
"""What a warp group of gluon_scaled takes to add the products of a block of K to its sums, for a
part of 64 rows, and for each of its columns; and the share of it that the products of another warp
group do not hide. Read off the greatest share of the matrix rate that each tile reached."""

UNSHARED_BLOCK_US = 0.17
"""What a step of a kernel for few rows takes longer for each further warp to a block of scales:
warps share out the blocks, and those beyond do not help. Read off steps of one block."""

NARROW_ROWS = 0.85
"""Factor on the rate of a kernel whose tiles have rows under 128 bytes, a swizzle's span. A
guess."""

ELEMENTWISE = 0.4
"""Factor on the speed of a kernel whose loads cannot be vectors. A guess."""

WIDE_INDEX = {"cuda": 0.999, "hip": 0.9}
"""Factor on the speed where offsets are 64-bit. On NVIDIA the sweep saw no difference; the factor
only puts the plain kernel first. On AMD 64-bit offsets rule out buffer loads; that factor is a
guess."""

ATOMIC_READS = 2
"""Reading the sum that atomics made, and writing zeros back, takes the time of reading this many
partial sums."""

MEETING_US = 2.5
"""Time that the workgroups of a tile need to publish their partial sums and to find each other.
Fitted with `COLD_PORT_SHARE_APART`."""

CLUSTER_US = 2.3
"""What a cluster's workgroups take beyond what they send: the exchange itself takes 0.9, its launch
and reading parts of K apart the rest. Fitted with `COLD_US`."""

MEETING_AGAIN_US = 1.0
"""Time of each further level of a tree, besides its traffic."""

LATER_US = 0.6
"""How much later the last workgroup comes when there are twice as many. Both fitted to searches."""

TOTALS_US = 4.3
"""A kernel that adds up the parts of a split K: it starts beside the end of the product, and waits
for all of it. Fitted to 33 kernels on an H100."""

ADDING_UP_US = 0.0016
"""Time for each element of a tile to add up the sums of four warps that shared out K. The code runs
once, so nothing hides its latency. Fitted to searches."""

# --- few rows of A on the vector units; 4-bit weights: read off single measurements ---------

FEW_FILL_US = 0.2
"""From a kernel's start to its first product and from its last load to its end, for one row of A;
its threads meet once, at the end."""

FEW_FILL_US_OF_ROWS = 0.6
"""`FEW_FILL_US` for two rows and four, whose sums meet one after the other."""

FEW_BANDWIDTH = 0.885
"""Share of the published bandwidth that they reach."""

UNPACKING_FILL_US = 2.65

FEW_MEMORY_US = 0.8
"""From asking a busy memory for a line to having it: so many bytes of B must be on their way at
once. Fitted to 429 medians of kernels on the vector units. A's bytes do not count."""

FEW_L2_OVER_MEMORY = 3.0
"""Bandwidth of L2 over that of memory."""

FEW_RESIDENT_WARPS = 32
"""Warps of a kernel without shared memory that a compute unit holds."""

FEW_START_US = 0.055
"""What each workgroup on a compute unit costs, of those for few rows on the vector units."""

FEW_ADDING_UP_US = 0.045
"""For each further row and each warp, what adding up the warps' sums takes. Both fitted to
searches of 250 problems of up to 8 rows."""

L1_BYTES_PER_CLOCK = 128
"""What a compute unit reads from its L1: so on NVIDIA GPUs; taken for AMD's too."""

VECTOR = 0.2
"""Share of the vector units' rate left when each element is converted and loaded first."""

UNPACKING = {"int4": 2.0, "e2m1": 3.0}
"""Instructions for each weight that gluon_weights unpacks."""

SCALING_OF_32 = 0.25
"""Instructions for each weight and 8 rows of sums that gluon_weights multiplies by scales of groups
of 32."""

UNPACKING_BESIDE = 0.3
"""Instructions for each weight and 8 rows of A that a warp picks out for 32 columns of its own."""

UNPACKING_WIDE = 1.0
"""Instructions for each weight where wgmma reads A itself, but four threads share the words of a
column."""

L2_OVER_MEMORY_OF_ROWS = 2.0
"""What L2's bandwidth came to there when every workgroup read all rows of A."""

ISSUED = 0.5
"""Share of the issue slots it uses."""

WARPS_TO_HIDE = 8
"""Warps on a compute unit with which it reaches that; with fewer it loses by the fourth root."""
