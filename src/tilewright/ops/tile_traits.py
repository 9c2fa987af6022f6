"""How tiles fill a product of matrices, and the device: traits (`protocols.Learning`) of families
whose kernels compute one."""

from __future__ import annotations

import math

from tilewright.arch.model import Device
from tilewright.dtypes import dtype
from tilewright.ops.pool import Each

LINE = 128
"""Bytes of a line of L2. Where rows begin within lines, neighbours share some, and a tile's edges
read and write parts of them."""


def aligned(elements: int, name: str) -> int:
    """The largest power of two, up to `LINE`, that the bytes of so many elements of the type `name`
    are multiples of."""
    return math.gcd(LINE, elements * dtype(name).bits // 8)


def of_product(
    sizes: tuple[float, float, float],
    tile: tuple[Each, Each, Each],
    split: Each,
    batch: int,
    device: Device,
) -> dict[str, Each]:
    """Traits of `batch` products of these sizes (rows, columns, length of the sums), cut into tiles
    whose sums `split` workgroups share."""
    import numpy as np  # here, as a plan by a row of a table takes none

    counts = [np.ceil(size / edge) for size, edge in zip(sizes, tile, strict=True)]
    rows, columns, steps = counts
    tiles = batch * rows * columns
    filled = tiles * split / device.compute_units
    waves = np.ceil(filled)
    return {
        "rows": sizes[0],
        "columns": sizes[1],
        "depth": sizes[2],
        "rows filled": sizes[0] / (rows * tile[0]),
        "columns filled": sizes[1] / (columns * tile[1]),
        "depth filled": sizes[2] / (steps * tile[2]),
        "tiles": tiles,
        "steps": steps / split,
        "filled": filled,
        "waves": waves,
        "last wave": filled / waves,
        "tile": tile[0] * tile[1],
        "tile rows": tile[0],
        "tile columns": tile[1],
        "step": tile[2],
    }


def of_ring(tile: tuple[Each, Each, Each], steps: Each, stages: Each) -> dict[str, Each]:
    """Traits of a ring of `stages` steps in shared memory: the elements that are on their way at
    once, and how often it is filled for a workgroup's `steps`."""
    return {"ring": (tile[0] + tile[1]) * tile[2] * stages, "rounds": steps / stages}
