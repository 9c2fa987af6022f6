"""How kernels that walk down rows cut a result: into slabs of channels, tiles across the width,
sets of images, and strips of the height."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.pool import Each, either, least

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
    slabs: Each, tiles_w: Each, sets: Each, height: int, most: Each, walked: Callable[[int], Each]
) -> Cut:
    """The cut with which the busiest workgroup walks the fewest rows; among equals that with the
    highest strips. All but the height are of a config, or arrays.

    most: workgroups for each slab. walked: what a strip of so many rows costs, in rows.
    """
    found, fewest = (height, 1), math.inf
    for segments in range(1, min(height, MOST_SEGMENTS) + 1):
        rows = cdiv(height, segments)
        if cdiv(height, rows) == segments:
            cost = cdiv(tiles_w * sets * segments, most) * walked(rows)
            better = cost < fewest
            found = either(better, rows, found[0]), either(better, segments, found[1])
            fewest = least(cost, fewest)
    rows, segments = found
    return Cut(slabs, tiles_w, sets, rows, segments, least(most, tiles_w * sets * segments))


def numbers(cut: Callable[[Context], Cut]) -> Catalogue:
    """What kernels take of a cut."""

    def one(field: str) -> Numbers:
        return Numbers("i32", lambda x: getattr(cut(x), field))

    names = {"slabs": "slabs", "tiles_w": "tiles_w", "sets": "sets", "octets": "sets",
             "strips": "each", "rows": "rows"}  # fmt: skip
    return {name: one(field) for name, field in names.items()}
