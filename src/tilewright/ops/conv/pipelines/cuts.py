"""How kernels that walk down rows cut a result: into slabs of channels, tiles across the width,
sets of images, and strips of the height."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv.geometry import cdiv

MOST_SEGMENTS = 64
"""Strips that the height is cut into, at most."""


@dataclass(frozen=True, slots=True)
class Cut:
    """slabs, tiles_w, sets: that cover the channels, the width and the images. rows: of a strip.
    segments: strips that cover the height. programs: workgroups for each slab."""

    slabs: int
    tiles_w: int
    sets: int
    rows: int
    segments: int
    programs: int

    @property
    def each(self) -> int:
        """Strips of a slab."""
        return self.tiles_w * self.sets * self.segments


def best(
    slabs: int, tiles_w: int, sets: int, height: int, most: int, walked: Callable[[int], int]
) -> Cut:
    """The cut with which the busiest workgroup walks the fewest rows; among equals that with the
    highest strips.

    most: workgroups for each slab. walked: what a strip of so many rows costs, in rows.
    """
    found = None
    for segments in range(1, min(height, MOST_SEGMENTS) + 1):
        rows = cdiv(height, segments)
        if cdiv(height, rows) != segments:
            continue
        each = tiles_w * sets * segments
        cost = cdiv(each, most) * walked(rows)
        if found is None or cost < found[0]:
            found = cost, Cut(slabs, tiles_w, sets, rows, segments, min(most, each))
    assert found is not None
    return found[1]


def numbers(cut: Callable[[Context], Cut]) -> Catalogue:
    """What kernels take of a cut."""

    def one(field: str) -> Numbers:
        return Numbers("i32", lambda x: getattr(cut(x), field))

    names = {"slabs": "slabs", "tiles_w": "tiles_w", "sets": "sets", "octets": "sets",
             "strips": "each", "rows": "rows"}  # fmt: skip
    return {name: one(field) for name, field in names.items()}
