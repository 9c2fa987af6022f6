"""The k largest of each row.

Idea. A workgroup holds ROWS whole rows in registers and takes the largest k times (`_largest`).
Values are then read once more at the places that were found, from L1: so they keep their bits.

A round costs as much as all elements of a row and two meetings of all warps. Where k rounds cost
more than that (SIFT), a row is sifted first. Each of GROUPS lanes has the largest of its own
elements. A number that at least k of these reach is reached by k elements of the row, and by few
more, since the largest elements are mostly in different lanes: it is found by halving, with one
number for each lane. The elements that reach it, ROOM at most, move to one lane each, and each
counts how many of them are ahead of it, which is its slot. Where more than ROOM elements reach the
number, as in a row of equal values, the row is done in rounds.

Where rows are short and k is large, a row is sorted instead (SORT): each element with its place is
one number, the largest value first, and of equal values the lowest place, so no two are equal.
Sequences of k are sorted, and of two of them the larger half goes on (``tl.topk``).

All ways give the same: of equal values the lowest index comes first.

What limits it: memory for small k, instructions for large k. Timed on an H200 (2026-11-30, in
graphs; µs; rows were sorted in a later run).

    case                          in rounds   sifted   sorted   torch   a copy of as many bytes
    4096 rows of 4096, k = 32, fp32    217     53.6             296     17.8
    2584 rows of 5424, k = 32, fp32    278                      268     22.1
    2623 rows of 136, k = 32, fp32     17.9                     32.1    2.0
    6568 rows of 7360, k = 8, bf16     213                      447     36.8
    4096 rows of 1024, k = 8, bf16     18.2                     94.4    3.5
    24242 rows of 144, k = 64, fp32    189              96.2    299     11.4
    65223 rows of 120, k = 64, fp32    219              92.9    694     25.6
"""

import triton
import triton.language as tl

from tilewright.declared.routing.kernels._largest import (
    MOST,
    NOTHING,
    largest,
    ordered,
    power_of_two,
)


