"""How the workgroups of a gradient of weights share its tiles, and how long their parts take to be
added up. GEMM's words and numbers, where the sum is over pixels in place of K
(`ops.tile_sharing`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ops.binder import Context
from tilewright.ops.conv.config import SHARING
from tilewright.ops.physics import meeting_us, totals_us
from tilewright.ops.pool import Each
from tilewright.ops.tile_sharing import MOST_WAYS


def parts(x: Context) -> int:
    """Parts of each tile; under stream-K 1."""
    return x.splits if x.config.scheduler == "split" else 1


@dataclass(frozen=True, slots=True)
class Shares:
    """What stream-K's workgroups share (`shared_steps` in ops/device/schedule.py).

    tiles: that are shared. ways: workgroups of each; 1 where shares cross tiles. steps: of a share.
    """

    tiles: int
    ways: int
    steps: float


def shares(x: Context) -> Shares:
    """The shares of ``stream_k``."""
    shared, every, workers = x.splits, x.case.steps, x.case.programs
    if not shared:
        return Shares(0, 1, 0)
    ways = max(1, min(workers // shared, every, MOST_WAYS))
    return Shares(shared, ways, every / ways if ways > 1 else -(-shared * every // workers))


def totals(contexts: Sequence[Context]) -> Each:
    """Microseconds in which the parts of each kernel's tiles are added up, an array."""
    import numpy as np

    shares = (x.config.scheduler in SHARING for x in contexts)
    found = zip(contexts, shares, strict=True)
    return np.array([adding_us(x, parts(x)) if shared else 0.0 for x, shared in found])


def adding_us(x: Context, parts: int) -> float:
    """Microseconds in which `parts` of a tile are added up: by a second kernel, with their way to
    memory and back; or by the workgroups that meet."""
    c = x.config
    if c.parts_meet:
        if c.scheduler == "stream_k":
            share = shares(x)
            if not share.tiles:
                return 0.0
            parts = share.ways
        return meeting_us(c.reduction, max(2, parts), c.tile_m * c.tile_n, x.device)
    partials = 4 * parts * math.prod(x.problem.shape_of("w"))
    return totals_us(float(partials), x.device)
