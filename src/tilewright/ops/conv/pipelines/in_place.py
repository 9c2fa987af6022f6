"""Pipeline ``in_place``: layers whose windows lie side by side (`patches`), of images with channels
outside of pixels, on every architecture: forward and the gradient of x read or write the image as
it lies, where products between layout steps move it three times (kernels/in_place.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv import patches
from tilewright.ops.conv.catalogue import (
    FEW_SUM,
    index_type,
    integer,
    pointer,
    read,
    strides,
    written,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv, channels_first
from tilewright.ops.conv.pipelines import pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import GRADIENT_DTYPES, ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, because, each, either
from tilewright.ops.powers import power_of_two

PIPELINE = "in_place"
MOST_TAPS = 16
"""Taps of a line of a window: a power of two, by which a tile is exchanged."""

# --- kernels ------------------------------------------------------------------------------------


def _pixels(p: ConvProblem) -> int:
    """Pixels of y of an image."""
    return math.prod(p.out_sizes)


def _lines(p: ConvProblem) -> int:
    """Lines of a window, in all channels."""
    return p.c * p.taps // p.filter[-1]


def _line(p: ConvProblem) -> int:
    """Elements of x that a line of pixels of y meets."""
    return p.out_sizes[-1] * p.filter[-1]


def _window(p: ConvProblem) -> tuple[int, int]:
    depth, height, _ = p.three
    return depth.filter, height.filter


def _some_strides(name: str, count: int, multiples: Callable[[ConvConfig], int]) -> Numbers:
    """The first strides of x or y, outermost first."""
    return Numbers(
        lambda c: (index_type(c),) * count,
        lambda x: strides(x.problem, name)[:count],
        multiples=multiples,
    )


def _of_image(c: ConvConfig) -> int:
    """Elements of x that are aligned together."""
    return written(c) if c.direction == "data" else read(c)


def _of_y(c: ConvConfig) -> int:
    return read(c) if c.direction == "data" else written(c)


def _bytes_read(c: ConvConfig) -> int:
    return c.alignment


def _named(name: str) -> Callable[[ConvConfig], str]:
    return lambda c: name


def _made_strides(c: ConvConfig) -> Numbers:
    if c.direction == "data":
        return _some_strides("x", 4, written)
    return _some_strides("y", 2, written)


_OWN: Catalogue = {
    **{name: pointer(_named(name), _bytes_read) for name in "xyw"},
    "x_strides": _some_strides("x", 4, read),
    "y_strides": _some_strides("y", 2, read),
    "w_stride": integer(lambda p: strides(p, "w")[0], read),
    "pixels": integer(_pixels, _of_y),
    "filters": integer(lambda p: p.k),
    "lines": integer(_lines),
    "line": integer(_line, _of_image),
    "heights": integer(lambda p: p.three[1].out),
    "window": Numbers(("i32",) * 2, lambda x: _window(x.problem)),
    "TAPS": lambda c, _: c.spread,
    "VECTOR": lambda c, _: _of_image(c),
    "READ": lambda c, _: _of_y(c),
}


def _parts(c: ConvConfig) -> tuple[Any, ...]:
    data = c.direction == "data"
    own = {**_OWN, "made_strides": _made_strides(c)}
    return (
        pointers.kernel("in_place", "conv_in_place_data" if data else "conv_in_place", own=own),
    )


def _columns(p: ConvProblem) -> int:
    return p.c * p.taps if p.direction == "data" else p.k


def _summed(p: ConvProblem) -> int:
    return p.k if p.direction == "data" else p.c * p.taps


def _tiles(c: Any, p: ConvProblem) -> Each:
    return p.n * cdiv(_pixels(p), c.tile_m) * cdiv(_columns(p), c.tile_n)


def _steps(c: Any, p: ConvProblem) -> Each:
    return cdiv(_summed(p), c.tile_k)


# --- rules --------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.direction == "weights":
        return f"pipeline {PIPELINE} makes no gradients of weights"
    if c.dtype not in GRADIENT_DTYPES:
        return f"pipeline {PIPELINE} is for {', '.join(GRADIENT_DTYPES)}, not for {c.dtype}"
    if c.merged or c.runs:
        return f"pipeline {PIPELINE} always takes whole lines of a window, and has no other steps"
    if not 2 <= c.spread <= MOST_TAPS or c.spread & (c.spread - 1):
        return f"a line of a window has 2 to {MOST_TAPS} taps, a power of two, not {c.spread}"
    axis, size = ("tile_n", c.tile_n) if c.direction == "data" else ("tile_k", c.tile_k)
    if size % c.spread:
        return f"{axis} = {size} is no whole lines of {c.spread} taps"
    return pointers.objection(replace(c, spread=0), arch)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    if reason := _unfit(p):
        yield True, because(reason)
        return
    said = "a line of a window has {} taps, not {c.spread}"
    yield c.spread != p.filter[-1], partial(said.format, p.filter[-1])


@lru_cache(maxsize=256)  # of each problem for many kernels
def _unfit(p: ConvProblem) -> str | None:
    """Why `p` is not for it, if so."""
    if p.direction == "weights":
        return "it is a gradient of weights"
    if (reason := patches.refusal(p)) is not None:
        return reason
    taps = p.filter[-1]
    if not 2 <= taps <= MOST_TAPS or taps & (taps - 1):
        return f"a line of a window has 2 to {MOST_TAPS} taps, a power of two, not {taps}"
    if p.direction == "data" and any(d.out * d.filter != d.size for d in p.dims):
        return "x has pixels beyond the last window"
    if not _lies(p.strides_of("w")[1:], (p.c, *p.filter)):
        return "the elements of a filter do not lie behind one another, channels outermost"
    if p.strides_of("x")[-1] != 1:
        return "neighbouring pixels of x do not lie side by side"
    if not _lies(p.strides_of("y")[2:], p.out_sizes):
        return "the pixels of y do not lie behind one another"
    if p.k * max(1, p.strides_of("y")[1]) >= pointers.REACH // 2:
        return "an image of y spans what indices of 32 bits do not reach"
    return None


def _lies(given: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether an array of these sizes has no gaps, the last dimension innermost."""
    return all(
        n == 1 or a == b for n, a, b in zip(sizes, given, channels_first(sizes), strict=True)
    )


