"""GEMM with few rows of A, as in decoding: B is read once, at the speed of memory.

PROSE
"""

import triton
import triton.language as tl

from tilewright.ops.gemm.kernels.basic import _write
from tilewright.ops.gemm.kernels.reduce import reduce, workspace
from tilewright.ops.gemm.kernels.schedule import split_range


@triton.jit
def _part(k, splits, TILE_K: tl.constexpr, SPLIT: tl.constexpr):
    """From where to where this workgroup sums K: all of it, or its part, number program_id(1)."""
    k_begin = 0
    k_end = k
    if SPLIT:
        k_begin, k_end = split_range(tl.program_id(1), splits, k, TILE_K)
    return k_begin, k_end


@triton.jit
def _load(
    p, outer, count, k0, k, ld, TILE_K: tl.constexpr, K_INNER: tl.constexpr,
    MASK: tl.constexpr, MASK_K: tl.constexpr,
):  # fmt: skip
    """Rows `outer` of A, or columns of B, by TILE_K elements of K from `k0`; masked as in `basic`,
    but what lies past the end is the last row again, which takes no division."""
    offs_k = k0 + tl.arange(0, TILE_K)
    if K_INNER:
        rows = tl.minimum(outer, count - 1) if MASK else outer
        ptrs = p + rows[:, None] * ld + offs_k[None, :]
    else:
        ptrs = p + outer[:, None] + offs_k[None, :] * ld
    if MASK and not K_INNER:
        mask = (outer < count)[:, None] & ((offs_k < k)[None, :] if MASK_K else True)
        x = tl.load(ptrs, mask=mask, other=0.0)
    elif MASK_K:
        x = tl.load(ptrs, mask=(offs_k < k)[None, :], other=0.0)
    else:
        x = tl.load(ptrs)
    return x


@triton.jit
def _multiply(a_tile, b_tile, acc, K_PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """`acc` + B·A of tiles [rows of A, K] and [columns of B, K], on the matrix units: B's columns
    take the place of the rows of C, of which there are too few."""
    if K_PARTS == 1:
        acc = tl.dot(b_tile, a_tile.T, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    else:
        DEPTH: tl.constexpr = a_tile.shape[1] // K_PARTS
        b_parts = tl.permute(tl.reshape(b_tile, (b_tile.shape[0], K_PARTS, DEPTH)), (1, 0, 2))
        a_parts = tl.permute(tl.reshape(a_tile, (a_tile.shape[0], K_PARTS, DEPTH)), (1, 2, 0))
        acc = tl.dot(b_parts, a_parts, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


@triton.jit
def _zeros(
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, K_PARTS: tl.constexpr, INT_ACC: tl.constexpr
):
    ACC: tl.constexpr = tl.int32 if INT_ACC else tl.float32
    if K_PARTS == 1:
        acc = tl.zeros((TILE_N, TILE_M), dtype=ACC)
    else:
        acc = tl.zeros((K_PARTS, TILE_N, TILE_M), dtype=ACC)
    return acc


@triton.jit
def _finish(
    c, acc, m, n, ldc, extra, work, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr, FLAG_BYTES: tl.constexpr,
    INT_ACC: tl.constexpr, TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Meet the other parts of the tile, if there are any, and write it."""
    tile = tl.program_id(0)
    if SCHEDULER == "split_k":
        flags, partials = workspace(work, FLAG_BYTES, INT_ACC)
        part = tl.program_id(1)
        whole, acc = reduce(
            acc, flags, partials, part, splits, tile * splits, 1, 0, TILE_M, TILE_N, REDUCTION
        )
        if whole:
            _write(
                c, acc, m, n, ldc, extra, 0, tile, TILE_M, TILE_N,
                C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
            )  # fmt: skip
    else:
        _write(
            c, acc, m, n, ldc, extra, 0, tile, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
        )  # fmt: skip


@triton.jit
def gemm_small_m(
    a, b, c, m, n, k, lda, ldb, ldc, extra, work, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr, FLAG_BYTES: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    K_PARTS: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B; arguments as in `gemm_basic`. VECTOR: elements of K that a thread multiplies and
    adds up at once on the vector units; 0 for the matrix units, among whose warps K_PARTS share
    out each step's K."""
    k_begin, k_end = _part(k, splits, TILE_K, SCHEDULER == "split_k")
    offs_m = tl.arange(0, TILE_M)
    offs_n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    if VECTOR > 0:
        ACC: tl.constexpr = tl.int32 if INT_ACC else tl.float32
        VECTORS: tl.constexpr = TILE_K // VECTOR
        sums = tl.zeros((TILE_M, TILE_N, VECTORS), dtype=ACC)
        for k0 in tl.range(k_begin, k_end, TILE_K, num_stages=STAGES):
            b_tile = _load(b, offs_n, n, k0, k, ldb, TILE_K, not B_ROW, MASK_N, MASK_K)
            a_tile = _load(a, offs_m, m, k0, k, lda, TILE_K, A_ROW, MASK_M, MASK_K)
            if VECTOR == 16 and not INT_ACC:  # fp8, of which every value is one of fp16's
                b_tile = b_tile.to(tl.float16)
                a_tile = a_tile.to(tl.float16)
            b_vectors = tl.reshape(b_tile, (1, TILE_N, VECTORS, VECTOR)).to(ACC)
            a_vectors = tl.reshape(a_tile, (TILE_M, 1, VECTORS, VECTOR)).to(ACC)
            sums += tl.sum(a_vectors * b_vectors, axis=3)
        acc = tl.sum(sums, axis=2)
    else:
        parts = _zeros(TILE_M, TILE_N, K_PARTS, INT_ACC)
        for k0 in tl.range(k_begin, k_end, TILE_K, num_stages=STAGES):
            b_tile = _load(b, offs_n, n, k0, k, ldb, TILE_K, not B_ROW, MASK_N, MASK_K)
            a_tile = _load(a, offs_m, m, k0, k, lda, TILE_K, A_ROW, MASK_M, MASK_K)
            parts = _multiply(a_tile, b_tile, parts, K_PARTS, PRECISION)
        acc = (parts if K_PARTS == 1 else tl.sum(parts, axis=0)).T
    _finish(
        c, acc, m, n, ldc, extra, work, splits, TILE_M, TILE_N, C_ROW, SCHEDULER,
        REDUCTION, FLAG_BYTES, INT_ACC, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
    )  # fmt: skip


@triton.jit
def gemm_small_m_tma(
    a, b, c, m, n, k, ldc, extra, work, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr, FLAG_BYTES: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    K_PARTS: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """The same with a and b tensor descriptors, as in `gemm_tma`, and c a pointer."""
    k_begin, k_end = _part(k, splits, TILE_K, SCHEDULER == "split_k")
    col = tl.program_id(0) * TILE_N
    parts = _zeros(TILE_M, TILE_N, K_PARTS, INT_ACC)
    for k0 in range(k_begin, k_end, TILE_K):
        b_tile = b.load([k0, col]).T if B_ROW else b.load([col, k0])
        a_tile = a.load([0, k0]) if A_ROW else a.load([k0, 0]).T
        parts = _multiply(a_tile, b_tile, parts, K_PARTS, PRECISION)
    acc = (parts if K_PARTS == 1 else tl.sum(parts, axis=0)).T
    _finish(
        c, acc, m, n, ldc, extra, work, splits, TILE_M, TILE_N, C_ROW, SCHEDULER,
        REDUCTION, FLAG_BYTES, INT_ACC, TAKES, FOLD, LARGEST, True, True, CHAIN,
    )  # fmt: skip
