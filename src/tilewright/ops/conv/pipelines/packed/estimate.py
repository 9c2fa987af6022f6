"""How long a kernel that packs (`packed`) should take: its products' loads, and the kernel before
it."""

from __future__ import annotations

import math

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import device_rates as rates
from tilewright.ops.conv import packing, sharing, totals
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines.packed import PACK, PACKED
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate

INSTRUCTIONS, FINISHED = 50, 8
"""Instructions of a lane for each vector that a step loads, with its share of waiting and of the
products, and for each sum that is stored. Fitted to four layers on an H200
(benchmarks/results/conv_stems_h200.json)."""

LOADS, MEMORY, TOTALS, LAUNCH = "loads", "memory", "sum of parts", "launch"


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    size, this = DTYPES[p.dtype].bytes, arch(device.arch)
    weights = c.direction == "weights"
    splits = sharing.splits(c, p, device) if weights else 1
    count = PACKED.tiles(c, p) * splits
    if weights:
        steps: float = PACKED.steps(c, p) / splits
    else:
        steps = packing.filter_rows(p) * cdiv(packing.run(p), c.tile_k)
    vectors = (c.tile_m + c.tile_n) * c.tile_k * size / c.alignment
    lanes = this.fma_flops_per_cu_per_clock / 2
    shares = max(1.0, count / device.compute_units)
    instructions = steps * vectors * INSTRUCTIONS
    instructions += 0 if weights else c.tile_m * c.tile_n * FINISHED
    loads = shares * instructions / lanes / device.clock_mhz

    packed = sum(one.bytes for one in packing.temporaries(p))
    of_y = math.prod(p.shape_of("y")) * DTYPES[p.dtype if weights else p.dtype_out].bytes
    rate = device.bandwidth_gbs * 1e3
    memory = (packed + of_y) / rate
    packs = rates.SECOND_US + (math.prod(p.shape_of("x")) * size + packed) / rate
    launch = rates.LAUNCH_US + 2 * rates.LATENCY_US
    terms = [(LOADS, loads), (MEMORY, memory), (PACK, packs), (LAUNCH, launch)]
    total = math.hypot(loads, memory) + packs + launch
    if weights:
        terms.append((TOTALS, totals.us(c, p, splits, device)))
        total += terms[-1][1]
    limiter = max(terms, key=lambda term: term[1])[0]
    return Estimate(total, limiter, tuple(terms), (f"{count} workgroups",))
