"""Division by sizes that a launch knows: a product's upper half and a shift, in place of some
fifteen instructions. `ops.division.dividing` makes the numbers."""

import triton
import triton.language as tl


@triton.jit
def quotient(number, multiplier, shift):
    """number // size of numbers from 0 to 2³¹ - 1."""
    twice = number.to(tl.uint32) << 1
    upper = tl.umulhi(twice, multiplier.to(tl.uint32))
    return (upper >> shift.to(tl.uint32)).to(tl.int32)


@triton.jit
def apart_by(number, sizes, by, NDIM: tl.constexpr):
    """As convolution's `places.apart`, of numbers from 0. by: the multiplier and the shift of each
    size."""
    rest = quotient(number, by[4], by[5])
    width = number - rest * sizes[2]
    height = width * 0
    depth = width * 0
    if NDIM > 1:
        above = quotient(rest, by[2], by[3])
        height = rest - above * sizes[1]
        rest = above
    if NDIM > 2:
        above = quotient(rest, by[0], by[1])
        depth = rest - above * sizes[0]
        rest = above
    return rest, depth, height, width
