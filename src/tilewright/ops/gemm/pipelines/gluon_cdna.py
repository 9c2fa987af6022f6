"""Pipeline ``gluon_cdna``: pointers, with CDNA's instructions written out in Gluon. `num_stages`
counts tiles in shared memory. How a tile maps onto the matrix units: see `cdna`."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Cdna
from tilewright.ops.binder import Constant, Value
from tilewright.ops.gemm import cdna
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import common
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
    kernel="tilewright.ops.gemm.kernels.gluon_cdna:gemm_gluon_cdna",
    sibling="basic",
    needs=("cdna",),
    schedulers=("tile", "persistent", "split_k"),
    reductions=("atomic", "linear", "tree"),
    rules={"cdna": cdna.objection},
    traits=("fills_ring",),
    shared_memory=_shared_memory,
    own={
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
    # Until somebody measures this kernel on a GPU, the simpler kernel goes first.
    rates=Rates(share=DEVICE.BASIC * 0.7 / 0.75),
    grids=("whole",),
    worth_having={"whole": _worth_having},
)
