"""The pipelines of the backward pass: a record for each, in a file of its own."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.basic import BASIC
from tilewright.ops.attention_backward.pipelines.gluon_lean import GLUON_LEAN
from tilewright.ops.attention_backward.pipelines.gluon_roles import GLUON_ROLES
from tilewright.ops.attention_backward.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.attention_backward.pipelines.record import Pipeline

PIPELINES: dict[str, Pipeline] = {
    record.name: record for record in (BASIC, GLUON_WS, GLUON_LEAN, GLUON_ROLES)
}


def of(config: AttentionBackwardConfig) -> Pipeline:
    """The record of a config's pipeline."""
    return PIPELINES[config.pipeline]


def on(arch: Arch) -> tuple[str, ...]:
    """Names of the pipelines that an architecture can run."""
    return tuple(name for name, record in PIPELINES.items() if record.runs_on(arch))
