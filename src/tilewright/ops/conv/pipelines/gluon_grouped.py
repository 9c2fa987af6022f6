"""Pipeline ``gluon_grouped``: groups of 4 to 32 channels, whose pixels come into shared memory once
for all taps (kernels/gluon_grouped.py, gluon_grouped_weights.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Array, Box, Catalogue, Context, Described, Numbers, Part
from tilewright.ops.conv import boxes, maps, sharing, windows
from tilewright.ops.conv.boxes import Residues, Walk
from tilewright.ops.conv.catalogue import (
    CLASS,
    FEW_SUM,
    KERNELS,
    SUMS,
    integer,
    made_of,
    pointer,
    source_of,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, cuts
from tilewright.ops.conv.pipelines.cuts import Cut
from tilewright.ops.conv.pipelines.grouped_tiles import (
    COLUMNS,
    IMAGES,
    KEPT_AT_ONCE,
    PIPELINE,
    SLAB,
    SLICES,
    WARPS,
    alignments,
    box,
    classes,
    columns,
    forward_stride,
    halo,
    kept,
    objection,
    refusal,
    row_atoms,
    shared_memory,
)
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.nouns import MAIN
from tilewright.ops.pool import Each, each, most

# --- spaces -------------------------------------------------------------------------------------

_AHEAD, _MORE_AHEAD = (1, 2), (1, 2, 3)
"""Rows that are on their way, beside those that a filter sees."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if p.group_c != p.group_k or not p.group_c or len({*p.stride}) > 1 or p.precision == "tf32":
        return
    slices = [n for n in SLICES if n % p.group_c == 0][:1]
    ahead = _MORE_AHEAD if tuned else _AHEAD
    scheduler = "split" if p.direction == "weights" else "persistent"
    for channels, width, more in itertools.product(slices, COLUMNS, ahead):
        yield (IMAGES * width, SLAB, channels, WARPS, math.prod(p.filter[:-1]) + more, PIPELINE,
               scheduler, 1, False, *alignments(p), box(p, width), windows.word(p),
               channels // p.group_c)  # fmt: skip


# --- kernels ------------------------------------------------------------------------------------


def _steps(c: Any, p: ConvProblem) -> Each:
    """Rows of tiles of one slab."""
    walks = [boxes.walks(p, residue)[1:] for residue in boxes.residues(p)]
    rows = sum(height.size * cdiv(width.size, columns(c)) for height, width in walks)
    return cdiv(p.n, IMAGES) * rows


def resident(c: ConvConfig, arch: Arch) -> int:
    """Workgroups of a compute unit at once."""
    each = shared_memory(c) + arch.shared_memory_reserved
    at_once = max(1, arch.shared_memory_per_cu // each)
    return min(at_once, KEPT_AT_ONCE) if kept(c, *classes(c)[MAIN]) else at_once


@lru_cache(maxsize=1024)  # of each class for its numbers, one by one
def cut(c: Any, p: ConvProblem, residue: Residues, device: Device) -> Cut:
    """The strips of a class, of a config or of `Columns`. In gradients of weights its programs are
    the parts."""
    _, height, width = boxes.walks(p, residue)
    slabs, tiles_w = cdiv(p.channels_out, SLAB), cdiv(width.size, columns(c))
    at_once, step = each(c, resident, arch_called(device.arch)), each(c, forward_stride)
    return cuts.best(
        slabs, tiles_w, cdiv(p.n, IMAGES), height.size,
        most(1, device.compute_units * at_once // slabs),
        lambda rows: (rows - 1) * step + height.count,
    )  # fmt: skip


def _cut(x: Context) -> Cut:
    return cut(x.config, x.problem, x.case.residue, x.device)


def _of_class(x: Context) -> tuple[Walk, Walk]:
    """The walks of a launch along the height and the width."""
    _, height, width = boxes.walks(x.problem, x.case.residue)
    return height, width


def _walked(value: Callable[[Walk], int], place: int) -> Numbers:
    return Numbers("i32", lambda x: value(_of_class(x)[place]))


def _origin(walk: Walk) -> int:
    """Taps are walked so that the pixels they join go upwards."""
    return walk.origin + min(0, (walk.count - 1) * walk.by_tap)


def _rows_of(name: Callable[[ConvConfig], str], strided: bool) -> Array:
    def view(x: Context) -> Described:
        apart = forward_stride(x.config) if strided else 1
        return maps.of_rows(x.problem, name(x.config), apart)

    return replace(pointer(name), view=view)


_OWN: Catalogue = {
    **CLASS,
    "x": _rows_of(source_of, True),
    "edge": _rows_of(source_of, True),
    "y": _rows_of(lambda _: "y", False),
    "made": replace(pointer(made_of), view=lambda x: maps.rows_of_class(x.problem, x.case.residue)),
    "channels": integer(lambda p: p.channels_out),
    "height": _walked(lambda walk: walk.size, 0),
    "width": _walked(lambda walk: walk.size, 1),
    **cuts.numbers(_cut),
    "origin_h": _walked(_origin, 0),
    "origin_w": _walked(_origin, 1),
    "first_tap": Numbers(("i32",) * 2, lambda x: tuple(walk.first for walk in _of_class(x))),
    "taps_apart": _walked(lambda walk: walk.apart, 1),
    "COLS": lambda c, _: columns(c),
    "STRIDE": lambda c, _: forward_stride(c),
    "SLICE": lambda c, _: c.tile_k,
    "MERGED": lambda c, _: c.merged_groups,
    "STAGES": lambda c, _: c.num_stages,
}


@lru_cache(maxsize=256)
def _kernel(of_weights: bool, name: str, height: int, width: int) -> Part:
    """The kernel for so many taps along the height and the width."""

    def boxes_of(c: ConvConfig) -> dict[str, Box]:
        row = (1, columns(c), IMAGES, SLAB)
        edge = (1, max(1, halo(c, width)), IMAGES, SLAB)
        return {"x": row, "edge": edge, "y" if of_weights else "made": row}

    def grid(x: Context) -> int:
        its = tuple(walk.count for walk in _of_class(x)) == (height, width)
        return _cut(x).slabs * _cut(x).programs if its else 0

    taps: Catalogue = {
        "HALO": lambda c, _: halo(c, width),
        "TAPS_H": lambda *_: height,
        "TAPS_W": lambda *_: width,
        "KEPT": lambda c, _: kept(c, height, width),
    }
    module = f"gluon_grouped{'_weights' * of_weights}"
    return Part(
        name=name,
        kernel=f"{KERNELS}.{module}:conv_{module}",
        grid=grid,
        options=lambda c, _: (("num_warps", c.num_warps),),
        own={**_OWN, **taps, **(SUMS if of_weights else {})},
        boxes=boxes_of,
    )


def _parts(c: ConvConfig) -> tuple[Part, ...]:
    of_weights = c.direction == "weights"
    return tuple(_kernel(of_weights, name, *taps) for name, taps in classes(c).items())


def _sibling(c: ConvConfig) -> ConvConfig:
    scheduler = "split" if c.direction == "weights" else "tile"
    return replace(
        c, pipeline="implicit", scheduler=scheduler, box="", held="", tile_m=64, tile_n=32,
        tile_k=32, num_stages=2,
    )  # fmt: skip


# --- how long they take -------------------------------------------------------------------------
#
# A workgroup walks the rows of its strips: products read pixels and weights from shared memory; the
# copy engine brings rows from L2, those between strips twice. The memory moves each array once. The
# two overlap like the legs of a right triangle, as in the other estimates. Parts of a gradient of
# weights are added up afterwards. Nothing was fitted to measurements.


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device = x.config, x.problem, x.device
    at_once = each(c, resident, arch_called(device.arch))
    size = DTYPES[p.dtype].bytes
    through = physics.port_rate(device)
    shared = products = port = steps = launches = 0.0
    workgroups = 0
    for residue in boxes.residues(p):
        _, height, width = boxes.walks(p, residue)
        into = cut(c, p, residue, device)
        count = into.slabs * into.programs
        workgroups = workgroups + count
        rounds = -(-into.each // into.programs) * -(-count // device.compute_units)
        row_bytes = each(c, row_atoms, width.count) * IMAGES * SLAB * size
        rows_in = (into.rows - 1) * each(c, forward_stride) + height.count
        read = each(c, _read, (height.count, width.count)) * size
        per_us = DEVICE.SHARED_BYTES_PER_CLOCK * device.clock_mhz
        shared = shared + rounds * into.rows * read / per_us
        made = c.tile_m * SLAB * c.tile_k * height.count * width.count
        rate = CONV.OLDER_PER_CLOCK * device.clock_mhz
        products = products + rounds * into.rows * made / rate
        if p.direction == "weights":
            port = port + rounds * into.rows * c.tile_m * SLAB * size / through
        port = port + rounds * rows_in * row_bytes / through
        steps = steps + rounds * into.rows * CONV.GROUPED_ROW_US / np.minimum(at_once, rounds)
        launches += DEVICE.SECOND_US
    memory = physics.memory_us(p.min_bytes, device)
    launch = common.LAUNCH_US + launches - DEVICE.SECOND_US
    terms = {
        "shared memory": shared, "products": products, "L2": port, "rows": steps, "memory": memory,
        "launch": launch,
    }  # fmt: skip
    longest = np.maximum(np.maximum(shared, products), np.maximum(port, steps))
    total = physics.together_us(longest, memory) + launch
    if p.direction == "weights":
        terms["sum of parts"] = sharing.totals(x, into.programs)
        total += terms["sum of parts"]
    else:
        terms["weights"] = CONV.GROUPED_EXPAND_US
        total += CONV.GROUPED_EXPAND_US
    return common.estimated(total, terms, workgroups)


def _read(c: ConvConfig, counts: tuple[int, int]) -> int:
    """Elements that a row's products read from shared memory, of filters of so many taps along the
    height and the width. Each warp reads, for each row of the filter, the pixels that it sees, by a
    slice's channels; and 16 filters: their weights, if they are not kept in registers, or for the
    gradient of weights their pixels of y."""
    height, width = counts
    seen = height * row_atoms(c, width) * IMAGES * c.tile_k
    filters = 16 * (c.tile_m if c.direction == "weights" else height * width * c.tile_k)
    if kept(c, height, width):
        filters = 0
    return c.num_warps * (seen + filters)


GLUON_GROUPED = Pipeline(
    name=PIPELINE,
    parts=_parts,
    totals=FEW_SUM,
    words=frozenset({"holds_filter", "merges_groups"}),
    needs=("tma", "wgmma"),  # no wgmma, but it has run on sm_90 alone
    sibling=_sibling,
    objection=objection,
    refusal=refusal,
    shared_memory=lambda c, _: shared_memory(c),
    alignments=alignments,
    tiles=lambda c, p: cdiv(p.channels_out, SLAB) * _steps(c, p),
    steps=_steps,
    splits=lambda c, p, device: cut(c, p, (0, 0, 0), device).programs,
    by_class=True,
    rows=_rows,
    estimates=_estimates,
)
