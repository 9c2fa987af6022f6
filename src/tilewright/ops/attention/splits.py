"""How many workgroups share the keys of one tile of queries, under scheduler ``split``."""

from __future__ import annotations

from functools import lru_cache

from tilewright.arch.model import Device
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem

MOST_SPLITS = 256

START = 2
"""What a workgroup takes beside its steps, in steps: the first block of keys arrives after two
loads, and its result is written."""

COMBINE, COMBINED = 2.0, 64
"""What combining takes, in steps: to begin, which programmatic dependent launch hides in part, and
one more for so many splits, the kernel's own number. Not fitted to measurements."""

NEARLY = 1.05
"""The fewest splits are taken whose time is within this factor of the best: others may run better
beside the rest of the work."""


def splits_of(config: AttentionConfig, problem: AttentionProblem, device: Device) -> int:
    """The number of splits of the longest sequence. With `split_len`, what that length says,
    whatever else is computed at once. Else the fewest that take about the least time (`_time`)."""
    p = problem
    if config.scheduler != "split":
        return 1
    if config.split_len:
        return max(1, -(-p.kv_len // config.split_len))
    steps = -(-p.kv_len // config.tile_kv)
    rows = p.q_len * (p.group if config.pack else 1)
    tiles = -(-rows // config.tile_q) * (p.kv_heads if config.pack else p.heads) * p.batch
    if not tiles or not steps:
        return 1
    mean = steps * p.lengths[1] / p.kv_len
    if "usedkv" in p.words and p.batch > 1:
        mean /= 2  # the host knows the longest alone; lengths may be anything up to it
    return _fewest(tiles, steps, mean, device.compute_units)


@lru_cache(maxsize=1024)  # kernels of a plan have few different tiles
def _fewest(tiles: int, steps: int, mean: float, units: int) -> int:
    """The fewest splits that take about the least time; arguments as of `_time`."""
    # Of numbers with equally long splits, the least.
    counts = {-(-steps // -(-steps // n)) for n in range(1, min(MOST_SPLITS, steps) + 1)}
    times = {n: _time(n, tiles, steps, mean, units) for n in sorted(counts)}
    best = min(times.values())
    return next(n for n, time in times.items() if time <= NEARLY * best)


def _time(splits: int, tiles: int, steps: int, mean: float, units: int) -> float:
    """Steps that a compute unit works in turn, if each of `tiles` tiles has `steps` steps at most
    and `mean` on average.

    Equally long splits come in waves. Else whoever is free takes the next, and the last to begin
    may be a longest one."""
    longest = -(-steps // splits)
    waves = -(-tiles * splits // units)
    body = float(waves * longest)
    if mean < steps:
        body = min(body, tiles * mean / units + longest)
    combining = COMBINE + splits / COMBINED if splits > 1 else 0.0
    return body + waves * START + combining
