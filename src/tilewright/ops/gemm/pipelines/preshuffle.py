"""Pipeline ``preshuffle``: pointers, B shuffled (see `shuffle`)."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops import device_rates
from tilewright.ops.gemm import shuffle
from tilewright.ops.gemm.config import ALIGNMENTS, INDEX_BITS, MAX_TILE, GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.constants import COMMON, MASKS, Value
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates

SCHEDULERS = ("tile", "split_k")


def _options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    found = common.triton_options(c, arch)
    # So that 16 bytes of B are whole operands:
    return (*found, ("kpack", arch.kpack)) if arch.kpack > 1 else found


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.layout[1] == "s" and c.scheduler not in SCHEDULERS:  # a plain B is refused anyway
        return f"pipeline preshuffle has schedulers tile and split_k, not {c.scheduler}"
    return None


def _worth_having(c: GemmConfig) -> bool:
    if common.deep(c):
        return True
    shared = not common.last_resort(c)
    plain = c.scheduler == "tile" and c.num_stages == 2
    return common.usual_work(c) and (shared or plain)


PRESHUFFLE = Pipeline(
    name="preshuffle",
    module="tilewright.ops.gemm.kernels.preshuffle",
    function="gemm_preshuffle",
    language="triton",
    sibling="preshuffle",
    needs=(),
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree"),
    stores=("direct",),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    batchings=("none",),
    odd_rows=(),
    odd_columns=(),
    odd_warps=(),
    largest_k=MAX_TILE,
    rules={"combination": _objection},
    own_words={"scheduler": "combination"},
    reads="pointers",
    writes="pointers",
    traits=("shuffled_b", "dot"),
    operand_dtype=common.operand_dtype,
    summed_k=common.whole_step,
    several_blocks=common.never,
    meetings=common.once,
    shared_memory=common.pipelined_loads,
    accumulators=common.accumulators,
    boxes=None,
    arguments=("extra", "sharing"),
    constants=(*COMMON, "VECTOR", *MASKS, "DONE"),
    own_constants={"VECTOR": lambda c, _: shuffle.vector(c.dtype_b)},
    options=_options,
    estimate="tiled",
    rates=Rates(share=device_rates.BASIC, scaled=1.0, converted=1.0, unpacked={}),
    grids=("whole",),
    worth_having={"whole": _worth_having},
)
