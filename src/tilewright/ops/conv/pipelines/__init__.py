"""The pipelines of convolutions: a record for each. GEMM's kernels, which some convolutions are
products of, have no record but GEMM's (`by_gemm`)."""

from __future__ import annotations

from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.pipelines.askew import ASKEW
from tilewright.ops.conv.pipelines.depthwise import DEPTHWISE
from tilewright.ops.conv.pipelines.direct import DIRECT
from tilewright.ops.conv.pipelines.gluon_bands import GLUON_BANDS
from tilewright.ops.conv.pipelines.gluon_grouped import GLUON_GROUPED
from tilewright.ops.conv.pipelines.gluon_pingpong import GLUON_PINGPONG
from tilewright.ops.conv.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.conv.pipelines.implicit import IMPLICIT
from tilewright.ops.conv.pipelines.in_place import IN_PLACE
from tilewright.ops.conv.pipelines.packed import PACKED
from tilewright.ops.conv.pipelines.planes import PLANES
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.conv.pipelines.stream import STREAM
from tilewright.ops.conv.pipelines.subpixel import SUBPIXEL
from tilewright.ops.conv.pipelines.window import WINDOW
from tilewright.ops.pool import Columns

PIPELINES: dict[str, Pipeline] = {
    record.name: record
    for record in (
        IMPLICIT, PACKED, SUBPIXEL, DEPTHWISE, WINDOW, GLUON_BANDS, GLUON_WS, GLUON_PINGPONG,
        GLUON_GROUPED, DIRECT, IN_PLACE, ASKEW, PLANES, STREAM,
    )
}  # fmt: skip


def of(config: ConvConfig) -> Pipeline:
    """The record of a config's pipeline."""
    return PIPELINES[config.pipeline]


def shared(c: Any) -> Pipeline:
    """The record of a config, or of the first of `Columns` whose kind is the same: what is asked of
    a problem, and the estimate, are alike."""
    return of(c[0] if isinstance(c, Columns) else c)


def has(config: ConvConfig, word: str) -> bool:
    """Whether the record of a config's pipeline says a word (`record.WORDS`)."""
    return of(config).has(word)


def on(arch: Arch) -> tuple[str, ...]:
    """Names of the pipelines that an architecture can run."""
    return tuple(name for name, record in PIPELINES.items() if record.runs_on(arch))
