"""Pipeline ``preshuffle``: pointers, B shuffled (see `shuffle`)."""

from __future__ import annotations

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.ops.binder import Value
from tilewright.ops.gemm import shuffle
from tilewright.ops.gemm.config import ALIGNMENTS, INDEX_BITS, GemmConfig
from tilewright.ops.gemm.pipelines import common
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
    kernel="tilewright.ops.gemm.kernels.preshuffle:gemm_preshuffle",
    schedulers=SCHEDULERS,
    reductions=("atomic", "linear", "tree"),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    rules={"combination": _objection},
    own_words={"scheduler": "combination"},
    traits=("shuffled_b", "dot"),
    shared_memory=common.pipelined_loads,
    own={"VECTOR": lambda c, _: shuffle.vector(c.dtype_b)},
    options=_options,
    rates=Rates(share=DEVICE.BASIC),
    grids=("whole",),
    worth_having={"whole": _worth_having},
)
