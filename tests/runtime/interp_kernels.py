"""Kernels for the interpreter's tests; imported by its child process, never by the tests."""

import os
import signal

import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def cast(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, v.to(y.dtype.element_ty), mask=i < n)


@triton.jit
def copy_2d(x, y, m, n, xm, xn, ym, yn, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    mask = (i < m) & (j < n)
    tl.store(y + i * ym + j * yn, tl.load(x + i * xm + j * xn, mask=mask), mask=mask)


@triton.jit
def write_row_past_its_end(y, n, ym, BLOCK: tl.constexpr):
    tl.store(y + ym * tl.program_id(0) + tl.arange(0, BLOCK), 1.0)


@triton.jit
def gemm(
    a, b, c, bias, m, n, k, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr, INTEGER: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(n, BN)
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(m, BM) * tiles_n, tl.num_programs(0), flatten=True
    ):
        rows = tile // tiles_n * BM + tl.arange(0, BM)
        columns = tile % tiles_n * BN + tl.arange(0, BN)
        inner = tl.max_contiguous(tl.multiple_of(tl.arange(0, BK), BK), BK)
        if INTEGER:
            acc = tl.zeros((BM, BN), dtype=tl.int32)
        else:
            acc = tl.zeros((BM, BN), dtype=tl.float32)
        for start in tl.range(0, k, BK, num_stages=3, warp_specialize=False):
            left = (k - start) > inner
            x = tl.load(
                a + rows[:, None] * sam + (start + inner)[None, :] * sak,
                mask=(rows[:, None] < m) & left[None, :],
                other=0.0,
            )
            y = tl.load(
                b + (start + inner)[:, None] * sbk + columns[None, :] * sbn,
                mask=left[:, None] & (columns[None, :] < n),
                other=0.0,
            )
            if INTEGER:
                acc = tl.dot(x, y, acc, out_dtype=tl.int32)
            else:
                acc = tl.dot(x, y, acc, input_precision=PRECISION)
        if RELU:
            acc += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
            acc = tl.where(acc > 0, acc, 0.0)
        where = c + rows[:, None] * scm + columns[None, :] * scn
        mask = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(where, acc.to(c.dtype.element_ty), mask=mask)


@triton.jit
def gemm_descriptors(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """B is [N, K]."""
    i = tl.program_id(0) * BM
    j = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in tl.range(0, k, BK, warp_specialize=True):
        acc = tl.dot(a.load([i, start]), tl.trans(b.load([j, start])), acc)
    c.store([i, j], acc.to(c.dtype))


@triton.jit
def arithmetic(x, y, z, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1.0)
    b = tl.load(y + i, mask=i < n, other=1.0)
    if OP == "add":
        r = a + b
    elif OP == "mul":
        r = a * b
    elif OP == "sub":
        r = a - b
    elif OP == "where":
        r = tl.where(a < b, a, b)
    elif OP == "max":
        r = tl.maximum(a, b)
    elif OP == "max_nan":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        r = tl.clamp(a, -1.0, 1.0)
    elif OP == "clamp_nan":
        r = tl.clamp(a, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "neg_abs":
        r = -tl.abs(a)
    elif OP == "exp":
        r = tl.exp(a.to(tl.float32))
    elif OP == "full":
        r = a + tl.full((BLOCK,), 1.5, tl.bfloat16)
    else:
        tl.static_assert(OP == "sum")
        r = a * 0 + tl.sum(a, axis=0)
    tl.store(z + i, r.to(z.dtype.element_ty), mask=i < n)


@triton.jit
def atomic_sum(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(total + i % 4, v, mask=i < n, sem="relaxed")


@triton.jit
def atomic_add(x, total, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(total + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def partial_sums(x, partial, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0), tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n).to(tl.int64) * factor, mask=i < n)


@triton.jit
def copy_if_positive(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = (tl.load(x) > 0) & (i < n)
    tl.store(y + i, tl.load(x + i, mask=mask) + mask.to(y.dtype.element_ty), mask=mask)


@triton.jit
def fail(x):
    if tl.program_id(0) == 2:
        raise ValueError("no such tile")


@triton.jit
def hang(x):
    while True:
        pass


@triton.constexpr_function
def end_process(how):
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))


@triton.jit
def die(x, HOW: tl.constexpr):
    end_process(HOW)


@triton.jit
def read_outside(x, n, BLOCK: tl.constexpr):
    tl.load(x + n + tl.arange(0, BLOCK))


@triton.jit
def chatty(x, n, BLOCK: tl.constexpr):
    print("to standard output")
    tl.store(x + tl.arange(0, BLOCK), 3.0, mask=tl.arange(0, BLOCK) < n)


def not_a_kernel():
    pass


@triton.jit
def dot_scaled(
    a, b, c, sa, sb, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, A_SCALED: tl.constexpr,
):  # fmt: skip
    """One tile: A is m × k, B k × n and row-major, its scales n × k/32."""
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    KA: tl.constexpr = K // 2 if A == "e2m1" else K
    KB: tl.constexpr = K // 2 if B == "e2m1" else K
    x = tl.load(a + m * KA + tl.arange(0, KA)[None, :])
    y = tl.load(b + tl.arange(0, KB)[:, None] * N + n)
    blocks = tl.arange(0, K // 32)[None, :]
    xs = tl.load(sa + m * (K // 32) + blocks) if A_SCALED else None
    ys = tl.load(sb + tl.arange(0, N)[:, None] * (K // 32) + blocks)
    acc = tl.full((M, N), 1.0, tl.float32)
    tl.store(c + m * N + n, tl.dot_scaled(x, xs, A, y, ys, B, acc))


@triton.jit
def load_tile(view, y, c0, c1, c2, c3, c4, RANK: tl.constexpr, SIZE: tl.constexpr):
    """A tile of a descriptor to y, in a row."""
    if RANK == 2:
        tile = view.load([c0, c1])
    elif RANK == 4:
        tile = view.load([c0, c1, c2, c3])
    else:
        tile = view.load([c0, c1, c2, c3, c4])
    tl.store(y + tl.arange(0, SIZE), tl.reshape(tile, (SIZE,)))


@triton.jit
def store_tile(
    x, view, c0, c1, c2, c3, c4, RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """The elements of x, which lie in a row, to a tile of a descriptor."""
    tile = tl.reshape(tl.load(x + tl.arange(0, SIZE)), BLOCK)
    if RANK == 2:
        view.store([c0, c1], tile)
    elif RANK == 4:
        view.store([c0, c1, c2, c3], tile)
    else:
        view.store([c0, c1, c2, c3, c4], tile)
