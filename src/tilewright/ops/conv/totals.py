"""How long the parts of a gradient of weights take to be added up: of a second kernel, or of the
workgroups that meet."""

from __future__ import annotations

import math

from tilewright.arch.model import Device
from tilewright.ops.conv import sharing
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.gemm.estimate_sums import meeting_us, totals_us


def us(c: ConvConfig, p: ConvProblem, splits: int, device: Device) -> float:
    """Microseconds of the kernel that adds parts, and of their way to memory and back; or of the
    workgroups that meet."""
    if c.parts_meet:
        ways = splits
        if c.scheduler == "stream_k":
            share = sharing.shares(c, p, device)
            if not share.tiles:
                return 0.0
            ways = share.ways
        return meeting_us(c.reduction, max(2, ways), c.tile_m * c.tile_n, device)
    return totals_us(4 * splits * math.prod(p.shape_of("w")), device)
