"""GEMM of the MX formats, by matrix instructions that take the scales.

Idea. In the MX formats (OCP Microscaling Formats specification v1.0) every 32 elements along K, fp8
or e2m1, share a scale that is a power of two. sm_100, sm_120 and gfx950 have matrix instructions
that take elements and scales; `tl.dot_scaled` becomes those. On other architectures it becomes
elements times scales in bf16, an exact product, and bf16 instructions. A may also be fp16 or bf16
without scales, with B in MX e2m1; every architecture then converts B.

Data movement. As in `basic`, ordinary loads. A tile's scales are a small tile of their own, with a
32nd of its K. e2m1 elements lie two to a byte along K.

Edges. Rows and columns past the end wrap around, and their results are never stored. Elements and
scales past the end of K are read as zeros, and a scale of code 0 is 2^-127. So a last block of
fewer than 32 elements needs no special treatment.

Seen in the compiled code for GPUs that were not available (128×128×128 tiles, Triton 3.6.0):

    gfx950    v_mfma_scale_f32_32x32x64_f8f6f4, in all mixtures of formats
    sm_100    tcgen05.mma kind::mxf8f6f4.block_scale, kind::mxf4 if both are e2m1; with tiles of
              64 rows bf16 instructions instead
    sm_120    mma.sync kind::mxf8f6f4.block_scale, kind::mxf4nvf4 if both are e2m1; bf16
              instructions if only one is

Where the compiler scales in bf16 (sm_80, sm_89, sm_90), a scale of 2^-127 counts as 0, and an
element times its scale overflows if it is beyond bf16's range, whatever the other operand's scale
is. On an H200 the kernel was right in every mixture of formats (tests/gpu/test_gpu_lowbit.py has
the cases). docs/notes/gemm-weights.md has its times with bf16 as A.
"""

import triton
import triton.language as tl

from tilewright.ops.device.reduce import reduce_split
from tilewright.ops.device.schedule import split_range, tile_coordinates
from tilewright.ops.gemm.kernels.basic import write


@triton.constexpr_function
def _packed(kind):
    return 2 if kind == "e2m1" else 1


@triton.jit
def accumulate(
    a, b, scales, rows, cols, k, lda, ldb, k_begin, k_end,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, MASK_K: tl.constexpr,
    A_SCALED: tl.constexpr, A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr,
):  # fmt: skip
    """The sum over K from `k_begin` (a multiple of TILE_K) to `k_end` of a tile with the rows
    `rows` of A and the columns `cols` of B, which lie inside."""
    A_PACKED: tl.constexpr = _packed(A_FORMAT)
    B_PACKED: tl.constexpr = _packed(B_FORMAT)
    a_k = tl.arange(0, TILE_K // A_PACKED)
    b_k = tl.arange(0, TILE_K // B_PACKED)
    blocks = tl.arange(0, TILE_K // 32)
    a_at = k_begin // A_PACKED + a_k
    b_at = k_begin // B_PACKED + b_k
    if A_ROW:
        a_ptrs = a + rows[:, None] * lda + a_at[None, :]
        a_step = TILE_K // A_PACKED
    else:
        a_ptrs = a + rows[:, None] + a_at[None, :] * lda
        a_step = TILE_K * lda
    if B_ROW:
        b_ptrs = b + b_at[:, None] * ldb + cols[None, :]
        b_step = TILE_K * ldb
    else:
        b_ptrs = b + b_at[:, None] + cols[None, :] * ldb
        b_step = TILE_K // B_PACKED
    # A's scales are a matrix over rows and blocks of K. B's are over blocks of K and columns, and
    # tl.dot_scaled needs them transposed.
    FIRST: tl.constexpr = 3 if A_SCALED else 0
    block = k_begin // 32 + blocks
    if A_SCALED:
        sa_ptrs = scales[0] + rows[:, None] * scales[1] + block[None, :] * scales[2]
    sb_ptrs = scales[FIRST] + cols[:, None] * scales[FIRST + 2] + block[None, :] * scales[FIRST + 1]

    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for k0 in range(k_begin, k_end, TILE_K):
        a_scales = None
        if MASK_K:
            a_tile = tl.load(a_ptrs, mask=(a_k < (k - k0) // A_PACKED)[None, :], other=0.0)
            b_tile = tl.load(b_ptrs, mask=(b_k < (k - k0) // B_PACKED)[:, None], other=0.0)
            if A_SCALED:
                a_scales = tl.load(sa_ptrs, mask=(blocks * 32 < k - k0)[None, :], other=0)
            b_scales = tl.load(sb_ptrs, mask=(blocks * 32 < k - k0)[None, :], other=0)
        else:
            a_tile = tl.load(a_ptrs)
            b_tile = tl.load(b_ptrs)
            if A_SCALED:
                a_scales = tl.load(sa_ptrs)
            b_scales = tl.load(sb_ptrs)
        acc = tl.dot_scaled(a_tile, a_scales, A_FORMAT, b_tile, b_scales, B_FORMAT, acc)
        a_ptrs += a_step
        b_ptrs += b_step
        if A_SCALED:
            sa_ptrs += TILE_K // 32 * scales[2]
        sb_ptrs += TILE_K // 32 * scales[FIRST + 1]
    return acc


@triton.jit
def gemm_mx(
    a, b, c, m, n, k, lda, ldb, ldc, extra, scales, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, SCALES: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, DONE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B. Arguments as in `basic`, except:

    A_FORMAT, B_FORMAT: the formats of A [m, k] and B [k, n], in the words of `tl.dot_scaled`. For
        e2m1, `ld*` count bytes.
    scales, SCALES: see `scale`; A's are left out if A has none.
    """
    A_SCALED: tl.constexpr = A_FORMAT != "fp16" and A_FORMAT != "bf16"
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    program = tl.program_id(0)
    whole = True
    if SCHEDULER == "split_k":
        tile_m, tile_n = tile_coordinates(program // splits, tiles_m, tiles_n, GROUP_M)
        k_begin, k_end = split_range(program % splits, splits, k, TILE_K)
    else:
        tile_m, tile_n = tile_coordinates(program, tiles_m, tiles_n, GROUP_M)
        k_begin = 0
        k_end = k
    rows = (tile_m * TILE_M + tl.arange(0, TILE_M)) % m
    cols = (tile_n * TILE_N + tl.arange(0, TILE_N)) % n
    acc = accumulate(
        a, b, scales, rows, cols, k, lda, ldb, k_begin, k_end, TILE_M, TILE_N, TILE_K,
        A_ROW, B_ROW, MASK_K, A_SCALED, A_FORMAT, B_FORMAT,
    )  # fmt: skip
    if SCHEDULER == "split_k":
        whole, acc = reduce_split(
            acc, flags, partials, program // splits, program % splits, splits,
            TILE_M, TILE_N, REDUCTION, DONE,
        )  # fmt: skip
    if whole:
        write(
            c, acc, m, n, ldc, extra, tile_m, tile_n, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
        )  # fmt: skip
