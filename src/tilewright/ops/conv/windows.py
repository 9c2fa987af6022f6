"""Windows over pixels in registers: which filters they are for, how a problem falls into lines, and
the registers that a config needs.

A window holds its whole filter (kernels/held.py), or of a large one a row (kernels/rows.py). Where
it holds the filter, a line is a strip's way down: a segment of the rows of one strip of one image.
1-D strips are one pixel wide and walk along the width. Where it holds a row, a line is a strip.

A channel may have several filters (`filters`). Columns of a tile are then filters, which read their
channel's pixels; in the gradient of the data they are channels, and add up what their filters' y
say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Each, each, either, most

STRIP, ROW_STRIP = 4, 8
"""Neighbouring pixels of a strip, where the filter is held and where a row is."""

STEPS = (1, 2, 4)
"""Strides of the height and the width: those that divide a strip."""

MOST_TAPS = 128
"""Taps of a filter: more do not fit into registers."""

MOST_READ = 128
"""Pixels that a strip reads in a step. All are written out: the compiler took 5 s for 18, 25 s for
54, and over 120 s for 180."""

MOST_ROW = 32
"""Taps of a row."""

LEAST_LANES = 32
"""Lanes of a warp."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is constant in a config's kernel.

    taps: of the filter, by depth, height and width; of a row, (1, 1, width). step_h, step_w:
    strides. strip: pixels of a strip. 1-D lies along the height.
    """

    taps: tuple[int, int, int]
    step_h: int
    step_w: int
    strip: int

    @property
    def ahead(self) -> int:
        """Steps before the first that completes a row of the result."""
        return -(-self.taps[1] // self.step_h) - 1


def word(p: ConvProblem) -> str:
    """The filter of `p`, with the strides of the height and the width."""
    return f"{'x'.join(map(str, p.filter))}s{'x'.join(map(str, p.stride[-2:]))}"


def several(p: ConvProblem) -> int:
    """What configs for `p` say in `spread`: the filters of a channel, or 0 for one."""
    return p.group_k if p.group_k > 1 else 0


def filters(c: ConvConfig) -> int:
    """Filters of a channel."""
    return max(1, c.spread)


def added(c: ConvConfig) -> int:
    """Filters that an element of the result adds up."""
    return filters(c) if c.direction == "data" else 1


def words(p: ConvProblem) -> tuple[str, ...]:
    """What configs for `p` may say in `held`: its filter, or a row."""
    found = []
    steps = p.stride[-2:]
    plain = all(step in STEPS for step in steps) and set(p.dilation[-2:]) == {1}
    if plain and p.taps <= MOST_TAPS:
        found.append(word(p))
    strides = STEPS if p.direction != "data" else STEPS[:1]
    if len(p.spatial) > 1 and p.filter[-1] <= MOST_ROW and p.dilation[-1] == 1:
        found += [f"{p.filter[-1]}s{p.stride[-1]}"] * (p.stride[-1] in strides)
    return tuple(found)


def of_row(c: ConvConfig) -> bool:
    """Whether a row of the filter is held, and not all of it."""
    return is_row(c.held, c.spatial_dims)


def is_row(word: str, rank: int) -> bool:
    """Whether a word of `held`, of so many dimensions, is a row."""
    return rank > 1 and bool(word) and "x" not in word


def held(c: ConvConfig) -> Held:
    """What `c` says in `held`."""
    taps, steps = ([*map(int, part.split("x"))] for part in c.held.split("s"))
    if of_row(c):
        return Held((1, 1, taps[0]), 1, steps[0], ROW_STRIP)
    if len(taps) == 1:
        return Held((1, taps[0], 1), steps[0], 1, 1)
    depth = 1 if len(taps) == 2 else taps[0]
    return Held((depth, taps[-2], taps[-1]), steps[0], steps[1], STRIP)


def classes(p: ConvProblem) -> int:
    """Residue classes that are tiles of their own, where a row is held."""
    return math.prod(p.stride[:-1]) if p.direction == "data" else 1


def _down(size: int, by: Each) -> Each:
    return size // by * by


def _turned(three: tuple[int, ...], p: ConvProblem) -> tuple[int, int, int]:
    d, h, w = three
    return (d, w, h) if len(p.spatial) == 1 else (d, h, w)


def lines(c: Any, p: ConvProblem) -> tuple[Each, Each, Each]:
    """Lines of an image, of a config or of `Columns`: depths of the result, segments of its rows,
    strips of its width. For the weights' gradient, those of y."""
    strip, row = each(c, held).strip, each(c, of_row)
    depth, _, width = _turned(_made(p), p)
    if p.direction == "data":
        _, _, pad = _turned(_pads(p), p)
        width += pad - _down(pad, strip)
    deep, down, across = p.walked
    return (
        either(row, deep, depth),
        either(row, down, _segments(c, p)[0]),
        -(-either(row, across, width) // strip),
    )


def _made(p: ConvProblem) -> tuple[int, ...]:
    """Sizes of the result; of the weights' gradient, those of y."""
    return tuple(dim.size if p.direction == "data" else dim.out for dim in p.three)


def _pads(p: ConvProblem) -> tuple[int, ...]:
    return tuple(dim.pad for dim in p.three)


def _segments(c: Any, p: ConvProblem) -> tuple[Each, Each]:
    """Segments of the rows, of `tile_k` steps or fewer, and the steps of each: as even as they can
    be."""
    _, every, _ = _turned(_made(p), p)
    if p.direction == "data":
        _, pad, _ = _turned(_pads(p), p)
        step = each(c, held).step_h
        every = -(-(every + pad - _down(pad, step)) // step)
    segments = -(-every // c.tile_k)
    return segments, -(-every // most(1, segments))


def steps(c: Any, p: ConvProblem) -> Each:
    """Steps that a strip walks down, where the filter is held, but those ahead of its first row."""
    return _segments(c, p)[1]


def count(c: Any, p: ConvProblem) -> Each:
    """All lines."""
    return p.n * math.prod(lines(c, p))


def origin(c: ConvConfig, p: ConvProblem) -> tuple[int, int]:
    """The first step and the first strip's first pixel: in the gradient of the data counted from
    the first pixel of the padding, so that each begins a stride."""
    if c.direction != "data":
        return 0, 0
    of = held(c)
    _, pad_h, pad_w = _turned(_pads(p), p)
    return pad_h // of.step_h, _down(pad_w, of.strip)


def taps(c: ConvConfig) -> int:
    """That a column of a tile holds, of all its filters."""
    return added(c) * math.prod(held(c).taps)


def pixels(c: ConvConfig) -> int:
    """Pixels of the source that a strip reads of each row."""
    of = held(c)
    beside = -(-of.taps[2] // of.step_w) - 1
    if c.direction == "data":
        return beside + -(-of.strip // of.step_w)
    return (of.strip - 1) * of.step_w + of.taps[2]


def rows(c: ConvConfig) -> int:
    """Rows of the source (of x, for the weights' gradient) that a step reads, of all filters."""
    of = held(c)
    return of.taps[0] * (added(c) if c.direction == "data" else of.step_h)


def read(c: ConvConfig) -> int:
    """Pixels that a strip reads in a step."""
    return pixels(c) * rows(c)


def products(c: ConvConfig) -> int:
    """Products of a step, for each strip and channel."""
    of = held(c)
    return taps(c) * of.strip // (of.step_w if c.direction == "data" else 1)


def registers(c: ConvConfig) -> int:
    """That each strip and channel needs: filter or sums of taps, rows under way, pixels of a
    row."""
    of = held(c)
    live = (of.ahead + 1) * of.strip * (of.step_h if c.direction == "data" else 1)
    # The compiler loads a long row ahead, and keeps its places.
    each = 3 if of_row(c) and c.direction != "weights" else 1
    return taps(c) + live + each * pixels(c)


MOST_EARLY = 185
"""Registers of a thread, as `registers` counts them, with which pixels are asked for early: 184 are
246 in sm_90's code, of 255. On gfx1201 280 spilled."""


def early(c: ConvConfig) -> bool:
    """Whether a step's pixels are asked for one step before."""
    each = -(-c.tile_m * c.tile_n // (c.num_warps * LEAST_LANES))
    of_y = held(c).strip if c.direction == "weights" else 0
    # Of 16 bits, two are in a register.
    asked = -(-each * (read(c) + of_y) * DTYPES[c.dtype].bytes // 4)
    return each * registers(c) + asked <= MOST_EARLY
