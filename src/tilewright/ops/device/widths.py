"""How a tile's columns are divided, between accumulators and for the way to memory. The rules ask
too, so no Triton here."""


def wide(tile_n: int) -> int:
    """How many of a tile's columns are in the first accumulator: as many as a power of two can be.
    The rest, of 96, 160 or 192, is another."""
    return 1 << tile_n.bit_length() - 1


def piece(first: int, split: bool) -> int:
    """How many columns of a warp group's sums are staged and stored at a time, of so many in the
    first accumulator."""
    return first // (4 if split else 2)
