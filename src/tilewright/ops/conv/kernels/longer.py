"""A layout step: an array is copied into rows that are filled up, or out of such rows.

Idea. An array without gaps is one stretch of memory. A workgroup copies BLOCK elements of it as
they follow one another, whatever the rows' lengths: short rows leave no lane without work. Each
element's row and column come from one division, of numbers that begin anew in each workgroup and
count in 32 bits. The array without gaps moves in vectors, but for the last block.

What limits it: memory, which each array passes twice.
"""

import triton
import triton.language as tl

from tilewright.ops.device.division import quotient


@triton.jit
def longer(
    source, made, rows, columns, columns_by, length, BLOCK: tl.constexpr, BACK: tl.constexpr
):  # fmt: skip
    """made[i, j] = source[i, j] for `rows` rows of `columns`.

    columns_by: what divides by `columns`. length: elements from a row of `made` to the next, and of
        `source` with BACK; the other array's rows follow one another without gaps.
    """
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    if begin < 0x7FFFFFFF:
        first = quotient(begin.to(tl.int32), columns_by[0], columns_by[1]).to(tl.int64)
    else:  # a division of 64 bits takes a hundred instructions
        first = begin // columns
    at = tl.arange(0, BLOCK)
    j = (begin - first * columns).to(tl.int32) + at
    i = quotient(j, columns_by[0], columns_by[1])
    j -= i * columns
    long = i * length + j
    if BACK:
        source += first * length
        made += begin
        if begin + BLOCK <= rows * columns:
            tl.store(made + at, tl.load(source + long))
        else:
            there = at < rows * columns - begin
            tl.store(made + at, tl.load(source + long, mask=there), mask=there)
    else:
        source += begin
        made += first * length
        if begin + BLOCK <= rows * columns:
            tl.store(made + long, tl.load(source + at))
        else:
            there = at < rows * columns - begin
            tl.store(made + long, tl.load(source + at, mask=there), mask=there)
