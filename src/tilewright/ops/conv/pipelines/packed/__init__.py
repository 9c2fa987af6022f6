"""Pipeline ``gluon_packed``: images of few channels, as stems have them. A first kernel gives each
pixel 4 or 8 channels and each row its padding (kernels/pack.py); behind it, ``gluon_ws`` multiplies
a whole row of the filter at a time.

`gluon_ws` sees another problem (`problem`): its channels are all elements that a row of the filter
meets, they overlap those of the next pixel, and the filter's width is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv.arguments import index_type, strides
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS
from tilewright.ops.conv.parts import SUM
from tilewright.ops.conv.pipelines.boxed import launch as boxed
from tilewright.ops.conv.pipelines.boxed import rows as boxed_rows
from tilewright.ops.conv.pipelines.boxed import shape
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import (
    MAIN,
    Argument,
    Descriptor,
    KernelSource,
    Pointer,
    Scalar,
    Step,
    Temporary,
)

PIPELINE = "gluon_packed"
PACK = "pack"
"""The part of a kernel that packs."""
PACKED = {"x": "packed_x", "w": "packed_w"}

MOST_CHANNELS = 8
COPIED = 16
"""Bytes that pixels of the result lie apart by multiples of."""
BLOCK, WARPS = 1024, 4

# --- the problem behind ---------------------------------------------------------------------------


def pitch(p: ConvProblem) -> int:
    """Channels of a packed pixel: 4 if the result's pixels then meet whole 16 bytes."""
    few = 4
    fits = few * p.stride[-1] * DTYPES[p.dtype].bytes % COPIED == 0
    return few if p.c <= few and fits else MOST_CHANNELS


