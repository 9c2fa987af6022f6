"""Pipeline ``window``: depthwise filters, one or several a channel, or rows of large ones, in
registers, under a window that slides over pixels (kernels/held.py, rows.py; `windows`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Constant, Context, Numbers, Part
from tilewright.ops.conv import sharing, windows
from tilewright.ops.conv.catalogue import FEW_SUM, SUMS, integer, read, written
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, depthwise, pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.conv.windows import Held
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, each, either, most
from tilewright.ops.powers import power_of_two

PIPELINE = "window"

WORKGROUPS_FOR_UNIT = 4
"""Workgroups for each compute unit that parts of the lines make up."""

_HELD = ((2, 16), (4, 16), (8, 16), (1, 16), (2, 4), (4, 4), (8, 4))
"""Tiles of windows that hold their filter: channels in a thread, steps down."""
_WARPS, _MORE_WARPS = (2, 4), (2, 4, 8)

_SMALL = 49
"""Taps up to which strided gradients of weights hold no row, but the filter: of 61 that were tuned
6 hold a row (conv_tuned_h200.json). Others may hold one: a workgroup walks the filter's rows one
after the other, and not a segment and the rows ahead of it, which is the time of small images. Of
41 tuned layers in 2-D and 3-D, forward and for the data, that take at most 12 µs, 21 hold a row."""

# --- kernels ------------------------------------------------------------------------------------


def _held(value: Callable[[Held], int]) -> Constant:
    return lambda c, _: value(windows.held(c))


def _multiple(c: ConvConfig) -> int:
    """What the channels of the result are a multiple of. In the gradient of the data those that are
    read are as many times more as a channel has filters, and their alignment says nothing."""
    return written(c) if windows.added(c) > 1 else max(read(c), written(c))


_OWN: Catalogue = {
    "channels_out": integer(lambda p: p.channels_out, _multiple),
    "lines": Numbers(("i32",) * 3, lambda x: windows.lines(x.config, x.problem)),
    "steps": Numbers("i32", lambda x: windows.steps(x.config, x.problem)),
    "origin": Numbers(("i32",) * 2, lambda x: windows.origin(x.config, x.problem)),
    "TAPS_D": _held(lambda of: of.taps[0]),
    "TAPS_H": _held(lambda of: of.taps[1]),
    "TAPS_W": _held(lambda of: of.taps[2]),
    "STEP_H": _held(lambda of: of.step_h),
    "STEP_W": _held(lambda of: of.step_w),
    "STRIP": _held(lambda of: of.strip),
    "EARLY": lambda c, _: windows.early(c),
    "FILTERS": lambda c, _: windows.filters(c),
}

_FILTER = pointers.either(
    pointers.kernel("held", "conv_held", own=_OWN),
    pointers.kernel("held", "conv_held_weights", own={**_OWN, **SUMS}),
)
_ROW = pointers.either(
    pointers.kernel("rows", "conv_rows", own=_OWN),
    pointers.kernel("rows", "conv_rows_weights", own={**_OWN, **SUMS}),
)


def _parts(c: ConvConfig) -> tuple[Part, ...]:
    return _ROW(c) if windows.of_row(c) else _FILTER(c)


def _tiles(c: Any, p: ConvProblem) -> Each:
    channels, of_row = cdiv(p.channels_out, c.tile_n), each(c, windows.of_row)
    if p.direction == "weights":
        return channels * either(of_row, p.taps // p.filter[-1], 1)
    return _steps(c, p) * channels * either(of_row, windows.classes(p), 1)


def _steps(c: Any, p: ConvProblem) -> Each:
    """How many tiles the lines make."""
    return cdiv(windows.count(c, p), c.tile_m)


# --- rules --------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.spread == 1:
        return f"spread = 1: pipeline {c.pipeline} says 0 of one filter a channel"
    return pointers.objection(replace(c, spread=0), arch)


def _tile(c: ConvConfig, arch: Arch) -> str | None:
    elements, threads = c.tile_m * c.tile_n, c.num_warps * arch.warp_size
    most = windows.MOST_ROW if windows.of_row(c) else windows.MOST_TAPS
    if windows.taps(c) > most:
        return f"{c.held} has more than {most} taps to hold"
    if (read := windows.read(c)) > windows.MOST_READ:
        return f"{c.held} reads {read} pixels in a step, over {windows.MOST_READ}"
    if elements < threads:
        return f"tiles of {elements} strips and channels have no work for {threads} threads"
    return depthwise.most_elements(elements)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    other, fits = True, windows.words(p)
    for word in fits:
        other = other & (c.held != word)
    said = "holds {c.held}, but windows for the problem hold {}"
    yield other, partial(said.format, " or ".join(fits) or "nothing")
    said = "has {c.spread} filters for each channel (0: one), and not {p.group_k}"
    yield c.spread != windows.several(p), said.format


# --- spaces -------------------------------------------------------------------------------------


def _widths(p: ConvProblem) -> Sequence[int]:
    """Channels of a tile: also half, where the last would be half empty."""
    channels = p.channels_out
    wide = min(64, max(16, power_of_two(channels)))
    return (wide, wide // 2) if 0 < channels % wide <= wide // 2 else (wide,)


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Windows that hold a filter, or of a large one a row, where registers do."""
    if p.group_c != 1 or p.precision == "tf32" or p.taps == 1:
        return
    if p.groups == 1 < p.k and not tuned:
        return  # of images of one channel: matrix units were faster in three of four (conv-held.md)
    width, spread = common.pixel_alignments(p), windows.several(p)
    for word in windows.words(p):
        row = windows.is_row(word, len(p.spatial))
        strided = p.direction == "weights" and math.prod(p.stride) > 1
        if row and p.taps <= _SMALL and strided and not tuned:
            continue
        forms: Sequence[tuple[int, int]] = _HELD
        if tuned:
            forms = [*itertools.product((1, 2, 4, 8), (4, 8, 16, 32, 64))]
        if row:
            forms = [(share, 1) for share in (1, 2, 4)]
        if spread:  # a thread's channels are no neighbours of one array, and loads are of one
            forms = [*dict.fromkeys((1, down) for _, down in forms)]
        for n, (share, down), warps, scheduler in itertools.product(
            _widths(p), forms, _MORE_WARPS if tuned else _WARPS, pointers.schedulers(p)
        ):
            m = max(1, share * warps * arch.warp_size // n)
            said = (PIPELINE, scheduler, 1, False, *width, "", word, 1, False, spread)
            yield (m, n, down, warps, 1, *said)


# --- how long they take -------------------------------------------------------------------------


def _estimates(x: Context) -> Estimates:
    c, device, steps = x.config, x.device, _walked(x)
    work = pointers.Work(
        steps=steps,
        read=each(c, _read),
        shared=each(c, _moved) * depthwise.lane_bytes(x.problem),
        products=physics.lanes_us(each(c, _instructions) + each(c, _once) / steps, device),
        resident=each(c, _resident, arch_called(device.arch)),
    )
    return pointers.estimates(x, work)


def _walked(x: Context) -> Each:
    """Steps of a workgroup."""
    c, p = x.config, x.problem
    down = windows.steps(c, p) + each(c, windows.held).ahead
    if p.direction == "weights":
        return most(1.0, x.case.steps / sharing.parts(x) * down)
    rows = p.taps / p.filter[-1] / windows.classes(p)
    return most(1.0, either(each(c, windows.of_row), rows, down))


def _loads(c: ConvConfig) -> int:
    """Elements that a workgroup reads in a step."""
    of_y = windows.held(c).strip if c.direction == "weights" else 0
    return c.tile_m * c.tile_n * (windows.read(c) + of_y)


def _moved(c: ConvConfig) -> int:
    """Elements that a workgroup reads and stores in a step."""
    of, strips = windows.held(c), c.tile_m * c.tile_n
    made = {"forward": of.strip, "data": of.strip * of.step_h, "weights": 0}[c.direction]
    return _loads(c) + strips * made


def _read(c: ConvConfig) -> int:
    """Bytes that a workgroup reads in a step."""
    return _loads(c) * DTYPES[c.dtype].bytes


def _instructions(c: ConvConfig) -> float:
    """Instructions of a lane, times lanes, in a step. A thread has neighbouring channels of a
    pixel, which are moved at once where they are aligned so."""
    share = max(1, c.tile_m * c.tile_n // (c.num_warps * windows.LEAST_LANES))
    size = DTYPES[c.dtype].bytes
    at_once = max(1, min(share, c.alignment // size))
    moved = _moved(c)
    return (
        c.tile_m * c.tile_n * windows.products(c)
        + CONV.WINDOW_LOAD_INSTRUCTIONS * moved / at_once
        + moved
    )


def _once(c: ConvConfig) -> float:
    """Instructions of a lane, times lanes, at the end: rows of a tile of weights add up their
    sums."""
    if c.direction != "weights":
        return 0
    return c.tile_m * c.tile_n * math.prod(windows.held(c).taps) * CONV.WINDOW_SUM_INSTRUCTIONS


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, _sums(c), 0)


def _sums(c: ConvConfig) -> int:
    return c.tile_m * c.tile_n * windows.registers(c)


WINDOW = Pipeline(
    name=PIPELINE,
    parts=_parts,
    totals=FEW_SUM,
    words=frozenset({"depthwise", "several_filters", "holds_filter"}),
    objection=_objection,
    tile=_tile,
    refusal=_refusal,
    sums=_sums,
    shared_memory=lambda _, __: 0,
    alignments=common.pixel_alignments,
    tiles=_tiles,
    steps=_steps,
    splits=pointers.filling(_tiles, WORKGROUPS_FOR_UNIT),
    rows=_rows,
    estimates=_estimates,
)
