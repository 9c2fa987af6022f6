"""A chain of operations on elements whose rows are odd, in the order of the result.

Idea. Rows of odd length begin where no vector may. But y is contiguous: a workgroup computes
COLUMNS neighbours of it, over the ends of rows, and writes vectors of 16 bytes. Operands that lie
as y does (the bits of ALIKE: 1, 2, 4, 8 for x, a, b, c) are read by the element's number, as
vectors too. For operands that are broadcast the number is taken apart into its places, by a product
and a shift for each dimension.

Data. As in `elementwise_chain`, but that an operand that is broadcast is read for each element, of
which all but the first come from L1. Whole tiles have no masks, which would break vectors where the
elements are an odd number.

What limits it: memory, if the arithmetic is cheap enough. For rows of 65 elements of 2 bytes and an
operand that is broadcast over the dimension before them, a lane of sm_90 has 280 instructions for
16 elements, where tiles of rows took 815 for 16 places, half of which held none. In single
launches, an H200 (2026-11-30) took 6.40 µs for 144 × 237 of them in fp16, as compiled torch did,
and 42.2 for 77 × 257 rows of 1,455 in bf16, where it took 58.4.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import narrow
from tilewright.declared.shape.kernels.elementwise_chain import applied
from tilewright.ops.device.division import quotient


@triton.jit
def read(
    x, element, places, strides, inside,
    OVER: tl.constexpr, ALIKE: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """An operand's elements, in fp32."""
    if OVER == 0:
        found = tl.load(x)
    elif ALIKE:
        found = tl.load(x + element, inside)
    else:
        at = element * 0
        for i in tl.static_range(4):
            if OVER & (8 >> i):
                at += places[i] if UNIT and i == 3 else places[i] * strides[i].to(tl.int32)
        found = tl.load(x + at, inside)
    return found.to(tl.float32)


@triton.jit
def compute(
    x, a, b, c, y, element, places, x_s, a_s, b_s, c_s, inside,
    x_over: tl.constexpr, a_over: tl.constexpr, b_over: tl.constexpr, c_over: tl.constexpr,
    has_a: tl.constexpr, has_b: tl.constexpr, has_c: tl.constexpr,
    CHAIN: tl.constexpr, TAKES: tl.constexpr, UNIT: tl.constexpr, ALIKE: tl.constexpr,
):  # fmt: skip
    """The elements of a tile; inside: None, or which there are."""
    first, second, third = 0.0, 0.0, 0.0
    if has_a:
        first = read(a, element, places, a_s, inside, a_over, ALIKE & 2, UNIT)
    if has_b:
        second = read(b, element, places, b_s, inside, b_over, ALIKE & 4, UNIT)
    if has_c:
        third = read(c, element, places, c_s, inside, c_over, ALIKE & 8, UNIT)
    acc = read(x, element, places, x_s, inside, x_over, ALIKE & 1, UNIT)
    acc = applied(tl.broadcast_to(acc, element.shape), (first, second, third), CHAIN, TAKES)
    tl.store(y + element, narrow(acc, y.dtype.element_ty), inside)


@triton.jit
def elementwise_runs(
    x, a, b, c, y, n1, n2, n3, count, by_n1, shift_n1, by_n2, shift_n2, by_n3, shift_n3,
    x_s0, x_s1, x_s2, x_s3, a_s0, a_s1, a_s2, a_s3, b_s0, b_s1, b_s2, b_s3, c_s0, c_s1, c_s2, c_s3,
    x_over: tl.constexpr, a_over: tl.constexpr, b_over: tl.constexpr, c_over: tl.constexpr,
    has_a: tl.constexpr, has_b: tl.constexpr, has_c: tl.constexpr,
    CHAIN: tl.constexpr, TAKES: tl.constexpr, UNIT: tl.constexpr, ALIKE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """COLUMNS elements of all `count`. Places in operands fit 32 bits. UNIT: whether elements of
    every operand along the last dimension are neighbours."""
    start = tl.program_id(0) * COLUMNS
    element = start + tl.arange(0, COLUMNS)
    row = quotient(element, by_n3, shift_n3)
    line = quotient(row, by_n2, shift_n2)
    i0 = quotient(line, by_n1, shift_n1)
    places = (i0, line - i0 * n1, row - line * n2, element - row * n3)
    x_s, a_s = (x_s0, x_s1, x_s2, x_s3), (a_s0, a_s1, a_s2, a_s3)
    b_s, c_s = (b_s0, b_s1, b_s2, b_s3), (c_s0, c_s1, c_s2, c_s3)
    if count - start >= COLUMNS:
        compute(
            x, a, b, c, y, element, places, x_s, a_s, b_s, c_s, None, x_over, a_over, b_over,
            c_over, has_a, has_b, has_c, CHAIN, TAKES, UNIT, ALIKE,
        )  # fmt: skip
    else:
        compute(
            x, a, b, c, y, element, places, x_s, a_s, b_s, c_s, element < count, x_over, a_over,
            b_over, c_over, has_a, has_b, has_c, CHAIN, TAKES, UNIT, ALIKE,
        )  # fmt: skip
