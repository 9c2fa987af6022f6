"""`ConvConfig`: the kernels that compute a convolution, and their name.

    conv_forward_2d_bf16_bf16_128x128x64_w8_s3_implicit_tile_g8_al16-16_epi-bias-relu
         |       |  read made tile       |  |  |        |    |    |  |
         direction, dimensions           |  |  |        |    |    |  +- bytes of alignment, made
                                  warps -+  |  |        |    |    +- bytes of alignment, read
                                   stages --+  |        |    +- tiles grouped along M
                                     pipeline -+        +- scheduler

Other words follow only where they differ from the default: the box (``b1x8x16``), the filter that
the kernel is written out for (``f3x3s1x1``), channels of a tap (``sp64``), residue classes of a
launch (``cl4``), ``grouped``, ``tf32``, ``merged``, ``runs``, groups of a tile (``mg8``), ``i64``,
arrays that are turned (``turn-xwy``), and last the epilogue.

A kernel of GEMM (`by_gemm`) has GEMM's name behind direction and dimensions:

    conv_forward_2d_gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_split_padmnk_al16

and before it the arrays that are turned, as in ``conv_forward_2d_turn-py_gemm_rcr_…``.

So has an algorithm of the vendor's library for GEMMs (`gemm.library_config`). An engine of the
library for convolutions has the library's words (`library`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.gemm import names
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.library_config import VendorConfig, is_vendors
from tilewright.ops.gemm.library_config import parse as parse_vendors
from tilewright.ops.library_engine import said

GEMM = "gemm"
"""The pipeline of GEMM's kernels, and of the algorithms of a library for GEMMs (`by_gemm`)."""

ARRAYS = ("x", "w", "y")
PATCHES = "p"
"""What stands for x in `ConvConfig.turned` where it is cut into patches."""

WINDOWS = "o"
"""What stands for x in `ConvConfig.turned` where it is cut into windows that overlap, or lie in
padding."""

TAPS = "t"
"""What `ConvConfig.turned` begins with where a product comes before the sum over taps
(`tapping`)."""

SUMS = "fp32"
"""The dtype of what a layout step adds up."""

SWAPPED = "s"
"""What `ConvConfig.turned` is where x and y are exchanged (`swapping`)."""

LONGER = "r"
"""What stands before the arrays in `ConvConfig.turned` that are copied into longer rows."""

TURNED = (
    *(
        x + w + y
        for x, w, y in itertools.product(("", "x", PATCHES, WINDOWS), ("", "w"), ("", "y"))
    ),
    SWAPPED,
    TAPS,
    TAPS + "w",
    *(LONGER + names for names in ("x", "w", "y", "xw", "xy", "wy", "xwy")),
)
"""What `ConvConfig.turned` may say."""

VENDOR = "vendor"
"""The pipeline of the engines of the vendor's library for convolutions (`library`)."""

Product = GemmConfig | VendorConfig

SCHEDULERS = ("tile", "split", "persistent", "stream_k")
SHARING = ("split", "stream_k")
"""Schedulers under which several workgroups sum parts of one tile's pixels, in gradients of
weights."""
REDUCTIONS_OF = {
    "split": ("two_stage", "atomic", "tree"),
    "stream_k": ("linear", "atomic", "tree"),
}
"""How parts of a sum are put together (see `GemmConfig.reduction`), by scheduler; the usual one
first."""
MOST_TILE = 256
"""Rows, columns or products of a tile of matrix instructions, at most."""
ALIGNMENTS = (1, 2, 4, 8, 16)
INDEX_BITS = (32, 64)


