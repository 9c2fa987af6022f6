"""Small kernels for `test_gpu_launch.py`, each built in its own way to be launched."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def sums(x, sums, counter, n, BLOCK: tl.constexpr):
    """Adds each block's sum to sums[0], which must begin at zero, and counts the blocks."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(sums, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))
    tl.atomic_add(counter, 1)


@triton.jit
def finish(sums, counter, y, scale):
    """y is the scaled sum and the count of blocks; the counter is left at zero."""
    tl.store(y, tl.load(sums) * scale)
    tl.store(y + 1, tl.load(counter).to(tl.float32))
    tl.store(counter, 0)


@triton.jit
def fill(t, n, BLOCK: tl.constexpr):
    """t[i] = i"""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(t + i, i.to(tl.float32), mask=i < n)


@triton.jit
def copy_tile(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The first tile of a descriptor of two dimensions, packed."""
    tile = x.load([0, 0])
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(y + at, tile)


@triton.jit
def copy_tile_4d(x, y, i, j, A: tl.constexpr, B: tl.constexpr, COLUMNS: tl.constexpr):
    """The tile (1, A, B, COLUMNS) at (1, i, j, 0), packed."""
    tile = x.load([1, i, j, 0]).reshape(A * B, COLUMNS)
    at = tl.arange(0, A * B)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(y + at, tile)


@triton.jit
def meet(arrived, y):
    """Every program waits for all the others, which ends only if all of them run at once."""
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < tl.num_programs(0):
        pass
    tl.store(y + tl.program_id(0), tl.program_id(0))


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def double_dependent(x, y, n, BLOCK: tl.constexpr):
    """Waits for the kernel before it to have written x."""
    gdc_wait()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
    gdc_launch_dependents()
