"""The pipelines of attention: a record for each, in a file of its own."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.parts import APPEND, COMBINE, LIST_BLOCKS
from tilewright.ops.attention.pipelines.basic import BASIC
from tilewright.ops.attention.pipelines.gluon_decode import GLUON_DECODE
from tilewright.ops.attention.pipelines.gluon_latent import GLUON_LATENT
from tilewright.ops.attention.pipelines.gluon_turned import GLUON_TURNED
from tilewright.ops.attention.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.attention.pipelines.record import Pipeline
from tilewright.ops.binder import Part

PIPELINES: dict[str, Pipeline] = {
    record.name: record for record in (BASIC, GLUON_WS, GLUON_TURNED, GLUON_DECODE, GLUON_LATENT)
}


def of(config: AttentionConfig) -> Pipeline:
    """The record of a config's pipeline."""
    return PIPELINES[config.pipeline]


def parts(config: AttentionConfig) -> tuple[Part, ...]:
    """What a config's launch may run, in order."""
    record = of(config)
    return (APPEND, LIST_BLOCKS, *record.before, record.kernel, COMBINE)


def on(arch: Arch) -> tuple[str, ...]:
    """Names of the pipelines that an architecture can run."""
    return tuple(name for name, record in PIPELINES.items() if record.runs_on(arch))
