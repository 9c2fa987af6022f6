"""The catalogue of what the kernels take: what each parameter is, and its value in a launch.

Spatial sizes are tuples of three dimensions, those that a problem does not have first (`three`).
``source`` is what a tile gathers from: x, and y for the gradient of the data. ``made`` is the
result, or, where parts of it are summed later, the temporary `PARTIALS`. What one pipeline's
kernels alone take stands in its record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.binder import Array, Catalogue, Context, Functions, Numbers, Part, Tuple, Value
from tilewright.ops.conv import maps, packing, runs, subpixel
from tilewright.ops.conv.boxes import Residues
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS, Dim, cdiv
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.division import dividing
from tilewright.ops.pool import Each
from tilewright.ops.products import accumulator
from tilewright.ops.tile_sharing import FLAGS, slots

KERNELS = "tilewright.ops.conv.kernels"
PARTIALS = "partials"

Name = Callable[[ConvConfig], str]
Multiple = Callable[[ConvConfig], int]


@dataclass(frozen=True, slots=True)
class Case:
    """What a launch knows beside the problem and the parts of a sum (`Context.case`); of several
    configs, arrays.

    tiles: of whole sums. steps: of the pixels of a tile, in gradients of weights.
    programs: workgroups under stream-K.
    residue: the class of the result's pixels that the launch is of.
    """

    tiles: Each
    steps: Each = 0
    programs: Each = 0
    residue: Residues = (0, 0, 0)


def made_of(c: ConvConfig) -> str:
    """The operand that a config makes."""
    return DIRECTIONS[c.direction][2]


def source_of(c: ConvConfig) -> str:
    """The operand that pixels of the result are gathered from."""
    return "y" if c.direction == "data" else "x"


def index_type(c: ConvConfig) -> str:
    """The type of strides, and so of offsets."""
    return "i32" if c.index_bits == 32 else "i64"


# --- what alignment promises --------------------------------------------------------------------


def read(c: ConvConfig) -> int:
    """Elements of what is read that its alignment spans."""
    return max(1, c.alignment // DTYPES[c.dtype].bytes)


def written(c: ConvConfig) -> int:
    """Elements of what is made that its alignment spans."""
    return max(1, c.alignment_out // DTYPES[c.dtype_out].bytes)


def _of_y(c: ConvConfig) -> int:
    return runs.READ // DTYPES[c.dtype].bytes if c.runs else read(c)


def outer(count: int, pixels: bool = True) -> tuple[int, ...]:
    """What strides of (image, channel, depth, height, width) are multiples of: all but the
    channel's. pixels: also that of the width; pixels of runs lie as close as their channels."""
    return count, 1, count, count, count if pixels else 1


# --- operands -----------------------------------------------------------------------------------


def _near(c: ConvConfig) -> bool:
    return c.index_bits == 32


def pointer(name: Name, aligned: Multiple | None = None) -> Array:
    """A pointer to x, w or y."""
    return Array(
        lambda c: c.dtype_out if name(c) == made_of(c) else c.dtype,
        lambda x: name(x.config),
        aligned=aligned,
        near=_near,
    )


def strides(p: ConvProblem, name: str) -> tuple[int, ...]:
    """Strides of (image, channel, depth, height, width), or of (filter, channel, …). 0 along
    dimensions of one element, so that they are multiples of whatever a kernel was promised."""
    shape, given = p.shape_of(name), p.strides_of(name)
    outer, inner, *spatial = (0 if n <= 1 else s for n, s in zip(shape, given, strict=True))
    return (outer, inner, *(0,) * (MOST_DIMS - len(spatial)), *spatial)


def strides_of(
    name: Name, multiples: Callable[[ConvConfig], tuple[int, ...]] = lambda c: outer(1)
) -> Numbers:
    """The strides of x, w or y."""
    return Numbers(
        lambda c: (index_type(c),) * (2 + MOST_DIMS),
        lambda x: strides(x.problem, name(x.config)),
        multiples=multiples,
    )


def _operand(
    parameter: str,
    name: Name,
    aligned: Multiple,
    multiples: Callable[[ConvConfig], tuple[int, ...]],
) -> Catalogue:
    """A pointer to x, w or y, and its strides."""
    return {
        parameter: pointer(name, aligned),
        f"{parameter}_strides": strides_of(name, multiples),
    }


