"""A first guess at a kernel's time, from sizes and data-sheet rates alone.

It ranks kernels where nothing was measured. The matrix units and the memory system work side by
side, so a kernel takes as long as the slower. Compute units take whole tiles, so the busiest one
decides; how much of the matrix rate a tile reaches grows with how often it uses each element it
loads. The constants below are round guesses, not fits.
"""

from __future__ import annotations

import math

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.config import SHARING, GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.rules import operand_dtype

LAUNCH_SECONDS = 4e-6
"""What any kernel takes, however little it does."""

PROLOGUE_K = 128
"""Elements of K whose time a tile spends filling its pipeline and storing C."""

NARROW_ROW_RATE = 0.85
"""Share of its rate a kernel keeps when a tile's rows are under 128 bytes: a swizzle's span."""

PIPELINE_RATE = {"basic": 0.75, "tma": 0.95, "tma_ws": 1.0, "gluon_ws": 0.96, "preshuffle": 0.75}
"""Share of the matrix rate a pipeline reaches with the largest tile."""


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
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    parts, k = tiles * config.split_k, problem.k / config.split_k
    parts_per_cu = float(-(-parts // device.compute_units))
    if config.scheduler == "stream_k":
        parts_per_cu = max(1.0, parts / device.compute_units)
        k = min(k, k * tiles / device.compute_units)
    depth = math.ceil(k / config.tile_k) * config.tile_k + PROLOGUE_K
    tile_flops = 2.0 * config.tile_m * config.tile_n * depth
    reuse = config.tile_m * config.tile_n / (config.tile_m + config.tile_n)
    reached = PIPELINE_RATE[config.pipeline] * reuse / (reuse + HALF_RATE_REUSE)
    reached *= STAGE_RATE.get(config.num_stages, 1.0)
    element = DTYPES[problem.dtype_a].bytes
    if config.tile_k * element < 128:
        reached *= NARROW_ROW_RATE
    rate = peak_tflops(this, device, operand_dtype(config)) * 1e12 * reached
    compute = parts_per_cu * tile_flops / (rate / device.compute_units)

    loads = tiles * (config.tile_m + config.tile_n) * problem.k * element
    shares = device.compute_units if config.scheduler == "stream_k" else parts
    busy = min(1.0, shares / device.compute_units)
    bandwidth = device.bandwidth_gbs * 1e9 * min(1.0, busy + 0.25)
    memory = max(problem.min_bytes, loads / L2_OVER_MEMORY) / bandwidth
    work = max(compute, memory)
    if config.scheduler in SHARING:
        partials = (parts if config.scheduler == "split_k" else 2 * device.compute_units) * (
            config.tile_m * config.tile_n * 4
        )
        work += MEETING_SECONDS + 2 * partials / L2_OVER_MEMORY / bandwidth
    if config.alignment < 4:
        work /= ELEMENTWISE_RATE
    if config.index_bits == 64:
        work /= WIDE_INDEX_RATE
    return LAUNCH_SECONDS + work
