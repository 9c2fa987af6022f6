"""Pipelines ``tma`` and ``tma_ws``: tensor descriptors, in Triton; the second with warps of their
own for the copies, which the compiler sets apart."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.ops.gemm.config import SCHEDULERS, GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.rates import GEMM


def _shared_memory(c: GemmConfig, arch: Arch) -> int:
    staging = common.staged(c, c.tile_n // 2 if c.store == "split" else c.tile_n)
    operands = common.ring(c, arch)
    if c.scheduler in ("tile", "split_k"):  # the operands' buffers are free when C is staged
        return max(operands, staging)
    return operands + staging


def _walks_tiles(c: GemmConfig, arch: Arch) -> str | None:
    if c.scheduler == "persistent":
        return None
    return "pipeline tma_ws specialises the tile loop, so it needs scheduler persistent"


TMA = Pipeline(
    name="tma",
    kernel="tilewright.ops.gemm.kernels.tma:gemm_tma",
    needs=("tma",),
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    stores=("direct", "split"),
    batchings=("none", "strided", "summed"),
    traits=("swaps", "dot", "ends_inside"),
    shared_memory=_shared_memory,
    boxes=common.whole_tiles,
    own={"WARP_SPECIALIZE": lambda c, _: c.pipeline == "tma_ws"},
    rates=Rates(share=DEVICE.TMA, scaled=GEMM.SCALED),
    grids=("whole",),
    worth_having={"whole": common.worth_through_descriptors},
)

TMA_WS = replace(  # the same kernel
    TMA,
    name="tma_ws",
    needs=("tma", "warp_specialize"),
    schedulers=("persistent",),
    reductions=(),
    traits=("dot", "ends_inside"),
    rules={"combination": _walks_tiles},
    own_words={"scheduler": "combination"},
    rates=Rates(share=1.0, scaled=GEMM.SCALED),  # never measured
)
