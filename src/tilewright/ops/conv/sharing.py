"""How the workgroups of a gradient of weights share its tiles: how many there are, how many parts a
tile has, and the memory that parts meet in. GEMM's words and numbers (`gemm.sizes`), where the sum
is over pixels in place of K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.arch.model import Device
from tilewright.ops.conv.arguments import PARTIALS
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import (
    bands,
    bands_launch,
    boxed,
    boxed_weights,
    grouped,
    grouped_weights,
    runs,
    windows,
)
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.gemm.launch import FLAGS
from tilewright.ops.gemm.sizes import MAX_FLAGS, shared_tiles, slots
from tilewright.ops.nouns import Initial, Temporary

MOST_WAYS = 16
"""Most workgroups of a tile where shares do not cross tiles, as ops/device/schedule.py has it."""

WORKGROUPS_FOR_UNIT = 2
"""Workgroups for each compute unit that parts of the pixels make up."""


def tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Tiles of the gradient."""
    if c.pipeline in boxed.PIPELINES:
        return boxed_weights.tiles(c, p)
    if c.pipeline == bands.PIPELINE:
        return cdiv(p.c, c.tile_n)
    if c.window:
        return cdiv(p.c, c.tile_n) * (p.taps // p.filter[-1] if windows.of_row(c) else 1)
    if c.depthwise:
        return cdiv(p.taps, c.tile_m) * cdiv(p.c, c.tile_n)
    channels, filters = p.group_c * c.merged_groups, p.group_k * c.merged_groups
    if c.runs:
        columns = cdiv(p.taps // p.filter[-1] * runs.sizes(p, c.alignment)[0], c.tile_n)
    elif c.merged:
        columns = cdiv(p.taps * channels, c.tile_n)
    else:
        columns = p.taps * cdiv(channels, c.tile_n)
    return cdiv(filters, c.tile_m) * columns * cdiv(p.groups, c.merged_groups)


def steps(c: ConvConfig, p: ConvProblem) -> int:
    """Steps of pixels of a whole tile; of a window, of its lines."""
    if c.pipeline in boxed.PIPELINES:
        return boxed_weights.steps_of(c, p)
    if c.window:
        return cdiv(windows.count(c, p), c.tile_m)
    return cdiv(p.n * math.prod(p.out_sizes), c.tile_k)


def meetings(c: ConvConfig) -> int:
    """Pieces of a tile whose parts meet on their own, each with its flags."""
    return boxed.groups(c) if c.pipeline in boxed.PIPELINES else 1


def splits(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    """Parts of a tile: as many as fill the device, each of a step or more; 1 where tiles are whole.
    Under stream-K, the number of tiles that are shared."""
    if c.scheduler == "stream_k":
        return shared_tiles(c, tiles(c, p), max(1, programs(c, p, device)))
    if c.scheduler != "split":
        return 1
    if c.pipeline == grouped.PIPELINE:
        return grouped_weights.cut(c, p, device).programs
    if c.pipeline == bands.PIPELINE:
        return bands_launch.cut(c, p, device).programs
    count = max(1, tiles(c, p))
    if c.pipeline in boxed.PIPELINES:
        wanted = boxed_weights.splits(c, p, device.compute_units)
    else:
        each = windows.WORKGROUPS_FOR_UNIT if c.window else WORKGROUPS_FOR_UNIT
        wanted = each * device.compute_units // count
    if c.parts_meet:
        wanted = min(wanted, MAX_FLAGS // (count * meetings(c)))
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
