"""How the workgroups of a gradient of weights share its tiles: how many there are, how many parts a
tile has, and the memory that parts meet in. GEMM's words and numbers (`gemm.sizes`), where the sum
is over pixels in place of K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.arch.model import Device
from tilewright.ops.conv import pipelines
from tilewright.ops.conv.arguments import PARTIALS
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import Initial, Temporary
from tilewright.ops.tile_sharing import FLAGS, MAX_FLAGS, shared_tiles, slots

MOST_WAYS = 16
"""Most workgroups of a tile where shares do not cross tiles, as ops/device/schedule.py has it."""


def tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Tiles of the gradient."""
    return pipelines.of(c).tiles(c, p)


def steps(c: ConvConfig, p: ConvProblem) -> int:
    """Steps of pixels of a whole tile; of a window, of its lines."""
    return pipelines.of(c).steps(c, p)


def splits(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    """Parts of a tile: as many as fill the device, each of a step or more; 1 where tiles are whole.
    Under stream-K, the number of tiles that are shared."""
    if c.scheduler == "stream_k":
        return shared_tiles(c, tiles(c, p), max(1, programs(c, p, device)))
    if c.scheduler != "split":
        return 1
    of = pipelines.of(c)
    wanted = of.splits(c, p, device)
    if c.parts_meet:
        wanted = min(wanted, MAX_FLAGS // (max(1, tiles(c, p)) * of.meetings(c)))
    return max(1, min(wanted, steps(c, p)))


@dataclass(frozen=True, slots=True)
class Shares:
    """What stream-K's workgroups share (`shared_steps` in ops/device/schedule.py).

    tiles: that are shared. ways: workgroups of each; 1 where shares cross tiles. steps: of a share.
    """

    tiles: int
    ways: int
    steps: float


def shares(c: ConvConfig, p: ConvProblem, device: Device) -> Shares:
    """The shares of ``stream_k``."""
    shared, every, workers = splits(c, p, device), steps(c, p), programs(c, p, device)
    if not shared:
        return Shares(0, 1, 0)
    ways = max(1, min(workers // shared, every, MOST_WAYS))
    return Shares(shared, ways, every / ways if ways > 1 else -(-shared * every // workers))


def programs(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    """Workgroups under stream-K: one for each compute unit, but no more than there are steps."""
    return min(device.compute_units, tiles(c, p) * steps(c, p))


def temporaries(c: ConvConfig, p: ConvProblem, device: Device) -> tuple[Temporary, ...]:
    """What parts meet in."""
    parts = splits(c, p, device)
    if c.two_stage:
        return (Temporary(PARTIALS, (parts, math.prod(p.shape_of("w"))), "fp32"),)
    if not c.parts_meet:
        return ()
    room = slots(c, tiles(c, p), programs(c, p, device), parts)
    initial: Initial = "kept_zero" if c.reduction == "atomic" else "anything"
    return FLAGS, Temporary(PARTIALS, (room, c.tile_m, c.tile_n), "fp32", initial)
