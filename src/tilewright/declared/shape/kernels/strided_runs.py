"""Elements of an array whose last dimension is short or odd, copied in the order of the result.

Idea. Rows of few elements fill no tile, and rows of odd length begin where no vector may. But y is
contiguous: a workgroup writes COLUMNS neighbours of it, over the ends of rows, as vectors of 16
bytes. An element's number is taken apart into its places by a product and a shift for each
dimension; an array that is contiguous itself (DIMS = 1) is read by that number, as vectors too.

Data. Every element is read once and written once, as in `strided_copy`. Elements of a short row
come from neighbouring bytes, so lines that a lane reads a part of are in L1 for the lanes beside
it. Whole tiles have no masks, which would break vectors where the elements are an odd number.

What limits it: memory, if the arithmetic is cheap enough. For rows of 15 elements of 2 bytes in 4
dimensions a lane of sm_90 has 387 instructions for 16 elements, where tiles of rows took 1098. Not
timed.
"""

import triton
import triton.language as tl

from tilewright.declared.shape.kernels.strided_copy import put
from tilewright.ops.conv.kernels.division import quotient


@triton.jit
def strided_runs(
    x, scale, y, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, count,
    by_n1, shift_n1, by_n2, shift_n2, by_n3, shift_n3, by_n4, shift_n4, by_few, shift_few,
    DIMS: tl.constexpr, COLUMNS: tl.constexpr, has_scale: tl.constexpr,
):  # fmt: skip
    """COLUMNS elements of all `count`. Places in x and y fit 32 bits, and s5 is 1. by_…, shift_…:
    what divides by a size; few: n5."""
    sizes = (n0, n1, n2, n3, n4, n5)
    strides = (s0, s1, s2, s3, s4)
    by = (by_n1, by_n1, by_n2, by_n3, by_n4, by_few)
    shift = (shift_n1, shift_n1, shift_n2, shift_n3, shift_n4, shift_few)
    first = tl.program_id(0) * COLUMNS
    element = first + tl.arange(0, COLUMNS)
    index, from_x = element, element * 0
    for back in tl.static_range(DIMS):
        place = index
        if back != DIMS - 1:
            index = quotient(index, by[5 - back], shift[5 - back])
            place -= index * sizes[5 - back]
        from_x += place if back == 0 else place * strides[5 - back].to(tl.int32)
    if count - first >= COLUMNS:
        put(y + element, tl.load(x + from_x), scale, None, has_scale)
    else:
        inside = element < count
        put(y + element, tl.load(x + from_x, inside), scale, inside, has_scale)
