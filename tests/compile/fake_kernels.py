"""Kernels for the build tests: an element-wise one, a GEMM tile, and ones that go wrong."""

import fake_helper
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, fake_helper.twice(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def tile(a, b, c, k, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, 64):
        acc = tl.dot(a.load([0, start]), b.load([start, 0]), acc)
    c.store([0, 0], acc.to(tl.bfloat16))


@triton.jit
def wrong(x, y, n, BLOCK: tl.constexpr):
    tl.store(y, tl.load(x) + tl.arange(0, 3))  # 3 is no power of two


@triton.jit
def total(x, numbers):
    made = tl.program_id(0)
    for i in tl.static_range(len(numbers)):
        made += numbers[i]
    tl.store(x, made)
