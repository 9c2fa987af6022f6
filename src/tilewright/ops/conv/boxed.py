"""Pipelines ``gluon_ws`` and ``gluon_pingpong``: boxes of pixels by the copy engine, wgmma, and
warps with roles written out (kernels/gluon_ws.py). Under the second, two groups take tiles in turn.

What they need of an architecture and a problem, what is compiled and what is launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import boxes
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
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.gemm import epilogues
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.nouns import MAIN, Argument, Descriptor, KernelSource, Launch, Scalar, Step

PINGPONG = "gluon_pingpong"
PIPELINES = ("gluon_ws", PINGPONG)
NEEDS = ("tma", "wgmma")
"""Of an architecture, in the words of `Arch.has`."""

MOST_PIECE, MOST_PIECE_BESIDE = 64, 32
"""Columns of the sums that are staged and stored at a time, where the epilogue reads no array like
the result and where it does; half the tile's if it has fewer than twice as many."""

MOST_ROWS = 128
"""Pixels of a group's box: a group holds the sums of so many rows."""

Residues = tuple[int, int, int]


def piece(c: ConvConfig) -> int:
    """Columns that are stored at a time."""
    most = MOST_PIECE_BESIDE if epilogues.has_matrix(c.epilogue) else MOST_PIECE
    return min(most, c.tile_n // 2)


def groups(c: ConvConfig) -> int:
    """Warp groups that multiply."""
    return c.num_warps // warpgroups.WARPGROUP


def readers(c: ConvConfig) -> int:
    """Groups that share a tile, each with a box of its own."""
    return 1 if c.pipeline == PINGPONG else groups(c)


def rows(c: ConvConfig) -> int:
    """Pixels of a box."""
    return math.prod(boxes.sizes(c.box))


# --- what a config needs -----------------------------------------------------------------------


def objection(c: ConvConfig, arch: Arch) -> str | None:
    """Why `arch` cannot build a config of these pipelines, if so."""
    for word in NEEDS:
        if not arch.has(word):
            return f"{arch.name} has no {word}, which pipeline {c.pipeline} needs"
    if c.direction == "weights":
        return f"pipeline {c.pipeline} makes no gradients of weights"
    bits = DTYPES[c.dtype].bits
    if bits > 16 or (bits != 16 and c.direction == "data"):
        return (
            f"pipeline {c.pipeline} multiplies 16-bit types, and forward 8-bit types, not "
            f"{c.dtype} in direction {c.direction}"
        )
    if c.scheduler != "persistent":
        return f"pipeline {c.pipeline} overlaps tiles: scheduler persistent, not {c.scheduler}"
    if c.merged:
        return f"pipeline {c.pipeline} copies boxes of one tap, and cannot merge taps"
    if (c.alignment, c.alignment_out) != (16, 16):
        return (
            f"the copy engine takes channels aligned to 16 bytes, not {c.alignment} and "
            f"{c.alignment_out}"
        )
    if c.tile_n < 2 * 16 or c.tile_k * bits < 256:
        return f"tile {c.tile_n}x{c.tile_k} is under 32x{256 // bits}, which wgmma needs here"
    return _warps(c) or _box(c)


def _warps(c: ConvConfig) -> str | None:
    allowed = (8,) if c.pipeline == PINGPONG else (4, 8)
    if c.num_warps not in allowed:
        listed = " or ".join(map(str, allowed))
        return f"pipeline {c.pipeline} multiplies with {listed} warps, not {c.num_warps}"
    return None


def _box(c: ConvConfig) -> str | None:
    each = boxes.sizes(c.box)
    if len(each) != 1 + c.spatial_dims:
        return f"box '{c.box}' is not of images and {c.spatial_dims} dimensions"
    if any(size & (size - 1) for size in each):
        return f"box {c.box} is not of powers of two"
    if rows(c) not in (warpgroups.WARPGROUP_ROWS, MOST_ROWS):
        return f"box {c.box} has {rows(c)} pixels, not 64 or {MOST_ROWS}"
    if c.tile_m != rows(c) * readers(c):
        return f"tile_m = {c.tile_m} is not {readers(c)} boxes of {rows(c)} pixels"
    return None


def shared_memory(c: ConvConfig) -> int:
    """Bytes of the ring and the staging buffers, and a little more."""
    stage = (c.tile_m + c.tile_n) * c.tile_k * DTYPES[c.dtype].bytes
    staging = 2 * groups(c) * rows(c) * piece(c) * DTYPES[c.dtype_out].bytes
    return stage * c.num_stages + staging + warpgroups.SPECIALISATION_BYTES


def refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    """Why a config of these pipelines cannot compute `p`, if so."""
    if p.groups != 1:
        return f"pipeline {c.pipeline} is for dense convolutions, not for {p.groups} groups"
    for name in "xwy":
        shape, strides = p.shape_of(name), p.strides_of(name)
        if 0 in shape:
            return f"{name} has no elements, which a tensor map cannot describe"
        if any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True)):
            return f"{name} repeats elements by a stride of 0, which a tensor map cannot describe"
    of = boxes.walks(p, (0, 0, 0))
    for w, size in zip(of, boxes.in_three(c.box)[1:], strict=True):
        if w.by_pixel > boxes.MOST_ELEMENT_STRIDE:
            return f"a stride of {w.by_pixel} is over {boxes.MOST_ELEMENT_STRIDE}, a tensor map's"
        if w.by_pixel > 1 and boxes.reach(size, w) > boxes.MOST_SPAN:
            return f"box {c.box} reaches over {boxes.reach(size, w)} pixels, over {boxes.MOST_SPAN}"
    return None


