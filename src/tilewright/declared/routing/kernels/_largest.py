"""The largest of each row of a tile, in order.

fp32 values are turned into int32 keys with the same order, so that a comparison of whole numbers
decides, for NaN too, and NOTHING is less than every value. Each of k rounds takes the largest key
of a row, then the lowest place that has it: two reductions of 32 bits, which are one instruction
each for a warp of sm_80 and later, and use one register where a key with its place would use two.
A bitonic sort (``tl.topk``) moves as many values between lanes for the few that routing takes, and
would sort k rounded up to a power of two.
"""

import triton
import triton.language as tl

from tilewright.ops.powers import power_of_two as least_power_of_two

NOTHING = tl.constexpr(-(2**31))
"""The key of what cannot be chosen."""
MOST = tl.constexpr(2**31 - 1)


@triton.jit
def ordered(values):
    """Keys of fp32 values. NaN is above all, and -0.0 equals 0.0."""
    bits = values.to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & MOST)
    keys = tl.where(values == 0.0, 0, keys)
    return tl.where(values != values, MOST, keys)


@triton.jit
def number(keys):
    """The values that keys are of."""
    return (keys ^ ((keys >> 31) & MOST)).to(tl.float32, bitcast=True)


@triton.jit
def best(keys, place):
    """The largest key of each row [ROWS], and the lowest place that has it.

    place: [1, columns], or as `keys`.
    """
    most = tl.max(keys, 1)
    return most, tl.min(tl.where(keys == most[:, None], place, MOST), 1)


@triton.jit
def largest(keys, place, COUNT: tl.constexpr, SLOTS: tl.constexpr):
    """The places [ROWS, SLOTS] of the COUNT largest keys of each row, the largest first, and the
    keys without them."""
    slot = tl.arange(0, SLOTS)[None, :]
    found = tl.zeros((keys.shape[0], SLOTS), tl.int32)
    for turn in range(COUNT):
        _, at = best(keys, place)
        found = tl.where(slot == turn, at[:, None], found)
        keys = tl.where(place == at[:, None], NOTHING, keys)
    return found, keys


power_of_two = triton.constexpr_function(least_power_of_two)