@dataclass(frozen=True, slots=True)
class ConvConfig:
    """How to compute a convolution. The signature is the fields up to `precision`, and `epilogue`;
    the others are the algorithm.

    direction, dtype, dtype_out, precision, epilogue: as in `ConvProblem`.
    spatial_dims: how many there are.
    tile_m, tile_n, tile_k: of a workgroup. Forward and data: pixels and channels of the result, and
        products of a step. Weights: filters, places of a filter (or its channels, of one tap), and
        pixels of a step. Depthwise: pixels (of weights: taps; of a window: strips of
        neighbouring pixels), channels, and pixels of a step (of a window that holds its filter: the
        steps that strips walk down). Direct: pixels, images, and 1. Planes: images, elements of the
        result, and those that they see.
    num_warps: warps (waves) of a workgroup. num_stages: steps in shared memory at once.
    pipeline: the kernels; each has a record in `pipelines`, but `GEMM` and `VENDOR`.
    scheduler: ``tile``, one workgroup for each tile; ``persistent``: a workgroup for each compute
        unit, which walks tiles with that stride. For weights: ``split``, several workgroups for
        each tile, which share the pixels; ``stream_k``, a workgroup for each compute unit, which
        share the steps of all tiles evenly (ops/device/schedule.py).
    reduction: how the parts of a tile are put together under `SHARING` (`REDUCTIONS_OF`), in GEMM's
        words: ``linear``, ``tree`` and ``two_stage``, a second kernel, repeat bit for bit,
        ``atomic`` does not (ops/device/reduce.py). Else ``none``.
    group_m: rows of tiles that are walked together, to reuse L2.
    merged: a step's products are of several taps, as if a filter's taps and channels were one
        dimension; else each step is of one tap. For few channels.
    runs: of merged steps: the taps of a row of the filter and their channels, which are neighbours
        in memory, are one run, read in vectors where runs begin at their multiples. Then alignment
        is that of runs. For 3 and 4 channels.
    merged_groups: groups whose channels a tile has side by side, a power of two; what does not
        belong together is multiplied by zero, or its sums are not stored. For groups of few
        channels.
    alignment: bytes that addresses, strides and a group's channels of what is read are multiples
        of; 1: elements of neighbouring channels may be anywhere. alignment_out: of what is made.
    index_bits: 32 where every array spans under 2 GiB.
    box: of the pipelines that copy boxes, how many images and pixels along each dimension make the
        rows that one warp group multiplies (``1x8x16``); of pipeline ``direct``, how many channels
        and taps along each dimension a step writes out (``1x3x3``); ``""`` of the others.
    held: of kernels that are written out for a filter, its taps, and the strides of the height and
        the width (``3x3s1x1``); of a window for large filters, the row that it holds (``31s1``).
        ``""`` of the other pipelines.
    spread: of gradients of weights by boxes, channels of a tap that one box brings, where boxes of
        several taps are side by side in a tile's columns; 0: a tile is of one tap. Of pipeline
        ``packed``, columns of each row of the filter (`packing.row_w`); of ``in_place``, taps of
        each; of ``window``, filters of each channel where there are several.
    gemm: of pipeline `GEMM`, the words of its kernel's name behind ``gemm_``; ``""`` of the others.
        The other fields then say what that name says (`of_gemm`), scheduler in GEMM's words. Of a
        library's algorithm the name says no tile, warps or stages, which are 0.
    turned: the arrays of x, w and y, in this order, that layout steps turn (`turning`); ``p`` in
        place of x: it is cut into patches; ``o``: into windows that overlap. ``r`` before them:
        they are not turned, but copied into longer rows (`longer`). ``s`` alone: x and y are
        exchanged (`swapping`). ``t``: a product before the sum over taps (`tapping`).
    classes: of gradients of the data by boxes, residue classes of x's pixels that one launch makes,
        all of the problem's; 1: a launch for each.
    grouped: of the pipelines that copy boxes, whether the convolution has groups, each of whole
        tiles.
    library_engine: of pipeline `VENDOR`, the library, its engine and the workspace (`said`);
        ``""`` of the others. Tile, warps and stages are 0.
    """

    family: ClassVar[str] = "conv"

    direction: str
    spatial_dims: int
    dtype: str
    dtype_out: str
    precision: str
    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    pipeline: str = "implicit"
    scheduler: str = "tile"
    group_m: int = 8
    merged: bool = False
    runs: bool = False
    merged_groups: int = 1
    alignment: int = 16
    alignment_out: int = 16
    index_bits: int = 32
    epilogue: str = ""
    box: str = ""
    held: str = ""
    gemm: str = ""
    reduction: str = "none"
    spread: int = 0
    classes: int = 1
    grouped: bool = False
    library_engine: str = ""
    turned: str = ""

    @property
    def two_stage(self) -> bool:
        """Whether a second kernel adds up the parts of a sum."""
        return self.reduction == "two_stage"

    @property
    def splits(self) -> bool:
        """Whether each tile has workgroups of its own that share its pixels."""
        return self.scheduler == "split"

    @property
    def shares_steps(self) -> bool:
        """Whether workgroups share the steps of all tiles evenly."""
        return self.scheduler == "stream_k"

    @property
    def parts_meet(self) -> bool:
        """Whether workgroups add up the parts of a tile among themselves."""
        return self.scheduler in SHARING and not self.two_stage

    @property
    def gemm_config(self) -> Product:
        """GEMM's kernel, of pipeline `GEMM`. Raises `UnknownName`."""
        kernel = product_of(self.gemm)
        return apart(kernel) if self.turned.startswith(TAPS) else kernel

    @property
    def library(self) -> str:
        """The library that computes it (`ops.library.library_of`); ``""`` where a kernel is built
        here."""
        if self.library_engine:
            return said(self.library_engine).library
        product = None if self.tile_m else self.gemm_config
        return product.library if isinstance(product, VendorConfig) else ""

    @property
    def name(self) -> str:
        """The kernels' name; `names.parse` is its exact inverse."""
        if self.gemm:
            turned = f"turn-{self.turned}_" if self.turned else ""
            return f"conv_{self.direction}_{self.spatial_dims}d_{turned}gemm_{self.gemm}"
        name = f"conv_{self.direction}_{self.spatial_dims}d_{self.dtype}_{self.dtype_out}"
        if self.library_engine:
            tf32 = "_tf32" * (self.precision == "tf32")
            return f"{name}_{VENDOR}_{self.library_engine}_al{self.alignment}{tf32}"
        name += (
            f"_{self.tile_m}x{self.tile_n}x{self.tile_k}_w{self.num_warps}_s{self.num_stages}"
            f"_{self.pipeline}_{self.scheduler}{f'_{self.reduction}' * (self.scheduler in SHARING)}"
            f"_g{self.group_m}"
            f"_al{self.alignment}-{self.alignment_out}"
        )
        name += f"_b{self.box}" if self.box else ""
        name += f"_f{self.held}" if self.held else ""
        name += f"_sp{self.spread}" if self.spread else ""
        name += f"_cl{self.classes}" if self.classes > 1 else ""
        name += "_grouped" * self.grouped
        name += "_tf32" * (self.precision == "tf32") + "_merged" * self.merged
        name += "_runs" * self.runs
        name += f"_mg{self.merged_groups}" if self.merged_groups > 1 else ""
        name += "_i64" * (self.index_bits == 64)
        name += f"_turn-{self.turned}" if self.turned else ""
        return name + (f"_epi-{self.epilogue.replace('+', '-')}" if self.epilogue else "")


