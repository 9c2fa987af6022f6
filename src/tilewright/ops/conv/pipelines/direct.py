"""Pipeline ``direct``: layers whose pixels are neighbours in memory, on the vector units
(kernels/direct.py): channels-first images, and those of one channel. For depthwise filters, and for
few channels or few filters. No layout step is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.arch import arch as arch_called
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Constant, Context
from tilewright.ops.conv import sharing
from tilewright.ops.conv.catalogue import FEW_SUM, SUMS, channels_in
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import MOST_DIMS, cdiv
from tilewright.ops.conv.pipelines import pointers
from tilewright.ops.conv.pipelines.depthwise import most_elements
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, because, each
from tilewright.ops.powers import power_of_two

PIPELINE = "direct"

# --- kernels ------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Channels, and taps along depth, height and width, that a step writes out."""

    channels: int
    depth: int
    height: int
    width: int


def _box(c: ConvConfig) -> Box:
    channels, *taps = map(int, c.box.split("x"))
    return Box(channels, *(1,) * (MOST_DIMS - len(taps)), *taps)


def _written_out(c: ConvConfig) -> int:
    """Products of a step, for each element of a tile."""
    return math.prod(_box(c))


def _side(place: int) -> Constant:
    return lambda c, _: _box(c)[place]


_BOX: Catalogue = {f"BOX_{name}": _side(place) for place, name in enumerate("CDHW")}
_MADE = pointers.kernel("direct", "conv_direct", own=_BOX)
_WEIGHTS = pointers.kernel("direct", "conv_direct_weights", own={**_BOX, **SUMS})

WORKGROUPS_FOR_UNIT = 4
"""Workgroups for each compute unit that parts of the pixels make up."""

MOST_WRITTEN_OUT = 256
"""Products of a thread in a step, which are all written out."""

MOST_LOADED = 144
"""Products of a thread in a step, in the default space forward and for data: loads are all on their
way at once, and have registers."""

# --- tiles --------------------------------------------------------------------------------------


def _pixels(p: ConvProblem) -> int:
    """Pixels of an image that tiles are cut from: of the result, of a class, or of y."""
    return math.prod(p.out_sizes if p.direction == "weights" else p.walked)


def _blocks(c: Any, p: ConvProblem) -> Each:
    """Tiles of pixels and images."""
    return cdiv(_pixels(p), c.tile_m) * cdiv(p.n, c.tile_n)


def _boxes(c: Any, p: ConvProblem) -> Each:
    """Steps that the taps of a channel make; in the gradient of the data, of a class with as many
    taps as any."""
    box = each(c, _box)
    sides = zip(_met(p), (box.depth, box.height, box.width), strict=True)
    return math.prod(cdiv(taps, side) for taps, side in sides)


def _met(p: ConvProblem) -> tuple[int, ...]:
    """Taps along depth, height and width that a pixel of the result meets, at most."""
    return tuple(cdiv(d.filter, d.period) if p.direction == "data" else d.filter for d in p.three)


def _tiles(c: Any, p: ConvProblem) -> Each:
    if p.direction == "weights":
        return p.k * p.group_c * _boxes(c, p)
    return _blocks(c, p) * p.channels_out * p.classes


def _sums(c: ConvConfig) -> int:
    if c.direction == "weights":  # of all images of a pixel; beside them a step's products
        return c.tile_m * (_written_out(c) + c.tile_n)
    return c.tile_m * c.tile_n


# --- rules --------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.box.count("x") != c.spatial_dims:
        return (
            f"box = '{c.box}' is not the channels and taps of a step, such as "
            f"{'x'.join('1' + '3' * c.spatial_dims)}"
        )
    if c.direction == "weights" and _box(c)[0] != 1:
        return f"gradients of weights are of one channel each, and not of {_box(c)[0]}"
    if c.merged or c.runs:
        return f"pipeline {PIPELINE} walks boxes of channels and taps, and has no other step"
    if (c.alignment, c.alignment_out) != (1, 1):
        return f"pipeline {PIPELINE} reads and writes element by element: alignments are 1"
    if (c.tile_k, c.group_m) != (1, 1):
        return (
            f"pipeline {PIPELINE} walks its tiles in one order, and steps are boxes: group_m and "
            f"tile_k are 1, not {c.group_m} and {c.tile_k}"
        )
    return pointers.objection(replace(c, box=""), arch)


