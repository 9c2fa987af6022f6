"""How tiles fill a product of matrices, and the device: traits (`protocols.Learning`) of families
whose kernels compute one."""

from __future__ import annotations

from tilewright.arch.model import Device
from tilewright.ops.pool import Each


def of_product(
    sizes: tuple[float, float, float],
    tile: tuple[Each, Each, Each],
    split: Each,
    batch: int,
    device: Device,
) -> dict[str, Each]:
    """Of `batch` products of these sizes (rows, columns, length of the sums), cut into tiles whose
    sums `split` workgroups share."""
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
