"""How long pipeline ``gluon_bands`` should take, from counted instructions and the data sheet's
rates. Nothing was fitted or timed.

A workgroup walks rows; a row's instructions share the schedulers with those of other workgroups on
the compute unit, and its barriers are waits that only these fill. The memory moves each array once.
The two overlap like the legs of a right triangle, as in the other estimates.
"""

from __future__ import annotations

import math

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops import device_rates as rates
from tilewright.ops.conv import totals
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.pipelines.bands.launch import cut, resident
from tilewright.ops.conv.pipelines.bands.shape import in_thread, taps
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate

PRODUCT_CLOCKS = 6.5
"""Clocks of a scheduler for a matrix instruction of 16×8×16: 60 % of the published rate, a
guess."""

CHANNEL_INSTRUCTIONS = 13
"""Instructions of a row for each channel of a thread: loads and pairs of pixels, rounding and the
store."""

ROW_INSTRUCTIONS = 110
"""Instructions of a row for each warp: addresses, copies and barriers. 7×7 has 260 in all."""

ROW_WAITS = 500
"""Clocks of a row in which a workgroup's warps wait for one another: a guess."""

SECTOR_CHANNELS = 32
"""The copy engine moves rows of fewer channels more slowly: a guess."""


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    this = arch(device.arch)
    here = cut(c, p, device)
    height = taps(c)[0]
    walked = -(-here.each // here.programs) * (here.rows + height - 1)
    workgroups = here.slabs * here.programs
    at_once = max(1.0, min(resident(c, this), workgroups / device.compute_units))
    warps = c.num_warps * at_once / this.simds_per_cu
    products = warps * in_thread(c) * height * PRODUCT_CLOCKS
    issued = warps * (in_thread(c) * (height + CHANNEL_INSTRUCTIONS) + ROW_INSTRUCTIONS)
    memory = p.min_bytes / (device.bandwidth_gbs * 1e3)
    memory *= max(1.0, SECTOR_CHANNELS / c.tile_n) ** 0.5
    terms = {
        "products": walked * products / device.clock_mhz,
        "instructions": walked * issued / device.clock_mhz,
        "barriers": walked * (ROW_WAITS + issued / at_once) / device.clock_mhz,
        "memory": memory,
        "launch": rates.LAUNCH_US + 2 * rates.LATENCY_US,
    }
    rows = max(terms["products"], terms["instructions"], terms["barriers"])
    total = math.hypot(rows, memory) + terms["launch"]
    if c.direction == "weights":
        terms["sum of parts"] = totals.us(c, p, here.programs, device)
        total += terms["sum of parts"]
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{workgroups} workgroups",))
