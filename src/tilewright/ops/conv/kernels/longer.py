"""A layout step: an array is copied into rows that are filled up, or out of such rows.

Idea. An array without gaps is one stretch of memory. A workgroup copies BLOCK elements of it as
they follow one another, whatever the rows' lengths: short rows leave no lane without work. Each
element's row and column come from one division, of numbers that begin anew in each workgroup.

What limits it: memory, which each array passes twice.
"""

import triton
import triton.language as tl


@triton.jit
def longer(source, made, rows, columns, length, BLOCK: tl.constexpr, BACK: tl.constexpr):
    """made[i, j] = source[i, j] for `rows` rows of `columns`.

    length: elements from a row of `made` to the next, and of `source` with BACK; the other array's
    rows follow one another without gaps.
    """
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    first = begin // columns
    j = (begin - first * columns).to(tl.int32) + tl.arange(0, BLOCK)
    i = j // columns
    j -= i * columns
    there = first + i < rows
    long = (first + i) * length + j
    short = begin + tl.arange(0, BLOCK)
    if BACK:
        tl.store(made + short, tl.load(source + long, mask=there), mask=there)
    else:
        tl.store(made + long, tl.load(source + short, mask=there), mask=there)