@triton.constexpr_function
def at_once(dtype, alignment, EACH):
    """Neighbours that a lane loads at once: 16 bytes, where addresses and columns allow it."""
    most = min(EACH, 128 // dtype.primitive_bitwidth)
    return min(alignment, most)


@triton.jit
def bar(most, k: tl.constexpr, GROUPS: tl.constexpr):
    """A key that at least k of the groups' largest keys [GROUPS] reach, and few more, if as many
    groups have elements."""
    # 64 bits, in which differences of keys do not wrap.
    low = tl.maximum(tl.min(most), NOTHING + 1).to(tl.int64)
    high = tl.max(most).to(tl.int64)
    reach = tl.sum((most >= low.to(tl.int32)).to(tl.int32))
    while (reach > k + k // 2) & (low < high):
        middle = low + ((high - low + 1) >> 1)
        count = tl.sum((most >= middle.to(tl.int32)).to(tl.int32))
        enough = count >= k
        low = tl.where(enough, middle, low)
        reach = tl.where(enough, count, reach)
        high = tl.where(enough, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
def moved(reaches, counts, GROUPS: tl.constexpr, SIZE: tl.constexpr, ROOM: tl.constexpr):
    """The places of the elements that reach the bar, and how many there are.

    reaches [GROUPS]: a bit for each element of a group. counts [GROUPS]: how many are set.
    SIZE: neighbours of a group.
    """
    ends = tl.cumsum(counts, 0)
    slot = tl.arange(0, ROOM)
    group = tl.sum((ends[:, None] <= slot[None, :]).to(tl.int32), 0)
    group = tl.minimum(group, GROUPS - 1)
    left = tl.gather(reaches, group, 0)
    ahead = slot - tl.gather(ends - counts, group, 0)
    for turn in range(tl.max(counts) - 1):
        left = tl.where(ahead > turn, left & (left - 1), left)
    lowest = (left & -left).to(tl.uint32, bitcast=True)
    bit = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    return ((bit // SIZE) * GROUPS + group) * SIZE + bit % SIZE


@triton.jit
def in_order(from_x, values, indices, row, place, there, k: tl.constexpr):
    """Store the k largest of the elements at these places, of which some are there."""
    read = tl.load(from_x + place, there, 0.0)
    key = tl.where(there, ordered(read.to(tl.float32)), NOTHING)
    first = (key[:, None] == key[None, :]) & (place[:, None] < place[None, :])
    ahead = (key[:, None] > key[None, :]) | first
    at = tl.sum(ahead.to(tl.int32), 0)
    tl.store(indices + row * k + at, place, there & (at < k))
    tl.store(values + row * k + at, read, there & (at < k))


@triton.jit
def whole(
    x, values, indices, row, there, columns, x_stride, k: tl.constexpr, BLOCK: tl.constexpr,
    SORT: tl.constexpr,
):  # fmt: skip
    """Store the k largest of rows [ROWS, 1]: found one after another, or by sorting."""
    SLOTS: tl.constexpr = power_of_two(k)
    from_x = x + row * x_stride
    column = tl.arange(0, BLOCK)[None, :]
    held = tl.load(from_x + column, there & (column < columns), 0.0).to(tl.float32)
    keys = tl.where(column < columns, ordered(held), NOTHING)
    if SORT:
        both = (keys.to(tl.int64) << 32) | (column ^ MOST).to(tl.int64)
        places = tl.topk(both, SLOTS).to(tl.int32) ^ MOST
    else:
        places, _ = largest(keys, column, k, SLOTS)
    slot = tl.arange(0, SLOTS)[None, :]
    inside = (slot < k) & there
    to = row * k + slot
    tl.store(indices + to, places, inside)
    tl.store(values + to, tl.load(from_x + places, inside), inside)


@triton.jit
def sifted(
    x, values, indices, row, columns, x_stride, k: tl.constexpr, BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, ROOM: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One row."""
    TURNS: tl.constexpr = BLOCK // GROUPS // SIZE
    from_x = x + row * x_stride
    # Lanes along the first dimension; the others are a lane's own.
    group = tl.arange(0, GROUPS)[:, None, None]
    turn = tl.arange(0, TURNS)[None, :, None]
    near = tl.arange(0, SIZE)[None, None, :]
    column = (turn * GROUPS + group) * SIZE + near
    held = tl.load(from_x + column, column < columns, 0.0).to(tl.float32)
    keys = tl.where(column < columns, ordered(held), NOTHING)
    least = bar(tl.max(tl.max(keys, 2), 1), k, GROUPS)
    reach = (keys >= least).to(tl.int32)
    counts = tl.sum(tl.sum(reach, 2), 1)
    total = tl.sum(counts)
    if (total >= k) & (total <= ROOM):
        reaches = tl.sum(tl.sum(reach << (turn * SIZE + near), 2), 1)
        slot = tl.arange(0, ROOM)
        place = tl.where(slot < total, moved(reaches, counts, GROUPS, SIZE, ROOM), MOST)
        in_order(from_x, values, indices, row, place, slot < total, k)
    else:
        # Read once more, so that no register holds the row until here.
        alone = row + tl.arange(0, 1)[:, None]
        whole(x, values, indices, alone, True, columns, x_stride, k, BLOCK, False)


@triton.jit
def topk(
    x, values, indices, rows, columns, x_stride, k: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, SIFT: tl.constexpr, SORT: tl.constexpr, GROUPS: tl.constexpr,
    ROOM: tl.constexpr, alignment: tl.constexpr,
):  # fmt: skip
    """ROWS rows, or one that is sifted."""
    if SIFT:
        SIZE: tl.constexpr = at_once(x.dtype.element_ty, alignment, BLOCK // GROUPS)
        one = tl.program_id(0).to(tl.int64)
        sifted(x, values, indices, one, columns, x_stride, k, BLOCK, GROUPS, ROOM, SIZE)
    else:
        row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
        whole(x, values, indices, row, row < rows, columns, x_stride, k, BLOCK, SORT)