@lru_cache(maxsize=256)
def _alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of what is read along pixels and along filters, and of what is made."""
    x = math.gcd(_line(p), *strides(p, "x")[:4])
    y = math.gcd(_pixels(p), *strides(p, "y")[:2])
    w = math.gcd(p.c * p.taps, strides(p, "w")[0])
    source, made = (y, x) if p.direction == "data" else (x, y)
    of_read = math.gcd(source, w) * DTYPES[p.dtype].bytes
    return math.gcd(p.alignment, of_read), math.gcd(p.alignment, made * DTYPES[p.dtype_out].bytes)


# --- the spaces ---------------------------------------------------------------------------------

_TILES = ((64, 64, 4), (128, 64, 4), (128, 128, 8))
_MORE_TILES = (*_TILES, (64, 128, 4), (128, 32, 4), (256, 64, 8))
"""Pixels of a tile, columns and warps."""
_DEPTHS, _MORE_DEPTHS = (64,), (32, 64)
_STAGES = {"cuda": (3,), "hip": (1,)}
_MORE_STAGES = (1, 2, 3, 4)


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if _unfit(p) is not None:
        return
    taps = p.filter[-1]
    most_m, most_n, most_k = (
        max(least, power_of_two(size))
        for least, size in ((16, _pixels(p)), (max(16, taps), _columns(p)), (32, _summed(p)))
    )
    tiles = dict.fromkeys(
        (min(m, most_m), min(n, most_n), warps)
        for m, n, warps in (_MORE_TILES if tuned else _TILES)
    )
    depths = dict.fromkeys(min(n, most_k) for n in (_MORE_DEPTHS if tuned else _DEPTHS))
    stages = [n for n in _MORE_STAGES if n in arch.num_stages] if tuned else _STAGES[arch.backend]
    for (m, n, warps), depth, count in itertools.product(tiles, depths, stages):
        yield (m, n, depth, warps, count, PIPELINE, "tile", 8, False, *_alignments(p), "", "", 1,
               False, taps)  # fmt: skip


# --- how long they take -------------------------------------------------------------------------

LEAST_COPIED = 4
"""Bytes that are copied to shared memory without the warps' registers, at least."""

EXCHANGED = 12
"""Instructions of a lane for each element that is exchanged between threads, with its share of
addresses and masks. By counting."""


def _shared_memory(c: ConvConfig, arch: Arch) -> int:
    """Bytes of a step's operands, or of the tile that is exchanged."""
    data = c.direction == "data"
    exchanged = c.tile_m * (4 * c.tile_n if data else DTYPES[c.dtype].bytes * c.tile_k)
    return max(pointers.shared_memory(c, arch), exchanged)


def _estimates(x: Context) -> Estimates:
    c, p, device = x.config, x.problem, x.device
    steps = _steps(c, p)
    of_step = (c.tile_m + c.tile_n) * c.tile_k * DTYPES[p.dtype].bytes
    exchanged = c.tile_m * (c.tile_n if p.direction == "data" else steps * c.tile_k)
    instructions = exchanged * EXCHANGED + steps * of_step / c.alignment * CONV.LOAD_INSTRUCTIONS
    work = pointers.Work(
        steps=steps,
        read=of_step,
        products=each(c, pointers.products_us, device),
        slower=either(c.alignment >= LEAST_COPIED, 1.0, CONV.GATHERED),
        gathered=physics.lanes_us(instructions, device),
        resident=each(c, _resident, arch_called(device.arch)),
        neighbours=True,
        waits=0.0 if p.direction == "data" else DEVICE.LATENCY_US,
    )
    return pointers.estimates(x, work)


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, c.tile_m * c.tile_n, _shared_memory(c, this))


IN_PLACE = Pipeline(
    name=PIPELINE,
    parts=_parts,
    totals=FEW_SUM,
    objection=_objection,
    refusal=_refusal,
    shared_memory=_shared_memory,
    alignments=_alignments,
    tiles=_tiles,
    steps=_steps,
    rows=_rows,
    estimates=_estimates,
)
