"""Pipelines ``tma`` and ``tma_ws``: tensor descriptors, in Triton; the second with warps of their
own for the copies, which the compiler sets apart."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch.model import Arch
from tilewright.ops import device_rates
from tilewright.ops.gemm import rates
from tilewright.ops.gemm.config import MAX_TILE, SCHEDULERS, GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.constants import COMMON
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates


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
    module="tilewright.ops.gemm.kernels.tma",
    function="gemm_tma",
    language="triton",
    sibling="tma",
    needs=("tma",),
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    stores=("direct", "split"),
    padding=(True,),
    alignments=(16,),
    index_bits=(32,),
    batchings=("none", "strided"),
    odd_rows=(),
    odd_columns=(),
    odd_warps=(),
    largest_k=MAX_TILE,
    rules={},
    own_words={},
    reads="descriptors",
    writes="descriptors",
    traits=("swaps", "dot"),
    operand_dtype=common.operand_dtype,
    summed_k=common.whole_step,
    several_blocks=common.never,
    meetings=common.once,
    shared_memory=_shared_memory,
    accumulators=common.accumulators,
    boxes=common.whole_tiles,
    arguments=("extra", "scales", "batch", "sharing"),
    constants=(*COMMON, "SCALES", "BATCHING", "SPLIT", "PDL", "WARP_SPECIALIZE"),
    own_constants={"WARP_SPECIALIZE": lambda c, _: False},
    options=common.triton_options,
    estimate="tiled",
    rates=Rates(share=device_rates.TMA, scaled=rates.SCALED, converted=1.0, unpacked={}),
    grids=("whole",),
    worth_having={"whole": common.worth_through_descriptors},
)

TMA_WS = replace(  # the same kernel
    TMA,
    name="tma_ws",
    sibling="tma_ws",
    needs=("tma", "warp_specialize"),
    schedulers=("persistent",),
    reductions=(),
    traits=("dot",),
    rules={"combination": _walks_tiles},
    own_words={"scheduler": "combination"},
    own_constants={"WARP_SPECIALIZE": lambda c, _: True},
    rates=Rates(share=1.0, scaled=rates.SCALED, converted=1.0, unpacked={}),  # never measured
)
