"""The GEMM pipelines: a record of each, in the order in which they are listed and expanded.

A new pipeline is a kernel file under `kernels/`, a record in a file here, and its entry in
`PIPELINES`. Everything else in the family asks the record.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines.basic import BASIC
from tilewright.ops.gemm.pipelines.gluon_cdna import GLUON_CDNA
from tilewright.ops.gemm.pipelines.gluon_scaled import GLUON_SCALED
from tilewright.ops.gemm.pipelines.gluon_weights import GLUON_WEIGHTS
from tilewright.ops.gemm.pipelines.gluon_ws import GLUON_PINGPONG, GLUON_WS
from tilewright.ops.gemm.pipelines.mx import MX
from tilewright.ops.gemm.pipelines.preshuffle import PRESHUFFLE
from tilewright.ops.gemm.pipelines.record import Pipeline, Trait
from tilewright.ops.gemm.pipelines.small_m import SMALL_M, SMALL_M_TMA
from tilewright.ops.gemm.pipelines.tma import TMA, TMA_WS
from tilewright.ops.gemm.pipelines.weights import WEIGHTS

PIPELINES: dict[str, Pipeline] = {
    record.name: record
    for record in (
        BASIC,
        TMA,
        TMA_WS,
        GLUON_WS,
        GLUON_PINGPONG,
        SMALL_M,
        SMALL_M_TMA,
        GLUON_CDNA,
        GLUON_SCALED,
        WEIGHTS,
        MX,
        PRESHUFFLE,
        GLUON_WEIGHTS,
    )
}


def of(config: GemmConfig) -> Pipeline:
    """The record of a config's pipeline. Raises `BadArgument` if there is none of that name."""
    try:
        return PIPELINES[config.pipeline]
    except KeyError:
        known = ", ".join(PIPELINES)
        raise BadArgument(f"there is no pipeline '{config.pipeline}'; known: {known}") from None


def has(config: GemmConfig, trait: Trait) -> bool:
    """Whether `trait` holds of a config's pipeline."""
    return of(config).has(trait)


def on(arch: Arch) -> tuple[str, ...]:
    """Names of the pipelines that `arch` can run."""
    return tuple(name for name, record in PIPELINES.items() if record.runs_on(arch))


def those(trait: Trait) -> tuple[str, ...]:
    """Names of the pipelines that have `trait`."""
    return tuple(name for name, record in PIPELINES.items() if record.has(trait))
