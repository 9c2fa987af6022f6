"""Pipeline ``askew``: 1×1 layers, channels-first, whose rows of pixels are no whole 16 bytes, in
all directions, through pointers; those of few channels whatever their rows; and gradients of
weights of all such layers, in as many parts as all compute units have room for (kernels/askew.py).
The alignments of a config are those of rows of pixels; weights that are read are whole rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv import askew, sharing
from tilewright.ops.conv.catalogue import (
    SUM,
    SUMS,
    index_type,
    integer,
    made_of,
    of_any_channels,
    pointer,
    read,
    source_of,
    written,
)
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, pointers
from tilewright.ops.conv.pipelines.implicit import COPIED
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, because, each
from tilewright.ops.powers import power_of_two

PIPELINE = "askew"

# --- kernels ------------------------------------------------------------------------------------


def _whole(c: ConvConfig) -> int:
    return askew.WHOLE_BYTES // DTYPES[c.dtype].bytes


def _strides(name: Any, multiple: Any) -> Numbers:
    """Strides of x or y: from an image to the next, and from a channel; 0 where there is one."""

    def values(x: Context) -> tuple[int, ...]:
        (count, channels, *_), given = (
            x.problem.shape_of(name(x.config)),
            x.problem.strides_of(name(x.config)),
        )
        return tuple(s if n > 1 else 0 for n, s in zip((count, channels), given, strict=False))

    return Numbers(lambda c: (index_type(c),) * 2, values, multiples=multiple)


def _ahead(c: ConvConfig, arch: Arch) -> bool:
    """Whether elements are no asynchronous copies, and so are loaded a step ahead."""
    return max(c.alignment, DTYPES[c.dtype].bytes) < COPIED


def _weights_row(c: ConvConfig) -> int:
    """Elements that rows of weights come in multiples of: those that are read are whole."""
    return written(c) if c.direction == "weights" else _whole(c)


_ROW = Numbers(
    index_type,
    lambda x: x.problem.strides_of("w")[0] if x.problem.k > 1 else 0,
    multiples=_weights_row,
)
_OWN: Catalogue = {
    "pixels": integer(askew.pixels, lambda c: max(read(c), _made(c))),
    "of_weights": _ROW,
    "AHEAD": _ahead,
    "STAGES": lambda c, _: c.num_stages,
}


def _made(c: ConvConfig) -> int:
    """Pixels of the result that its alignment spans."""
    return 1 if c.direction == "weights" else written(c)


def _multiple_in(c: ConvConfig) -> int:
    return _whole(c) if c.direction == "forward" else 1


def _multiple_out(c: ConvConfig) -> int:
    return _whole(c) if c.direction == "data" else 1


_MADE = pointers.kernel(
    "askew",
    "conv_askew",
    own={
        **_OWN,
        "source": pointer(source_of, lambda c: c.alignment),
        "weights": pointer(lambda _: "w", lambda c: askew.WHOLE_BYTES),
        "made": pointer(made_of, lambda c: c.alignment_out),
        "channels_in": integer(lambda p: p.k if p.direction == "data" else p.c, _multiple_in),
        "channels_out": integer(lambda p: p.c if p.direction == "data" else p.k, _multiple_out),
        "of_source": _strides(source_of, read),
        "of_made": _strides(made_of, written),
    },
)
_WEIGHTS = pointers.kernel(
    "askew",
    "conv_askew_weights",
    own={
        **_OWN,
        **SUMS,
        "x": pointer(lambda _: "x", lambda c: c.alignment),
        "y": pointer(lambda _: "y", lambda c: c.alignment),
        "of_x": _strides(lambda _: "x", read),
        "of_y": _strides(lambda _: "y", read),
        "channels": integer(lambda p: p.c, written),
        "filters": integer(lambda p: p.k),
    },
)


@lru_cache(maxsize=64)  # of each problem for the rules and for the estimate
def _tiles(c: Any, p: ConvProblem) -> Each:
    if p.direction == "weights":
        return cdiv(p.k, c.tile_m) * cdiv(p.c, c.tile_n)
    made = p.c if p.direction == "data" else p.k
    return p.n * cdiv(askew.pixels(p), c.tile_m) * cdiv(made, c.tile_n)


def _steps(c: Any, p: ConvProblem) -> Each:
    """Steps over the pixels of all images."""
    return p.n * cdiv(askew.pixels(p), c.tile_k)


# --- rules --------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.merged or c.runs:
        return f"pipeline {PIPELINE} is for filters of 1, and has no other steps"
    if c.group_m != 1:
        return f"pipeline {PIPELINE} walks its tiles in one order: group_m is 1, not {c.group_m}"
    if c.scheduler in SHARING and not c.two_stage:
        return f"parts of the weights are added up by a second kernel, not by {c.reduction}"
    return pointers.objection(c, arch)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    if (reason := askew.refusal(p)) is not None:
        yield True, because(reason)


def _alignments(p: ConvProblem) -> tuple[int, int]:
    x, y = askew.alignment(p, "x"), askew.alignment(p, "y")
    if p.direction == "weights":
        return min(x, y), p.rows_alignment("w")
    return (x, y) if p.direction == "forward" else (y, x)


# --- the spaces ---------------------------------------------------------------------------------

_TILES = ((64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 8), (64, 256, 8), (128, 32, 4))
"""Pixels and channels of the result; warps."""
_FEW_TILES = ((128, 16, 4), (256, 16, 4), (256, 32, 4), (256, 64, 8))
"""Tiles where few channels are summed: a tile is one step, which should have work."""
_OF_WEIGHTS = (
    (64, 64, 4), (64, 128, 8), (128, 64, 8), (128, 128, 8), (64, 256, 8), (128, 32, 4),
    (64, 32, 4), (32, 64, 4), (32, 32, 4),
)  # fmt: skip
"""Filters and channels; warps: both operands may be in registers."""
_FEW_OF_WEIGHTS = ((16, 16, 4), (16, 32, 4), (32, 16, 4), (32, 32, 4))
_FEW_DEPTH, _FEW_STAGES = 512, 4
"""Bytes of a step's pixels, and stages, for gradients of few weights over whole rows. A compute
unit has two such workgroups, whose loads under way must be as many bytes as memory is away: steps
of 128 bytes of each row are too few."""
_DEPTHS, _MORE_DEPTHS = (128,), (64, 128)
"""Bytes of a step's channels, or pixels, at most. Of weights, and on AMD GPUs, half as many where
elements are loaded by themselves: they are in registers, and spilled otherwise."""
_STAGES, _MORE_STAGES = {"cuda": (3,), "hip": (1,)}, (1, 2, 3, 4)


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    weights = p.direction == "weights"
    if askew.refusal(p) is not None:
        return
    whole = _alignments(p)[0] >= askew.WHOLE_BYTES
    few = askew.few(p)
    if not weights and not few and min(_alignments(p)) >= askew.WHOLE_BYTES:
        return  # GEMM's kernels have whole rows
    word = "tf32" if p.precision == "tf32" else p.dtype
    if arch.dot == "vector" or getattr(arch.dtypes.get(word), "via", "") == "fma":
        return
    summed = askew.pixels(p) if p.direction == "weights" else p.k if p.direction == "data" else p.c
    size, most = DTYPES[p.dtype].bytes, max(16, power_of_two(summed))
    if (weights or arch.backend == "hip") and max(_alignments(p)[0], size) < COPIED:
        size *= 2
    depths = dict.fromkeys(
        min(most, max(16, depth // size)) for depth in (_MORE_DEPTHS if tuned else _DEPTHS)
    )
    stages: Sequence[int] = (1,) if few and not weights else _STAGES[arch.backend]
    if tuned:
        stages = [n for n in _MORE_STAGES if n in arch.num_stages]
    for (m, n, warps), depth, count, scheduler in itertools.product(
        _OF_WEIGHTS if weights else (*_TILES, *_FEW_TILES * few),
        depths,
        stages,
        ("tile", "split") if weights else ("tile",),
    ):
        yield (m, n, depth, warps, count, PIPELINE, scheduler, 1, False, *_alignments(p))
    if weights and few and whole and arch.backend == "cuda":
        depth = min(most, _FEW_DEPTH // size)
        for (m, n, warps), scheduler in itertools.product(_FEW_OF_WEIGHTS, ("tile", "split")):
            yield (m, n, depth, warps, _FEW_STAGES, PIPELINE, scheduler, 1, False, *_alignments(p))


# --- how long they take -------------------------------------------------------------------------

LOADED = 8
"""Instructions of a lane for each load of pixels: the address, the mask, the load, the way to
shared memory. Counted in sm_90's code."""


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device = x.config, x.problem, x.device
    this, size = arch_called(device.arch), DTYPES[p.dtype].bytes
    if p.direction == "weights":
        steps = np.maximum(1.0, x.case.steps / sharing.parts(x))
        elements = (c.tile_m + c.tile_n) * c.tile_k
    else:
        steps = cdiv(p.k if p.direction == "data" else p.c, c.tile_k)
        elements = c.tile_m * c.tile_k
    of_load = np.maximum(c.alignment, size)
    loads = elements * size / of_load
    both = (c.tile_m + c.tile_n) * c.tile_k * size
    # On their way through registers a lane takes as much time for an element as for 4 bytes, twice.
    passed = np.where(of_load < COPIED, 2 * COPIED * loads, elements * size)
    products = each(c, _products, device)
    work = pointers.Work(
        steps=steps,
        read=both,
        shared=passed + (both - elements * size) + both,
        products=np.maximum(products, physics.lanes_us(loads * LOADED, device)),
        resident=each(c, _resident, this),
        neighbours=True,
    )
    return pointers.estimates(x, work)


def _products(c: ConvConfig, device: Device) -> float:
    """Microseconds that a step's products take on a compute unit."""
    word = "tf32" if c.precision == "tf32" else c.dtype
    count = c.tile_m * c.tile_n * c.tile_k
    return 2 * count / (physics.matrix_rate(device, word) * DEVICE.BASIC)


def _resident(c: ConvConfig, this: Arch) -> int:
    held = c.tile_m * c.tile_n
    if _ahead(c, this):  # those of a step, and of the next
        held += 2 * c.tile_k * (c.tile_m + (c.tile_n if c.direction == "weights" else 0))
    return pointers.resident(c, this, held, pointers.shared_memory(c, this))


ASKEW = Pipeline(
    name=PIPELINE,
    parts=lambda c: (_WEIGHTS,) if c.direction == "weights" else (_MADE,),
    totals=of_any_channels(SUM),
    objection=_objection,
    tile=common.least_of_8_bits,
    refusal=_refusal,
    shared_memory=pointers.shared_memory,
    alignments=_alignments,
    tiles=_tiles,
    steps=_steps,
    splits=pointers.filling(_tiles),
    rows=_rows,
    estimates=_estimates,
)
