"""The kernels of the pipelines that copy boxes, and how many tiles, steps and parts they walk
(kernels/gluon_ws.py; for the gradient of the weights kernels/gluon_weights.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilewright.arch.model import Device
from tilewright.ops.binder import (
    Array,
    Box,
    Catalogue,
    Constant,
    Context,
    Described,
    Meaning,
    Numbers,
    Part,
    Tuple,
)
from tilewright.ops.conv import boxes, maps
from tilewright.ops.conv.boxes import Walk
from tilewright.ops.conv.catalogue import (
    CATALOGUE,
    CLASS,
    KERNELS,
    PARTIALS,
    channels_in,
    channels_out,
    integer,
    made_of,
    pointer,
    source_of,
)
from tilewright.ops.conv.catalogue import each as each_dim
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines.boxed.shape import (
    PINGPONG,
    groups,
    piece,
    readers,
    rows,
    stage_bytes,
    stored,
)
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.nouns import MAIN
from tilewright.ops.pool import Columns, Each, each, either, least, most

WHOLE = (0, 0, 0)
"""The one class of pixels of y."""

# --- tiles, steps and parts ---------------------------------------------------------------------


def _tiles_m(c: Any, p: ConvProblem, of: tuple[Walk, ...]) -> Each:
    return cdiv(math.prod(boxes.counts(boxes.of(c), p, of)), each(c, readers))


def tiles_of_class(c: Any, p: ConvProblem, of: tuple[Walk, ...]) -> Each:
    """Tiles of the residue class whose walks these are."""
    return _tiles_m(c, p, of) * cdiv(p.channels_out, c.tile_n)


def _launched(c: Any, p: ConvProblem, of: tuple[Walk, ...]) -> Each:
    """Tiles of a launch, of one class or of as many as it has."""
    return tiles_of_class(c, p, of) * c.classes


def _weights_m(c: Any, p: ConvProblem) -> Each:
    return cdiv(p.k, c.tile_m)


def _weights_n(c: Any, p: ConvProblem) -> Each:
    spread = most(1, c.spread)
    of_several = cdiv(p.taps * cdiv(p.group_c, spread), c.tile_n // spread)
    return either(c.spread > 0, of_several, cdiv(p.group_c, c.tile_n) * p.taps)


def tap_boxes(c: ConvConfig, p: ConvProblem) -> int:
    """Boxes of a tap's channels, where a tile's are of several taps; else 1."""
    return cdiv(p.group_c, c.spread) if c.spread else 1


@lru_cache(maxsize=64)  # of each problem for the rules and for the estimate
def tiles(c: Any, p: ConvProblem) -> Each:
    """Tiles of all residue classes, or of a gradient of weights."""
    if p.direction == "weights":
        return _weights_m(c, p) * _weights_n(c, p)
    apart = sum(tiles_of_class(c, p, boxes.walks(p, residue)) for residue in boxes.residues(p))
    # Together, all have as many as the first, which has the most pixels.
    return either(c.classes > 1, _launched(c, p, boxes.walks(p, WHOLE)), apart)


def steps(c: Any, p: ConvProblem) -> Each:
    """Boxes of y."""
    return math.prod(boxes.counts(boxes.of(c), p, boxes.walks(p, WHOLE)))


MOST_SPLITS = 64


def splits(c: Any, p: ConvProblem, device: Device) -> Each:
    """Parts of the pixels: those with which the busiest compute unit has the fewest steps, the sum
    of parts counted as steps too."""
    import numpy as np

    count, every, units = tiles(c, p), steps(c, p), device.compute_units
    part = CONV.MEMORY_OVER_L2 * 8 * math.prod(p.shape_of("w")) / units / each(c, stage_bytes)
    # Parts times boxes count in 32 bits.
    many = least(least(MOST_SPLITS, every), 2**31 // most(1, every))
    number: Each = np.arange(1, MOST_SPLITS + 1)[:, None]
    cost = cdiv(count * number, units) * cdiv(every, number) + part * number
    best = 1 + np.where(number <= most(1, many), cost, np.inf).argmin(0)
    return best if isinstance(c, Columns) else int(best[0])


# --- kernels ------------------------------------------------------------------------------------


def _walks(x: Context) -> tuple[Walk, ...]:
    return boxes.walks(x.problem, x.case.residue)


def _walked(value: Callable[[Walk], int]) -> Numbers:
    return Numbers(("i32",) * 3, lambda x: tuple(map(value, _walks(x))))


def _images(x: Context, name: str) -> Described:
    """What is read of x or y, of which a box has every so many pixels."""
    return maps.of_images(x.problem, name, tuple(walk.by_pixel for walk in _walks(x)))


def _per_group(*values: Callable[[ConvProblem], int]) -> Tuple:
    """Numbers that kernels for groups alone are given."""
    return Tuple(lambda c: tuple(map(integer, values)) if c.grouped else ())


def _box(place: int) -> Callable[..., int]:
    return lambda c, _: boxes.in_three(c.box)[place]


_SHARED: Catalogue = {
    "boxes": Numbers(
        ("i32",) * 3, lambda x: boxes.counts(boxes.of(x.config), x.problem, _walks(x))[1:]
    ),
    "taps": _walked(lambda walk: walk.count),
    "origin": _walked(lambda walk: walk.origin),
    "by_tap": _walked(lambda walk: walk.by_tap),
    "by_pixel": _walked(lambda walk: walk.by_pixel),
    "BOX_N": _box(0),
    "BOX_D": _box(1),
    "BOX_H": _box(2),
    "BOX_W": _box(3),
    "STAGES": lambda c, _: c.num_stages,
    "GROUPS": lambda c, _: groups(c),
}


def _kernel(module: str, grid: Callable[[Context], int], **said: Any) -> Part:
    return Part(
        name=MAIN,
        kernel=f"{KERNELS}.{module}:conv_{module}",
        grid=grid,
        options=lambda c, _: warpgroups.options_of(c.num_warps),
        **said,
    )


def _rests(c: ConvConfig) -> tuple[int, ...]:
    """Columns of each accumulator behind the first."""
    return tuple(widths.parts(c.tile_n)[1:])


def _of_weights(c: ConvConfig, columns: int) -> Box:
    """What one copy moves of the weights, of so many columns."""
    ones = (1,) * c.spatial_dims
    if c.direction == "data":
        return (c.tile_k, *ones, columns)
    return (columns, *ones, c.tile_k)


def _boxes(c: ConvConfig) -> dict[str, Box]:
    box = boxes.sizes(c.box)
    rests = {f"weights_rest.{i}": _of_weights(c, n) for i, n in enumerate(_rests(c))}
    made = {f"made_rest.{i}": (*box, piece(c)) for i in range(c.classes - 1)}
    return {
        "source": (*box, c.tile_k),
        "weights": _of_weights(c, widths.wide(c.tile_n)),
        "made": (*box, piece(c)),
        **rests,
        **made,
    }


_WEIGHTS = replace(pointer(lambda _: "w"), view=lambda x: maps.of_images(x.problem, "w"))


def _made(number: int) -> Array:
    """The result's pixels of a class by number, of a launch that has several."""

    def view(x: Context) -> Described:
        every = [*boxes.residues(x.problem)]
        return maps.images_of_class(x.problem, every[number])

    return replace(pointer(made_of), view=view)


