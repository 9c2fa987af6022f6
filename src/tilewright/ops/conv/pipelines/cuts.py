"""How kernels that walk down rows cut a result: into slabs of channels, tiles across the width,
sets of images, and strips of the height."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.pool import Each, least

MOST_SEGMENTS = 64
"""Strips that the height is cut into, at most."""


@dataclass(frozen=True, slots=True)
class Cut:
    """slabs, tiles_w, sets: that cover the channels, the width and the images. rows: of a strip.
    segments: strips that cover the height. programs: workgroups for each slab."""

    slabs: Each
    tiles_w: Each
    sets: Each
    rows: Each
    segments: Each
    programs: Each

    @property
    def each(self) -> Each:
        """Strips of a slab."""
        return self.tiles_w * self.sets * self.segments


def best(
    slabs: Each, tiles_w: Each, sets: Each, height: int, most: Each, walked: Callable[[Each], Each]
) -> Cut:
    """The cut with which the busiest workgroup walks the fewest rows; among equals that with the
    highest strips. All but the height are of a config, or arrays.

    most: workgroups for each slab. walked: what a strip of so many rows costs, in rows.
    """
    import numpy as np

    strips: Each = np.array(_strips(height)).T[:, :, None]
    rows, segments = strips
    cost = cdiv(tiles_w * sets * segments, most) * walked(rows)
    rows, segments = strips[:, cost.argmin(0), 0]
    if not getattr(tiles_w, "ndim", 0):
        rows, segments = int(rows[0]), int(segments[0])
    return Cut(slabs, tiles_w, sets, rows, segments, least(most, tiles_w * sets * segments))


@lru_cache(maxsize=256)
def _strips(height: int) -> Sequence[tuple[int, int]]:
    """Rows of a strip, and strips that cover the height, the fewest first."""
    cut = ((cdiv(height, n), n) for n in range(1, min(height, MOST_SEGMENTS) + 1))
    return [(rows, n) for rows, n in cut if cdiv(height, rows) == n]


def numbers(cut: Callable[[Context], Cut]) -> Catalogue:
    """What kernels take of a cut."""

    def one(field: str) -> Numbers:
        return Numbers("i32", lambda x: getattr(cut(x), field))

    names = {"slabs": "slabs", "tiles_w": "tiles_w", "sets": "sets", "octets": "sets",
             "strips": "each", "rows": "rows"}  # fmt: skip
    return {name: one(field) for name, field in names.items()}
