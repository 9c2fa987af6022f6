"""Pipeline ``basic``: pointers, for every problem on every architecture."""

from __future__ import annotations

from tilewright.arch.figures import DEVICE
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    INDEX_BITS,
    SCHEDULERS,
    GemmConfig,
)
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.products import WIDENED


def _worth_of_few_bits(c: GemmConfig) -> bool:
    return common.worth_of_few_bits(c, several_blocks=False)


BASIC = Pipeline(
    name="basic",
    kernel="tilewright.ops.gemm.kernels.basic:gemm_basic",
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    batchings=BATCHINGS,
    traits=("zero_k", "dot", "widens"),
    shared_memory=common.pipelined_loads,
    rates=Rates(
        share=DEVICE.BASIC, scaled=GEMM.SCALED, unpacked=dict.fromkeys(WIDENED["bf16"], 4)
    ),
    grids=("whole", "few bits"),
    worth_having={"whole": common.worth_through_pointers, "few bits": _worth_of_few_bits},
)  # fmt: skip
