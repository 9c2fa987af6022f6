"""The estimate of kernels for few rows on the vector units, and for 4-bit weights: see
`estimate`."""

from __future__ import annotations

import math

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import pipelines, rates, scales
from tilewright.ops.gemm.breakdown import LAUNCH, MEMORY, PRODUCTS, Breakdown
from tilewright.ops.gemm.config import SHARING, GemmConfig
from tilewright.ops.gemm.pipelines.gluon_weights import wide
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import tiles as tiles_of


def vectors(config: GemmConfig, problem: GemmProblem, device: Device, this: Arch) -> Breakdown:
    """Few rows on the vector units. Memory bandwidth limits the kernel, if enough bytes are under
    way to use it. L1 holds the few rows of A, and every workgroup reads A from there."""
    element = DTYPES[problem.dtype_a].bytes
    tiles = -(-problem.n // config.tile_n)
    parts = tiles * config.split_k
    step = config.tile_n * config.tile_k * element  # of B; A comes from L1
    resident = rates.FEW_RESIDENT_WARPS // config.num_warps
    ahead = max(1, config.num_stages - 1)
    units = device.compute_units
    bandwidth = device.bandwidth_gbs * 1e3
    per_part = min(ahead * step, step * problem.k / config.split_k / config.tile_k)
    under_way = min(parts, units * max(1, resident)) * per_part
    reached = min(1.0, under_way / (bandwidth * rates.FEW_MEMORY_US))
    memory = problem.min_bytes / (bandwidth * rates.FEW_BANDWIDTH) / reached
    flops = 2.0 * config.tile_m * tiles * config.tile_n * problem.k
    rate = this.fma_flops_per_cu_per_clock * units * device.clock_mhz * rates.VECTOR
    fill = rates.FEW_FILL_US if config.tile_m == 1 else rates.FEW_FILL_US_OF_ROWS
    fill += parts / units * rates.FEW_START_US
    further = config.tile_m - 1  # rows; what the first one costs is in the fill
    fill += further * config.num_warps * rates.FEW_ADDING_UP_US
    again = parts * further * problem.k / config.split_k * element
    fill += again / (units * rates.L1_BYTES_PER_CLOCK * device.clock_mhz)
    meeting = 0.0
    if config.scheduler in SHARING:
        partials = parts * config.tile_m * config.tile_n * 4
        meeting = rates.MEETING_US + 2 * partials / rates.FEW_L2_OVER_MEMORY / bandwidth
    return _of(config, this, device, parts, flops / rate, memory, fill, meeting)


def unpacking(config: GemmConfig, problem: GemmProblem, device: Device, this: Arch) -> Breakdown:
    """Weights of 4 bits. The rate of instructions limits the kernel, and falls with few warps."""
    tiles = tiles_of(config, problem)
    parts = tiles * config.split_k
    columns = config.tile_n / config.num_warps
    each = rates.UNPACKING[config.dtype_b]
    if wide(config):
        each += rates.UNPACKING_WIDE
    else:
        each += rates.UNPACKING_BESIDE * config.tile_m / 8 * 32 / columns
    if group := scales.k_block(config):
        each += rates.SCALING_OF_32 * config.tile_m / 8 * 32 / group
    weights = tiles * config.tile_n * problem.k
    lanes = this.simds_per_cu * this.warp_size * device.compute_units
    warps = parts * config.num_warps / device.compute_units
    reached = rates.ISSUED * min(1.0, math.sqrt(math.sqrt(warps / rates.WARPS_TO_HIDE)))
    compute = weights * each / (lanes * device.clock_mhz) / reached
    a_again = tiles * DTYPES[problem.dtype_a].size(config.tile_m * problem.k)
    memory = problem.min_bytes + a_again / rates.L2_OVER_MEMORY_OF_ROWS
    memory /= device.bandwidth_gbs * 1e3 * min(1.0, parts / device.compute_units)
    meeting = rates.MEETING_US * config.split_k / 8 if config.split_k > 1 else 0.0
    return _of(config, this, device, parts, compute, memory, rates.UNPACKING_FILL_US, meeting)


def _of(
    config: GemmConfig,
    this: Arch,
    device: Device,
    parts: int,
    compute: float,
    memory: float,
    fill: float,
    meeting: float,
) -> Breakdown:
    """Products and memory traffic overlap; the other terms do not."""
    slower = 1.0
    if pipelines.of(config).estimate != "unpacking":
        slower = rates.ELEMENTWISE if config.alignment < 4 else 1.0
        slower *= rates.WIDE_INDEX[this.backend] if config.index_bits == 64 else 1.0
    waves = max(1, -(-parts // device.compute_units))
    limiter, longest = max((PRODUCTS, compute), (MEMORY, memory), key=lambda term: term[1])
    return Breakdown(
        parts=parts,
        parts_per_unit=waves,
        waves=waves,
        fullness=parts / device.compute_units / waves,
        compute_us=compute,
        shared_us=0.0,
        l2_us=0.0,
        latency_us=0.0,
        memory_us=memory,
        fill_us=fill,
        meeting_us=meeting,
        launch_us=rates.LAUNCH_US,
        total_us=rates.LAUNCH_US + (fill + max(compute, memory) + meeting) / slower,
        limiter=limiter if longest > rates.LAUNCH_US else LAUNCH,
    )
