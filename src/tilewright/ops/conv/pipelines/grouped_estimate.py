"""How long pipeline ``gluon_grouped`` should take, from sizes and the data sheet's rates. Nothing
was fitted or timed.

A workgroup walks the rows of its strips: wgmma read pixels and weights from shared memory, which
limits slices of few filters; the copy engine brings rows from L2, those between strips twice. The
memory moves each array once. The two overlap like the legs of a right triangle, as in the other
estimates.
"""

from __future__ import annotations

import math

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.pipelines import boxes
from tilewright.ops.conv.pipelines.grouped import IMAGES, SLAB, forward_stride, row_atoms
from tilewright.ops.conv.pipelines.grouped_launch import resident, strips
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import rates

SECOND_US = 2.0
"""A kernel that follows another without a gap on the host, as in `estimate`."""

ROW_US = 0.4
"""Of a row beside products: the wait for them, the epilogue, the store. Other workgroups on the
compute unit hide it: a guess."""


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    at_once = resident(c, arch(device.arch))
    size = DTYPES[c.dtype].bytes
    # For each tap and slice: 64 rows of pixels by a slice's channels, and the slice's weights.
    operands = (c.tile_m + c.tile_m // 64 * c.tile_k) * c.tile_k * size
    through = device.clock_mhz * rates.PORT_BYTES_PER_CLOCK * rates.PORT_SHARE
    shared = port = steps = 0.0
    workgroups = 0
    for residue in boxes.residues(p):
        of = boxes.walks(p, residue)
        height, width = of[1].count, of[2].count
        cut = strips(c, p, of, device.compute_units, at_once)
        count = cut.slabs * cut.programs
        workgroups += count
        rounds = -(-cut.each // cut.programs) * -(-count // device.compute_units)
        read = height * width * SLAB // c.tile_k * operands
        row_bytes = row_atoms(c, width) * IMAGES * SLAB * size
        rows_in = (cut.rows - 1) * forward_stride(c) + height
        shared += rounds * cut.rows * read / (rates.SHARED_BYTES_PER_CLOCK * device.clock_mhz)
        port += rounds * rows_in * row_bytes / through
        steps += rounds * cut.rows * ROW_US / min(at_once, rounds)
    memory = p.min_bytes / (device.bandwidth_gbs * 1e3)
    launches = SECOND_US * (sum(1 for _ in boxes.residues(p)) - 1)
    launch = rates.LAUNCH_US + 2 * rates.LATENCY_US + launches
    terms = {
        "shared memory": shared, "L2": port, "rows": steps, "memory": memory, "launch": launch,
    }  # fmt: skip
    total = math.hypot(max(shared, port, steps), memory) + launch
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{workgroups} workgroups",))
