"""Elements of an array whose last dimension is short or odd, copied in the order of the result.

Idea. Rows of few elements fill no tile, and rows of odd length begin where no vector may. But y is
contiguous: a workgroup writes COLUMNS neighbours of it, over the ends of rows, as vectors of 16
bytes. A vector lies in two rows at most where rows are as long: where either begins is worked out
once for the vector, by a product and a shift for each dimension. In shorter rows each element's
number is taken apart. An array that is contiguous itself (DIMS = 1) is read by that number, as
vectors too.

Data. Every element is read once and written once, as in `strided_copy`. Elements of a short row
come from neighbouring bytes, so lines that a lane reads a part of are in L1 for the lanes beside
it. Whole tiles have no masks, which would break vectors where the elements are an odd number.

What limits it: memory, if the arithmetic is cheap enough. For rows of 15 elements of 2 bytes in 4
dimensions a lane of sm_90 has 208 instructions for 16 elements; with each element's number taken
apart they were 387, and 1098 in tiles of rows. An H200 took 27.6 µs for 22.6 million elements, and
33.5 with 387 (single copies, 2026-11-30), where torch's compiled code took 30.6.
"""

import triton
import triton.language as tl

from tilewright.declared.shape.kernels.strided_copy import put
from tilewright.ops.device.division import quotient


@triton.jit
def begin_of(row, sizes, strides, by, shift, DIMS: tl.constexpr):
    """Where rows begin in x."""
    index, found = row, row * 0
    for back in tl.static_range(1, DIMS):
        place = index
        if back != DIMS - 1:
            index = quotient(index, by[5 - back], shift[5 - back])
            place -= index * sizes[5 - back]
        found += place * strides[5 - back].to(tl.int32)
    return found


@triton.jit
def of_two_rows(begin, n, sizes, strides, by, shift, DIMS: tl.constexpr):
    """Where elements `begin` + `n` are in x, of vectors that lie in two rows at most."""
    row = quotient(begin, by[5], shift[5])
    left = (row + 1) * sizes[5] - begin
    here = begin_of(row, sizes, strides, by, shift, DIMS) + sizes[5] - left
    there = begin_of(row + 1, sizes, strides, by, shift, DIMS) - left
    return tl.where(n < left[:, None], here[:, None], there[:, None]) + n


@triton.jit
def strided_runs(
    x, scale, y, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, count,
    by_n1, shift_n1, by_n2, shift_n2, by_n3, shift_n3, by_n4, shift_n4, by_few, shift_few,
    DIMS: tl.constexpr, PACKED: tl.constexpr, COLUMNS: tl.constexpr, has_scale: tl.constexpr,
):  # fmt: skip
    """COLUMNS elements of all `count`. Places in x and y fit 32 bits, and s5 is 1. by_…, shift_…:
    what divides by a size; few: n5. PACKED: ``ends`` where a row has a vector or more."""
    sizes = (n0, n1, n2, n3, n4, n5)
    strides = (s0, s1, s2, s3, s4)
    by = (by_n1, by_n1, by_n2, by_n3, by_n4, by_few)
    shift = (shift_n1, shift_n1, shift_n2, shift_n3, shift_n4, shift_few)
    VECTOR: tl.constexpr = 128 // y.dtype.element_ty.primitive_bitwidth
    first = tl.program_id(0) * COLUMNS
    begin = first + tl.arange(0, COLUMNS // VECTOR) * VECTOR
    n = tl.arange(0, VECTOR)[None, :]
    element = begin[:, None] + n
    from_x = element
    if DIMS > 1:
        if PACKED == "ends":
            from_x = of_two_rows(begin, n, sizes, strides, by, shift, DIMS)
        else:
            row = quotient(element, by_few, shift_few)
            from_x = begin_of(row, sizes, strides, by, shift, DIMS) + element - row * n5
    if count - first >= COLUMNS:
        put(y + element, tl.load(x + from_x), scale, None, has_scale)
    else:
        inside = element < count
        put(y + element, tl.load(x + from_x, inside), scale, inside, has_scale)