def sibling(c: ConvConfig) -> ConvConfig:
    """A config in Triton that computes the same, for the interpreter."""
    return replace(
        c, pipeline="implicit", scheduler="tile", box="", tile_m=64, tile_n=32, tile_k=32,
        num_warps=4, num_stages=2,
    )  # fmt: skip


# --- what to compile ---------------------------------------------------------------------------


def _view(name: Callable[[ConvConfig], str], block: tuple[int, ...], c: ConvConfig) -> str:
    """The type of a tensor map."""
    made = name(c) == DIRECTIONS[c.direction][2]
    kind = DTYPES[c.dtype_out if made else c.dtype].triton
    return f"tensordesc<{kind}[{', '.join(map(str, block))}]>"


def _blocks(c: ConvConfig) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What one copy moves of the source, the weights and the result."""
    box, ones = boxes.sizes(c.box), (1,) * c.spatial_dims
    weights = (c.tile_k, c.tile_n) if c.direction == "data" else (c.tile_n, c.tile_k)
    return (*box, c.tile_k), (weights[0], *ones, weights[1]), (*box, piece(c))


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
    named = (lambda c: source_of(c.direction), lambda _: "w", _made)
    signature = [
        (name, _view(of, block, c))
        for name, of, block in zip(("source", "weights", "made"), named, _blocks(c), strict=True)
    ]
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


def launch(c: ConvConfig, p: ConvProblem, device: Device) -> Launch:
    """The launch of `c` for `p` on `device`: a step for each residue class."""
    return Launch(tuple(_step(c, p, device, residue) for residue in boxes.residues(p)))


def _step(c: ConvConfig, p: ConvProblem, device: Device, residue: Residues) -> Step:
    of = boxes.walks(p, residue)
    context = Context(c, p)
    source_block, weights_block, made_block = _blocks(c)
    kind = index_type(c)
    strides, begin = _class_strides(p, residue)
    arguments: list[Argument] = [
        _described(p, source_of(p.direction), source_block, steps=tuple(w.by_pixel for w in of)),
        _described(p, "w", weights_block),
        _described(p, _made(c), made_block, of_class=(of, strides, begin)),
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


def _class_strides(p: ConvProblem, residue: Residues) -> tuple[tuple[int, ...], int]:
    """Strides of (image, channel, depth, height, width) of the class's pixels, and elements to the
    first."""
    outer, inner, *spatial = _dense(p, p.output_name)
    three = (*(0,) * (3 - len(spatial)), *spatial)
    begin = sum(r * s for r, s in zip(residue, three, strict=True))
    apart = tuple(dim.stride if p.direction == "data" else 1 for dim in p.three)
    return (outer, inner, *(s * n for s, n in zip(three, apart, strict=True))), begin


def _dense(p: ConvProblem, name: str) -> tuple[int, ...]:
    """The strides of an array. Along dimensions of one element, those of an array without gaps in
    place of whatever was given: a tensor map checks them."""
    shape, given = p.shape_of(name), p.strides_of(name)
    spatial: list[int] = []
    step = shape[1]
    for n, stride in zip(reversed(shape[2:]), reversed(given[2:]), strict=True):
        spatial.append(stride if n > 1 else step)
        step = spatial[-1] * n
    return (given[0] if shape[0] > 1 else step, 1, *reversed(spatial))


def _described(
    p: ConvProblem,
    name: str,
    block: tuple[int, ...],
    steps: tuple[int, ...] = (),
    of_class: tuple[tuple[Walk, ...], tuple[int, ...], int] | None = None,
) -> Descriptor:
    """The tensor map of x, w or y, channels innermost.

    steps: pixels from each of a box's pixels to the next, in three dimensions.
    of_class: walks, strides and the first element of the pixels to describe; None is all.
    """
    rank = len(p.spatial)
    (outer, channels, *sizes), (stride, _, *strides), offset = p.shape_of(name), _dense(p, name), 0
    if of_class is not None:
        of, class_strides, offset = of_class
        sizes = [w.size for w in of[3 - rank :]]
        strides = list(class_strides[5 - rank :])
    going = steps[3 - rank :] if any(step > 1 for step in steps) else ()
    return Descriptor(
        name,
        p.dtype_of(name),
        (outer, *sizes, channels),
        (stride, *strides, 1),
        block,
        offset,
        (1, *going, 1) if going else (),
    )
