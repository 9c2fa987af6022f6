"""How long a kernel for blocks of pixels (`subpixel`) should take: its products' loads, y's way
from L2, and the kernel before it."""

from __future__ import annotations

import math

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import device_rates as rates
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.pipelines.subpixel import SUBPIXEL
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate

INSTRUCTIONS, FINISHED = 62, 90
"""Instructions of a lane for each vector that a step loads, with its share of waiting and of the
products, and for each sum that is stored. Fitted to 64 kernels for four layers on an H200
(benchmarks/results/conv_stems_data_h200.json)."""

LOADS, PORT, MEMORY, FILTERS, LAUNCH = "loads", "L2", "memory", "filters", "launch"
VECTOR_BYTES = 16
"""Bytes of a vector of the weights, which the first kernel writes."""


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    size, this = DTYPES[p.dtype].bytes, arch(device.arch)
    count, steps = SUBPIXEL.tiles(c, p), SUBPIXEL.steps(c, p)
    shares = max(1.0, count / device.compute_units)
    of_y = c.tile_m * c.tile_k * size
    of_w = c.tile_n * c.tile_k * size
    vectors = of_y / c.alignment + of_w / VECTOR_BYTES
    lanes = this.fma_flops_per_cu_per_clock / 2
    instructions = steps * vectors * INSTRUCTIONS + c.tile_m * c.tile_n * FINISHED
    loads = shares * instructions / lanes / device.clock_mhz
    through = device.clock_mhz * rates.PORT_BYTES_PER_CLOCK * rates.PORT_SHARE
    port = shares * steps * (of_y + of_w) / through
    memory = p.min_bytes / (device.bandwidth_gbs * 1e3)
    launch = rates.LAUNCH_US + 2 * rates.LATENCY_US
    terms = (
        (LOADS, loads), (PORT, port), (MEMORY, memory), (FILTERS, rates.SECOND_US),
        (LAUNCH, launch),
    )  # fmt: skip
    total = math.hypot(max(loads, port), memory) + rates.SECOND_US + launch
    limiter = max(terms, key=lambda term: term[1])[0]
    return Estimate(total, limiter, terms, (f"{count} workgroups",))
