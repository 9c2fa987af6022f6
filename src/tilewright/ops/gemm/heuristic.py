"""A first guess at a kernel's time, from sizes and data-sheet rates alone.

It ranks kernels where nothing was measured. The matrix units and the memory system work side by
side, so a kernel takes as long as the slower. Compute units take whole tiles, so the busiest one
decides; how much of the matrix rate a tile reaches grows with how often it uses each element it
loads. The constants below are round guesses, not fits.
"""

from __future__ import annotations

import math

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import lowbit, scales
from tilewright.ops.gemm.config import SHARING, SMALL_M, GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import operand_dtype, shared_memory
from tilewright.ops.gemm.sizes import tiles as tiles_of
from tilewright.ops.gemm.small_m import vector

LAUNCH_SECONDS = 4e-6
"""What any kernel takes, however little it does."""

PROLOGUE_K = 128
"""Elements of K whose time a tile spends filling its pipeline and storing C."""

NARROW_ROW_RATE = 0.85
"""Share of its rate a kernel keeps when a tile's rows are under 128 bytes: a swizzle's span."""

PIPELINE_RATE = {
    "basic": 0.75,
    "tma": 0.95,
    "tma_ws": 1.0,
    "gluon_ws": 0.96,
    "gluon_pingpong": 1.0,
    "gluon_cdna": 0.7,
    "small_m": 0.3,
    "small_m_tma": 0.4,
    "gluon_scaled": 0.96,
    "weights": 0.25,
    "mx": 0.6,
    "preshuffle": 0.75,
}
"""Share of the matrix rate a pipeline reaches with the largest tile. gluon_cdna has never run:
until somebody measures it, the simpler kernel goes first."""

MX_CONVERTED_RATE = 0.3
"""That of pipeline mx where the compiler multiplies elements by scales first, for bf16
instructions."""

FILL_SECONDS = {"small_m": 1e-6, "small_m_tma": 0.8e-6}
"""From a kernel's start to its first product, and from its last load to its end."""

FILL_SECONDS_ELSEWHERE = 3e-6
FILL_SECONDS_OF_VECTORS = 0.2e-6

VECTOR_RATE = 0.2
"""Share of the vector units' rate left when each element is converted and loaded first."""

MEMORY_SECONDS = 1e-6
"""From asking a busy memory for a line to having it: so many bytes must be on their way at once."""

RESIDENT_WARPS = 32
"""Warps of a kernel without shared memory that a compute unit holds."""

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

SCALED_RATE = 0.55
"""Share of its rate a kernel keeps that adds scaled products while the matrix units wait."""

MEETING_SECONDS = 2e-6
"""What the workgroups of a tile spend on publishing their partial sums and finding each other."""

STAGE_RATE = {1: 0.6, 2: 0.85, 3: 0.97}
"""Share of its rate a pipeline of so many stages keeps; deeper ones keep all."""

HALF_RATE_REUSE = 24.0
"""Uses of each loaded element at which a tile reaches half of its pipeline's rate."""

ELEMENTWISE_RATE = 0.4
"""Share of its speed a kernel keeps when its loads cannot be vectors."""

WIDE_INDEX_RATE = 0.9
"""Share it keeps when offsets are 64-bit, which on AMD also rules buffer loads out."""

L2_OVER_MEMORY = 3.0
"""Bandwidth of L2 over that of memory, near enough on every GPU listed."""


