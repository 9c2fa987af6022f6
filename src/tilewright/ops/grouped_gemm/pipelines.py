"""The grouped GEMM pipelines: one record for each.

A grouped kernel computes each group in the way of the GEMM pipeline of the same name. So a record
holds this pipeline's record and the differences for groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.arch.model import Arch
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.pipelines.basic import BASIC
from tilewright.ops.gemm.pipelines.common import triton_options
from tilewright.ops.gemm.pipelines.constants import Value
from tilewright.ops.gemm.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.gemm.pipelines.record import Pipeline
from tilewright.ops.gemm.pipelines.tma import TMA
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP
from tilewright.ops.grouped_gemm.problem import FORMS

MAX_GROUPS = 1024
"""Most groups of one launch: a kernel keeps the number of each group's tiles in reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPipeline:
    """One grouped GEMM kernel. No field has a default, as in `Pipeline`.

    one: the GEMM pipeline of a single group. Its record states the needs of an architecture and the
    cost of a tile.
    module, function: where the kernel is.
    sibling: the pipeline in Triton that the interpreter runs.
    forms: of groups that it takes.
    num_warps: the legal values; () for those of `one`.
    epilogues: whether it has epilogues.
    table_bytes: shared memory it takes for the groups' numbers of tiles.
    constants: in the order of its parameters (see `source`).
    options: the compiler's options.
    """

    one: Pipeline
    module: str
    function: str
    sibling: str
    forms: tuple[str, ...]
    num_warps: tuple[int, ...]
    epilogues: bool
    table_bytes: int
    constants: tuple[str, ...]
    options: Callable[[GemmConfig, Arch], tuple[tuple[str, Value], ...]]


_FIRST = ("FORM", "TILE_M", "TILE_N", "TILE_K", "GROUP_M")
_COMMON = (
    *_FIRST, "A_ROW", "B_ROW", "C_ROW", "PRECISION", "INT_ACC", "TAKES", "WIDTHS", "FOLD", "LARGEST"
)  # fmt: skip
_DESCRIBED = tuple(form for form in FORMS if form != "list")
"""Forms with matrices that a descriptor made before the launch can describe."""

PIPELINES: dict[str, GroupedPipeline] = {
    record.one.name: record
    for record in (
        GroupedPipeline(
            one=BASIC,
            module="tilewright.ops.grouped_gemm.kernels.basic",
            function="grouped_gemm_basic",
            sibling="basic",
            forms=FORMS,
            num_warps=(),
            epilogues=True,
            table_bytes=0,
            constants=(*_COMMON, "MASK_N", "MASK_K", "ELEMENTS", "ELEMENTS_C"),
            options=triton_options,
        ),
        GroupedPipeline(
            one=TMA,
            module="tilewright.ops.grouped_gemm.kernels.tma",
            function="grouped_gemm_tma",
            sibling="tma",
            forms=_DESCRIBED,
            num_warps=(),
            epilogues=True,
            table_bytes=0,
            constants=(*_COMMON, "SPLIT"),
            options=triton_options,
        ),
        GroupedPipeline(
            one=GLUON_WS,
            module="tilewright.ops.grouped_gemm.kernels.gluon_ws",
            function="grouped_gemm_gluon_ws",
            sibling="tma",
            forms=_DESCRIBED,
            num_warps=(WARPGROUP, 2 * WARPGROUP),
            epilogues=False,
            table_bytes=4 * MAX_GROUPS,
            constants=(*_FIRST, "B_ROW", "INT_ACC", "SPLIT", "STAGES", "WARP_GROUPS"),
            options=warpgroups.options,
        ),
    )
}


def on(arch: Arch) -> tuple[str, ...]:
    """Names of the pipelines that `arch` can run."""
    return tuple(name for name, record in PIPELINES.items() if record.one.runs_on(arch))
