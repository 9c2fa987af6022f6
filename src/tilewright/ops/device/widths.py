"""How a tile's columns are divided between accumulators, and into pieces for the store. The
legality rules use this too, so it does not import Triton."""


def parts(tile_n: int) -> tuple[int, ...]:
    """Columns of each accumulator of a tile, widest first: powers of two, as all tensors of Triton
    are. A tile of 88 columns has accumulators 64, 16 and 8 wide."""
    bits = reversed(range(tile_n.bit_length()))
    return tuple(1 << bit for bit in bits if tile_n >> bit & 1)


def wide(tile_n: int) -> int:
    """Columns of a tile in the first accumulator: the largest power of two that fits."""
    return parts(tile_n)[0]


LEAST_PIECE = 8
"""Columns that one matrix instruction of sm_90 computes at least."""


def piece(first: int, split: bool) -> int:
    """Columns of a warp group's sums that are staged and stored at a time, given the columns of the
    first accumulator. Narrower accumulators leave whole."""
    return max(LEAST_PIECE, first // (4 if split else 2))
