"""Which rows of A and which columns of B a tile multiplies, for kernels that read whole tiles."""

import triton
import triton.language as tl


@triton.jit
def rows_of(
    row, rows, row_map, rows_a, per_row, TILE_M: tl.constexpr, GATHERED: tl.constexpr
):  # fmt: skip
    """The rows of A of the tile at `row` of a group with `rows` rows, and which of them there are.
    All lie inside A: those behind the group's end wrap around, and those that a map does not mean
    are the first."""
    at = row + tl.arange(0, TILE_M)
    there = at < rows
    if GATHERED:
        numbers = tl.load(row_map + at, mask=there, other=-1)
        there = (numbers >= 0) & (numbers < rows_a * per_row)
        places = (tl.where(there, numbers, 0) // per_row).to(tl.int64)
    else:
        places = at % rows
    return places, there


@triton.jit
def columns_of(col, n, between, onward, TILE_N: tl.constexpr, PAIRS: tl.constexpr):
    """The columns of B of the tile at `col`. PAIRS: columns that become one lie `between` apart,
    and `onward` from the next."""
    places = (col + tl.arange(0, TILE_N)) % n
    if PAIRS:
        places = places % 2 * between + places // 2 * onward
    return places
