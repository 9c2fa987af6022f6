"""Rows of the spaces for pipeline ``gluon_grouped``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tilewright.arch.model import Arch
from tilewright.ops.conv import windows
from tilewright.ops.conv.pipelines.grouped.shape import (
    COLUMNS,
    IMAGES,
    PIPELINE,
    SLAB,
    SLICES,
    WARPS,
    alignments,
    box,
)
from tilewright.ops.conv.pipelines.record import Row
from tilewright.ops.conv.problem import ConvProblem

_AHEAD, _MORE_AHEAD = (1, 2), (1, 2, 3)
"""Rows that are on their way, beside those that a filter sees."""


def rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Rows of the default space, or of a tuning's."""
    if p.group_c != p.group_k or not p.group_c or len({*p.stride}) > 1 or p.precision == "tf32":
        return
    slices = [n for n in SLICES if n % p.group_c == 0][:1]
    ahead = _MORE_AHEAD if tuned else _AHEAD
    scheduler = "split" if p.direction == "weights" else "persistent"
    for channels, width, more in itertools.product(slices, COLUMNS, ahead):
        yield (IMAGES * width, SLAB, channels, WARPS, math.prod(p.filter[:-1]) + more, PIPELINE,
               scheduler, 1, False, *alignments(p), box(p, width), windows.word(p),
               channels // p.group_c)  # fmt: skip
