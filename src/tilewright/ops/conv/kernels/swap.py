"""A layout step: the weights with the last tap first and channels as filters, or back.

Idea. A workgroup moves a block of the weights that are written without gaps, [channels, taps,
filters], and works out where each lies in the other.

Data movement. Each weight is read and written once.

What limits it: the launch. Filters are few here, and so are the weights.
"""

import triton
import triton.language as tl


@triton.jit
def swap(
    source, made, count, filters, taps, strides, BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the `count` weights `made` of `source`; with BACK, `made` has the strides and `source`
    no gaps.

    strides: of (filter, channel, depth, height, width).
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    k = at % filters
    rest = at // filters
    whole = taps[0] * taps[1] * taps[2]
    tap = whole - 1 - rest % whole
    c = rest // whole
    w = tap % taps[2]
    h = tap // taps[2] % taps[1]
    d = tap // taps[2] // taps[1]
    place = k.to(tl.int64) * strides[0] + c.to(tl.int64) * strides[1]
    place += d * strides[2] + h * strides[3] + w * strides[4]
    if BACK:
        tl.store(made + place, tl.load(source + at, mask=there, other=0), mask=there)
    else:
        tl.store(made + at, tl.load(source + place, mask=there, other=0), mask=there)
