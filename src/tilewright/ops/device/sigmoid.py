"""The logistic function, for kernels in which instructions count."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)): a root, squared, since a division takes more instructions."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -LOG2E))
    return root * root
