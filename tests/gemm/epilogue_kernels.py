"""A user's own operations: the compiler's process and the interpreter's import this file."""

import triton
import triton.language as tl


@triton.jit
def squared_relu(acc):
    return tl.where(acc > 0, acc * acc, 0.0)


@triton.jit
def blend(acc, weight, other):
    return acc + weight * (other - acc)


@triton.jit
def reciprocal(acc):
    return 1.0 / acc
