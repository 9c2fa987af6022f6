"""Which tile of which group a workgroup computes; shared by every grouped kernel.

Sizes of groups are known only on the device. Each workgroup reads all of them once, as a vector,
and adds up the number of tiles up to the end of each group. The group of tile number t is then the
count of ends at or before t. This costs two reductions over the vector for each tile, for any
number of groups, and no communication between workgroups.

Offsets and counts come from the device, unchecked. Each is clamped before use: whatever they say,
no row outside A and C is read or written. A group of the ``contiguous`` form begins and ends within
the m rows, and is empty if it ends before it begins; a group of the ``masked`` form has from 0 to m
rows. A list's table is not clamped: it holds addresses, and `pack` makes it.

Tiles are numbered group by group, and within a group as in a GEMM (`schedule`), so that workgroups
that run together read the same group's B.
"""

import triton
import triton.language as tl

from tilewright.ops.device.lengths import bounded, length_at

MAX_GROUPS = tl.constexpr(1024)
COLUMNS = tl.constexpr(1024)
"""Columns of C that are cleared at a time."""
RAGGED_ROWS = tl.constexpr(2**30)
"""Rows of the tensor map that C is stored through; see `launch._ragged`."""

FIELDS = tl.constexpr(9)
"""Numbers in a row of a list's table: the starts of A, B and C (in elements, from the operands), m,
n, k, and the leading dimensions of A, B and C."""


@triton.jit
def group_rows(table, group, m, lead, MASKED: tl.constexpr):
    """The first row of A and C that belongs to `group` (a number or a vector of numbers), and the
    number of its rows."""
    if MASKED:
        begin = group * m
        size = length_at(table, group, m)
    else:
        before = tl.load(table + lead + group - 1, mask=lead + group > 0, other=0)
        begin = bounded(before, m)
        size = tl.maximum(length_at(table, lead + group, m) - begin, 0)
    return begin, size


@triton.jit
def clear_rest(
    c, step, along, table, m, groups, lead, last, column, columns, MASKED: tl.constexpr
):  # fmt: skip
    """Write 0 to the rows of C that belong to no group, all workgroups together. Nobody else writes
    these rows. Rows before the first group's, and from `last` on, are no group's; in the ``masked``
    form, those of each group behind its own.

    step, along: elements from one row to the next, and along a row.
    column: a vector of numbers from 0; of C's `columns`, so many are written at a time.
    """
    if MASKED:
        for group in range(groups):
            begin, size = group_rows(table, group, m, lead, True)
            _clear(c, step, along, begin + size, begin + m, column, columns)
    else:
        first, _ = group_rows(table, 0, m, lead, False)
        _clear(c, step, along, 0, first, column, columns)
        _clear(c, step, along, last, m, column, columns)


@triton.jit
def _clear(c, step, along, begin, end, column, columns):
    number = tl.program_id(0)
    for row in range(begin + number, end, tl.num_programs(0)):
        at = c + (number * 0 + row).to(tl.int64) * step
        for first in range(0, columns, column.shape[0]):
            d = first + column
            zero = (d * 0).to(tl.float32).to(c.dtype.element_ty)
            tl.store(at + d * along, zero, mask=d < columns)


@triton.jit
def cleared(c, step, along, table, m, groups, lead, columns, MASKED: tl.constexpr):
    """`clear_rest` in Triton."""
    group = tl.minimum(tl.arange(0, MAX_GROUPS), groups - 1)
    begin, size = group_rows(table, group, m, lead, MASKED)
    column = tl.arange(0, COLUMNS)
    clear_rest(
        c, step, along, table, m, groups, lead, tl.max(begin + size, 0), column, columns, MASKED
    )  # fmt: skip


@triton.jit
def tile_ends(
    table, m, n, groups, lead, FORM: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr
):
    """For each group, the number of its tiles and all tiles before (a vector; past the last group,
    the total), and the total."""
    group = tl.arange(0, MAX_GROUPS)
    # Past the end, the last group's size is read again but not counted.
    there = tl.minimum(group, groups - 1)
    if FORM == "list":
        rows = tl.load(table + there * FIELDS + 3).to(tl.int32)
        columns = tl.load(table + there * FIELDS + 4).to(tl.int32)
    elif FORM == "weights":
        rows = there * 0 + m
        columns = n
    else:
        _, rows = group_rows(table, there, m, lead, FORM == "masked")
        columns = n
    tiles = tl.cdiv(rows, TILE_M) * tl.cdiv(columns, TILE_N)
    tiles = tl.where(group < groups, tiles, 0)
    return tl.cumsum(tiles, 0), tl.sum(tiles, 0)


@triton.jit
def find(tile, ends):
    """The group of a tile, and the number of that group's first tile."""
    before = ends <= tile
    return tl.sum(before.to(tl.int32), 0), tl.max(tl.where(before, ends, 0), 0)
