"""What the pipelines that copy boxes (`boxed`) compile and launch: forward and the gradient of the
data. Those of the weights: `boxed_weights`."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import boxes, maps
from tilewright.ops.conv.arguments import (
    ARGUMENTS,
    CONSTANTS,
    Context,
    Value,
    index_type,
    source_of,
)
from tilewright.ops.conv.boxes import Walk
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.maps import Residues, view
from tilewright.ops.conv.pipelines.boxed.shape import PINGPONG, groups, piece, readers
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.nouns import MAIN, Argument, KernelSource, Scalar, Step

# --- what to compile ---------------------------------------------------------------------------


def _blocks(c: ConvConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What one copy moves of the source, the first accumulator's weights, and the result."""
    box, first = boxes.sizes(c.box), widths.wide(c.tile_n)
    return (*box, c.tile_k), _of_weights(c, first), (*box, piece(c))


def _of_weights(c: ConvConfig, columns: int) -> tuple[int, ...]:
    """What one copy moves of the weights, of so many columns."""
    ones = (1,) * c.spatial_dims
    if c.direction == "data":
        return (c.tile_k, *ones, columns)
    return (columns, *ones, c.tile_k)


def _rests(c: ConvConfig) -> list[tuple[int, ...]]:
    """What one copy moves of the weights, for each accumulator behind the first."""
    return [_of_weights(c, columns) for columns in widths.parts(c.tile_n)[1:]]


def _made(c: ConvConfig) -> str:
    return DIRECTIONS[c.direction][2]


_FROM_CATALOGUE = ("images", "channels_in", "channels_out")
_WALKED = ("walked", "taps", "first_tap", "taps_apart", "origin", "by_tap", "by_pixel")
_OF_WALKS: tuple[Callable[[Walk], int], ...] = (
    lambda w: w.size, lambda w: w.count, lambda w: w.first, lambda w: w.apart,
    lambda w: w.origin, lambda w: w.by_tap, lambda w: w.by_pixel,
)  # fmt: skip
_BOX = ("BOX_N", "BOX_D", "BOX_H", "BOX_W")
_CONSTANTS = (
    "TILE_N", "TILE_K", "GROUP_M", *_BOX, "NDIM", "DATA", "INT_ACC", "TAKES", "LARGEST", "STAGES",
    "GROUPS", "TURNS",
)  # fmt: skip


def source(c: ConvConfig, arch: Arch) -> KernelSource:
    """What to compile for `c` on `arch`."""
    dtypes = (c.dtype, c.dtype, c.dtype_out)
    signature = [
        (name, view(dtype, block))
        for name, dtype, block in zip(
            ("source", "weights", "made"), dtypes, _blocks(c), strict=True
        )
    ]
    signature += [(f"weights_rest.{i}", view(c.dtype, block)) for i, block in enumerate(_rests(c))]
    if not _rests(c):
        signature.append(("weights_rest", "()"))
    extra = ARGUMENTS["extra"].types(c)
    signature += [(f"extra.{i}", kind) for i, kind in enumerate(extra)] or [("extra", "()")]
    signature += [(f"made_strides.{i}", index_type(c)) for i in range(5)]
    signature += [("begin", index_type(c)), *((name, "i32") for name in _FROM_CATALOGUE)]
    signature += [("tiles_m", "i32")]
    signature += [(f"{name}.{i}", "i32") for name in ("boxes", *_WALKED) for i in range(3)]
    own = dict(zip(_BOX, boxes.in_three(c.box), strict=True))
    own |= {"STAGES": c.num_stages, "GROUPS": groups(c), "TURNS": c.pipeline == PINGPONG}
    constants: dict[str, Value] = {
        name: own[name] if name in own else CONSTANTS[name](c) for name in _CONSTANTS
    }
    chain = tuple(o.function for o in epilogues.parse(c.epilogue))
    signature += [(name, "constexpr") for name in (*constants, "CHAIN")]
    return KernelSource(
        module="tilewright.ops.conv.kernels.gluon_ws",
        function="conv_gluon_ws",
        signature=tuple(signature),
        constants=tuple(constants.items()),
        divisibility=_promises(c),
        options=warpgroups.options_of(c.num_warps),
        language="gluon",
        functions=(("CHAIN", chain),),
    )


def _promises(c: ConvConfig) -> tuple[tuple[str, int], ...]:
    """What the epilogue's arrays let the compiler assume of addresses, in bytes, and of strides and
    the class's first pixel, in elements. They lie as the result does."""
    count = c.alignment_out // DTYPES[c.dtype_out].bytes
    found = {f"made_strides.{i}": count for i in (0, 2, 3, 4)} | {"begin": count}
    for i, taken in enumerate(epilogues.takes(c.epilogue)):
        if taken.kind == "d":
            found[f"extra.{i}"] = c.alignment_out
    return tuple(found.items())


# --- what to launch ----------------------------------------------------------------------------


def all_tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Tiles of all residue classes."""
    return sum(tiles(c, p, boxes.walks(p, residue)) for residue in boxes.residues(p))


def _tiles_m(c: ConvConfig, p: ConvProblem, of: tuple[Walk, ...]) -> int:
    return -(-math.prod(boxes.counts(c.box, p, of)) // readers(c))


def tiles(c: ConvConfig, p: ConvProblem, of: tuple[Walk, ...]) -> int:
    """Tiles of the residue class whose walks these are."""
    return _tiles_m(c, p, of) * -(-p.channels_out // c.tile_n)


def steps(c: ConvConfig, p: ConvProblem, device: Device) -> list[Step]:
    """The launch of `c` for `p` on `device`: a step for each residue class."""
    return [_step(c, p, device, residue) for residue in boxes.residues(p)]


def _step(c: ConvConfig, p: ConvProblem, device: Device, residue: Residues) -> Step:
    of = boxes.walks(p, residue)
    context = Context(c, p)
    source_block, weights_block, made_block = _blocks(c)
    kind = index_type(c)
    strides, begin = maps.class_strides(p, residue)
    arguments: list[Argument] = [
        maps.of_images(
            p, source_of(p.direction), source_block, steps=tuple(w.by_pixel for w in of)
        ),
        maps.of_images(p, "w", weights_block),
        maps.of_images(p, _made(c), made_block, of_class=(of, strides, begin)),
        *(maps.of_images(p, "w", block) for block in _rests(c)),
        *ARGUMENTS["extra"].values(context),
        *(Scalar(kind, stride) for stride in strides),
        Scalar(kind, begin),
    ]
    for name in _FROM_CATALOGUE:
        arguments += ARGUMENTS[name].values(context)
    arguments.append(Scalar("i32", _tiles_m(c, p, of)))
    arguments += [Scalar("i32", count) for count in boxes.counts(c.box, p, of)[1:]]
    arguments += [Scalar("i32", value(w)) for value in _OF_WALKS for w in of]
    programs = min(tiles(c, p, of), device.compute_units)
    return Step((programs, 1, 1), tuple(arguments), MAIN)
