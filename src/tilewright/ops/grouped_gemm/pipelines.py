"""The grouped GEMM pipelines: one record for each.

A grouped kernel computes each group in the way of the GEMM pipeline of the same name. So a record
holds this pipeline's record and the differences for groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.arch.model import Arch
from tilewright.ops.binder import interface
from tilewright.ops.gemm.pipelines.basic import BASIC
from tilewright.ops.gemm.pipelines.gluon_scaled import GLUON_SCALED
from tilewright.ops.gemm.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.gemm.pipelines.mx import MX
from tilewright.ops.gemm.pipelines.record import Pipeline
from tilewright.ops.gemm.pipelines.tma import TMA
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP
from tilewright.ops.gemm.pipelines.weights import WEIGHTS
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.problem import STACKED, WALKED

MAX_GROUPS = 1024
"""Most groups of one launch: a kernel keeps the number of each group's tiles in reach."""
MAX_GROUPS_SPLIT = 512
"""The same of a kernel with a table in shared memory that stores in small pieces: see
`kernels.gluon_walk`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPipeline:
    """One grouped GEMM kernel.

    one: the GEMM pipeline of a single group. Its record states the needs of an architecture, the
    cost of a tile, the compiler's options, and what the interpreter runs.
    kernel: where it is, as ``"module:function"``.
    forms: of groups that it takes.
    kernels: of forms that have another.
    num_warps: the legal values; () for those of `one`.
    table_bytes: shared memory it takes for the groups' numbers of tiles.
    scheduler: of `one`, the one that computes a tile as this kernel does.
    workgroups: for each compute unit.
    gates_apart: whether its epilogue takes gates that lie apart from their ups, in parts of its
        tile, and no others.
    one_block: whether a step of K is as long as a block of scales.
    """

    one: Pipeline
    kernel: str
    forms: tuple[str, ...]
    kernels: Mapping[str, str] = field(default_factory=dict)
    num_warps: tuple[int, ...] = ()
    table_bytes: int = 0
    scheduler: str = "persistent"
    workgroups: int = 1
    gates_apart: bool = False
    one_block: bool = False

    def kernel_of(self, form: str) -> str:
        """The kernel for a form."""
        return self.kernels.get(form, self.kernel)

    def takes(self, form: str, parameter: str) -> bool:
        """Whether its kernel for a form has this parameter: ``extra`` has epilogues, ``scales``
        block scales."""
        return parameter in interface(self.kernel_of(form)).parameters


_DESCRIBED = ("contiguous", "masked", "weights")
"""Forms with matrices that a descriptor made before the launch can describe, A's rows one behind
the other."""

PIPELINES: dict[str, GroupedPipeline] = {
    record.one.name: record
    for record in (
        GroupedPipeline(
            one=BASIC,
            kernel="tilewright.ops.grouped_gemm.kernels.basic:grouped_gemm_basic",
            forms=WALKED,
        ),
        GroupedPipeline(
            one=TMA,
            kernel="tilewright.ops.grouped_gemm.kernels.tma:grouped_gemm_tma",
            forms=_DESCRIBED,
            kernels={
                "weights": "tilewright.ops.grouped_gemm.kernels.weights_tma:grouped_weights_tma"
            },
        ),
        GroupedPipeline(
            one=GLUON_WS,
            kernel="tilewright.ops.grouped_gemm.kernels.gluon_ws:grouped_gemm_gluon_ws",
            forms=(*_DESCRIBED, "gathered"),
            kernels={
                "gathered": "tilewright.ops.grouped_gemm.kernels.gathered_gluon_ws:"
                "grouped_gathered_gluon_ws",
                "weights": "tilewright.ops.grouped_gemm.kernels.weights_gluon_ws:"
                "grouped_weights_gluon_ws",
            },
            num_warps=(WARPGROUP, 2 * WARPGROUP),
            table_bytes=4 * MAX_GROUPS,
        ),
        GroupedPipeline(
            one=GLUON_SCALED,
            kernel="tilewright.ops.grouped_gemm.kernels.gluon_scaled:grouped_gemm_gluon_scaled",
            forms=("contiguous", "masked", "gathered"),
            kernels={
                "gathered": "tilewright.ops.grouped_gemm.kernels.gathered_gluon_scaled:"
                "grouped_gathered_gluon_scaled",
            },
            num_warps=(WARPGROUP, 2 * WARPGROUP),
            table_bytes=4 * MAX_GROUPS,
            gates_apart=True,
            one_block=True,
        ),
        GroupedPipeline(
            one=WEIGHTS,
            kernel="tilewright.ops.grouped_gemm.kernels.weights:grouped_gemm_weights",
            forms=STACKED,
            scheduler="tile",
            workgroups=4,
        ),
        GroupedPipeline(
            one=MX,
            kernel="tilewright.ops.grouped_gemm.kernels.mx:grouped_gemm_mx",
            forms=STACKED,
            scheduler="tile",
        ),
    )
}


def table_of(config: GroupedGemmConfig) -> tuple[int, int]:
    """Most groups of a config, and the bytes of shared memory in which it keeps their numbers of
    tiles; of weights only their places in the order of work, in 16 bits."""
    record = PIPELINES[config.pipeline]
    if not record.table_bytes:
        return MAX_GROUPS, 0
    if config.form == "weights":
        return MAX_GROUPS, record.table_bytes // 2
    most = MAX_GROUPS_SPLIT if config.store == "split" else MAX_GROUPS
    return most, record.table_bytes * most // MAX_GROUPS


def on(arch: Arch) -> tuple[str, ...]:
    """Names of the pipelines that `arch` can run."""
    return tuple(name for name, record in PIPELINES.items() if record.one.runs_on(arch))
