"""Which tile of which group a workgroup computes: shared by every grouped kernel.

Sizes of groups are known on the device only. Each workgroup reads them all once, as a vector, and
adds up how many tiles the groups before each one's end have; the group of tile number t is then
the count of ends at or before t. That costs two reductions over the vector for each tile, however
many groups there are, and no communication between workgroups.

Offsets and counts come from the device, unchecked. Each is clamped before use, so that whatever
they say, no row outside A and C is read or written: a group of the ``contiguous`` form begins and
ends within the m rows there are, and is empty if it ends before it begins; one of the ``masked``
form has from 0 to m rows.

Tiles are numbered group by group, and within a group as in a GEMM (`schedule`), so that
workgroups that run together read the same group's B.
"""

import triton
import triton.language as tl

MAX_GROUPS = tl.constexpr(1024)
RAGGED_ROWS = tl.constexpr(2**30)
"""Rows of the tensor map that C is stored through; see `launch._ragged`."""

FIELDS = tl.constexpr(9)
"""Numbers in a row of a list's table: where A, B and C begin (in elements, from the operands),
m, n, k, and the leading dimensions of A, B and C."""


@triton.jit
def group_rows(table, group, m, lead, MASKED: tl.constexpr):
    """The first row of A and C that belongs to `group` (a number or a vector of them), and how
    many do."""
    if MASKED:
        begin = group * m
        size = tl.minimum(tl.maximum(tl.load(table + group), 0), m)
    else:
        begin = tl.load(table + lead + group - 1, mask=lead + group > 0, other=0)
        begin = tl.minimum(tl.maximum(begin, 0), m)
        end = tl.minimum(tl.load(table + lead + group), m)
        size = tl.maximum(end - begin, 0)
    return begin, size


@triton.jit
def tile_ends(
    table, m, n, groups, lead, FORM: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr
):
    """For each group, how many tiles it and those before it have (a vector; past the last group,
    all there are); and how many there are."""
    group = tl.arange(0, MAX_GROUPS)
    # Past the end, the last group's size is read again, and not counted.
    there = tl.minimum(group, groups - 1)
    if FORM == "list":
        rows = tl.load(table + there * FIELDS + 3).to(tl.int32)
        columns = tl.load(table + there * FIELDS + 4).to(tl.int32)
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
