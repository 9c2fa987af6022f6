"""Pipeline ``gluon_scaled``: ``gluon_ws`` for operands with block scales. Tiles are made of parts
of one wgmma, one or two for a warp group, each with one scale of B."""

from __future__ import annotations

from tilewright import blocks
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import scales
from tilewright.ops.gemm.config import MAX_TILE, GemmConfig
from tilewright.ops.gemm.pipelines import common, warpgroups
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.pipelines.warpgroups import (
    PART_COLUMNS,
    SPECIALISATION_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
)

SCHEDULERS = ("persistent", "split_k")


def _columns(c: GemmConfig) -> int:
    """Columns of a part."""
    return min(c.tile_n, PART_COLUMNS)


def _summed_k(c: GemmConfig) -> int:
    """A block of scales: a step may have several."""
    return min(c.tile_k, scales.k_block(c) or c.tile_k)


def _meetings(c: GemmConfig) -> int:
    """Parts of a tile."""
    return c.tile_m * c.tile_n // (WARPGROUP_ROWS * _columns(c))


def _shared_memory(c: GemmConfig, arch: Arch) -> int:
    columns = warpgroups.groups(c) * _columns(c)  # of C, a part for each warp group
    staging = WARPGROUP_ROWS * columns * DTYPES[c.dtype_c].bytes // (2 if c.store == "split" else 1)
    staging += common.with_matrix(c, staging)
    rows = c.tile_m if c.scale_a else 0
    rows += WARPGROUP_ROWS * -(-c.tile_n // PART_COLUMNS) if c.scale_b else 0
    scales_of_stage = rows * 4 * (c.tile_k // _summed_k(c))
    stages = (common.stage(c) + scales_of_stage) * c.num_stages
    return stages + staging + SPECIALISATION_BYTES


def _accumulators(c: GemmConfig, arch: Arch) -> int:
    """Only one part's products wait for their scales."""
    unscaled = WARPGROUP_ROWS * _columns(c) // (WARPGROUP * arch.warp_size)
    sums = c.tile_m * c.tile_n // (c.num_warps * arch.warp_size)
    return sums + unscaled if scales.count(c) else sums


def _boxes(c: GemmConfig) -> tuple[int, int, int, int]:
    columns = _columns(c)
    return WARPGROUP_ROWS, columns, _summed_k(c), columns // (4 if c.store == "split" else 2)


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if not scales.count(c):
        return "pipeline gluon_scaled is for block scales; without any, gluon_ws does the same"
    if DTYPES[c.dtype_a].bits != 8 or c.layout[:2] != "rc":
        return (
            "pipeline gluon_scaled takes 8-bit operands with K contiguous (a layout that begins "
            f"with rc), not {c.dtype_a} in {c.layout}"
        )
    if c.epilogue or c.scheduler not in SCHEDULERS:
        return "pipeline gluon_scaled has schedulers persistent and split_k, and no epilogue"
    if c.num_warps not in (WARPGROUP, 2 * WARPGROUP):
        return f"pipeline gluon_scaled multiplies with 4 or 8 warps, not {c.num_warps}"
    rows, columns = WARPGROUP_ROWS * warpgroups.groups(c), _columns(c)
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


def _no_e8m0(c: GemmConfig, arch: Arch) -> str | None:
    if "e8m0" in c.scale_a + c.scale_b:
        return "pipeline gluon_scaled has no e8m0 scales; basic and tma have them"
    return None


GLUON_SCALED = Pipeline(
    name="gluon_scaled",
    kernel="tilewright.ops.gemm.kernels.gluon_scaled:gemm_gluon_scaled",
    sibling="tma",
    needs=("tma", "wgmma"),
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    stores=("direct", "split"),
    largest_k=2 * MAX_TILE,  # several blocks of scales
    rules={"scales": _objection, "packed": _no_e8m0},
    own_words={"scheduler": "scales", "epilogue": "scales"},
    traits=("walks_parts", "loads_apart"),
    summed_k=_summed_k,
    several_blocks=common.always,
    meetings=_meetings,
    shared_memory=_shared_memory,
    accumulators=_accumulators,
    boxes=_boxes,
    options=warpgroups.options,
    rates=Rates(share=1.0),
    grids=("whole",),
    worth_having={"whole": common.worth_through_descriptors},
)
