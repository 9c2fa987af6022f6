"""How many heads' tiles follow one another in `gluon_ws` (see its `gluon_tiles`), a section.

Tiles of a section stand place by place: the first tile of each head, then the second of each. So
tiles that run at once share keys where a section has fewer heads than workgroups, and until the
next tiles of a head come, K and V of all others were read, and their Q and O went by.

Long sequences want large sections, so that long tiles come first under a mask and the short ones
fill the end. That L2 loses K and V from one round of workgroups to the next costs nothing there:
products take longer than reading them again. Short sequences have as many bytes as products can
hide, or more, and read K and V from memory once for each place. So their sections are one round:
all tiles of a head run together. Sections are equally large, as the tiles of a small last one would
begin with long ones, at the end.
"""

from __future__ import annotations

from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.attention.catalogue import L2_SHARE
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.pipelines import common
from tilewright.ops.attention.problem import AttentionProblem


def section(c: AttentionConfig, p: AttentionProblem, device: Device, workgroups: int) -> int:
    """Heads of a section.

    workgroups: that run at once. If sequences have their own numbers of queries, heads are those of
    all sequences, whose tiles follow one another anyway.
    """
    size = p.kv_len * (p.head_dim + p.head_dim_v) * DTYPES[p.dtype_kv].bytes
    fit = max(1, int(L2_SHARE * device.l2_bytes) // max(1, size))
    if p.words & {"packedq", "usedq"}:
        return min(fit * p.group, p.heads)
    heads = p.heads * max(1, p.batch)
    most = min(fit * p.group, heads)
    if _hides(c, p, device, workgroups, most):
        return most
    together = -(-workgroups // max(1, common.q_tiles(c, p)))
    even = -(-heads // max(1, heads // together))
    return min(most, -(-even // p.group) * p.group)


def _hides(
    c: AttentionConfig, p: AttentionProblem, device: Device, workgroups: int, heads: int
) -> bool:
    """Whether the products of a round of workgroups take longer than reading K and V of so many
    heads. Each element of these is multiplied and added once for each row of the round."""
    products = 2 * workgroups * c.tile_q / physics.matrix_rate(device, p.dtype)
    read = heads / p.group * DTYPES[p.dtype_kv].bytes
    return products / device.compute_units > physics.memory_us(read, device)
