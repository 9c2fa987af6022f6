"""Pipeline ``packed``: images of few channels, as stems have them, forward and the gradient of the
weights, on every architecture. A first kernel gives each pixel 4 or 8 channels and each image its
padding (kernels/pack.py); the second multiplies runs that a filter's rows meet (kernels/packed.py,
packed_weights.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Array, Context, Numbers, Part, Tuple
from tilewright.ops.conv import packing, sharing
from tilewright.ops.conv.catalogue import (
    FEW_SUM,
    KERNELS,
    SUMS,
    index_type,
    integer,
    of_any_channels,
    own_options,
    read,
    strides_of,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS, cdiv
from tilewright.ops.conv.pipelines import common, pointers
from tilewright.ops.conv.pipelines.implicit import COPIED
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, because, either, least, most
from tilewright.ops.powers import power_of_two

PIPELINE = "packed"

# --- kernels ------------------------------------------------------------------------------------

PACK = "pack"
"""The part of a kernel that packs."""

BLOCK = 1024
"""Elements of a workgroup of the kernel that packs."""


def _whole(c: ConvConfig) -> int:
    return packing.WHOLE // DTYPES[c.dtype].bytes


def _packed_rows(p: ConvProblem) -> int:
    return p.n * math.prod(packing.sizes(p))


def _elements(
    value: Callable[[ConvProblem], tuple[int, ...]],
    multiples: Callable[[ConvConfig], tuple[int, ...]],
) -> Numbers:
    """Elements along the dimensions of packed x."""
    return Numbers(
        lambda c: (index_type(c),) * MOST_DIMS, lambda x: value(x.problem), multiples=multiples
    )


_PACK = Part(
    name=PACK,
    kernel=f"{KERNELS}.pack:conv_pack",
    grid=lambda x: _packed_rows(x.problem) + x.problem.k * packing.filter_rows(x.problem),
    options=own_options,
    own={
        "x": Array("dtype"),
        "w": Array("dtype"),
        "x_strides": strides_of(lambda _: "x"),
        "w_strides": strides_of(lambda _: "w"),
        "rows": integer(_packed_rows),
        "made_sizes": Numbers(("i32",) * 2, lambda x: packing.sizes(x.problem)),
        "row_x": integer(packing.row_x, _whole),
        "row_w": integer(packing.row_w, _whole),
        "shift": integer(lambda p: packing.pitch(p).bit_length() - 1),
        "BLOCK": lambda *_: BLOCK,
        "FILTERS": lambda c, _: c.direction == "forward",
    },
)
_NOTHING = Tuple(lambda _: ())
_PACK_X = replace(
    _PACK,
    grid=lambda x: _packed_rows(x.problem),
    own={**_PACK.own, **dict.fromkeys(("w", "packed_w", "w_strides"), _NOTHING)},
)

_OWN = {
    "packed_strides": _elements(packing.strides, lambda c: (_whole(c),) * MOST_DIMS),
    "packed_steps": _elements(packing.steps, lambda c: (_whole(c), _whole(c), read(c))),
    "pitch": integer(packing.pitch),
    "row_w": integer(packing.row_w, _whole),
    "sums": SUMS["made"],
    "VECTOR": lambda c, _: read(c),
}
_FORWARD = (_PACK, pointers.kernel("packed", "conv_packed", own=_OWN))
_WEIGHTS = (_PACK_X, pointers.kernel("packed_weights", "conv_packed_weights", own=_OWN))


_TOTALS = of_any_channels(FEW_SUM)
"""Channels are as they come: what is aligned is packed."""


def _lines(p: ConvProblem) -> int:
    """Lines of pixels of y."""
    return p.n * math.prod(p.out_sizes[:-1])


def _tiles(c: Any, p: ConvProblem) -> Each:
    if p.direction == "weights":
        columns = packing.filter_rows(p) * packing.row_w(p)
        return cdiv(p.k, c.tile_m) * cdiv(columns, c.tile_n)
    return _lines(p) * cdiv(p.out_sizes[-1], c.tile_m) * cdiv(p.k, c.tile_n)


def _steps(c: Any, p: ConvProblem) -> Each:
    return _lines(p) * cdiv(p.out_sizes[-1], c.tile_k)


FEW_UNITS, MANY_UNITS = 2, 4
"""Workgroups for each compute unit that parts of the pixels make up, and as many where their sums
are few: a step's places follow from one another, and more workgroups go on meanwhile."""

SUM_BYTES, READ_FOR_SUMS = 4, 16
"""Bytes of a part's sum, and bytes that are read for each byte of sums where these are few."""


