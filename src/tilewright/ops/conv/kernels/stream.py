"""Depthwise convolutions of one tap: a product of two numbers for each element, in one stream.

Idea. Where pixels lie without gaps, strides are 1 and nothing is padded, the result lies as the
source does, and each element is the source's times its channel's weight. So no pixel's place is
looked for: a row of a tile is a vector of TILE_N neighbouring channels, counted from the array's
first. Which channels these are is the remainder of one division by the vectors of a pixel. The
gradient of the data is the same product of y and the weights.

Data movement. Each array once, in vectors; the weights are few and stay in L1.

What limits it: memory, and for small arrays the launch. Not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.device.division import quotient
from tilewright.ops.device.epilogue import rounded


@triton.jit
def conv_stream(
    source, weights, made, vectors, across, across_by,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, INT_ACC: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """TILE_M vectors of the result, of all `vectors`; `across` of them are a pixel."""
    vector = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    lane = tl.arange(0, TILE_N)
    of_pixel = vector - quotient(vector, across_by[0], across_by[1]) * across
    there = (vector < vectors)[:, None]
    places = (vector * TILE_N)[:, None] + lane[None, :]
    like: tl.constexpr = tl.int32 if INT_ACC else tl.float32
    x = tl.load(source + places, mask=there, other=0.0).to(like)
    factor = tl.load(
        weights + ((of_pixel * TILE_N)[:, None] + lane[None, :]), mask=there, other=0.0
    ).to(like)
    tl.store(made + places, rounded(x * factor, made.dtype.element_ty, LARGEST), mask=there)
