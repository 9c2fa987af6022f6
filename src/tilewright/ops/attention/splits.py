"""How many workgroups share the keys of one tile of queries, under scheduler ``split``."""

from __future__ import annotations

from tilewright.arch.model import Device
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem

MOST_SPLITS = 256

FULL = 0.85
"""Share of the best use of the compute units that fewer splits must reach to be taken: after
FlashAttention-3's rule (hopper/heuristics.h)."""


def splits_of(config: AttentionConfig, problem: AttentionProblem, device: Device) -> int:
    """The number of splits of the longest sequence. With `split_len`, what that length says,
    whatever else is computed at once. Else the smallest number whose workgroups fill the device
    nearly as well as the best."""
    p = problem
    if config.scheduler != "split":
        return 1
    if config.split_len:
        return max(1, -(-p.kv_len // config.split_len))
    steps = -(-p.kv_len // config.tile_kv)
    rows = p.q_len * (p.group if config.pack else 1)
    tiles = -(-rows // config.tile_q) * (p.kv_heads if config.pack else p.heads) * p.batch
    if not tiles:
        return 1
    units = device.compute_units
    most = max(1, min(MOST_SPLITS, steps, units))
    used = []
    for splits in range(1, most + 1):
        waves = tiles * splits / units
        used.append(waves / -(-tiles * splits // units))
    best = max(used)
    return next(n for n, share in enumerate(used, 1) if share >= FULL * best)