def _whole(p: ConvProblem, elements: int) -> int:
    each = COPIED // DTYPES[p.dtype].bytes
    return -(-elements // each) * each


def row_x(p: ConvProblem) -> int:
    """Elements of a packed row of x: all that a row of the result meets."""
    places = p.stride[-1] * (p.out_sizes[-1] - 1) + p.filter[-1]
    return _whole(p, places * pitch(p))


def row_w(p: ConvProblem) -> int:
    """The same of the weights."""
    return _whole(p, p.filter[-1] * pitch(p))


@lru_cache(maxsize=256)  # of each problem for hundreds of kernels
def problem(p: ConvProblem) -> ConvProblem:
    """What `gluon_ws` computes, of packed x and w. The strides of w are those of `_described`."""
    *sizes, _ = p.spatial
    apart, step = [], row_x(p)
    for size in reversed(sizes):
        apart.append(step)
        step *= size
    return replace(
        p,
        c=p.filter[-1] * pitch(p),
        spatial=(*sizes, p.out_sizes[-1]),
        filter=(*p.filter[:-1], 1),
        stride=(*p.stride[:-1], 1),
        dilation=(*p.dilation[:-1], 1),
        pad=(*p.pad[:-1], 0),
        pad_after=(*p.pad_after[:-1], 0),
        x_strides=(step, 1, *reversed(apart), p.stride[-1] * pitch(p)),
        w_strides=(),
        y_strides=p.strides_of("y"),
    )


def config(c: ConvConfig) -> ConvConfig:
    """Its kernel."""
    return replace(c, pipeline="gluon_ws", alignment=COPIED)


# --- rules ----------------------------------------------------------------------------------------


def objection(c: ConvConfig, arch: Arch) -> str | None:
    """Why `arch` cannot build a config, if so."""
    if c.direction != "forward":
        return f"pipeline {PIPELINE} computes results, not gradients of {c.direction}"
    if DTYPES[c.dtype].bytes != 2:
        return f"pipeline {PIPELINE} packs elements of 16 bits, not {c.dtype}"
    if c.alignment != 1:
        return f"pipeline {PIPELINE} reads x element by element: alignment 1, not {c.alignment}"
    return shape.objection(config(c), arch)


def refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    """Why a config cannot compute `p`, if so."""
    return _unfit(p) or shape.refusal(config(c), problem(p))


def _unfit(p: ConvProblem) -> str | None:
    """Why packing is not for `p`, if so."""
    if p.groups != 1 or p.c > MOST_CHANNELS:
        return f"{p.c} channels in {p.groups} groups, not up to {MOST_CHANNELS} in one"
    if p.dilation[-1] != 1:
        return f"taps lie {p.dilation[-1]} pixels apart along the width, not side by side"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    if p.out_sizes[-1] < 2:
        return "rows of the result have one pixel, and nothing overlaps"
    return None


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if not tuned:  # no GPU has run it yet
        return
    if p.direction != "forward" or DTYPES[p.dtype].bytes != 2 or _unfit(p) is not None:
        return
    for row in boxed_rows.rows("gluon_ws", problem(p), arch, tuned):
        yield (*row[:5], PIPELINE, *row[6:9], 1, *row[10:])


# --- what to compile and to launch ----------------------------------------------------------------


def _sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    return {PACK: _pack(c), MAIN: boxed.source(config(c), arch)}


def _pack(c: ConvConfig) -> KernelSource:
    """The kernel that packs, of a config whose pitch only the problem knows: it has both."""
    pointer, kind = f"*{DTYPES[c.dtype].triton}", index_type(c)
    signature = [(name, pointer) for name in ("x", "w", *PACKED.values())]
    signature += [(f"{name}.{i}", kind) for name in ("x_strides", "w_strides") for i in range(5)]
    signature.append(("rows", "i32"))
    signature += [(f"{name}.{i}", "i32") for name in ("sizes", "taps") for i in range(MOST_DIMS)]
    signature += [(name, "i32") for name in ("channels", "margin", "row_x", "row_w")]
    signature += [("shift", "i32"), ("BLOCK", "constexpr")]
    whole = COPIED // DTYPES[c.dtype].bytes
    return KernelSource(
        module="tilewright.ops.conv.kernels.pack",
        function="conv_pack",
        signature=tuple(signature),
        constants=(("BLOCK", BLOCK),),
        divisibility=(
            *((name, COPIED) for name in PACKED.values()),
            ("row_x", whole),
            ("row_w", whole),
        ),
        options=(("num_warps", WARPS), ("num_stages", 1)),
    )


def temporaries(p: ConvProblem) -> tuple[Temporary, ...]:
    """Packed x and w."""
    *sizes, _ = p.spatial
    *taps, _ = p.filter
    return (
        Temporary(PACKED["x"], (p.n, *sizes, row_x(p)), p.dtype),
        Temporary(PACKED["w"], (p.k, *taps, row_w(p)), p.dtype),
    )


def _launch(
    c: ConvConfig, p: ConvProblem, device: Device, splits: int, programs: int
) -> Sequence[Step]:
    kind = index_type(c)
    rows, filters = p.n * math.prod(p.spatial[:-1]), p.k * math.prod(p.filter[:-1])
    numbers = (rows, *_in_three(p.spatial), *_in_three(p.filter), p.c, p.pad[-1])
    arguments: tuple[Argument, ...] = (
        *(Pointer(name) for name in ("x", "w", *PACKED.values())),
        *(Scalar(kind, stride) for name in ("x", "w") for stride in strides(p, name)),
        *(
            Scalar("i32", number)
            for number in (*numbers, row_x(p), row_w(p), pitch(p).bit_length() - 1)
        ),
    )
    (step,) = boxed.steps(config(c), problem(p), device)
    described = tuple(_described(argument, p) for argument in step.arguments)
    return [Step((rows + filters, 1, 1), arguments, PACK), replace(step, arguments=described)]


def _in_three(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*(1,) * (MOST_DIMS - len(sizes)), *sizes)


def _described(argument: Argument, p: ConvProblem) -> Argument:
    """An argument of the second kernel, of packed x and w."""
    if not isinstance(argument, Descriptor) or argument.operand not in PACKED:
        return argument
    found = replace(argument, operand=PACKED[argument.operand])
    if argument.operand == "x":
        return found
    along = [row_w(p)]  # the filter's width, which is 1
    for size in reversed(p.filter[:-1]):
        along.append(along[-1] * size)
    return replace(found, strides=(along[-1], *reversed(along[:-1]), row_w(p), 1))


GLUON_PACKED = Pipeline(
    name=PIPELINE,
    needs=("tma", "wgmma"),
    sibling=lambda c: replace(shape.sibling(c), alignment=1),
    merges_groups=False,
    objection=objection,
    refusal=refusal,
    odd=lambda c: shape.odd_fields(config(c)),
    sums=lambda c: shape.rows(config(c)) * shape.groups(c) * c.tile_n,
    shared_memory=lambda c, _: shape.shared_memory(config(c)),
    alignments=lambda p: (1, p.rows_alignment("y")),
    tiles=lambda c, p: boxed.all_tiles(config(c), problem(p)),
    steps=lambda c, p: 1,
    splits=lambda c, p, device: 1,
    meetings=lambda _: 1,
    totals=SUM,
    sources=_sources,
    launch=_launch,
    temporaries=temporaries,
    rows=_rows,
)
