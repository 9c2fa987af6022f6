"""The estimate of kernels for few rows on the vector units, and for 4-bit weights: see
`estimate`."""

from __future__ import annotations

import numpy as np

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.estimate import Estimates
from tilewright.ops.gemm import breakdown, scales
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.estimate_step import speed
from tilewright.ops.gemm.pipelines.gluon_weights import wide
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.pool import Columns, Each, each


def vectors(c: Columns, p: GemmProblem, device: Device) -> Estimates:
    """Few rows on the vector units. Memory bandwidth limits the kernel, if enough bytes are under
    way to use it. L1 holds the few rows of A, and every workgroup reads A from there."""
    this, element, units = arch(device.arch), DTYPES[p.dtype_a].bytes, device.compute_units
    bandwidth = device.bandwidth_gbs * 1e3
    tiles = np.ceil(p.n / c.tile_n)
    parts = tiles * c.split_k
    step = c.tile_n * c.tile_k * element  # of B; A comes from L1
    resident = np.maximum(1, GEMM.FEW_RESIDENT_WARPS // c.num_warps)
    ahead = np.maximum(1, c.num_stages - 1)
    per_part = np.minimum(ahead * step, step * p.k / c.split_k / c.tile_k)
    under_way = np.minimum(parts, units * resident) * per_part
    reached = np.minimum(1.0, under_way / (bandwidth * GEMM.FEW_MEMORY_US))
    memory = p.min_bytes / (bandwidth * GEMM.FEW_BANDWIDTH) / reached
    flops = 2.0 * c.tile_m * tiles * c.tile_n * p.k
    rate = this.fma_flops_per_cu_per_clock * units * device.clock_mhz * GEMM.VECTOR
    fill = np.where(c.tile_m == 1, GEMM.FEW_FILL_US, GEMM.FEW_FILL_US_OF_ROWS)
    fill += parts / units * GEMM.FEW_START_US
    further = c.tile_m - 1  # rows; what the first one costs is in the fill
    fill += further * c.num_warps * GEMM.FEW_ADDING_UP_US
    again = parts * further * p.k / c.split_k * element
    fill += again / (units * GEMM.L1_BYTES_PER_CLOCK * device.clock_mhz)
    partials = parts * c.tile_m * c.tile_n * 4
    meeting = DEVICE.MEETING_US + 2 * partials / GEMM.FEW_L2_OVER_MEMORY / bandwidth
    meeting = np.where(c.shares, meeting, 0.0)
    return _overlapping(device, parts, flops / rate, memory, fill, meeting, each(c, speed, this))


def unpacking(c: Columns, p: GemmProblem, device: Device) -> Estimates:
    """Weights of 4 bits. The rate of instructions limits the kernel, and falls with few warps."""
    this, units = arch(device.arch), device.compute_units
    tiles = p.batch * (np.ceil(p.m / c.tile_m) * np.ceil(p.n / c.tile_n))
    parts = tiles * c.split_k
    weights = tiles * c.tile_n * p.k
    lanes = this.simds_per_cu * this.warp_size * units
    warps = parts * c.num_warps / units
    reached = GEMM.ISSUED * np.minimum(1.0, np.sqrt(np.sqrt(warps / GEMM.WARPS_TO_HIDE)))
    compute = weights * each(c, _instructions) / (lanes * device.clock_mhz) / reached
    a_again = tiles * DTYPES[p.dtype_a].size(c.tile_m * p.k)
    memory = p.min_bytes + a_again / GEMM.L2_OVER_MEMORY_OF_ROWS
    memory /= device.bandwidth_gbs * 1e3 * np.minimum(1.0, parts / units)
    meeting = np.where(c.split_k > 1, DEVICE.MEETING_US * c.split_k / 8, 0.0)
    fill = np.full(len(c), GEMM.UNPACKING_FILL_US)
    return _overlapping(device, parts, compute, memory, fill, meeting, 1.0)


def _instructions(config: GemmConfig) -> float:
    """For each weight that is unpacked."""
    columns = config.tile_n / config.num_warps
    found = GEMM["UNPACKING"][config.dtype_b]
    if wide(config):
        found += GEMM.UNPACKING_WIDE
    else:
        found += GEMM.UNPACKING_BESIDE * config.tile_m / 8 * 32 / columns
    if group := scales.k_block(config):
        found += GEMM.SCALING_OF_32 * config.tile_m / 8 * 32 / group
    return found


def _overlapping(
    device: Device,
    parts: Each,
    compute: Each,
    memory: Each,
    fill: Each,
    meeting: Each,
    speed: Each,
) -> Estimates:
    """Products and memory traffic overlap; the other terms do not."""
    filled = parts / device.compute_units
    waves, none = np.maximum(1, np.ceil(filled)), np.zeros(len(parts))
    launch = none + DEVICE.LAUNCH_US
    return breakdown.estimates(
        launch + (fill + np.maximum(compute, memory) + meeting) / speed,
        (compute, none, none, none, memory, fill, meeting, launch),
        parts,
        waves,
        filled / waves,
    )
