"""How the workgroups of a gradient of weights share its tiles, and how long their parts take to be
added up. GEMM's words and numbers, where the sum is over pixels in place of K
(`ops.tile_sharing`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.ops.binder import Context
from tilewright.ops.physics import meeting_us, totals_us
from tilewright.ops.pool import Each, either, least, most
from tilewright.ops.tile_sharing import MOST_WAYS


def parts(x: Context) -> Each:
    """Parts of each tile; under stream-K 1."""
    return either(x.config.splits, x.splits, 1)


@dataclass(frozen=True, slots=True)
class Shares:
    """What stream-K's workgroups share (`shared_steps` in ops/device/schedule.py).

    tiles: that are shared. ways: workgroups of each; 1 where shares cross tiles. steps: of a share.
    """

    tiles: Each
    ways: Each
    steps: Each


def shares(x: Context) -> Shares:
    """The shares of ``stream_k``."""
    shared, every, workers = x.splits, x.case.steps, x.case.programs
    ways = most(1, least(least(workers // most(1, shared), every), MOST_WAYS))
    ways = either(shared > 0, ways, 1)
    crossing = -(-shared * every // most(1, workers))
    return Shares(shared, ways, either(ways > 1, every / ways, crossing))


def totals(x: Context, count: Each) -> Each:
    """Microseconds in which `count` parts of each of several kernels' tiles are added up: by a
    second kernel, with their way to memory and back; or by the workgroups that meet."""
    import numpy as np

    c, ways, meet = x.config, count, x.config.parts_meet
    partials = 4.0 * count * math.prod(x.problem.shape_of("w"))
    found = np.where(c.two_stage, totals_us(partials, x.device), 0.0)
    if c.shares_steps.any():
        share = shares(x)
        ways = np.where(c.shares_steps, share.ways, count)
        meet = meet & ~(c.shares_steps & (share.tiles == 0))
    for i in np.flatnonzero(meet).tolist():
        one = c[i]
        sums = one.tile_m * one.tile_n
        found[i] = meeting_us(one.reduction, max(2, int(ways[i])), sums, x.device)
    return found
