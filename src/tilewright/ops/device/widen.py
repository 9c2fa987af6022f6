"""A tile of B in the dtype of A's, for weights in 8 bits beside activations in 16.

Idea. The matrix units multiply two operands of one width. Every value of an 8-bit type is one of
fp16 and of bf16 too, so B's elements are converted as they are, in registers, and nothing is
rounded.

What limits it. The conversion's instructions, and on sm_90, where wgmma reads B from shared memory
alone, the way back there.
"""

import triton
import triton.language as tl


@triton.jit
def widened(b, a):
    """The tile `b` in the dtype of `a`, if its elements have fewer bits than those of `a`."""
    WIDENS: tl.constexpr = b.dtype.primitive_bitwidth < a.dtype.primitive_bitwidth
    if WIDENS:
        b = b.to(a.dtype)
    return b
