"""Rows of the spaces for pipeline ``gluon_bands``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tilewright.arch.model import Arch
from tilewright.ops.conv import windows
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.bands.shape import (
    LINES,
    MOST_WIDTH,
    PIPELINE,
    SCHEDULERS,
    box,
)
from tilewright.ops.conv.pipelines.record import Row
from tilewright.ops.conv.problem import ConvProblem

_FORMS = ((32, 8), (16, 4), (32, 4), (64, 8))
"""Channels and warps of a workgroup."""

_AHEAD, _MORE_AHEAD = (4,), (4, 8)
"""Rows in the ring: of the default space, of a tuning's."""


def rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Rows of the default space, or of a tuning's."""
    if not p.depthwise or p.precision == "tf32" or len(p.spatial) != 2 or p.stride != (1, 1):
        return
    if p.taps == 1 or p.filter[-1] > MOST_WIDTH or p.taps > windows.MOST_TAPS:
        return
    ahead = _MORE_AHEAD if tuned else _AHEAD
    for (channels, warps), stages in itertools.product(_FORMS, ahead):
        yield (LINES, channels, 1, warps, stages, PIPELINE, SCHEDULERS[p.direction], 1, False,
               *common.pixel_alignments(p), box(p), windows.word(p))  # fmt: skip
