"""How long pipeline ``gluon_grouped`` should take, from sizes and the data sheet's rates. Nothing
was fitted to measurements.

A workgroup walks the rows of its strips: products read pixels and weights from shared memory; the
copy engine brings rows from L2, those between strips twice. The memory moves each array once. The
two overlap like the legs of a right triangle, as in the other estimates. Parts of a gradient of
weights are added up afterwards.
"""

from __future__ import annotations

import math

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import device_rates as rates
from tilewright.ops.conv import boxes, totals
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.pipelines.grouped.launch import cut, resident
from tilewright.ops.conv.pipelines.grouped.shape import (
    IMAGES,
    SLAB,
    forward_stride,
    kept,
    row_atoms,
)
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate

OLDER_PER_CLOCK = 1340
"""Multiply-adds of a compute unit by the matrix instruction that reads registers: 0.65 of wgmma's,
a guess."""

ROW_US = 0.4
"""Time of a row beside products: the wait for them, the epilogue, the store. Other workgroups on
the compute unit hide it: a guess."""

EXPAND_US = 1.0
"""Time in which a workgroup writes its weights to shared memory before the first row: a guess."""


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    at_once = resident(c, arch(device.arch))
    size = DTYPES[c.dtype].bytes
    through = device.clock_mhz * rates.PORT_BYTES_PER_CLOCK * rates.PORT_SHARE
    shared = products = port = steps = 0.0
    workgroups = 0
    for residue in boxes.residues(p):
        of = boxes.walks(p, residue)
        height, width = of[1].count, of[2].count
        into = cut(c, p, of, device.compute_units, at_once)
        count = into.slabs * into.programs
        workgroups += count
        rounds = -(-into.each // into.programs) * -(-count // device.compute_units)
        row_bytes = row_atoms(c, width) * IMAGES * SLAB * size
        rows_in = (into.rows - 1) * forward_stride(c) + height
        read = _read(c, height, width) * size
        shared += rounds * into.rows * read / (rates.SHARED_BYTES_PER_CLOCK * device.clock_mhz)
        made = c.tile_m * SLAB * c.tile_k * height * width
        products += rounds * into.rows * made / (OLDER_PER_CLOCK * device.clock_mhz)
        if c.direction == "weights":
            port += rounds * into.rows * c.tile_m * SLAB * size / through
        port += rounds * rows_in * row_bytes / through
        steps += rounds * into.rows * ROW_US / min(at_once, rounds)
    memory = p.min_bytes / (device.bandwidth_gbs * 1e3)
    launches = rates.SECOND_US * (sum(1 for _ in boxes.residues(p)) - 1)
    launch = rates.LAUNCH_US + 2 * rates.LATENCY_US + launches
    terms = {
        "shared memory": shared, "products": products, "L2": port, "rows": steps, "memory": memory,
        "launch": launch,
    }  # fmt: skip
    total = math.hypot(max(shared, products, port, steps), memory) + launch
    if c.direction == "weights":
        terms["sum of parts"] = totals.us(c, p, into.programs, device)
        total += terms["sum of parts"]
    else:
        terms["weights"] = EXPAND_US
        total += EXPAND_US
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{workgroups} workgroups",))


def _read(c: ConvConfig, height: int, width: int) -> int:
    """Elements that a row's products read from shared memory. Each warp reads, for each row of the
    filter, the pixels that it sees, by a slice's channels; and 16 filters: their weights, if they
    are not kept in registers, or for the gradient of weights their pixels of y."""
    seen = height * row_atoms(c, width) * IMAGES * c.tile_k
    filters = 16 * (c.tile_m if c.direction == "weights" else height * width * c.tile_k)
    if kept(c, height, width):
        filters = 0
    return c.num_warps * (seen + filters)
