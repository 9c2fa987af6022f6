"""How many rows the groups of a problem are assumed to have, where the device alone knows.

Each row goes to a group by chance: with the same chance for every group (``even``), as of a router
that was trained for balance, or with one like 1/(r+1) for group number r (``skewed``). So a group
has rows by a Poisson distribution, and of a few rows, many groups have none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.ops.pool import Each

ASSUMED = ("even", "skewed")

_NEAR = np.arange(-4, 5)[:, None]
"""Tiles above and below a group's mean that its size may reach, where it is not large beside a
tile."""


@lru_cache(maxsize=1024)
def means(load: str, groups: int, rows: int) -> Each:
    """Rows that each group is expected to have."""
    if load == "even":
        return np.full(groups, rows / max(1, groups))
    shares = 1 / np.arange(1, groups + 1)
    return rows * shares / shares.sum()


@lru_cache(maxsize=1024)
def with_rows(load: str, groups: int, rows: int) -> float:
    """Groups that are expected to have rows, at least 1."""
    return max(1.0, float((1 - np.exp(-means(load, groups, rows))).sum()))


@lru_cache(maxsize=4096)
def tiles(load: str, groups: int, rows: int, height: int) -> float:
    """Tiles of `height` rows that all groups are expected to have, at least 1: of each Σ P(rows >
    j · height) over j from 0 on."""
    mean = means(load, groups, rows)
    spread = np.sqrt(mean)
    large = mean / height + 0.5  # of a size that ends anywhere in its last tile
    base = np.floor(mean / height)
    at = base + _NEAR
    far = (mean - at * height - 0.5) / np.maximum(spread, 1e-9)
    some = 1 - np.exp(-mean) + (_below(far) * (at >= 1)).sum(0)
    some += np.maximum(0.0, base + _NEAR[0] - 1)
    return max(1.0, float(np.where(spread > height, large, some).sum()))


def _below(x: Each) -> Each:
    """The normal distribution's share below `x`, to 0.0002."""
    x = np.clip(x, -8.0, 8.0)
    return 1 / (1 + np.exp(-(1.5976 * x + 0.07056 * x**3)))