def estimate(config: GemmConfig, problem: GemmProblem, device: Device) -> float:
    """Seconds `config` should take for `problem` on `device`."""
    this = arch(device.arch)
    if config.pipeline in SMALL_M:
        return LAUNCH_SECONDS + _small_m(config, problem, device, this)
    if config.pipeline == "gluon_weights":
        return LAUNCH_SECONDS + FILL_SECONDS_ELSEWHERE + _unpacking(config, problem, device, this)
    work = max(_compute_and_memory(config, problem, device))
    if config.scheduler in SHARING:
        parts = tiles_of(config, problem) * config.split_k
        partials = (parts if config.scheduler == "split_k" else 2 * device.compute_units) * (
            config.tile_m * config.tile_n * 4
        )
        bandwidth = _bandwidth(config, parts, device)
        work += MEETING_SECONDS + 2 * partials / L2_OVER_MEMORY / bandwidth
    if config.alignment < 4:
        work /= ELEMENTWISE_RATE
    if config.index_bits == 64:
        work /= WIDE_INDEX_RATE
    return LAUNCH_SECONDS + FILL_SECONDS_ELSEWHERE + work


def order(
    config: GemmConfig, problem: GemmProblem, device: Device
) -> tuple[float, int, float, str]:
    """What kernels are ranked by, least first: the estimate; where it is memory's time, which is
    the same for many, the deepest pipeline (as far as K goes), as that has the most bytes on their
    way, and then the least time on the matrix units; and the name."""
    seconds = estimate(config, problem, device)
    if config.pipeline not in (*SMALL_M, "gluon_weights"):
        compute, memory = _compute_and_memory(config, problem, device)
        if memory >= compute:
            steps = math.ceil(problem.k / config.split_k / config.tile_k)
            return seconds, -min(config.num_stages, steps), compute, config.name
    return seconds, 0, 0.0, config.name


