"""Pipeline ``packed``: images of few channels, as stems have them, forward and the gradient of the
weights, on every architecture. A first kernel gives each pixel 4 or 8 channels and each image its
padding (kernels/pack.py); the second multiplies runs that a filter's rows meet (kernels/packed.py,
packed_weights.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import packing, parts
from tilewright.ops.conv.arguments import index_type, strides
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS, cdiv, power_of_two
from tilewright.ops.conv.parts import FEW_SUM, Part
from tilewright.ops.conv.pipelines import pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, Argument, KernelSource, Pointer, Scalar, Step

PIPELINE = "packed"
PACK = "pack"
"""The part of a kernel that packs."""

BLOCK, WARPS = 1024, 4
"""Elements of a workgroup of the kernel that packs, and its warps."""

MULTIPLY = Part(
    module="packed",
    function="conv_packed",
    grid=lambda c, p, _: _tiles(c, p),
    arguments=(
        "packed_x", "packed_w", "made", "extra", "made_strides", "images", "channels_out", "walked",
        "taps", "stride", "packed_strides", "packed_steps", "pitch", "row_w",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "NDIM", "VECTOR", "UNIT_OUT", "PRECISION",
        "INT_ACC", *pointers.LAST,
    ),
    epilogue=True,
)  # fmt: skip

WEIGHTS = Part(
    module="packed_weights",
    function="conv_packed_weights",
    grid=lambda c, p, splits: _tiles(c, p) * splits,
    arguments=(
        "packed_x", "y", "sums", "y_strides", "images", "channels", "group_k", "outs",
        "taps", "stride", "packed_strides", "packed_steps", "pitch", "splits",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "NDIM", "VECTOR", "SPREAD", "UNIT", "PRECISION",
    ),
)  # fmt: skip

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


def _refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    if reason := _unfit(p):
        return reason
    row = packing.row_w(p)
    if c.direction == "forward" and c.tile_k > row:
        return f"tile_k = {c.tile_k} is over the {row} elements of a packed row"
    if c.direction == "weights" and c.spread != row:
        return f"a packed row has {row} elements, not {c.spread}"
    count = max(math.prod(one.shape) for one in packing.temporaries(p))
    if c.index_bits == 32 and count >= pointers.REACH:
        return f"packed x has {count} elements, which indices of 32 bits do not reach"
    return None


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
"""Filters of a tile, at most."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if _unfit(p) is not None:
        return
    if p.direction == "weights":
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


# --- what to compile and to launch ----------------------------------------------------------------


def _lines(p: ConvProblem) -> int:
    """Lines of pixels of y."""
    return p.n * math.prod(p.out_sizes[:-1])


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    if p.direction == "weights":
        columns = packing.filter_rows(p) * packing.row_w(p)
        return cdiv(p.k, c.tile_m) * cdiv(columns, c.tile_n)
    return _lines(p) * cdiv(p.out_sizes[-1], c.tile_m) * cdiv(p.k, c.tile_n)


def _steps(c: ConvConfig, p: ConvProblem) -> int:
    return _lines(p) * cdiv(p.out_sizes[-1], c.tile_k)


def _splits(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    return pointers.WORKGROUPS_FOR_UNIT * device.compute_units // _tiles(c, p)


def _kernel(c: ConvConfig) -> Part:
    return WEIGHTS if c.direction == "weights" else MULTIPLY


def _sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    return {PACK: _pack(c), MAIN: parts.source(_kernel(c), c, arch)}


def _pack(c: ConvConfig) -> KernelSource:
    """The kernel that packs, which is the same for all tiles."""
    pointer, kind = f"*{DTYPES[c.dtype].triton}", index_type(c)
    filters = c.direction == "forward"
    signature = [("x", pointer), ("w", pointer if filters else "()")]
    signature += [(packing.X, pointer), (packing.W, pointer if filters else "()")]
    signature += [(f"x_strides.{i}", kind) for i in range(5)]
    signature += [(f"w_strides.{i}", kind) for i in range(5)] if filters else [("w_strides", "()")]
    signature += [("rows", "i32"), ("made_sizes.0", "i32"), ("made_sizes.1", "i32")]
    signature += [
        (f"{name}.{i}", "i32") for name in ("before", "sizes", "taps") for i in range(MOST_DIMS)
    ]
    signature += [(name, "i32") for name in ("channels", "row_x", "row_w", "shift")]
    signature += [("BLOCK", "constexpr"), ("FILTERS", "constexpr")]
    whole = packing.WHOLE // DTYPES[c.dtype].bytes
    promised = [(packing.X, packing.WHOLE), ("row_x", whole), ("row_w", whole)]
    return KernelSource(
        module=f"{parts.KERNELS}.pack",
        function="conv_pack",
        signature=tuple(signature),
        constants=(("BLOCK", BLOCK), ("FILTERS", filters)),
        divisibility=(*promised, *([(packing.W, packing.WHOLE)] if filters else [])),
        options=(("num_warps", WARPS), ("num_stages", 1)),
    )


def _launch(
    c: ConvConfig, p: ConvProblem, device: Device, splits: int, programs: int
) -> Sequence[Step]:
    kind, filters = index_type(c), c.direction == "forward"
    made = packing.sizes(p)
    rows, of_filters = p.n * math.prod(made), p.k * packing.filter_rows(p) * filters
    numbers = (
        rows, *made, *(dim.pad for dim in p.three), *(dim.size for dim in p.three),
        *(dim.filter for dim in p.three), p.c, packing.row_x(p), packing.row_w(p),
        packing.pitch(p).bit_length() - 1,
    )  # fmt: skip
    read, packed = ("xw", (packing.X, packing.W)) if filters else ("x", (packing.X,))
    arguments: tuple[Argument, ...] = (
        *(Pointer(name) for name in (*read, *packed)),
        *(Scalar(kind, stride) for name in read for stride in strides(p, name)),
        *(Scalar("i32", number) for number in numbers),
    )
    packs = Step((rows + of_filters, 1, 1), arguments, PACK)
    part = _kernel(c)
    return [packs, *parts.steps(part, MAIN, c, p, splits, part.grid(c, p, splits))]


PACKED = Pipeline(
    name=PIPELINE,
    needs=(),
    sibling=lambda c: c,
    merges_groups=False,
    objection=_objection,
    refusal=_refusal,
    odd=lambda _: (),
    sums=lambda c: c.tile_m * c.tile_n,
    shared_memory=pointers.shared_memory,
    alignments=_alignments,
    tiles=_tiles,
    steps=_steps,
    splits=_splits,
    meetings=lambda _: 1,
    totals=FEW_SUM,
    sources=_sources,
    launch=_launch,
    temporaries=packing.temporaries,
    rows=_rows,
)
