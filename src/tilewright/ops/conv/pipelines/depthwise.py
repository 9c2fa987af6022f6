"""Pipeline ``depthwise``: one filter of its own for every channel, in vectors of channels on the
vector units (kernels/depthwise.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context
from tilewright.ops.conv import sharing
from tilewright.ops.conv.catalogue import FEW_SUM, SUMS, integer, read, written
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, pointers, stream
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, each
from tilewright.ops.powers import power_of_two

_TILES: tuple[tuple[int, int, int], ...] = ((16, 64, 4), (64, 64, 4), (32, 32, 4), (8, 128, 4))
"""Pixels, channels, warps."""

_PIXELS, FEW_SUMS = (8, 16), 4096
"""Pixels of a step of a gradient of weights; and sums of a step up to which it has more pixels, as
with one tap: nothing else is under way while a step's loads are waited for."""

MOST_ELEMENTS = 2**15
"""Elements of the tiles that a kernel holds."""

_OWN: Catalogue = {
    # A kernel reads the channels that it makes.
    "channels_out": integer(lambda p: p.c, lambda c: max(read(c), written(c))),
}
"""What kernels for one filter of its own for every channel take."""

_MADE = pointers.kernel("depthwise", "conv_depthwise", own=_OWN)
_WEIGHTS = pointers.kernel("depthwise", "conv_depthwise_weights", own={**_OWN, **SUMS})


def _tiles(c: Any, p: ConvProblem) -> Each:
    if p.direction == "weights":
        return cdiv(p.taps, c.tile_m) * cdiv(p.c, c.tile_n)
    return cdiv(p.walked_pixels, c.tile_m) * cdiv(p.c, c.tile_n) * p.classes


def most_elements(elements: int) -> str | None:
    """Why a tile has too many elements, if so."""
    if elements > MOST_ELEMENTS:
        return f"tiles of {elements} elements, over {MOST_ELEMENTS}"
    return None


def _sums(c: ConvConfig) -> int:
    return c.tile_m * c.tile_n * (c.tile_k if c.direction == "weights" else 1)


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if not p.depthwise or p.precision == "tf32" or (stream.answers(p) and not tuned):
        return
    tiles: Sequence[tuple[int, int, int]] = _TILES
    if tuned:
        tiles = [*itertools.product((8, 16, 32, 64, 128), (32, 64, 128), (1, 2, 4, 8))]
    width = common.pixel_alignments(p)
    if p.direction != "weights":
        for m, n, warps in tiles:
            yield (m, n, 1, warps, 1, "depthwise", "tile", 1, False, *width)
        return
    taps = min(16, power_of_two(p.taps))
    for (_, n, warps), pixels, scheduler in itertools.product(tiles, _PIXELS, ("tile", "split")):
        if n <= 64:
            each = max(pixels, pixels * FEW_SUMS // (_PIXELS[0] * taps * n))
            yield (taps, n, each, warps, 1, "depthwise", scheduler, 1, False, *width)


def lane_bytes(p: ConvProblem) -> float:
    """Bytes of the first cache that a lane's load takes where neighbouring lanes read channels that
    are no neighbours; else 0, as lanes share lines."""
    apart = p.strides_of(DIRECTIONS[p.direction][0])[1] if p.c > 1 else 1
    return min(CONV.APART_BYTES, apart * DTYPES[p.dtype].bytes) if apart > 1 else 0


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device = x.config, x.problem, x.device
    elements = c.tile_m * c.tile_n * c.tile_k
    instructions = elements * CONV.TAP_INSTRUCTIONS
    if p.direction == "weights":
        pixels = p.n * math.prod(p.out_sizes)
        steps = np.maximum(1.0, pixels / c.tile_k / sharing.parts(x))
        # The sums of a step's pixels are added up once.
        instructions = instructions + elements * CONV.TAP_SUM_INSTRUCTIONS / steps
        read = (c.tile_m + 1) * c.tile_n * c.tile_k
    else:
        steps = max(1.0, p.taps / math.prod(p.stride) if p.direction == "data" else p.taps)
        read = c.tile_m * c.tile_n
    work = pointers.Work(
        steps=steps,
        read=read * DTYPES[p.dtype].bytes,
        shared=read * lane_bytes(p),
        products=physics.lanes_us(instructions, device),
        resident=each(c, _resident, arch_called(device.arch)),
    )
    return pointers.estimates(x, work)


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, _sums(c), 0)


DEPTHWISE = Pipeline(
    name="depthwise",
    parts=pointers.either(_MADE, _WEIGHTS),
    totals=FEW_SUM,
    words=frozenset({"depthwise"}),
    objection=pointers.objection,
    tile=lambda c, arch: most_elements(c.tile_m * c.tile_n * c.tile_k),
    sums=_sums,
    shared_memory=lambda _, __: 0,
    alignments=common.pixel_alignments,
    tiles=_tiles,
    steps=common.steps_of_pixels,
    splits=pointers.filling(_tiles),
    rows=_rows,
    estimates=_estimates,
)