def _compute_and_memory(
    config: GemmConfig, problem: GemmProblem, device: Device
) -> tuple[float, float]:
    """Seconds on the matrix units, and seconds of memory traffic, which go on side by side."""
    this = arch(device.arch)
    tiles = tiles_of(config, problem)
    parts, k = tiles * config.split_k, problem.k / config.split_k
    parts_per_cu = float(-(-parts // device.compute_units))
    if config.scheduler == "stream_k":
        parts_per_cu = max(1.0, parts / device.compute_units)
        k = min(k, k * tiles / device.compute_units)
    depth = math.ceil(k / config.tile_k) * config.tile_k + PROLOGUE_K
    tile_flops = 2.0 * config.tile_m * config.tile_n * depth
    reuse = config.tile_m * config.tile_n / (config.tile_m + config.tile_n)
    reached = _rate(config, this) * reuse / (reuse + HALF_RATE_REUSE)
    reached *= STAGE_RATE.get(config.num_stages, 1.0)
    if scales.count(config) and config.pipeline in ("basic", "tma", "tma_ws"):
        reached *= SCALED_RATE
    a, b = DTYPES[problem.dtype_a], DTYPES[problem.dtype_b]
    if a.size(config.tile_k) < 128:
        reached *= NARROW_ROW_RATE
    rate = peak_tflops(this, device, operand_dtype(config)) * 1e12 * reached
    compute = parts_per_cu * tile_flops / (rate / device.compute_units)

    loads = tiles * (a.size(config.tile_m * problem.k) + b.size(config.tile_n * problem.k))
    once = problem.min_bytes + _again(config, problem) / L2_OVER_MEMORY
    return compute, max(once, loads / L2_OVER_MEMORY) / _bandwidth(config, parts, device)


def _bandwidth(config: GemmConfig, parts: int, device: Device) -> float:
    """Bytes a second that a launch of so many parts of tiles can move."""
    shares = device.compute_units if config.scheduler == "stream_k" else parts
    busy = min(1.0, shares / device.compute_units)
    return device.bandwidth_gbs * 1e9 * min(1.0, busy + 0.25)


def _rate(config: GemmConfig, this: Arch) -> float:
    """Share of the matrix rate the config's pipeline reaches with the largest tile."""
    scaled = operand_dtype(config) in ("mxfp8", "mxfp4")  # by the instructions, where they exist
    if config.pipeline == "mx" and not (
        scaled and this.dtypes[operand_dtype(config)].support == "native"
    ):
        return MX_CONVERTED_RATE
    return PIPELINE_RATE[config.pipeline]


def _again(config: GemmConfig, problem: GemmProblem) -> int:
    """Bytes of A that tiles beside one another read again."""
    tiles_n = -(-problem.n // config.tile_n)
    return (tiles_n - 1) * problem.m * problem.k * DTYPES[problem.dtype_a].bytes


def _small_m(config: GemmConfig, problem: GemmProblem, device: Device, this: Arch) -> float:
    """Few rows: the memory system decides, as far as enough bytes are on their way to use it."""
    element = DTYPES[problem.dtype_a].bytes
    tiles = -(-problem.n // config.tile_n)
    parts = tiles * config.split_k
    step = (config.tile_m + config.tile_n) * config.tile_k * element
    if vector(config):
        resident, ahead = RESIDENT_WARPS // config.num_warps, max(1, config.num_stages - 1)
    else:
        buffers = shared_memory(config, this) + this.shared_memory_reserved
        resident, ahead = this.shared_memory_per_cu // buffers, config.num_stages - 1
    units = device.compute_units
    bandwidth = device.bandwidth_gbs * 1e9
    per_part = min(ahead * step, step * problem.k / config.split_k / config.tile_k)
    under_way = min(parts, units * max(1, resident)) * per_part
    reached = min(1.0, under_way / (bandwidth * MEMORY_SECONDS))
    memory = problem.min_bytes / bandwidth / reached
    if not vector(config):  # few enough rows for L1 elsewhere
        memory += _again(config, problem) / L2_OVER_MEMORY / bandwidth
    flops = 2.0 * config.tile_m * tiles * config.tile_n * problem.k
    if vector(config):
        rate = this.fma_flops_per_cu_per_clock * units * device.clock_mhz * 1e6
        work = FILL_SECONDS_OF_VECTORS + max(memory, flops / rate / VECTOR_RATE)
    else:
        rate = (
            PIPELINE_RATE[config.pipeline] * 1e12 * peak_tflops(this, device, operand_dtype(config))
        )
        work = FILL_SECONDS[config.pipeline] + max(memory, flops / rate)
    if config.scheduler in SHARING:
        partials = parts * config.tile_m * config.tile_n * 4
        work += MEETING_SECONDS + 2 * partials / L2_OVER_MEMORY / bandwidth
    if config.alignment < 4:
        work /= ELEMENTWISE_RATE
    if config.index_bits == 64:
        work /= WIDE_INDEX_RATE
    return work


def _unpacking(config: GemmConfig, problem: GemmProblem, device: Device, this: Arch) -> float:
    """Weights of 4 bits: instructions decide, as far as enough warps are there to issue them."""
    tiles = tiles_of(config, problem)
    parts = tiles * config.split_k
    columns = config.tile_n / config.num_warps
    each = UNPACKING[config.dtype_b]
    if lowbit.wide(config):
        each += UNPACKING_WIDE
    else:
        each += UNPACKING_BESIDE * config.tile_m / 8 * 32 / columns
    if group := scales.k_block(config):
        each += SCALING_OF_32 * config.tile_m / 8 * 32 / group
    weights = tiles * config.tile_n * problem.k
    lanes = this.simds_per_cu * this.warp_size * device.compute_units
    warps = parts * config.num_warps / device.compute_units
    reached = ISSUED * min(1.0, math.sqrt(math.sqrt(warps / WARPS_TO_HIDE)))
    compute = weights * each / (lanes * device.clock_mhz * 1e6) / reached
    a_again = tiles * DTYPES[problem.dtype_a].size(config.tile_m * problem.k)
    memory = (problem.min_bytes + a_again / L2_OVER_MEMORY_OF_ROWS) / device.bandwidth_gbs / 1e9
    memory /= min(1.0, parts / device.compute_units)
    meeting = MEETING_SECONDS * config.split_k / 8 if config.split_k > 1 else 0.0
    return max(compute, memory) + meeting
