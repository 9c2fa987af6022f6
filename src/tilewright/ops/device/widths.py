"""How a tile's columns are divided between accumulators, and into pieces for the store. The
legality rules use this too, so it does not import Triton."""


def wide(tile_n: int) -> int:
    """Columns of a tile in the first accumulator: the largest power of two that fits. The remaining
    columns, of 96, 160 or 192, are in a second accumulator."""
    return 1 << tile_n.bit_length() - 1


def piece(first: int, split: bool) -> int:
    """Columns of a warp group's sums that are staged and stored at a time, given the columns of the
    first accumulator."""
    return first // (4 if split else 2)
