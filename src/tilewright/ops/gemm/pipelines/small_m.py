"""Pipelines ``small_m`` and ``small_m_tma``: few rows of A, through pointers or descriptors. The
kernels transpose the tile: B's columns take the place of rows (see kernels/small_m.py)."""

from __future__ import annotations

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.ops.gemm import scales, small_m
from tilewright.ops.gemm.config import ALIGNMENTS, INDEX_BITS, GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.small_m import VECTOR_BYTES, VECTOR_ROWS, vector

SCHEDULERS = ("tile", "split_k")

SCALED_COLUMNS, SCALED_TILE, SCALED_VECTORS = 64, 1024, 16
"""Most columns and elements of a tile with block scales on the matrix units, whose products stand
beside the sums, and most elements on the vector units. Larger tiles spill
(docs/notes/gemm-small_m.md)."""

MOST_TURNED = 8192
"""Elements of a column-major A in a step. With 16384, of 32 rows, sm_90's code has 4,217 accesses
of spilled registers, and took 339 µs on an H200 where cuBLASLt takes 9."""


def _shared_memory(c: GemmConfig, arch: Arch) -> int:
    if vector(c):  # only loads that run ahead pass through shared memory
        return common.stage(c) * (c.num_stages - 1)
    return common.pipelined_loads(c, arch)


def _accumulators(c: GemmConfig, arch: Arch) -> int:
    threads = c.num_warps * arch.warp_size
    if vector(c):  # a sum for every vector of K, and the vectors themselves
        each = c.tile_m * c.tile_n + (c.tile_m + c.tile_n) * VECTOR_BYTES // 4
        return common.with_unscaled(c, each * c.tile_k // vector(c) // threads)
    return common.with_unscaled(c, c.tile_m * c.tile_n * small_m.k_parts(c) // threads)


def _summed_k(c: GemmConfig) -> int:
    """A block of scales, or a step."""
    return min(c.tile_k, scales.k_block(c) or c.tile_k)


def _several_blocks(c: GemmConfig) -> bool:
    """Whether a step consists of whole blocks of scales, each a part of K; on the vector units,
    whether each vector lies in one block."""
    block = scales.k_block(c)
    return block % vector(c) == 0 if vector(c) else c.tile_k % block == 0


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.scheduler not in SCHEDULERS:
        return f"pipeline {c.pipeline} has schedulers tile and split_k, not {c.scheduler}"
    if c.group_m != 1:
        return f"pipeline {c.pipeline} has one row of tiles: group_m stays 1"
    if scales.count(c) and not vector(c) and arch.dot == "vector":
        return (
            f"pipeline {c.pipeline} scales blocks on matrix units, unused by tl.dot on {arch.name}"
        )
    most = SCALED_VECTORS if vector(c) else SCALED_TILE
    wide = c.tile_n > SCALED_COLUMNS or c.tile_m * c.tile_n > most
    if scales.count(c) and wide:
        return (
            f"a tile with block scales has up to {SCALED_COLUMNS} columns and {most} elements in "
            f"pipeline {c.pipeline}, whose products stand beside its sums"
        )
    if c.mma != (0, 0, 0):
        return f"pipeline {c.pipeline} leaves the matrix instruction to the compiler: no mma"
    return None


def _pointers_objection(c: GemmConfig, arch: Arch) -> str | None:
    if reason := _objection(c, arch):
        return reason
    if c.layout[0] == "c" and not vector(c) and c.tile_m * c.tile_k > MOST_TURNED:
        return (
            f"a step has {c.tile_m * c.tile_k} elements of a column-major A, over {MOST_TURNED}, "
            "which are turned in registers"
        )
    if vector(c) and c.precision == "tf32":
        return f"up to {VECTOR_ROWS} rows go to the vector units, which have no tf32"
    return None


def _descriptors_objection(c: GemmConfig, arch: Arch) -> str | None:
    if reason := _objection(c, arch):
        return reason
    if vector(c):
        return f"up to {VECTOR_ROWS} rows go to the vector units, which pipeline small_m feeds"
    return None


SMALL_M = Pipeline(
    name="small_m",
    kernel="tilewright.ops.gemm.kernels.small_m:gemm_small_m",
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    rules={"small_m": _pointers_objection},
    own_words={"scheduler": "small_m"},
    traits=("few_rows", "transposed", "dot"),
    summed_k=_summed_k,
    several_blocks=_several_blocks,
    shared_memory=_shared_memory,
    accumulators=_accumulators,
    own={
        "K_PARTS": lambda c, _: small_m.k_parts(c),
        "VECTOR": lambda c, _: vector(c),
    },
    rates=Rates(share=DEVICE.BASIC),
    worth_having={"whole": common.always},
)

SMALL_M_TMA = Pipeline(
    name="small_m_tma",
    kernel="tilewright.ops.gemm.kernels.small_m:gemm_small_m_tma",
    needs=("tma",),
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    rules={"small_m": _descriptors_objection},
    own_words={"scheduler": "small_m"},
    traits=("few_rows", "transposed", "dot"),
    summed_k=_summed_k,
    several_blocks=_several_blocks,
    shared_memory=common.ring,
    accumulators=_accumulators,
    boxes=common.whole_tiles,
    own={"K_PARTS": lambda c, _: small_m.k_parts(c)},
    rates=Rates(share=DEVICE.TMA),
    worth_having={"whole": common.always},
)