@lru_cache(maxsize=4096)
def of_gemm(direction: str, spatial_dims: int, kernel: Product, turned: str = "") -> ConvConfig:
    """The config of a kernel of GEMM, or of an algorithm of a library, between the layout steps
    that turn the arrays `turned`. What is put together from windows that overlap is a sum of them,
    which are fp32, rounded to the dtype of what is read."""
    k, words = kernel, kernel.name.removeprefix("gemm_")
    made = k.dtype_a if direction == "data" and turned.startswith(WINDOWS) else k.dtype_c
    if isinstance(k, VendorConfig):
        return ConvConfig(
            direction, spatial_dims, k.dtype_a, made, k.precision, 0, 0, 0, 0, 0, GEMM,
            alignment=k.alignment, alignment_out=k.alignment, epilogue=k.epilogue, gemm=words,
            turned=turned,
        )  # fmt: skip
    return ConvConfig(
        direction, spatial_dims, k.dtype_a, made, k.precision, k.tile_m, k.tile_n, k.tile_k,
        k.num_warps, k.num_stages, GEMM, k.scheduler, k.group_m, alignment=k.alignment,
        alignment_out=k.alignment, index_bits=k.index_bits, epilogue=k.epilogue,
        gemm=words, reduction=k.reduction, turned=turned,
    )  # fmt: skip


def as_named(kernel: Product, turned: str, dtype_out: str, epilogue: str) -> Product:
    """The kernel as a name says it: with the dtype and the epilogue that follow a sum over
    taps."""
    if not turned.startswith(TAPS):
        return kernel
    return replace(kernel, dtype_c=dtype_out, epilogue=epilogue)


@lru_cache(maxsize=4096)  # a plan's candidates, again for each problem
def of_words(direction: str, spatial_dims: int, gemm: str, turned: str = "") -> ConvConfig:
    """The config of GEMM's kernel whose name behind ``gemm_`` is this, between layout steps. Raises
    `BadArgument`."""
    if turned not in TURNED:
        raise BadArgument(f"turned = {turned!r} is not one of {', '.join(TURNED)}")
    if direction not in DIRECTIONS or spatial_dims not in (1, 2, 3):
        raise BadArgument(f"{direction!r} in {spatial_dims!r} dimensions is no convolution")
    try:
        return of_gemm(direction, spatial_dims, product_of(gemm), turned)
    except UnknownName as error:
        raise BadArgument(f"gemm = {shown(gemm, 300)}: {error}") from None


@lru_cache(maxsize=4096)
def apart(kernel: Product) -> Product:
    """The kernel of a product before a sum over taps, of the one that a name says, whose epilogue
    and dtype are those behind the sum."""
    return replace(kernel, dtype_c=SUMS, epilogue="")


@lru_cache(maxsize=4096)
def product_of(gemm: str) -> Product:
    """GEMM's kernel whose name behind ``gemm_`` is this. Raises `UnknownName`."""
    name = f"gemm_{gemm}"
    return parse_vendors(name) if is_vendors(name) else names.parse(name)


def of_engine(
    direction: str,
    spatial_dims: int,
    dtype: str,
    dtype_out: str,
    precision: str,
    alignment: int,
    library_engine: str,
) -> ConvConfig:
    """The config of an engine of a library."""
    return ConvConfig(
        direction, spatial_dims, dtype, dtype_out, precision, 0, 0, 0, 0, 0, VENDOR,
        alignment=alignment, alignment_out=alignment, library_engine=library_engine,
    )  # fmt: skip


def usual_reduction(scheduler: str) -> str:
    """The reduction where none is named."""
    return REDUCTIONS_OF.get(scheduler, ("none",))[0]
