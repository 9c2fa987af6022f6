"""Pipeline ``window``: depthwise filters, or rows of large ones, in registers, under a window that
slides over pixels (kernels/held.py, rows.py; `windows`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv import windows
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv, power_of_two
from tilewright.ops.conv.parts import FEW_SUM, Part
from tilewright.ops.conv.pipelines import common, depthwise, pointers
from tilewright.ops.conv.pipelines.pointers import LAST
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem

WORKGROUPS_FOR_UNIT = 4
"""Workgroups for each compute unit that parts of the lines make up."""

_HELD = ((2, 16), (4, 16), (8, 16), (1, 16), (2, 4), (4, 4), (8, 4))
"""Tiles of windows that hold their filter: channels in a thread, steps down."""

_SMALL = 49
"""Taps up to which no row is held, but the filter."""


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    channels = cdiv(p.c, c.tile_n)
    if p.direction == "weights":
        return channels * (p.taps // p.filter[-1] if windows.of_row(c) else 1)
    return cdiv(windows.count(c, p), c.tile_m) * channels * windows.classes(c, p)


def _steps(c: ConvConfig, p: ConvProblem) -> int:
    """How many tiles the lines make."""
    return cdiv(windows.count(c, p), c.tile_m)


_MADE = ("TILE_M", "TILE_N", "NDIM", "DATA")
_AT_LAST = ("UNIT", "UNIT_OUT", "INT_ACC", *LAST)
_FILTER = ("TAPS_D", "TAPS_H", "TAPS_W", "STEP_H", "STEP_W", "STRIP", "EARLY")
_ROW = ("TAPS_W", "STEP_W", "STRIP")

FILTER = Part(
    module="held",
    function="conv_held",
    grid=lambda c, p, _: _tiles(c, p),
    arguments=(
        "source", "weights", "made", "extra", "source_strides", "weight_strides", "made_strides",
        "images", "channels_out=channels", "sizes", "full", "stride", "dilation", "before",
        "lines", "steps", "origin",
    ),
    constants=(*_MADE, *_FILTER, *_AT_LAST),
    epilogue=True,
)  # fmt: skip

ROW = Part(
    module="rows",
    function="conv_rows",
    grid=lambda c, p, _: _tiles(c, p),
    arguments=depthwise.MADE.arguments,
    constants=(*_MADE, *_ROW, *_AT_LAST),
    epilogue=True,
)

FILTER_WEIGHTS = Part(
    module="held",
    function="conv_held_weights",
    grid=lambda c, p, splits: _tiles(c, p) * splits,
    arguments=(
        "x", "y", "made=sums", "x_strides", "y_strides", "made_strides", "images",
        "channels_out=channels", "sizes", "outs", "stride", "dilation", "before", "lines", "steps",
        "splits",
    ),
    constants=("TILE_M", "TILE_N", "NDIM", *_FILTER, "UNIT", "TWO_STAGE"),
)  # fmt: skip

ROW_WEIGHTS = Part(
    module="rows",
    function="conv_rows_weights",
    grid=lambda c, p, splits: _tiles(c, p) * splits,
    arguments=depthwise.WEIGHTS.arguments,
    constants=("TILE_M", "TILE_N", "NDIM", *_ROW, "UNIT", "TWO_STAGE"),
)


def _kernel(c: ConvConfig) -> Part:
    if c.direction == "weights":
        return ROW_WEIGHTS if windows.of_row(c) else FILTER_WEIGHTS
    return ROW if windows.of_row(c) else FILTER


def _splits(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    return WORKGROUPS_FOR_UNIT * device.compute_units // max(1, _tiles(c, p))


def _refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    if c.held not in (fits := windows.words(p)):
        return f"holds {c.held}, but windows for the problem hold {' or '.join(fits) or 'nothing'}"
    return None


def _widths(p: ConvProblem, tuned: bool) -> Sequence[int]:
    """Channels of a tile: in a tuning also half, where the last would be half empty."""
    wide = min(64, max(16, power_of_two(p.c)))
    return (wide, wide // 2) if tuned and 0 < p.c % wide <= wide // 2 else (wide,)


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Windows that hold a filter, or of a large one a row, where registers do."""
    if not p.depthwise or p.precision == "tf32" or p.taps == 1:
        return
    width = common.pixel_alignments(p)
    for word in windows.words(p):
        row = windows.is_row(word, len(p.spatial))
        if row and p.taps <= _SMALL and not tuned:
            continue
        forms: Sequence[tuple[int, int]] = _HELD
        if tuned:
            forms = [*itertools.product((1, 2, 4, 8), (4, 8, 16, 32, 64))]
        if row:
            forms = [(each, 1) for each in (1, 2, 4)]
        for n, (each, down), warps, scheduler in itertools.product(
            _widths(p, tuned), forms, (2, 4, 8) if tuned else (4,), pointers.schedulers(p)
        ):
            m = max(1, each * warps * arch.warp_size // n)
            yield (m, n, down, warps, 1, "window", scheduler, 1, False, *width, "", word)


WINDOW = Pipeline(
    name="window",
    needs=(),
    sibling=lambda c: c,
    merges_groups=False,
    objection=pointers.objection,
    refusal=_refusal,
    odd=lambda _: (),
    sums=lambda c: c.tile_m * c.tile_n * windows.registers(c),
    shared_memory=lambda _, __: 0,
    alignments=common.pixel_alignments,
    tiles=_tiles,
    steps=_steps,
    splits=_splits,
    meetings=lambda _: 1,
    totals=FEW_SUM,
    sources=pointers.sources(_kernel),
    launch=pointers.launch(_kernel),
    temporaries=common.nothing,
    rows=_rows,
)
