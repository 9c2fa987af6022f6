"""Pipeline ``gluon_weights``: descriptors, in Gluon; 4-bit weights unpacked in registers, for few
rows of 16-bit A. Words of B are whole operands of mma.sync."""

from __future__ import annotations

from tilewright import blocks
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.binder import Value
from tilewright.ops.gemm import scales
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP

GLUON_TILE_K = 256
"""Elements of K in a step: 128 bytes of a column of B, what a swizzle spans."""

MMA_ROWS = 16
"""Columns of B that mma.sync takes in the place of rows of C."""

MAX_SUMS = 32
"""Elements of C that a thread sums: with 64 it spilled."""

LEAST_GROUP = 32
"""Elements of K in the shortest group of scales: two mma.sync's."""

WIDE_ROWS = 32
"""Rows of a tile from which the kernel multiplies by wgmma: with 16 mma.sync was faster."""

WARP = 32


def wide(c: GemmConfig) -> bool:
    """Whether the kernel multiplies by wgmma, which reads A from shared memory itself."""
    return c.tile_m >= WIDE_ROWS and scales.k_block(c) != LEAST_GROUP


def _options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return (("num_warps", c.num_warps),)


def _worth_having(c: GemmConfig) -> bool:
    return c.tile_m < 64 or wide(c)  # at 64 rows, without wgmma it is slow


def _whole_groups(c: GemmConfig, arch: Arch) -> str | None:
    if wide(c) and c.num_warps % WARPGROUP:
        return f"gluon_weights with {c.tile_m} rows issues wgmma, which {c.num_warps} warps cannot"
    return None


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.dtype_a not in ("fp16", "bf16") or DTYPES[c.dtype_b].packed == 1:
        return (
            f"pipeline gluon_weights multiplies fp16 or bf16 by int4 or e2m1, not {c.dtype_a} by "
            f"{c.dtype_b}; weights has other mixtures"
        )
    if c.layout[0] != "r":
        return f"pipeline gluon_weights reads A in rows, but the layout is {c.layout}"
    block = blocks.parse(c.scale_b)
    if c.scale_a or (block and (block.columns != 1 or block.rows < LEAST_GROUP)):
        return (
            f"pipeline gluon_weights has no scales but B's for {LEAST_GROUP} of a column or "
            "more; weights has other blocks"
        )
    if c.reduction == "atomic":
        return "pipeline gluon_weights has reductions linear and tree; the compiler stops at atomic"
    if c.tile_k != GLUON_TILE_K:
        return f"pipeline gluon_weights reads {GLUON_TILE_K} of K at once, not {c.tile_k}"
    if c.tile_n < MMA_ROWS * c.num_warps:
        return f"{c.num_warps} warps of gluon_weights have {MMA_ROWS} columns each, over {c.tile_n}"
    sums = c.tile_m * c.tile_n // (WARP * c.num_warps)
    if sums > MAX_SUMS:
        return (
            f"{sums} sums a thread, over {MAX_SUMS}: those of a group and the operands of "
            "gluon_weights would not fit into registers beside them"
        )
    return None


GLUON_WEIGHTS = Pipeline(
    name="gluon_weights",
    kernel="tilewright.ops.gemm.kernels.gluon_weights:gemm_gluon_weights",
    sibling="weights",
    needs=("tma", "wgmma"),
    schedulers=("tile", "split_k"),
    reductions=("linear", "tree"),
    rules={"warpgroups": _whole_groups, "packed": _objection},
    own_words={"reduction": "packed"},
    traits=("b_in_words", "packed", "transposed", "b_in_registers"),
    several_blocks=common.always,
    shared_memory=common.ring,
    boxes=common.whole_tiles,
    own={
        "B_FORMAT": lambda c, _: c.dtype_b,
        "GROUP": lambda c, _: scales.k_block(c),
        "WIDE": lambda c, _: wide(c),
    },
    options=_options,
    rates=None,
    worth_having={"few bits": _worth_having},
)  # fmt: skip
