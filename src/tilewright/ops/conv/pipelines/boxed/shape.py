"""Pipelines ``gluon_ws`` and ``gluon_pingpong``: boxes of pixels by the copy engine, wgmma, and
warps with roles written out (kernels/gluon_ws.py, gluon_weights.py). Under the second, two groups
take tiles in turn.

What they need of an architecture and a problem. Forward and for the data's gradient, a box is the
rows of one group; for the weights' gradient, the pixels of a step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import boxes, maps
from tilewright.ops.conv.catalogue import channels_in, channels_out
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.pool import Objections, because

PINGPONG = "gluon_pingpong"
MOST_PIECE, MOST_PIECE_NARROW = 64, 32
"""Columns of the sums that are staged and stored at a time; fewer where the epilogue reads an array
like the result, four bytes are stored for each, or a tile has several accumulators, whose operands
leave less room; half the tile's, or the narrowest accumulator's, if it has fewer."""

ROWS = (64, 128)
"""Rows whose sums a group holds."""

SPAN = 128
"""Bytes of the widest swizzle: slabs of so many bytes of a tile's columns lie one behind the other,
and each may be a box of its own."""

THREE_GROUPS = 12
"""Warps of three groups, of 64 rows each."""

MORE_HANDED_BYTES = 256
"""Shared memory in which the compiler hands more arguments to the warps: of a third group, of
further descriptors."""

HANDED_OF_CLASSES, HANDED_OF_CLASS = 256, 64
"""The same of a launch of all residue classes: of what is computed of a class, and of each class'
descriptor."""

MOST_OF_THREE = 64 * 208
"""Sums of each of three groups."""

MOST_SUMS_BESIDE_ARRAY = 160
"""Sums of a thread in several accumulators where the epilogue reads an array like the result: of
192, the compiler spilled 144 bytes; of 160, nothing."""

ODD_COLUMNS = tuple(n for n in warpgroups.ODD_COLUMNS if n % 16 == 0)
"""Columns of a tile that are no power of two, in parts with accumulators and copies of weights of
their own, as in GEMM's `gluon_ws`. A part of 16 columns fills rows of the narrowest swizzle."""