def _splits(c: Any, p: ConvProblem, device: Device) -> Each:
    tiles = most(1, _tiles(c, p))
    parts = MANY_UNITS * device.compute_units // tiles
    read = sum(math.prod(p.shape_of(name)) * DTYPES[p.dtype].bytes for name in "xy")
    sums = SUM_BYTES * math.prod(p.shape_of("w")) * parts
    few = READ_FOR_SUMS * sums <= read
    return either(few, parts, FEW_UNITS * device.compute_units // tiles)


# --- rules ----------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.direction == "data":
        return f"pipeline {PIPELINE} has no gradient of the data"
    if c.merged or c.runs:
        return f"pipeline {PIPELINE} always takes runs of a filter's row, and has no other steps"
    if c.direction == "forward":
        return pointers.objection(c, arch)
    if not c.two_stage:
        return f"parts of the weights are added up by a second kernel, not by {c.reduction}"
    if not c.spread or c.spread & (c.spread - 1):
        return f"a filter's row has a power of two of columns, not {c.spread}"
    return pointers.objection(replace(c, spread=0), arch)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    if reason := _unfit(p):
        yield True, because(reason)
        return
    row = packing.row_w(p)
    if p.direction == "forward":
        said = "tile_k = {c.tile_k} is over the {} elements of a packed row"
        yield c.tile_k > row, partial(said.format, row)
    else:
        yield c.spread != row, partial("a packed row has {} elements, not {c.spread}".format, row)
    if (count := max(packing.counts(p))) >= pointers.REACH:
        said = f"packed x has {count} elements, which indices of 32 bits do not reach"
        yield c.index_bits == 32, because(said)


def _unfit(p: ConvProblem) -> str | None:
    """Why packing is not for `p`, if so."""
    if p.direction == "data":
        return "it is the gradient of the data"
    if p.groups != 1 or p.c > packing.MOST_CHANNELS:
        return f"{p.c} channels in {p.groups} groups, not up to {packing.MOST_CHANNELS} in one"
    if p.dilation[-1] != 1:
        return f"taps lie {p.dilation[-1]} pixels apart along the width, not side by side"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    return None


def _alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of runs in packed x (and, for weights, of y), and of the result."""
    of_runs = min(packing.WHOLE, packing.pitch(p) * DTYPES[p.dtype].bytes)
    if p.direction == "weights":
        return min(of_runs, p.rows_alignment("y")), p.rows_alignment("w")
    return of_runs, p.rows_alignment("y")


# --- the spaces -----------------------------------------------------------------------------------

_TILES = ((32, 4), (64, 4), (128, 4), (128, 8))
_MORE_TILES = (*_TILES, (256, 8))
"""Pixels of a tile, of one line, and warps."""
_WIDTHS, _MORE_WIDTHS = (64,), (32, 64, 128)
"""Channels of the result."""
_DEPTHS, _MORE_DEPTHS = (32,), (16, 32, 64)
"""Elements of a step, at most."""
_MORE_STAGES = (1, 2, 3)
"""Stages of a tuning. The default space has one for few steps: see kernels/packed.py."""
_FEW_STEPS, _USUAL_STAGES = 4, 3

_COLUMNS = ((64, 4), (128, 4))
_MORE_COLUMNS = (*_COLUMNS, (128, 8), (256, 4), (256, 8))
"""For the weights' gradient, columns of a tile at most, and warps."""
_PIXELS, _MORE_PIXELS = (64,), (32, 64)
"""Pixels of a step, all of one line."""
_FILTERS = 64
"""Filters of a tile, at most; and the least of which asynchronous matrix instructions have y in
shared memory, so tiles have as many there, some of them empty. Fewer are multiplied from registers:
y lies the other way than its products' rows, and the compiler has no loads of it under way for
later steps, so each step waits for memory."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if _unfit(p) is not None:
        return
    if p.direction == "weights":
        if tuned or not _product(p):
            yield from _rows_of_weights(p, arch, tuned)
        return
    least = packing.least_depth(p)
    row = packing.row_w(p)
    most = max(16, power_of_two(p.k))
    depths = {min(row, max(least, n)) for n in (_MORE_DEPTHS if tuned else _DEPTHS)}
    widths = {min(n, most) for n in (_MORE_WIDTHS if tuned else _WIDTHS)}
    line = _whole_line(p)
    sides = dict.fromkeys(
        (min(m, line), 4 if line < m else warps) for m, warps in (_MORE_TILES if tuned else _TILES)
    )
    for (m, warps), n, depth in itertools.product(sides, sorted(widths), sorted(depths)):
        yield from (
            (m, n, depth, warps, stages, PIPELINE, "tile", 8, False, *_alignments(p))
            for stages in _stages(arch, packing.filter_rows(p) * cdiv(row, depth), tuned)
        )


def _product(p: ConvProblem) -> bool:
    """Whether one tap meets pixels that lie in whole copies, so that packing would gain nothing."""
    return p.taps == 1 and min(p.rows_alignment(name) for name in "xy") >= COPIED


def _whole_line(p: ConvProblem) -> int:
    """Pixels of the least tile that holds a line of y."""
    return max(16, power_of_two(p.out_sizes[-1]))


def _stages(arch: Arch, steps: int, tuned: bool) -> list[int]:
    """Those of the spaces, for so many steps."""
    if tuned:
        return [n for n in _MORE_STAGES if n in arch.num_stages]
    return [1 if arch.backend == "hip" or steps <= _FEW_STEPS else _USUAL_STAGES]


def _rows_of_weights(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    spread = packing.row_w(p)
    all_columns = power_of_two(packing.filter_rows(p) * spread)
    filters = max(16, min(_FILTERS, power_of_two(p.k)))
    if arch.async_mma and DTYPES[p.dtype].bytes == 2 and _alignments(p)[0] >= COPIED:
        filters = _FILTERS
    tiles = dict.fromkeys(
        (max(16, min(n, all_columns)), warps) for n, warps in (_MORE_COLUMNS if tuned else _COLUMNS)
    )
    line = _whole_line(p)
    depths = dict.fromkeys(min(n, line) for n in (_MORE_PIXELS if tuned else _PIXELS))
    for (n, warps), depth, stages in itertools.product(
        tiles, depths, _stages(arch, _lines(p), tuned)
    ):
        yield (filters, n, depth, warps, stages, PIPELINE, "split", 8, False, *_alignments(p), "",
               "", 1, False, spread)  # fmt: skip


# --- how long they take: the products' loads, and the kernel before -------------------------------

INSTRUCTIONS, FINISHED = 50, 8
"""Instructions of a lane for each vector that a step loads, with its share of waiting and of the
products, and for each sum that is stored. Fitted to four layers on an H200
(benchmarks/results/conv_stems_h200.json)."""

LOADS, MEMORY, TOTALS, LAUNCH = "loads", "memory", "sum of parts", "launch"


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device, size = x.config, x.problem, x.device, DTYPES[x.problem.dtype].bytes
    weights = p.direction == "weights"
    if weights:
        steps = x.case.steps / x.splits
    else:
        steps = packing.filter_rows(p) * cdiv(packing.run(p), c.tile_k)
    count = x.case.tiles * x.splits
    rows = least(c.tile_m, p.k) if weights else c.tile_m  # filters that there are
    vectors = (rows + c.tile_n) * c.tile_k * size / c.alignment
    instructions = steps * vectors * INSTRUCTIONS
    instructions += 0 if weights else c.tile_m * c.tile_n * FINISHED
    shares = np.maximum(1.0, count / device.compute_units)
    loads = physics.lanes_us(shares * instructions, device)
    packed = sum(packing.counts(p)) * size
    of_y = math.prod(p.shape_of("y")) * DTYPES[p.dtype_of("y")].bytes
    memory = physics.memory_us(packed + of_y, device)
    # A workgroup packs a row, block by block: few rows, as in one dimension, are few workgroups.
    blocks = cdiv(packing.row_x(p), BLOCK)
    packs = physics.memory_us(math.prod(p.shape_of("x")) * size + packed, device)
    packs = max(packs, blocks * DEVICE.LATENCY_US) + DEVICE.SECOND_US
    terms = {LOADS: loads, MEMORY: memory, PACK: packs, LAUNCH: common.LAUNCH_US}
    total = physics.together_us(loads, memory) + packs + common.LAUNCH_US
    if weights:
        terms[TOTALS] = sharing.totals(x, x.splits)
        total += terms[TOTALS]
    return common.estimated(total, terms, count)


PACKED = Pipeline(
    name=PIPELINE,
    parts=lambda c: _WEIGHTS if c.direction == "weights" else _FORWARD,
    totals=_TOTALS,
    objection=_objection,
    tile=common.least_of_8_bits,
    refusal=_refusal,
    shared_memory=pointers.shared_memory,
    alignments=_alignments,
    tiles=_tiles,
    steps=_steps,
    splits=_splits,
    rows=_rows,
    estimates=_estimates,
)