def _chain(c: ConvConfig) -> list[Array]:
    """The operands of the epilogue. Those like the result lie as it does."""

    def one(name: str, kind: str, dtype: str) -> Array:
        aligned = c.alignment_out if kind == "d" else 1
        return Array(dtype, lambda _: name, aligned=lambda _: aligned, near=_near)

    return [
        one(name, took.kind, epilogues.operand_dtype(took, c.dtype_out))
        for name, took in zip(
            epilogues.chain_names(c.epilogue), epilogues.takes(c.epilogue), strict=True
        )
    ]


# --- parts of a sum -----------------------------------------------------------------------------


def _room(x: Context) -> tuple[int, ...]:
    """The shape of what parts of sums meet in."""
    c = x.config
    if c.two_stage:
        return x.splits, math.prod(x.problem.shape_of("w"))
    return slots(c, x.case.tiles, x.case.programs, x.splits), c.tile_m, c.tile_n


_FLAGS = Array("int32", lambda _: FLAGS.name, aligned=lambda _: 16)
_MET = Array("fp32", lambda _: PARTIALS, aligned=lambda _: 16)

SUMS: Catalogue = {
    "made": Array(
        lambda c: "fp32" if c.two_stage else c.dtype_out,
        lambda x: PARTIALS if x.config.two_stage else made_of(x.config),
        aligned=lambda c: 16 if c.two_stage else c.alignment_out,
    ),
    "made_strides": strides_of(made_of, lambda c: outer(1 if c.two_stage else written(c))),
}
"""What the kernel of a part of the pixels makes: partial sums, where a second kernel adds them."""


CLASS: Catalogue = {
    "made_strides": Numbers(
        lambda c: (index_type(c),) * (2 + MOST_DIMS),
        lambda x: maps.class_strides(x.problem, x.case.residue)[0],
        multiples=lambda c: outer(written(c)),
    ),
    "begin": Numbers(
        index_type,
        lambda x: maps.class_strides(x.problem, x.case.residue)[1],
        multiples=lambda c: written(c),
    ),
}
"""Where the result's pixels of a residue class lie: the first, and their strides."""

# --- numbers and constants ----------------------------------------------------------------------


def integer(value: Callable[[ConvProblem], int], multiples: Multiple = lambda c: 1) -> Numbers:
    """A number of the problem."""
    return Numbers("i32", lambda x: value(x.problem), multiples=multiples)


def three(value: Callable[[ConvProblem], tuple[int, ...]]) -> Numbers:
    """A number for each of three dimensions."""
    return Numbers(("i32",) * MOST_DIMS, lambda x: value(x.problem))


def each(value: Callable[[Dim], int]) -> Numbers:
    """`three`, whose numbers come from one dimension each."""
    return three(lambda p: tuple(map(value, p.three)))


def _dividing(value: Callable[[ConvProblem], tuple[int, ...]]) -> Numbers:
    """What kernels divide by numbers of each dimension with."""
    return Numbers(
        ("i32",) * (2 * MOST_DIMS),
        lambda x: tuple(one for size in value(x.problem) for one in dividing(size)),
    )


def _from(p: ConvProblem) -> tuple[int, ...]:
    return tuple(dim.out if p.direction == "data" else dim.size for dim in p.three)


def _to(p: ConvProblem) -> tuple[int, ...]:
    return tuple(dim.size if p.direction == "data" else dim.out for dim in p.three)


def channels_in(p: ConvProblem) -> int:
    """Channels of a group of what is gathered from."""
    return p.group_k if p.direction == "data" else p.group_c


def channels_out(p: ConvProblem) -> int:
    """Channels of a group of what is made."""
    return p.group_c if p.direction == "data" else p.group_k


def _chain_functions(c: ConvConfig, arch: Arch) -> Functions:
    return tuple(one.function for one in epilogues.parse(c.epilogue))


