"""Rules of the kernels in Gluon for sm_90, whose warps come in groups of four: each returns a
reason, or None when it has no objection, as all in `rules.LEGALITY`."""

from __future__ import annotations

from tilewright import blocks
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.device.widths import wide
from tilewright.ops.gemm import lowbit, scales
from tilewright.ops.gemm.config import SHARING, SPECIALISED, GemmConfig
from tilewright.ops.gemm.sizes import (
    ODD_COLUMNS,
    ODD_ROWS,
    PART_COLUMNS,
    WARPGROUP,
    WARPGROUP_ROWS,
    operand_dtype,
    piece,
)


def objection(c: GemmConfig, arch: Arch) -> str | None:
    """What they ask of a config: whole wgmma, issued by warp groups that each take their own rows,
    or their own tiles, and store them in pieces."""
    if c.pipeline == "gluon_weights" and lowbit.wide(c) and c.num_warps % WARPGROUP:
        return f"gluon_weights with {c.tile_m} rows issues wgmma, which {c.num_warps} warps cannot"
    if c.pipeline not in SPECIALISED:
        return None
    least_m = WARPGROUP_ROWS
    if c.pipeline == "gluon_pingpong":
        if c.num_warps != 2 * WARPGROUP or c.scheduler != "persistent":
            return (
                "pipeline gluon_pingpong has two groups of four warps that take turns: num_warps 8 "
                f"and scheduler persistent, not {c.num_warps} and {c.scheduler}"
            )
    else:
        if c.num_warps not in (WARPGROUP, 2 * WARPGROUP, 3 * WARPGROUP):
            return f"pipeline gluon_ws multiplies with 4, 8 or 12 warps, not {c.num_warps}"
        if (c.num_warps == 3 * WARPGROUP) != (c.tile_m == ODD_ROWS):
            return f"12 warps multiply {ODD_ROWS} rows, not {c.num_warps} warps {c.tile_m}"
        least_m *= c.num_warps // WARPGROUP
    if c.tile_m < least_m:
        return f"tile_m = {c.tile_m} is under {least_m}, the rows {c.num_warps} warps multiply"
    least_n = 64 if c.store == "split" else 32
    if c.tile_n < least_n:
        return f"tile_n = {c.tile_n} is under {least_n}, which store {c.store} cuts into pieces"
    if (c.tile_m == ODD_ROWS or c.tile_n in ODD_COLUMNS) and c.scheduler in SHARING:
        return f"tiles of {c.tile_m}x{c.tile_n} are not shared"
    if c.tile_n in ODD_COLUMNS and (reason := _odd_columns(c)):
        return reason
    if operand_dtype(c) == "fp32":
        return "wgmma does not take fp32 operands; precision tf32 would round them"
    bits = DTYPES[c.dtype_a].bits
    if c.tile_k * bits < 256:
        return f"tile_k = {c.tile_k} is under {256 // bits}, the least wgmma multiplies"
    if bits != 16 and c.layout[:2] != "rc":
        return (
            f"wgmma takes {bits}-bit operands with K contiguous, so the layout must begin with rc;"
            f" {c.layout} does not"
        )
    return None


def _odd_columns(c: GemmConfig) -> str | None:
    """What two accumulators of different widths ask of a config: B is copied in boxes of the
    second's width, which lie together as one tile, and C leaves in pieces of which both are
    made."""
    rest = c.tile_n - wide(c.tile_n)
    if c.tile_k * DTYPES[c.dtype_a].bits != 1024:
        return f"tile_n = {c.tile_n} is made of parts, which rows of 128 bytes of B allow"
    if c.layout[1] == "r" and rest * DTYPES[c.dtype_b].bits != 1024:
        return f"tile_n = {c.tile_n} copies {rest} columns of B at a time, so B is column-major"
    if rest % piece(c):
        return f"tile_n = {c.tile_n} leaves in parts of {rest} columns, so it needs store split"
    return None


def scaled(c: GemmConfig) -> str | None:
    """What the kernel in Gluon for scales asks of a config: parts of C of one wgmma, one or two
    for a warp group, each with one scale of B."""
    if not scales.count(c):
        return "pipeline gluon_scaled is for block scales; without any, gluon_ws does the same"
    if DTYPES[c.dtype_a].bits != 8 or c.layout[:2] != "rc":
        return (
            "pipeline gluon_scaled takes 8-bit operands with K contiguous (a layout that begins "
            f"with rc), not {c.dtype_a} in {c.layout}"
        )
    if c.epilogue or c.scheduler not in ("persistent", "split_k"):
        return "pipeline gluon_scaled has schedulers persistent and split_k, and no epilogue"
    if c.num_warps not in (WARPGROUP, 2 * WARPGROUP):
        return f"pipeline gluon_scaled multiplies with 4 or 8 warps, not {c.num_warps}"
    rows, columns = WARPGROUP_ROWS * c.num_warps // WARPGROUP, min(c.tile_n, PART_COLUMNS)
    if c.tile_m * c.tile_n not in (rows * columns, 2 * rows * columns) or c.tile_m < rows:
        return (
            f"a warp group of gluon_scaled computes one or two parts of {WARPGROUP_ROWS}x{columns},"
            f" so with {c.num_warps} warps the tile is not {c.tile_m}x{c.tile_n}"
        )
    a, block = blocks.parse(c.scale_a), blocks.parse(c.scale_b)
    if any(scale and scale.dtype != "fp32" for scale in (a, block)):
        return "pipeline gluon_scaled copies scales in pieces of 4 bytes, so they must be fp32"
    if block and block.columns % columns:
        return (
            f"a part of {columns} columns has one scale of B in gluon_scaled, but scale_b = "
            f"{c.scale_b} has one for {block.columns}"
        )
    if c.tile_k > scales.k_block(c) and c.tile_m * c.tile_n > rows * columns:
        return (
            f"tile_k = {c.tile_k} is several blocks of {scales.k_block(c)}, whose products lie "
            "side by side in gluon_scaled: they fit where a warp group has one part, not two"
        )
    return None
