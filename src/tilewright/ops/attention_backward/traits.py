"""What learned selection is told of attention's gradients (`tilewright.ops.protocols.Learning`):
which problems are of one kind, and how a kernel's tiles fill a problem and a device."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch.model import Device
from tilewright.ops.attention.traits import filling
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.pool import Columns, Each

SHORT = 512
"""Most queries of a short sequence, whose first and last steps weigh."""


def kind(p: AttentionBackwardProblem) -> str:
    """Whether sequences are packed or short."""
    if "packedq" in p.words:
        return "packed"
    return "short" if p.q_len <= SHORT else "long"


def traits(p: AttentionBackwardProblem, c: Columns, device: Device) -> Mapping[str, Each]:
    """Tiles of keys, their steps over queries, and how far they fill problem and device."""
    import numpy as np  # here, as a plan by a row of a table takes none

    queries, keys = p.lengths
    return filling(p, device, keys, c.tile_rows, p.heads, np.ceil(queries / c.step_rows))
