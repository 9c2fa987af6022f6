"""Lengths, offsets and indices that lie on the device, unchecked: a call does not wait for the
device, so no error can say that one is wrong. Each is clamped where it is loaded to what the
operands hold; so no kernel reads or writes outside of them, whatever the numbers are. What a number
then means, the families' pages say.

Gluon kernels call these functions too: they name no layout.
"""

import triton
import triton.language as tl


@triton.jit
def bounded(value, most):
    """`value` within 0 … `most`."""
    return tl.minimum(tl.maximum(value, 0), most)


@triton.jit
def length_at(lengths, at, most):
    """Number `at` of `lengths`, within 0 … `most`."""
    return bounded(tl.load(lengths + at), most)


@triton.jit
def range_at(offsets, at, total):
    """(begin, count) of range `at`, from its offset to the next, within 0 … `total`: none where the
    next is no greater."""
    begin = length_at(offsets, at, total)
    end = length_at(offsets, at + 1, total)
    return begin, tl.maximum(end - begin, 0)
