"""What learned selection is told of attention (`tilewright.ops.protocols.Learning`): which problems
are of one kin, and how a kernel's tiles fill a problem and a device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tilewright.arch.model import Device
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.pool import Columns, Each, each

FEW = 16
"""Most queries of a step of decoding."""


def kin(p: AttentionProblem) -> Hashable:
    """A model's heads: its problems differ in sequences and lengths."""
    return p.heads, p.kv_heads, p.head_dim, p.head_dim_v, p.mask.kind


def kind(p: AttentionProblem) -> str:
    """Whether there are few queries, and where keys lie."""
    few = "decode" if p.q_len <= FEW else "prefill"
    return f"{few} over pages" if p.paged else few


def traits(p: AttentionProblem, c: Columns, device: Device) -> Mapping[str, Each]:
    """Tiles of queries, their steps over keys, and how far they fill problem and device."""
    import numpy as np  # here, as a plan by a row of a table takes none

    queries, keys = p.lengths
    rows = np.where(c.pack, queries * p.group, queries)
    heads = np.where(c.pack, p.kv_heads, p.heads)
    found = filling(p, device, rows, c.tile_q, heads, np.ceil(keys / c.tile_kv))
    return {**found, "is split": each(c, _split)}


def filling(
    p: AttentionProblem, device: Device, rows: Each, tile: Each, heads: Each, steps: Each
) -> dict[str, Each]:
    """How far tiles of so many of `rows`, for so many heads, fill problem and device. Head dims are
    words: kernels are of one, and another one's say nothing of them."""
    import numpy as np

    queries, keys = p.lengths
    counts = np.ceil(rows / tile)
    tiles = counts * heads * p.batch
    filled = tiles / device.compute_units
    return {
        "head dims": f"{p.head_dim} and {p.head_dim_v}",
        "queries": queries,
        "keys": keys,
        "group": p.group,
        "seen": p.pairs / max(1, p.batch * queries * keys),
        "rows filled": rows / np.maximum(1, counts * tile),
        "tiles": tiles,
        "steps": steps,
        "filled": filled,
        "waves": np.ceil(filled),
        "last wave": filled / np.maximum(1, np.ceil(filled)),
        "features": len(p.words),
    }


def _split(c: AttentionConfig) -> bool:
    return c.scheduler == "split"
