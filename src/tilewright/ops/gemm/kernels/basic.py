"""GEMM through pointers: the kernel that serves every shape, layout, dtype and architecture.

Idea. One workgroup computes one TILE_M × TILE_N tile of C (or, with the persistent scheduler,
every num_programs-th tile), walking K in steps of TILE_K.

Data movement. Operands are read with ordinary loads, which Triton turns into asynchronous
copies to shared memory (sm_80 and later), buffer loads (AMD, operands under 2 GiB) or plain
vector loads, and software-pipelines over `num_stages`.

Edges. A dimension that runs along an operand's rows or columns is handled in one of two ways.
Where it is the *outer* dimension, indices past the end wrap around: addresses stay inside the
matrix, the loads stay wide, and what they compute is never stored. Where it is the *innermost*
dimension, loads are masked. MASK_M, MASK_N and MASK_K say which dimensions need either; the
config's `pad_*` and the layout decide (see `rules.masked`).

Seen in the code that comes out: on gfx942 and gfx950, 8- and 16-bit operands are read with
buffer loads, fp32 ones with global loads, whatever is promised about their addresses.

What limits it. Without the copy engine every warp spends issue slots on addresses; on sm_90
the `tma` pipeline is the faster one for large shapes. Here it is the fallback for shapes that
tensor maps cannot describe (rows that are not multiples of 16 bytes) and the only pipeline of
the architectures without a copy engine.
"""

import triton
import triton.language as tl

from tilewright.ops.gemm.kernels.epilogue import apply, rounded
from tilewright.ops.gemm.kernels.schedule import tile_coordinates


@triton.jit
def _tile(
    a, b, c, m, n, k, lda, ldb, ldc, extra, tile_m, tile_n,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    offs_m = tile_m * TILE_M + tl.arange(0, TILE_M)
    offs_n = tile_n * TILE_N + tl.arange(0, TILE_N)
    offs_k = tl.arange(0, TILE_K)
    rows = offs_m
    cols = offs_n
    if MASK_M and A_ROW:
        rows = offs_m % m
    if MASK_N and not B_ROW:
        cols = offs_n % n

    if A_ROW:
        a_ptrs = a + rows[:, None] * lda + offs_k[None, :]
        a_step = TILE_K
    else:
        a_ptrs = a + rows[:, None] + offs_k[None, :] * lda
        a_step = TILE_K * lda
    if B_ROW:
        b_ptrs = b + offs_k[:, None] * ldb + cols[None, :]
        b_step = TILE_K * ldb
    else:
        b_ptrs = b + offs_k[:, None] + cols[None, :] * ldb
        b_step = TILE_K

    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.int32 if INT_ACC else tl.float32)
    for k0 in range(0, k, TILE_K):
        in_k = offs_k < k - k0
        if MASK_M and not A_ROW:
            a_mask = (offs_m < m)[:, None] & (in_k[None, :] if MASK_K else True)
            a_tile = tl.load(a_ptrs, mask=a_mask, other=0.0)
        elif MASK_K:
            a_tile = tl.load(a_ptrs, mask=in_k[None, :], other=0.0)
        else:
            a_tile = tl.load(a_ptrs)
        if MASK_N and B_ROW:
            b_mask = (offs_n < n)[None, :] & (in_k[:, None] if MASK_K else True)
            b_tile = tl.load(b_ptrs, mask=b_mask, other=0.0)
        elif MASK_K:
            b_tile = tl.load(b_ptrs, mask=in_k[:, None], other=0.0)
        else:
            b_tile = tl.load(b_ptrs)
        acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        a_ptrs += a_step
        b_ptrs += b_step

    acc = apply(
        acc, extra, tile_m * TILE_M, tile_n * TILE_N, m, n, CHAIN, TAKES, C_ROW, MASK_M, MASK_N
    )  # fmt: skip
    out = rounded(acc, c.dtype.element_ty, LARGEST)
    if FOLD != 1:
        offs_n = tile_n * (TILE_N // FOLD) + tl.arange(0, TILE_N // FOLD)
        n = n // FOLD
    if C_ROW:
        c_ptrs = c + offs_m[:, None] * ldc + offs_n[None, :]
    else:
        c_ptrs = c + offs_m[:, None] + offs_n[None, :] * ldc
    if MASK_M and MASK_N:
        tl.store(c_ptrs, out, mask=(offs_m < m)[:, None] & (offs_n < n)[None, :])
    elif MASK_M:
        tl.store(c_ptrs, out, mask=(offs_m < m)[:, None])
    elif MASK_N:
        tl.store(c_ptrs, out, mask=(offs_n < n)[None, :])
    else:
        tl.store(c_ptrs, out)


@triton.jit
def gemm_basic(
    a, b, c, m, n, k, lda, ldb, ldc, extra,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    PERSISTENT: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B. A is m × k, B is k × n, C is m × n; `ld*` are strides of the outer dimension in
    elements (64-bit integers where an operand spans 2 GiB or more, and then so are all offsets);
    `*_ROW` say which of them are row-major. `extra`, TAKES and CHAIN: see `epilogue`; C has
    n / FOLD columns."""
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    if PERSISTENT:
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
            _tile(
                a, b, c, m, n, k, lda, ldb, ldc, extra, tile_m, tile_n, TILE_M, TILE_N, TILE_K,
                A_ROW, B_ROW, C_ROW, PRECISION, INT_ACC, TAKES, FOLD, LARGEST,
                MASK_M, MASK_N, MASK_K, CHAIN,
            )  # fmt: skip
    else:
        tile_m, tile_n = tile_coordinates(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
        _tile(
            a, b, c, m, n, k, lda, ldb, ldc, extra, tile_m, tile_n, TILE_M, TILE_N, TILE_K,
            A_ROW, B_ROW, C_ROW, PRECISION, INT_ACC, TAKES, FOLD, LARGEST,
            MASK_M, MASK_N, MASK_K, CHAIN,
        )  # fmt: skip
