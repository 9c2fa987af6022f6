"""Pipeline ``basic``: pointers, for every problem on every architecture."""

from __future__ import annotations

from tilewright.dtypes import DTYPES
from tilewright.ops import device_rates, epilogues
from tilewright.ops.gemm import rates
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    INDEX_BITS,
    MAX_TILE,
    SCHEDULERS,
    GemmConfig,
)
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.constants import COMMON, MASKS
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates


def _worth_of_few_bits(c: GemmConfig) -> bool:
    return common.worth_of_few_bits(c, several_blocks=False)


BASIC = Pipeline(
    name="basic",
    module="tilewright.ops.gemm.kernels.basic",
    function="gemm_basic",
    language="triton",
    sibling="basic",
    needs=(),
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree", "two_stage"),
    stores=("direct",),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    batchings=BATCHINGS,
    odd_rows=(),
    odd_columns=(),
    odd_warps=(),
    largest_k=MAX_TILE,
    rules={},
    own_words={},
    reads="pointers",
    writes="pointers",
    traits=("zero_k", "dot"),
    operand_dtype=common.operand_dtype,
    summed_k=common.whole_step,
    several_blocks=common.never,
    meetings=common.once,
    shared_memory=common.pipelined_loads,
    accumulators=common.accumulators,
    boxes=None,
    arguments=("pre_a", "pre_b", "extra", "scales", "batch", "sharing"),
    constants=(
        *COMMON, "TAKES_A", "TAKES_B", "LARGEST_AB", "SCALES", "BATCHING", *MASKS, "ALIGNMENT",
        "DONE",
    ),
    own_constants={
        "TAKES_A": lambda c, _: epilogues.kinds(c.pre_a),
        "TAKES_B": lambda c, _: epilogues.kinds(c.pre_b),
        "LARGEST_AB": lambda c, _: int(DTYPES[c.dtype_a].largest),
        "ALIGNMENT": lambda c, _: c.alignment,
    },
    options=common.triton_options,
    estimate="tiled",
    rates=Rates(share=device_rates.BASIC, scaled=rates.SCALED, converted=1.0, unpacked={}),
    grids=("whole", "few bits"),
    worth_having={"whole": common.worth_through_pointers, "few bits": _worth_of_few_bits},
)  # fmt: skip