def piece(c: ConvConfig) -> int:
    """Columns that are stored at a time."""
    if odd(c):
        return min(MOST_PIECE_NARROW, widths.parts(c.tile_n)[-1])
    narrow = epilogues.has_matrix(c.epilogue) or DTYPES[stored(c)].bytes == 4
    return min(MOST_PIECE_NARROW if narrow else MOST_PIECE, c.tile_n // 2)


def odd(c: ConvConfig) -> bool:
    """Whether a tile has several accumulators side by side."""
    return c.tile_n & (c.tile_n - 1) != 0


def odd_fields(c: ConvConfig) -> tuple[str, ...]:
    """Fields that `objection` judges and that need not be powers of two."""
    return ("tile_n", "tile_m", "num_warps") if c.num_warps == THREE_GROUPS else ("tile_n",)


def stored(c: ConvConfig) -> str:
    """The dtype in which sums leave: parts of weights are summed later."""
    return "fp32" if c.two_stage else c.dtype_out


def groups(c: ConvConfig) -> int:
    """Warp groups that multiply."""
    return c.num_warps // warpgroups.WARPGROUP


def readers(c: ConvConfig) -> int:
    """Groups that share a tile, each with a box of its own."""
    return 1 if c.pipeline == PINGPONG else groups(c)


def rows(c: ConvConfig) -> int:
    """Rows that a group multiplies."""
    return c.tile_m // readers(c)


def pixels(c: ConvConfig) -> int:
    """Pixels of a box."""
    return math.prod(boxes.sizes(c.box))


# --- what a config needs -----------------------------------------------------------------------


def objection(c: ConvConfig, arch: Arch) -> str | None:
    """Why `arch` cannot build a config of these pipelines, if so."""
    if c.direction == "weights" and c.pipeline == PINGPONG:
        return f"pipeline {c.pipeline} makes no gradients of weights"
    bits = DTYPES[c.dtype].bits
    if bits > 16 or (bits != 16 and c.direction != "forward"):
        return (
            f"pipeline {c.pipeline} multiplies 16-bit types, and forward 8-bit types, not "
            f"{c.dtype} in direction {c.direction}"
        )
    if c.scheduler == "tile":
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
    return _spread(c) or _columns(c) or _warps(c) or _box(c)


def _spread(c: ConvConfig) -> str | None:
    if not c.spread:
        return None
    if c.direction != "weights" or c.spread * DTYPES[c.dtype].bytes != SPAN:
        return (
            f"spread = {c.spread}: boxes of {SPAN} bytes of channels are side by side in gradients "
            f"of weights, not of {c.dtype} in direction {c.direction}"
        )
    if c.tile_n % c.spread or c.tile_n == c.spread:
        return f"tile_n = {c.tile_n} is not several boxes of {c.spread} columns"
    return None


def _columns(c: ConvConfig) -> str | None:
    if not odd(c):
        return None
    if c.tile_n not in ODD_COLUMNS:
        listed = ", ".join(map(str, ODD_COLUMNS))
        return f"tile_n = {c.tile_n} is neither a power of two nor one of {listed}"
    if c.parts_meet:
        return f"parts of {c.tile_n} columns meet under split and two_stage only, not {c.scheduler}"
    sums = rows(c) * c.tile_n // (warpgroups.WARPGROUP * 32)
    most = warpgroups.MOST_SUMS_IN_PARTS
    if epilogues.has_matrix(c.epilogue):
        most = MOST_SUMS_BESIDE_ARRAY
    if sums > most:
        return f"{sums} accumulators a thread in parts, over {most}: they would spill"
    least = warpgroups.LEAST_ROW_OF_B
    for what, dtype, columns in (
        ("sums", stored(c), piece(c)),
        ("operands", c.dtype, c.tile_k if c.direction == "forward" else piece(c)),
    ):
        if DTYPES[dtype].size(columns) < least:
            return f"tile_n = {c.tile_n} has pieces of {what} with rows under {least} bytes"
    return None


def _warps(c: ConvConfig) -> str | None:
    allowed = (8,) if c.pipeline == PINGPONG else (4, 8, THREE_GROUPS)
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
    if rows(c) not in ROWS or c.tile_m % readers(c):
        listed = " or ".join(map(str, ROWS))
        return f"tile_m = {c.tile_m} is not {listed} rows for each of {readers(c)} groups"
    name, size = ("tile_k", c.tile_k) if c.direction == "weights" else ("a group's rows", rows(c))
    if c.num_warps == THREE_GROUPS and rows(c) * c.tile_n > MOST_OF_THREE:
        return (
            f"{rows(c)}x{c.tile_n} sums for each of three groups, over {MOST_OF_THREE}: their "
            "threads have fewer registers"
        )
    if pixels(c) != size:
        return f"box {c.box} has {pixels(c)} pixels, but {name} = {size}"
    return None


def shared_memory(c: ConvConfig) -> int:
    """Bytes of the ring and the staging buffers, and a little more."""
    return stage_bytes(c) * c.num_stages + beside(c)


def stage_bytes(c: ConvConfig) -> int:
    """Bytes of a step's operands."""
    return (c.tile_m + c.tile_n) * c.tile_k * DTYPES[c.dtype].bytes


def beside(c: ConvConfig) -> int:
    """Bytes beside the ring."""
    staging = 2 * groups(c) * rows(c) * piece(c) * DTYPES[stored(c)].bytes
    handed = MORE_HANDED_BYTES if odd(c) or c.num_warps == THREE_GROUPS else 0
    if c.classes > 1:
        handed += HANDED_OF_CLASSES + c.classes * HANDED_OF_CLASS
    return staging + warpgroups.SPECIALISATION_BYTES + handed


def refusal(c: Any, p: ConvProblem) -> Objections:
    """What configs of these pipelines have against `p`."""
    yield from _groups(c, p)
    if reason := maps.refusal(p, "xwy"):
        yield True, because(reason)
        return
    box = boxes.of(c)
    of = boxes.walks(p, (0, 0, 0))
    for w, size in zip(of, (box.depth, box.height, box.width), strict=True):
        if w.by_pixel > boxes.MOST_ELEMENT_STRIDE:
            said = f"a stride of {w.by_pixel} is over {boxes.MOST_ELEMENT_STRIDE}, a tensor map's"
            yield True, because(said)
        if w.by_pixel > 1:
            said, reached = "box {c.box} reaches over {} pixels, over {}", size * w.by_pixel
            yield reached > boxes.MOST_SPAN, partial(said.format, reached, boxes.MOST_SPAN)
    several = boxes.together(p)
    said = "a launch has {c.classes} residue classes, of {} that it could have"
    yield (c.classes > 1) & (c.classes != several), partial(said.format, several)
    if p.direction == "weights":
        said = (
            "boxes of {c.box} do not divide {p.n} images of {p.out_sizes}: beside a pixel that y "
            "does not have there may be one of x that is infinite"
        )
        yield boxes.exact(box, p) ^ True, said.format
        if not taps_merge(p):
            said = "taps of w do not lie at one distance, which one tensor map needs"
            yield c.two_stage ^ True, because(said)


def _groups(c: Any, p: ConvProblem) -> Objections:
    """Tiles stay within a group: they neither store to the next group's channels, nor read any from
    there, where one may be infinite. In gradients of weights, columns past a group's channels are
    not stored."""
    if p.groups == 1:
        yield c.grouped, "this kernel is for groups, and the convolution has none".format
        return
    said = "a {c.pipeline} kernel that is not grouped is for one group, not for {p.groups} groups"
    yield c.grouped ^ True, said.format
    if p.direction == "weights":
        said = "{p.group_k} filters of a group are not tiles of {c.tile_m}"
        yield p.group_k % c.tile_m > 0, said.format
        return
    read, made = channels_in(p), channels_out(p)
    said = "{} channels of a group that are read are not steps of {c.tile_k}"
    yield read % c.tile_k > 0, partial(said.format, read)
    said = "{} channels of a group that are made are not tiles of {c.tile_n}"
    yield made % c.tile_n > 0, partial(said.format, made)


def taps_merge(p: ConvProblem) -> bool:
    """Whether the taps of w can be described as one dimension."""
    strides, taps = maps.dense(p, "w")[2:], p.filter
    return all(strides[i] == strides[i + 1] * taps[i + 1] for i in range(len(taps) - 1))


def sibling(c: ConvConfig) -> ConvConfig:
    """A config in Triton that computes the same, for the interpreter."""
    scheduler = c.scheduler if c.scheduler in SHARING else "tile"
    return replace(
        c, pipeline="implicit", scheduler=scheduler, box="", spread=0, classes=1, grouped=False,
        tile_m=64, tile_n=32, tile_k=32, num_warps=4, num_stages=2,
    )  # fmt: skip
