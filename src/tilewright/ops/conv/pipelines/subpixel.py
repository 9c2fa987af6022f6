"""Pipeline ``subpixel``: the gradient of images of few channels, as stems have them, on every
architecture. A first kernel writes the weights for blocks of pixels (`subpixel.Blocks`), the second
multiplies y's gradient by them (kernels/subpixel.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context, Numbers, Part
from tilewright.ops.conv import packing, subpixel
from tilewright.ops.conv.catalogue import CATALOGUE, FEW_SUM, KERNELS, own_options, three
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, because
from tilewright.ops.powers import power_of_two

PIPELINE = "subpixel"

# --- kernels ------------------------------------------------------------------------------------

FILTERS = "filters"
"""The part of the kernel that writes the weights."""

FILTERS_AT_ONCE = 16
"""Filters of a workgroup that writes weights."""

_OWN: Catalogue = {
    "w": CATALOGUE["weights"],
    "w_strides": CATALOGUE["weight_strides"],
    "block": three(lambda p: subpixel.blocks(p).sizes),
    "first": three(lambda p: subpixel.blocks(p).first),
    "met": three(lambda p: subpixel.blocks(p).met),
    "across": Numbers("i32", lambda x: subpixel.across(x.problem, x.config.tile_m)),
    "ROWS": lambda *_: FILTERS_AT_ONCE,
}

_PARTS = (
    Part(
        name=FILTERS,
        kernel=f"{KERNELS}.subpixel:conv_subpixel_filters",
        grid=lambda x: (
            math.prod(subpixel.blocks(x.problem).met) * cdiv(x.problem.k, FILTERS_AT_ONCE)
        ),
        options=own_options,
        own=_OWN,
    ),
    pointers.kernel("subpixel", "conv_subpixel", own=_OWN),
)


def _tiles(c: Any, p: ConvProblem) -> Each:
    deep, high, wide = subpixel.counts(p)
    across = subpixel.across(p, c.tile_m)
    return p.n * deep * cdiv(high, c.tile_m // across) * cdiv(wide, across)


def _steps(c: Any, p: ConvProblem) -> Each:
    return math.prod(subpixel.blocks(p).met) * cdiv(p.k, c.tile_k)


# --- rules ----------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.direction != "data":
        return f"pipeline {PIPELINE} is for gradients of the data, not for {c.direction}"
    if c.merged or c.runs:
        return f"pipeline {PIPELINE} walks filters of one pixel after another"
    if not subpixel.LEAST <= c.tile_n <= subpixel.MOST:
        return f"a tile has {subpixel.LEAST} to {subpixel.MOST} columns, not {c.tile_n}"
    return pointers.objection(c, arch)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    if reason := _unfit(p):
        yield True, because(reason)
        return
    columns, said = subpixel.blocks(p).columns, "a block of pixels takes a tile of {} columns, not"
    yield c.tile_n != columns, partial(f"{said} {{c.tile_n}}".format, columns)


def _unfit(p: ConvProblem) -> str | None:
    """Why blocks are not for `p`, if so."""
    if p.direction != "data":
        return "it is no gradient of the data"
    if p.groups != 1 or p.c > packing.MOST_CHANNELS:
        return f"{p.c} channels in {p.groups} groups, not up to {packing.MOST_CHANNELS} in one"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    if (columns := subpixel.blocks(p).columns) > subpixel.MOST:
        return f"a block that is as long as the stride has {columns} columns, over {subpixel.MOST}"
    if (count := math.prod(subpixel.shape_w(p))) >= pointers.REACH:
        return f"the weights of blocks are {count} elements, which indices of 32 bits do not reach"
    return None


def _alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of y's gradient, and of x's."""
    return p.rows_alignment("y"), p.rows_alignment("x")


# --- the spaces -----------------------------------------------------------------------------------

_TILES = ((32, 4), (64, 4), (128, 4), (128, 8))
"""Blocks of a tile, and warps."""
_DEPTHS, _STAGES = (32, 64), (1, 2, 3)
_USUAL_STAGES = {"cuda": 3, "hip": 1}
"""In the default space, by the GPU's maker."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if _unfit(p) is not None:
        return
    of = subpixel.blocks(p)
    _, high, wide = subpixel.counts(p)
    plane = max(subpixel.LEAST, power_of_two(high * wide))
    sides = dict.fromkeys((min(m, plane), 4 if plane < m else warps) for m, warps in _TILES)
    most = max(packing.least_depth(p), power_of_two(p.k))
    depths = dict.fromkeys(min(n, most) for n in _DEPTHS)
    every = _STAGES if tuned else (_USUAL_STAGES[arch.backend],)
    stages = [n for n in every if n in arch.num_stages]
    for (m, warps), depth, n in itertools.product(sides, depths, stages):
        yield (m, of.columns, depth, warps, n, PIPELINE, "tile", 8, False, *_alignments(p))


# --- how long they take: the products' loads, y's way from L2, and the kernel before --------------

INSTRUCTIONS, FINISHED = 62, 90
"""Instructions of a lane for each vector that a step loads, with its share of waiting and of the
products, and for each sum that is stored. Fitted to 64 kernels for four layers on an H200
(benchmarks/results/conv_stems_data_h200.json)."""

LOADS, PORT, MEMORY, LAUNCH = "loads", "L2", "memory", "launch"

VECTOR_BYTES = 16
"""Bytes of a vector of the weights, which the first kernel writes."""


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device, size = x.config, x.problem, x.device, DTYPES[x.problem.dtype].bytes
    steps = _steps(c, p)
    shares = np.maximum(1.0, x.case.tiles / device.compute_units)
    of_y, of_w = c.tile_m * c.tile_k * size, c.tile_n * c.tile_k * size
    vectors = of_y / c.alignment + of_w / VECTOR_BYTES
    instructions = steps * vectors * INSTRUCTIONS + c.tile_m * c.tile_n * FINISHED
    terms = {
        LOADS: physics.lanes_us(shares * instructions, device),
        PORT: shares * steps * (of_y + of_w) / physics.port_rate(device),
        MEMORY: physics.memory_us(p.min_bytes, device),
        FILTERS: DEVICE.SECOND_US,
        LAUNCH: common.LAUNCH_US,
    }
    total = physics.together_us(np.maximum(terms[LOADS], terms[PORT]), terms[MEMORY])
    return common.estimated(total + terms[FILTERS] + terms[LAUNCH], terms, x.case.tiles)


SUBPIXEL = Pipeline(
    name=PIPELINE,
    parts=lambda _: _PARTS,
    totals=FEW_SUM,
    objection=_objection,
    refusal=_refusal,
    shared_memory=pointers.shared_memory,
    alignments=_alignments,
    tiles=_tiles,
    steps=_steps,
    rows=_rows,
    estimates=_estimates,
)
