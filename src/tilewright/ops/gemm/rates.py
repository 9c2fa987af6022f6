"""The figures that a GEMM's estimate uses beside data sheets: rates, shares, latencies.

Each figure is of one of these classes, which its comment names.

Fitted: to one sweep of an H200 (200 bf16 kernels of pipelines basic, tma, gluon_ws and
gluon_pingpong, on each of 50 problems, L2 flushed). `benchmarks/analytical.py` says how good the
choices of such fits are on problems that the fit did not see
(benchmarks/results/analytical_h200.json). The figures are shares of a data sheet's, or clocks, or a
latency, so that they can be used for other GPUs. That they hold there is an assumption until
somebody measures.

Fitted to searches: later, to the measurements of a tuning (1120 problems of models in bf16, about
19 kernels each, the best by the estimates of that time).

Ratios: of a pipeline that the sweep did not have to a pipeline that it had, guessed or read off
single measurements.

Guesses: round figures.
"""

from __future__ import annotations

# --- the device: fitted, and taken for all of them -----------------------------------------

LAUNCH_US = 4.35
"""What any kernel takes, however little it does, as events see it. Fitted."""

FEW_LAUNCH_US = 4.0
"""The same of kernels for few rows on the matrix units, whose tiles of C leave from registers. Read
off single measurements."""

LATENCY_US = 0.55
"""From asking memory for a tile to having it, under load. Fitted."""

PORT_BYTES_PER_CLOCK = 64
"""What a compute unit can take in from L2: so on NVIDIA GPUs; taken for AMD's too."""

PORT_SHARE = 0.755
"""Share of that it reaches. Fitted; 12.5 TB/s on an H200."""

SHORT_PORT_SHARE, SHORT_US = 0.82, 80.0
"""The same where reading takes less long than this, and power does not slow the clock yet. Fitted
to searches of 1120 problems."""

STORE_SHARE = 0.44
"""Share of that rate at which a tile is stored that nothing else goes on beside. Fitted."""

SHARED_BYTES_PER_CLOCK = 128
"""What a compute unit's shared memory reads or writes: 32 banks of 4 bytes. Left free, the fit put
it at 119 to 128."""

WARP_CLOCKS = 12
"""What each warp adds to every step of K: barriers and the loop. Fitted."""

COPY_CLOCKS = 4
"""What each load of 16 bytes a lane adds, where warps load through pointers. Fitted."""

POWER_SHARE = 0.78
"""Share of the published matrix rate that the whole device keeps up, whatever the kernel: power. A
wave that leaves so many compute units idle has it all. Fitted."""

SERIAL_PRODUCTS = 0.3
"""Share of a step's products that loads do not run beside, where warps feed the matrix units
through registers. Fitted."""

POINTER_REGISTERS = 60
"""Registers that a matrix kernel takes beside its accumulators where it loads through pointers; the
compiler took 56 to 74 (sm_90). With descriptors: `sizes.OVERHEAD_REGISTERS`."""

# --- pipelines -----------------------------------------------------------------------------

BASIC, TMA = 0.745, 0.91
"""Shares of the published matrix rate that steps of these pipelines reach when nothing else holds
them up. Fitted. The other pipelines' shares are in their records (`pipelines`), and are ratios; no
architecture measured has tma_ws."""

MX_CONVERTED = 0.5
"""What is left of pipeline mx's rate where the compiler multiplies 8-bit elements by scales first,
for bf16 instructions. A ratio."""

SCALED = 0.55
"""What is left of its rate to a kernel that adds scaled products while the matrix units wait. A
ratio."""

NARROW_ROWS = 0.85
"""What is left of its rate to one whose tiles' rows are under 128 bytes, a swizzle's span. A
guess."""

ELEMENTWISE = 0.4
"""What is left of its speed to a kernel whose loads cannot be vectors. A guess."""

WIDE_INDEX = {"cuda": 0.999, "hip": 0.9}
"""What is left of it where offsets are 64-bit. On NVIDIA the sweep saw no difference, and the plain
kernel goes first; on AMD it rules buffer loads out, which is a guess."""

ATOMIC_READS = 2
"""Partial sums that it takes the time of to read the one that atomics have added up, and to put
zeros back."""

MEETING_US = 2.0
"""What the workgroups of a tile spend on publishing their partial sums and finding each other. Read
off single measurements."""

MEETING_AGAIN_US = 1.0
"""What each further level of a tree takes besides its traffic."""

LATER_US = 0.6
"""By how much the last of twice as many workgroups comes later. Both fitted to searches of 1120
problems."""

READ_APART = 1.7
"""How many times as long reading takes where no two workgroups read the same at the same time, and
L2 has to answer each by itself. Fitted to searches of 1120 problems."""

ADDING_UP_US = 0.0016
"""For each element of a tile whose K four warps shared out, what adding up their sums takes at its
end: code that runs once, and so waits for itself. Fitted to searches of 1120 problems."""

# --- few rows of A on the vector units; 4-bit weights: read off single measurements ---------

FEW_FILL_US = 0.2
"""From a kernel's start to its first product and from its last load to its end, for one row of A;
its threads meet once, at the end."""

FEW_FILL_US_OF_ROWS = 0.6
"""The same for two rows and four, whose sums meet one after the other. The estimate is within 10 %
(rms) of 20 medians of these, and within 4 % of 40 of one row."""

FEW_BANDWIDTH = 0.885
"""Share of the published bandwidth that they reach."""

UNPACKING_FILL_US = 2.65

FEW_MEMORY_US = 1.0
"""From asking a busy memory for a line to having it: so many bytes must be on their way at once."""

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
"""The same for 8 rows of sums that it multiplies by scales of groups of 32."""

UNPACKING_BESIDE = 0.3
"""The same for 8 rows of A that a warp picks out for 32 columns of its own."""

UNPACKING_WIDE = 1.0
"""The same where wgmma reads A itself, but four threads share the words of a column."""

L2_OVER_MEMORY_OF_ROWS = 2.0
"""What L2's bandwidth came to there when every workgroup read all rows of A."""

ISSUED = 0.5
"""Share of the issue slots it uses."""

WARPS_TO_HIDE = 8
"""Warps on a compute unit with which it reaches that; with fewer it loses by the fourth root."""
