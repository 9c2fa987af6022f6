"""How long a kernel that packs (`packed`) should take: `gluon_ws`, and the kernel before it."""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.pipelines import packed
from tilewright.ops.conv.pipelines.boxed import estimate as boxed
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import rates


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    x, w = packed.temporaries(p)
    made = math.prod(p.shape_of("y")) * DTYPES[p.dtype_out].bytes
    found = boxed.estimate(packed.config(c), packed.problem(p), device, x.bytes + w.bytes + made)
    moved = math.prod(p.shape_of("x")) * DTYPES[p.dtype].bytes + x.bytes
    us = rates.SECOND_US + moved / (device.bandwidth_gbs * 1e3)
    terms = (*found.terms, (packed.PACK, us))
    return replace(found, total_us=found.total_us + us, terms=terms)
