"""Pipeline ``gluon_cdna``: pointers, with CDNA's instructions written out in Gluon. `num_stages`
counts tiles in shared memory. How a tile maps onto the matrix units: see `cdna`."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.model import Arch, Cdna
from tilewright.ops import device_rates
from tilewright.ops.gemm import cdna
from tilewright.ops.gemm.config import MAX_TILE, GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.constants import (
    EPILOGUE,
    ROWS,
    SCHEDULE,
    TILE,
    UNSHARED,
    Constant,
    Value,
)
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates


def _shared_memory(c: GemmConfig, arch: Arch) -> int:
    direct = arch.cdna is not None and arch.cdna.direct_to_shared
    flag = 4 if direct and c.scheduler == "split_k" else 0
    return common.ring(c, arch) + flag


def _options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return ("num_warps", c.num_warps), ("waves_per_eu", cdna.RESIDENT)


def _worth_having(c: GemmConfig) -> bool:
    walks = c.scheduler == "persistent" and c.num_stages == 2
    return common.deep(c) or (common.usual_work(c) and walks)


def _unit(value: Callable[[Cdna], Value]) -> Constant:
    def of(c: GemmConfig, arch: Arch) -> Value:
        assert arch.cdna is not None, f"{arch.name} has no CDNA instructions"
        return value(arch.cdna)

    return of


def _mapped(value: Callable[[cdna.Mapping], Value]) -> Constant:
    return lambda c, arch: value(cdna.mapping(c, arch))


GLUON_CDNA = Pipeline(
    name="gluon_cdna",
    module="tilewright.ops.gemm.kernels.gluon_cdna",
    function="gemm_gluon_cdna",
    language="gluon",
    sibling="basic",
    needs=("cdna",),
    schedulers=("tile", "persistent", "split_k"),
    reductions=("atomic", "linear", "tree"),
    stores=("direct",),
    padding=(True,),
    alignments=(16,),
    index_bits=(32,),
    batchings=("none",),
    odd_rows=(),
    odd_columns=(),
    odd_warps=(),
    largest_k=MAX_TILE,
    rules={"cdna": cdna.objection},
    own_words={},
    reads="pointers",
    writes="pointers",
    traits=("fills_ring",),
    operand_dtype=common.operand_dtype,
    summed_k=common.whole_step,
    several_blocks=common.never,
    meetings=common.once,
    shared_memory=_shared_memory,
    accumulators=common.accumulators,
    boxes=None,
    arguments=("extra", "dies", "sharing"),
    constants=(
        *TILE, *ROWS, *SCHEDULE, "INT_ACC", *UNSHARED, *EPILOGUE,
        "GENERATION", "MMA_MN", "MMA_K", "K_WIDTH", "FORMAT", "WARPS_M", "BANK_BYTES", "DIRECT",
        "STAGES", "DONE",
    ),
    own_constants={
        "GENERATION": _unit(lambda u: u.generation),
        "BANK_BYTES": _unit(lambda u: u.bank_bytes),
        "DIRECT": _unit(lambda u: u.direct_to_shared),
        "MMA_MN": _mapped(lambda m: m.mma[0]),
        "MMA_K": _mapped(lambda m: m.mma[2]),
        "K_WIDTH": _mapped(lambda m: m.k_width),
        "FORMAT": _mapped(lambda m: m.format),
        "WARPS_M": _mapped(lambda m: m.warps_m),
    },
    options=_options,
    estimate="tiled",
    # Until somebody measures this kernel on a GPU, the simpler kernel goes first.
    rates=Rates(share=device_rates.BASIC * 0.7 / 0.75, scaled=1.0, converted=1.0, unpacked={}),
    grids=("whole",),
    worth_having={"whole": _worth_having},
)  # fmt: skip
