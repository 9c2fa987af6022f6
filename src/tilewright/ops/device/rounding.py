"""Scales that take values to the whole range of a type of 8 bits."""

import triton
import triton.language as tl

BLOCK = tl.constexpr(128)
"""Elements of a row that share a scale, where rows are rounded by blocks."""

LEAST = tl.constexpr(2.0**-126)
"""A smaller scale has no inverse in fp32."""


@triton.constexpr_function
def largest(dtype):
    """The largest value that is stored in a type of 8 bits, 0 for wider types, which overflow."""
    return {"fp8e4nv": 448.0, "fp8e5": 57344.0, "fp8e4b8": 240.0, "fp8e5b16": 57344.0}.get(
        str(dtype), 127.0 if str(dtype) == "int8" else 0.0
    )


@triton.jit
def scale_of(most, DTYPE: tl.constexpr):
    """The scale that takes values of up to `most` to the whole range of a type; 1 for zeros."""
    top: tl.constexpr = largest(DTYPE)
    return tl.where(most > 0.0, most / top, 1.0)


@triton.jit
def scale_of_block(most, DTYPE: tl.constexpr):
    """The same, with an inverse: values are multiplied by it."""
    return tl.maximum(scale_of(most, DTYPE), LEAST)