CATALOGUE: Catalogue = {
    **_operand(
        "source", source_of, lambda c: c.alignment, lambda c: outer(read(c), pixels=not c.runs)
    ),
    **_operand("x", lambda _: "x", lambda c: c.alignment, lambda c: outer(read(c), not c.runs)),
    **_operand(
        "y",
        lambda _: "y",
        lambda c: runs.READ if c.runs else c.alignment,
        lambda c: outer(_of_y(c)),
    ),
    "weights": pointer(lambda _: "w"),
    "weight_strides": strides_of(lambda _: "w"),
    **_operand("made", made_of, lambda c: c.alignment_out, lambda c: outer(written(c))),
    "extra": Tuple(_chain),
    "meeting": Tuple(lambda c: (_FLAGS, _MET) if c.parts_meet else ()),
    "images": integer(lambda p: p.n),
    "groups": integer(lambda p: p.groups),
    "channels": integer(lambda p: p.c),
    "channels_in": integer(channels_in, lambda c: 1 if c.runs else read(c)),
    "channels_out": integer(channels_out, written),
    "group_c": integer(lambda p: p.group_c, lambda c: 1 if c.runs else read(c)),
    "group_k": integer(lambda p: p.group_k, _of_y),
    # Of what is gathered from, and of the result.
    "sizes": three(_from),
    "full": three(_to),
    "walked": three(lambda p: p.walked),
    "walked_by": _dividing(lambda p: p.walked),
    "outs": each(lambda dim: dim.out),
    "outs_by": _dividing(lambda p: tuple(dim.out for dim in p.three)),
    "taps": each(lambda dim: dim.filter),
    "stride": each(lambda dim: dim.stride),
    "dilation": each(lambda dim: dim.dilation),
    "before": each(lambda dim: dim.pad),
    "phase": each(lambda dim: dim.pad % dim.stride),
    "common": each(lambda dim: dim.common),
    "inverse": each(lambda dim: dim.inverse),
    "splits": Numbers("i32", lambda x: x.splits),
    # Temporaries.
    FLAGS.name: Array("int32", shape=lambda _: FLAGS.shape, initial=lambda _: FLAGS.initial),
    PARTIALS: Array(
        "fp32",
        shape=_room,
        initial=lambda c: "kept_zero" if c.parts_meet and c.reduction == "atomic" else "anything",
    ),
    packing.X: Array("dtype", shape=lambda x: packing.shape_x(x.problem)),
    packing.W: Array(
        "dtype",
        shape=lambda x: (subpixel if x.problem.direction == "data" else packing).shape_w(x.problem),
    ),
    # Constants. What is not here is the config's field.
    "NDIM": lambda c, _: c.spatial_dims,
    "DATA": lambda c, _: c.direction == "data",
    "UNIT": lambda c, _: c.alignment > 1,
    "UNIT_OUT": lambda c, _: c.alignment_out > 1,
    "INT_ACC": lambda c, _: accumulator(c.dtype) == "int32",
    "TAKES": lambda c, _: epilogues.kinds(c.epilogue),
    "LARGEST": lambda c, _: int(DTYPES[c.dtype_out].largest),
    "CHAIN": _chain_functions,
}
"""By the kernels' names."""


def tile_options(c: ConvConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The config's warps and stages."""
    return ("num_warps", c.num_warps), ("num_stages", c.num_stages)


def own_options(c: ConvConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """Those of kernels that no config says warps and stages of."""
    return ("num_warps", 4), ("num_stages", 1)


# --- kernels that add up parts ------------------------------------------------------------------

BLOCK = 256
"""Weights of a workgroup that adds up parts."""

FEW_BLOCK, WAYS = 64, 32
"""Weights of a workgroup that adds up parts of few weights, and the parts that it reads at once."""

FEW_PARTS, MANY_BLOCK, MANY_WAYS = 32, 32, 128
"""Parts over which a kernel of its own adds them up, so that no more than a few loads follow one
another; the weights of a workgroup of that, and the parts that it reads at once."""

TOTALS, MANY_TOTALS = "totals", "many_totals"
"""The parts of a kernel that add up parts, of which a launch has one."""


def _count(p: ConvProblem) -> int:
    return p.k * p.taps * p.group_c


def _adding(name: str, function: str, block: int, **own: Any) -> Part:
    """A kernel that adds up parts, many or fewer as its name says."""

    def grid(x: Context) -> int:
        many = x.splits > FEW_PARTS
        return cdiv(_count(x.problem), block) if many == (name == MANY_TOTALS) else 0

    return Part(
        name=name,
        kernel=f"{KERNELS}.weights:{function}",
        grid=grid,
        options=own_options,
        there=lambda c: c.two_stage,
        own={"count": integer(_count), "BLOCK": lambda *_: block, **own},
    )


_MANY = _adding(MANY_TOTALS, "conv_few_totals", MANY_BLOCK, WAYS=lambda *_: MANY_WAYS)

SUM = (_adding(TOTALS, "conv_totals", BLOCK), _MANY)
"""Adds up the parts of each weight."""

FEW_SUM = (_adding(TOTALS, "conv_few_totals", FEW_BLOCK, WAYS=lambda *_: WAYS), _MANY)
"""Adds up the parts of each weight where there are few weights."""


def of_any_channels(adding: tuple[Part, ...]) -> tuple[Part, ...]:
    """Kernels that add up parts, of weights whose channels are not aligned as a config says."""
    own = {"group_c": integer(lambda p: p.group_c)}
    return tuple(replace(one, own={**one.own, **own}) for one in adding)