def _tile(c: ConvConfig, arch: Arch) -> str | None:
    elements, threads = c.tile_m * c.tile_n, c.num_warps * arch.warp_size
    if elements < threads:
        return f"tiles of {elements} pixels have no work for {threads} threads"
    if (products := elements * _written_out(c) // threads) > MOST_WRITTEN_OUT:
        return f"{products} products of a thread are written out, over {MOST_WRITTEN_OUT}"
    return most_elements(elements)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    for name in ("x", "y"):
        if name != p.output_name and not _neighbours(p, name):
            yield True, because(f"pixels of a line of {name} are no neighbours in memory")
    if p.dilation[-1] > 1:
        said = f"taps of a line are {p.dilation[-1]} pixels apart, and steps have several"
        yield each(c, _box).width > 1, because(said)


def _neighbours(p: ConvProblem, name: str) -> bool:
    return p.shape_of(name)[-1] == 1 or p.strides_of(name)[-1] == 1


# --- the spaces ---------------------------------------------------------------------------------

FEW = 512
"""Products of a result up to which it is made one by one."""
FEW_CHANNELS = 2
"""Channels or filters of a group up to which each weight's gradient is made by itself: each pair of
them reads all pixels."""

_SIDES = (64, 256, 1024)
"""Pixels of a tile, at most; beside the power of two that holds an image's."""
_EACH, _MORE_EACH = (4, 8), (1, 2, 4, 8, 16)
"""Elements of a tile for each thread."""
_WARPS, _MORE_WARPS = (4,), (1, 2, 4, 8)
"""At most: those of gradients of weights have a pixel or more for each thread."""
MOST_BOX, MOST_SUMS = 16, 32
"""Products of a step of the spaces, at most; of gradients of weights, whose steps read y too. Those
of large filters are some rows, or part of one."""


def _unfit(p: ConvProblem) -> bool:
    """Whether spaces have no kernels for `p`."""
    if p.precision == "tf32" or any(0 in p.shape_of(name) for name in "xwy"):
        return True
    if not all(_neighbours(p, name) for name in "xy"):
        return True
    if p.direction == "weights":
        return min(p.group_c, p.group_k) > FEW_CHANNELS
    return channels_in(p) * p.taps > FEW


def _sides(p: ConvProblem, most: int) -> tuple[int, ...]:
    """The box of a step of `most` products or fewer: whole filters of several channels; a whole
    filter; or a row, or as even a part of one as can be."""
    left, found = most, []
    sides = (
        *reversed(_met(p)[-len(p.spatial) :]),
        1 if p.direction == "weights" else channels_in(p),
    )
    if p.dilation[-1] > 1:
        sides = (1, *sides[1:])
    for side in sides:
        whole = side <= left
        # Nothing beside a part; channels are cut into parts too.
        part = side if whole else cdiv(side, cdiv(side, left))
        found.append(part)
        left = left // part if whole else 1
    return tuple(reversed(found))


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if _unfit(p):
        return
    whole, images, found = power_of_two(_pixels(p)), power_of_two(p.n), []
    weights = p.direction == "weights"
    for side, share, warps in itertools.product(
        dict.fromkeys(min(side, whole) for side in (*_SIDES, whole) if side <= max(_SIDES)),
        _MORE_EACH if tuned else _EACH,
        _MORE_WARPS if tuned else _WARPS,
    ):
        threads = warps * arch.warp_size
        if weights:
            threads = min(threads, max(side, arch.warp_size))
        m = min(side, share * threads)
        n = min(images, share * threads // m)
        if (warps := min(threads, m * n) // arch.warp_size) > 0:
            most = (
                (MOST_WRITTEN_OUT if weights else MOST_LOADED) * warps * arch.warp_size // (m * n)
            )
            box = _sides(p, min(MOST_SUMS if weights else MOST_BOX, most))
            found.append((m, n, warps, "x".join(map(str, box))))
    schedulers = ("tile", "split") if p.direction == "weights" else ("tile",)
    for (m, n, warps, box), scheduler in itertools.product(dict.fromkeys(found), schedulers):
        yield (m, n, 1, warps, 1, PIPELINE, scheduler, 1, False, 1, 1, box)


# --- how long they take -------------------------------------------------------------------------

LANE_BYTES = 4
"""Bytes of a compute unit's first cache that a lane takes to load one element."""


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device = x.config, x.problem, x.device
    this, size = arch_called(device.arch), DTYPES[p.dtype].bytes
    elements, threads = c.tile_m * c.tile_n, c.num_warps * this.warp_size
    box = each(c, _written_out)
    pixels = np.maximum(c.tile_m, threads)  # whose places threads work out, whatever the images
    by_step = box * (elements * CONV.DIRECT_INSTRUCTIONS + pixels * CONV.DIRECT_TAP_INSTRUCTIONS)
    places, once = (
        pixels * CONV.DIRECT_PIXEL_INSTRUCTIONS,
        threads * CONV.DIRECT_THREAD_INSTRUCTIONS,
    )
    overlap = 1 if p.direction == "data" else min(p.taps, math.prod(p.stride))
    if p.direction == "weights":
        steps = np.maximum(1.0, x.case.steps / sharing.parts(x))
        # Threads add up their sums once.
        once = once + box * threads * CONV.DIRECT_SUM_INSTRUCTIONS
        instructions = by_step + places + once / steps
        loads, seen = box + 1, 1 + overlap
    else:
        steps = _boxes(c, p) * np.ceil(channels_in(p) / each(c, _box).channels)
        instructions = by_step + (places + once) / steps
        loads, seen = box, channels_in(p) * overlap / steps
    work = pointers.Work(
        steps=steps,
        read=elements * seen * size,
        shared=elements * loads * LANE_BYTES,
        products=physics.lanes_us(instructions, device),
        resident=each(c, _resident, this),
        neighbours=True,
        waits=DEVICE.LATENCY_US,
    )
    return pointers.estimates(x, work)


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, _sums(c), 0)


DIRECT = Pipeline(
    name=PIPELINE,
    parts=pointers.either(_MADE, _WEIGHTS),
    totals=FEW_SUM,
    words=frozenset({"vector_units"}),
    objection=_objection,
    tile=_tile,
    refusal=_refusal,
    sums=_sums,
    shared_memory=lambda _, __: 0,
    alignments=lambda p: (1, 1),
    tiles=_tiles,
    steps=_blocks,
    splits=pointers.filling(_tiles, WORKGROUPS_FOR_UNIT),
    rows=_rows,
    estimates=_estimates,
)
