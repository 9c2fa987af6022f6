"""Operations of chains on elements that epilogues have not, each of fp32 elements.

Edges. NaN propagates. Logarithms and roots of negative elements are NaN, as in torch. Powers are
exp2(p · log2 |x|), negative where x is and p is odd, and NaN where p is not whole and x is negative
and finite, as C has them.
"""

import triton
import triton.language as tl


@triton.jit
def minus(acc, x):
    return acc - x


@triton.jit
def over(acc, x):
    return acc / x


@triton.jit
def negative(acc):
    return -acc


@triton.jit
def absolute(acc):
    return tl.abs(acc)


@triton.jit
def exp(acc):
    return tl.exp(acc)


@triton.jit
def log(acc):
    return tl.log(acc)


@triton.jit
def sqrt(acc):
    return tl.sqrt(acc)


@triton.jit
def rsqrt(acc):
    return tl.rsqrt(acc)


@triton.jit
def sigmoid(acc):
    return 1.0 / (1.0 + tl.exp(-acc))


@triton.jit
def tanh(acc):
    # Near 0 the quotient would be a difference of numbers near 1: the series keeps the digits.
    size = tl.abs(acc)
    square = acc * acc
    series = 0.13333333333 + square * (-0.053968253968 + square * 0.021869488536)
    series = acc + acc * square * (-0.33333333333 + square * series)
    power = tl.exp(-2.0 * size)
    far = (1.0 - power) / (1.0 + power)
    return tl.where(size < 0.25, series, tl.where(acc < 0, -far, far))


@triton.jit
def power(acc, x):
    made = tl.exp2(x * tl.log2(tl.abs(acc)))
    whole = tl.floor(x) == x
    odd = whole & (tl.floor(0.5 * x) * 2.0 != x)
    real = whole | (acc == -float("inf"))
    signed = tl.where(real, tl.where(odd, -made, made), float("nan"))
    made = tl.where(acc < 0, signed, made)
    return tl.where((x == 0.0) | (acc == 1.0), 1.0, made)