def _of_classes(meaning: Meaning | Constant) -> Numbers:
    """Numbers that a launch of several classes alone is given."""
    assert isinstance(meaning, Numbers)
    return replace(meaning, there=lambda c: c.classes > 1)


PIXELS = _kernel(
    "gluon_ws",
    lambda x: min(_launched(x.config, x.problem, _walks(x)), x.device.compute_units),
    own={
        **_SHARED,
        **CLASS,
        "source": replace(pointer(source_of), view=lambda x: _images(x, source_of(x.config))),
        "weights": _WEIGHTS,
        "made": replace(
            pointer(made_of), view=lambda x: maps.images_of_class(x.problem, x.case.residue)
        ),
        "weights_rest": Tuple(lambda c: (_WEIGHTS,) * len(_rests(c))),
        "channels_in": integer(channels_in),
        "channels_out": integer(lambda p: p.channels_out),
        "per_group": _per_group(channels_out),
        "tiles_m": Numbers("i32", lambda x: _tiles_m(x.config, x.problem, _walks(x))),
        "walked": _walked(lambda walk: walk.size),
        "first_tap": _walked(lambda walk: walk.first),
        "taps_apart": _walked(lambda walk: walk.apart),
        "made_rest": Tuple(lambda c: tuple(_made(i) for i in range(1, c.classes))),
        "residues": _of_classes(each_dim(lambda dim: min(dim.stride, dim.size))),
        **{
            name: _of_classes(CATALOGUE[name])
            for name in ("full", "stride", "dilation", "before", "phase", "inverse")
        },
        "TURNS": lambda c, _: c.pipeline == PINGPONG,
    },
    boxes=_boxes,
)


def x_columns(c: ConvConfig) -> list[int]:
    """Channels that one copy brings of x, for each accumulator of a tile."""
    return [min(part, c.spread or part) for part in widths.parts(c.tile_n)]


def _weights_boxes(c: ConvConfig) -> dict[str, Box]:
    """The result is [parts, filters, taps, channels]."""
    box, (first, *rest) = boxes.sizes(c.box), x_columns(c)
    return {
        "x": (*box, first),
        "y": (*box, rows(c)),
        "made": (1, rows(c), 1, piece(c)),
        **{f"x_rest.{i}": (*box, columns) for i, columns in enumerate(rest)},
    }


def _weights_made(x: Context) -> Described:
    p = x.problem
    if x.config.two_stage:
        strides = (p.k * p.taps * p.group_c, p.taps * p.group_c, p.group_c, 1)
        return Described((x.splits, p.k, p.taps, p.group_c), strides)
    outer, _, *taps = maps.dense(p, "w")
    return Described((1, p.k, p.taps, p.group_c), (outer * p.k, outer, taps[-1], 1))


def _weights_grid(x: Context) -> int:
    if x.config.shares_steps:
        return int(x.case.programs)
    return int(min(x.case.tiles * x.splits, x.device.compute_units))


_X = Array("dtype", lambda _: "x", view=lambda x: _images(x, "x"))

OF_WEIGHTS = _kernel(
    "gluon_weights",
    _weights_grid,
    own={
        **_SHARED,
        "x": _X,
        "y": Array("dtype", view=lambda x: maps.of_images(x.problem, "y")),
        "made": Array(
            stored, lambda x: PARTIALS if x.config.two_stage else "w", view=_weights_made
        ),
        "x_rest": Tuple(lambda c: (_X,) * len(x_columns(c)[1:])),
        "tiles_m": Numbers("i32", lambda x: _weights_m(x.config, x.problem)),
        "tiles_n": Numbers("i32", lambda x: _weights_n(x.config, x.problem)),
        "all_boxes": Numbers("i32", lambda x: x.case.steps),
        "filters": integer(lambda p: p.k),
        "per_group": _per_group(lambda p: p.group_k, lambda p: p.group_c),
        "tap_boxes": Numbers("i32", lambda x: tap_boxes(x.config, x.problem)),
    },
    boxes=_weights_boxes,
)


def parts(c: ConvConfig) -> tuple[Part, ...]:
    """What a config's launch runs."""
    return (OF_WEIGHTS if c.direction == "weights" else PIXELS,)
