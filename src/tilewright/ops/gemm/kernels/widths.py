"""How a tile's columns are divided between accumulators. The rules ask too, so no Triton here."""


def wide(tile_n: int) -> int:
    """How many of a tile's columns are in the first accumulator: as many as a power of two can be.
    The rest, of 96, 160 or 192, is another."""
    return 1 << tile_n.bit_length() - 1
