"""The catalogue of what the kernels take: each argument's type and value, and each constant.

Spatial sizes are tuples of three dimensions, those that a problem does not have first (`three`).
``source`` is what a tile gathers from: x, and y for the gradient of the data. ``made`` is the
result, or, where parts of it are summed later, the temporary `PARTIALS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import packing, runs, subpixel, windows
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS, Dim
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.epilogues import chain_names
from tilewright.ops.nouns import Argument as Passed
from tilewright.ops.nouns import Pointer, Scalar
from tilewright.ops.products import accumulator
from tilewright.ops.tile_sharing import FLAGS

PARTIALS = "partials"

Value = int | bool | str
Types = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """What an argument's value may depend on. splits: of the launch (`sharing.Share`)."""

    config: ConvConfig
    problem: ConvProblem
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel.

    types: Triton's, of its elements; one where it is no tuple.
    values: what is passed for each.
    is_tuple: whether the kernel sees a tuple.
    """

    types: Callable[[ConvConfig], Types]
    values: Callable[[Context], tuple[Passed, ...]]
    is_tuple: bool = False


def source_of(direction: str) -> str:
    """The operand that pixels of the result are gathered from."""
    return "y" if direction == "data" else "x"


def _pointed(name: str, c: ConvConfig) -> str:
    """The type of a pointer to x, w or y."""
    made = name == DIRECTIONS[c.direction][2]
    return f"*{DTYPES[c.dtype_out if made else c.dtype].triton}"


def _pointer(name: Callable[[ConvConfig], str]) -> Argument:
    return Argument(lambda c: (_pointed(name(c), c),), lambda x: (Pointer(name(x.config)),))


def _made(c: ConvConfig) -> str:
    return DIRECTIONS[c.direction][2]


def _int(value: Callable[[Context], int]) -> Argument:
    return Argument(lambda _: ("i32",), lambda x: (Scalar("i32", value(x)),))


def _each(value: Callable[[Dim], int]) -> Argument:
    """A number for each dimension."""

    def values(x: Context) -> tuple[Passed, ...]:
        return tuple(Scalar("i32", value(dim)) for dim in x.problem.three)

    return Argument(lambda _: ("i32",) * MOST_DIMS, values, is_tuple=True)


def index_type(c: ConvConfig) -> str:
    """The type of strides, and so of offsets."""
    return "i32" if c.index_bits == 32 else "i64"


def strides(p: ConvProblem, name: str) -> tuple[int, ...]:
    """Strides of (image, channel, depth, height, width), or of (filter, channel, …). 0 along
    dimensions of one element, so that they are multiples of whatever a kernel was promised."""
    shape, given = p.shape_of(name), p.strides_of(name)
    outer, inner, *spatial = (0 if n <= 1 else s for n, s in zip(shape, given, strict=True))
    return (outer, inner, *(0,) * (MOST_DIMS - len(spatial)), *spatial)


def _strides(name: Callable[[ConvConfig], str]) -> Argument:
    def values(x: Context) -> tuple[Passed, ...]:
        kind = index_type(x.config)
        return tuple(Scalar(kind, s) for s in strides(x.problem, name(x.config)))

    return Argument(lambda c: (index_type(c),) * (2 + MOST_DIMS), values, is_tuple=True)


def _epilogue() -> Argument:
    """The operands of the epilogue; kernels see a tuple, also of none."""

    def types(c: ConvConfig) -> Types:
        dtypes = (epilogues.operand_dtype(t, c.dtype_out) for t in epilogues.takes(c.epilogue))
        return tuple(f"*{DTYPES[d].triton}" for d in dtypes)

    def values(x: Context) -> tuple[Passed, ...]:
        return tuple(Pointer(name) for name in chain_names(x.config.epilogue))

    return Argument(types, values, is_tuple=True)


def _of_data(p: ConvProblem) -> bool:
    return p.direction == "data"


def _per_problem(value: Callable[[ConvProblem], tuple[int, ...]]) -> Argument:
    def values(x: Context) -> tuple[Passed, ...]:
        return tuple(Scalar("i32", size) for size in value(x.problem))

    return Argument(lambda _: ("i32",) * MOST_DIMS, values, is_tuple=True)


def _of_window(count: int, value: Callable[[ConvConfig, ConvProblem], Sequence[int]]) -> Argument:
    def values(x: Context) -> tuple[Passed, ...]:
        return tuple(Scalar("i32", size) for size in value(x.config, x.problem))

    return Argument(lambda _: ("i32",) * count, values, is_tuple=True)


def _runs() -> Argument:
    """Elements of a run with those before its first tap, from the first run of a row to the next,
    from the row's begin to the first, and of a row; and of those before a run's first tap."""

    def values(x: Context) -> tuple[Passed, ...]:
        found = runs.sizes(x.problem, x.config.alignment) if x.config.runs else ()
        return tuple(Scalar("i32", n) for n in found)

    return Argument(lambda c: ("i32",) * 5 if c.runs else (), values, is_tuple=True)


def _parts_or_made() -> Argument:
    """What the kernel of a part writes: partial sums where there are several parts."""

    def types(c: ConvConfig) -> Types:
        return ("*fp32",) if c.two_stage else (_pointed(_made(c), c),)

    def values(x: Context) -> tuple[Passed, ...]:
        return (Pointer(PARTIALS if x.config.two_stage else _made(x.config)),)

    return Argument(types, values)


def _meeting() -> Argument:
    """What workgroups that share a tile meet in: flags and partial sums; () without."""

    def types(c: ConvConfig) -> Types:
        return ("*i32", "*fp32") if c.parts_meet else ()

    def values(x: Context) -> tuple[Passed, ...]:
        return (Pointer(FLAGS.name), Pointer(PARTIALS)) if x.config.parts_meet else ()

    return Argument(types, values, is_tuple=True)


def _packed(name: str) -> Argument:
    """One of the arrays of `packing`."""
    return Argument(lambda c: (f"*{DTYPES[c.dtype].triton}",), lambda _: (Pointer(name),))


def _of_packing(value: Callable[[ConvProblem], tuple[int, ...]]) -> Argument:
    """Elements along the dimensions of packed x."""

    def values(x: Context) -> tuple[Passed, ...]:
        return tuple(Scalar(index_type(x.config), n) for n in value(x.problem))

    return Argument(lambda c: (index_type(c),) * MOST_DIMS, values, is_tuple=True)


ARGUMENTS: Mapping[str, Argument] = {
    "source": _pointer(lambda c: source_of(c.direction)),
    "x": _pointer(lambda _: "x"),
    "y": _pointer(lambda _: "y"),
    "weights": _pointer(lambda _: "w"),
    "made": _pointer(_made),
    "sums": _parts_or_made(),
    "meeting": _meeting(),
    "partials": Argument(lambda _: ("*fp32",), lambda _: (Pointer(PARTIALS),)),
    "extra": _epilogue(),
    "source_strides": _strides(lambda c: source_of(c.direction)),
    "x_strides": _strides(lambda _: "x"),
    "y_strides": _strides(lambda _: "y"),
    "weight_strides": _strides(lambda _: "w"),
    "made_strides": _strides(_made),
    "images": _int(lambda x: x.problem.n),
    "groups": _int(lambda x: x.problem.groups),
    # Of a group; of a depthwise problem, of all groups.
    "channels_in": _int(lambda x: x.problem.group_k if _of_data(x.problem) else x.problem.group_c),
    "channels_out": _int(lambda x: x.problem.group_c if _of_data(x.problem) else x.problem.group_k),
    "channels": _int(lambda x: x.problem.c),
    "group_c": _int(lambda x: x.problem.group_c),
    "group_k": _int(lambda x: x.problem.group_k),
    # Of what is gathered from, and of the result.
    "sizes": _per_problem(lambda p: tuple(dim.out if _of_data(p) else dim.size for dim in p.three)),
    "full": _per_problem(lambda p: tuple(dim.size if _of_data(p) else dim.out for dim in p.three)),
    "walked": _per_problem(lambda p: p.walked),
    "outs": _each(lambda dim: dim.out),
    "taps": _each(lambda dim: dim.filter),
    "stride": _each(lambda dim: dim.stride),
    "dilation": _each(lambda dim: dim.dilation),
    "before": _each(lambda dim: dim.pad),
    "phase": _each(lambda dim: dim.pad % dim.stride),
    "common": _each(lambda dim: dim.common),
    "inverse": _each(lambda dim: dim.inverse),
    "lines": _of_window(3, windows.lines),
    "steps": _int(lambda x: windows.steps(x.config, x.problem)),
    "origin": _of_window(2, windows.origin),
    "runs": _runs(),
    "packed_x": _packed(packing.X),
    "packed_w": _packed(packing.W),
    "packed_strides": _of_packing(packing.strides),
    "packed_steps": _of_packing(packing.steps),
    "pitch": _int(lambda x: packing.pitch(x.problem)),
    "row_w": _int(lambda x: packing.row_w(x.problem)),
    "block": _per_problem(lambda p: subpixel.blocks(p).sizes),
    "first": _per_problem(lambda p: subpixel.blocks(p).first),
    "across": _int(lambda x: subpixel.across(x.problem, x.config.tile_m)),
    "met": _per_problem(lambda p: subpixel.blocks(p).met),
    "splits": _int(lambda x: x.splits),
    "count": _int(lambda x: x.problem.k * x.problem.taps * x.problem.group_c),
}
"""Every argument by the name that the parts give it."""

BLOCK = 256
"""Weights of a workgroup that adds up parts."""

FEW_BLOCK, WAYS = 64, 32
"""Weights of a workgroup that adds up many parts of few weights, and the parts that it reads at
once."""

FILTERS_AT_ONCE = 16
"""Filters of a workgroup that writes weights for blocks of pixels (`subpixel`)."""

CONSTANTS: Mapping[str, Callable[[ConvConfig], Value]] = {
    "TILE_M": lambda c: c.tile_m,
    "TILE_N": lambda c: c.tile_n,
    "TILE_K": lambda c: c.tile_k,
    "GROUP_M": lambda c: c.group_m,
    "NDIM": lambda c: c.spatial_dims,
    "DATA": lambda c: c.direction == "data",
    "MERGED": lambda c: c.merged,
    "RUNS": lambda c: c.runs,
    "BUNDLE": lambda c: c.merged_groups,
    "VECTOR": lambda c: max(1, c.alignment // DTYPES[c.dtype].bytes),
    "SPREAD": lambda c: c.spread,
    "UNIT": lambda c: c.alignment > 1,
    "UNIT_OUT": lambda c: c.alignment_out > 1,
    "TWO_STAGE": lambda c: c.two_stage,
    "SCHEDULER": lambda c: c.scheduler,
    "REDUCTION": lambda c: c.reduction,
    "PRECISION": lambda c: c.precision,
    "INT_ACC": lambda c: accumulator(c.dtype) == "int32",
    "TAKES": lambda c: epilogues.kinds(c.epilogue),
    "LARGEST": lambda c: int(DTYPES[c.dtype_out].largest),
    "BLOCK": lambda _: BLOCK,
    "FEW_BLOCK": lambda _: FEW_BLOCK,
    "WAYS": lambda _: WAYS,
    "FILTERS_AT_ONCE": lambda _: FILTERS_AT_ONCE,
    "TAPS_D": lambda c: windows.held(c).taps[0],
    "TAPS_H": lambda c: windows.held(c).taps[1],
    "TAPS_W": lambda c: windows.held(c).taps[2],
    "STEP_H": lambda c: windows.held(c).step_h,
    "STEP_W": lambda c: windows.held(c).step_w,
    "STRIP": lambda c: windows.held(c).strip,
    "EARLY": windows.early,
}
"""Every constant by the name that the parts give it, but `DONE`."""

DONE = "DONE"
"""The constant that says how stores are waited for before workgroups meet, as the architecture
needs it."""

PROMISED: Mapping[str, tuple[str, ...]] = {
    "source": ("source_strides",),
    "x": ("x_strides",),
    "y": ("y_strides",),
    "weights": ("weight_strides",),
    "made": ("made_strides",),
}
"""Pointers whose alignment a config promises, and the strides that go with them."""
