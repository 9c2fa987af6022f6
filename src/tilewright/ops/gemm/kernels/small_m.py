"""GEMM with few rows of A, as in decoding: B is read once, at the speed of memory.

Idea. With up to some 64 rows, reading B takes nearly all of the time. So the kernel must request
all of B early, from every compute unit, and lose no time before the first byte or after the last.
One workgroup has TILE_N columns of B and every row of A (there is one row of tiles, and no division
before the first load). There are two ways to multiply:

On the vector units (up to 4 rows). A thread loads 16 bytes of each column of the tile, and of each
row of A, at the same K, and sums their products in fp32. All threads of the workgroup lie along K
and combine their sums once, at the end. Nothing passes through shared memory, and threads wait only
for the loads themselves. With `num_stages` over 1 the loads run ahead through shared memory.

On the matrix units (from 8 or 16 rows). C is computed transposed: B's columns take the place of
rows, of which an instruction needs 16 or 64, and A's rows that of columns, of which 8 are enough.
If there are too few columns for every warp to have 16 of its own, the warps share out each step's K
(K_PARTS) and add up at the end. Then no operand is read twice from shared memory, and the chain of
dependent instructions is shorter by the same factor.

Data movement. `small_m` reads through pointers (on the matrix units through asynchronous copies or
buffer loads, pipelined over `num_stages`), `small_m_tma` through the copy engine. Both store C
through pointers. Schedulers: `tile`, and `split_k` if there are fewer tiles than compute units.
Edges are as in `basic` and `tma`. The operands of an epilogue are few, so they are loaded before
the sums (`epilogue.hold`).

Block scales. The products of each block of K are summed alone and then scaled in registers: on the
matrix units each block of a step is a part (K_PARTS), whose scales are read a step ahead; on the
vector units each vector's products lie in one block.

What limits it. The launch and memory: on an H200, kernels take 1.05 times as long as both on shapes
over 100 MB, and 1.12 times from 40 to 100 MB. On 36 bf16 shapes of decoding they reach 1.102 of
torch.mm's speed (geometric mean). More measurements, and what was tried:
docs/notes/gemm-small_m.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.ops.device.epilogue import held, hold, load, may_hold
from tilewright.ops.device.reduce import reduce_split
from tilewright.ops.device.scale import load_scales_along
from tilewright.ops.device.schedule import split_range
from tilewright.ops.gemm.kernels.basic import write


@triton.jit
def _part(k, splits, TILE_K: tl.constexpr, SPLIT: tl.constexpr):
    """The range of K that this workgroup sums: all of K, or part number program_id(1)."""
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
    """Rows `outer` of A, or columns of B, by TILE_K elements of K from `k0`. Masked as in `basic`,
    except that indices past the end read the last row again, which needs no division."""
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
def _in_parts(tile, K_PARTS: tl.constexpr):
    """A tile [outer, K] as [parts of K, outer, K of a part]."""
    DEPTH: tl.constexpr = tile.shape[1] // K_PARTS
    return tl.permute(tl.reshape(tile, (tile.shape[0], K_PARTS, DEPTH)), (1, 0, 2))


@triton.jit
def _multiply(
    a_tile, b_tile, acc, x, y, K_PARTS: tl.constexpr, PRECISION: tl.constexpr, SCALES: tl.constexpr
):  # fmt: skip
    """`acc` + B·A of tiles [rows of A, K] and [columns of B, K], on the matrix units. B's columns
    take the place of C's rows, of which there are too few. With SCALES, each part of K is a block,
    or lies within one, and `x` and `y` are the scales of A and B, [parts, rows or columns]."""
    if SCALES != "":
        a_parts = tl.permute(_in_parts(a_tile, K_PARTS), (0, 2, 1))
        products = tl.dot(_in_parts(b_tile, K_PARTS), a_parts, input_precision=PRECISION)
        acc += products.to(tl.float32) * (x[:, None, :] * y[:, :, None])
    elif K_PARTS == 1:
        acc = tl.dot(b_tile, a_tile.T, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    else:
        a_parts = tl.permute(_in_parts(a_tile, K_PARTS), (0, 2, 1))
        b_parts = _in_parts(b_tile, K_PARTS)
        acc = tl.dot(b_parts, a_parts, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


@triton.jit
def _scales(
    scales, offs_m, offs_n, k0, m, n, k,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, K_PARTS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """The scales of A and B for each part of the step at `k0` (see `_multiply`)."""
    x = 1.0
    y = 1.0
    if SCALES != "":
        ks = k0 + tl.arange(0, K_PARTS) * (TILE_K // K_PARTS)
        x, y = load_scales_along(scales, offs_m, offs_n, ks, m, n, k, TILE_N, SCALES)
    return x, y


@triton.jit
def _zeros(
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, K_PARTS: tl.constexpr, INT_ACC: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    ACC: tl.constexpr = tl.int32 if INT_ACC else tl.float32
    if K_PARTS == 1 and SCALES == "":
        acc = tl.zeros((TILE_N, TILE_M), dtype=ACC)
    else:
        acc = tl.zeros((K_PARTS, TILE_N, TILE_M), dtype=ACC)
    return acc


@triton.jit
def _added_up(parts):
    """The tile of C, [rows, columns], of sums as `_zeros` begins them."""
    return (parts if len(parts.shape) == 2 else tl.sum(parts, axis=0)).T


@triton.jit
def _finish(
    c, acc, m, n, ldc, extra, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr, DONE: tl.constexpr,
    INT_ACC: tl.constexpr, TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Combine with the other parts of the tile, if there are any that are added up here, and write
    it."""
    LOAD: tl.constexpr = held if may_hold(TAKES, FOLD) else load
    tile = tl.program_id(0)
    if REDUCTION == "two_stage":
        size = (m if C_ROW else n).to(tl.int64) * ldc
        write(
            c + tl.program_id(1) * size, acc, m, n, ldc, extra, 0, tile, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
        )  # fmt: skip
    elif SCHEDULER == "split_k":
        whole, acc = reduce_split(
            acc, flags, partials, tile, tl.program_id(1), splits,
            TILE_M, TILE_N, REDUCTION, DONE,
        )  # fmt: skip
        if whole:
            write(
                c, acc, m, n, ldc, extra, 0, tile, TILE_M, TILE_N,
                C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN, LOAD,
            )  # fmt: skip
    else:
        write(
            c, acc, m, n, ldc, extra, 0, tile, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN, LOAD,
        )  # fmt: skip


@triton.jit
def gemm_small_m(
    a, b, c, m, n, k, lda, ldb, ldc, extra, scales, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    K_PARTS: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr, SCALES: tl.constexpr,
    DONE: tl.constexpr, PDL: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B; arguments as in `gemm_basic`.

    VECTOR: elements of K that a thread multiplies and adds at once on the vector units; 0 for the
        matrix units.
    K_PARTS: parts of each step's K that the warps share out on the matrix units; with scales, the
        blocks of a step.
    scales, SCALES: see `scale`.
    PDL: whether it may start before the kernel before it has ended, and so waits for that first:
        ``none`` or ``wait``. The next kernel may start when every workgroup has read its part of A
        and B.
    """
    k_begin, k_end = _part(k, splits, TILE_K, SCHEDULER == "split_k")
    offs_m = tl.arange(0, TILE_M)
    offs_n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    if PDL != "none":
        gdc_wait()
    extra = hold(extra, offs_m, offs_n, m, n, TAKES, FOLD, MASK_M, MASK_N)
    if VECTOR > 0:
        ACC: tl.constexpr = tl.int32 if INT_ACC else tl.float32
        VECTORS: tl.constexpr = TILE_K // VECTOR
        TYPE: tl.constexpr = ACC if SCALES == "" else tl.float32
        sums = tl.zeros((TILE_M, TILE_N, VECTORS), dtype=TYPE)
        for k0 in tl.range(k_begin, k_end, TILE_K, num_stages=STAGES):
            b_tile = _load(b, offs_n, n, k0, k, ldb, TILE_K, not B_ROW, MASK_N, MASK_K)
            a_tile = _load(a, offs_m, m, k0, k, lda, TILE_K, A_ROW, MASK_M, MASK_K)
            if VECTOR == 16 and not INT_ACC:  # every fp8 value is also an fp16 value
                b_tile = b_tile.to(tl.float16)
                a_tile = a_tile.to(tl.float16)
            b_vectors = tl.reshape(b_tile, (1, TILE_N, VECTORS, VECTOR)).to(ACC)
            a_vectors = tl.reshape(a_tile, (TILE_M, 1, VECTORS, VECTOR)).to(ACC)
            products = tl.sum(a_vectors * b_vectors, axis=3).to(TYPE)
            if SCALES != "":
                ks = k0 + tl.arange(0, VECTORS) * VECTOR
                x, y = load_scales_along(scales, offs_m, offs_n, ks, m, n, k, TILE_N, SCALES)
                products *= x.T[:, None, :] * y.T[None, :, :]
            sums += products
        acc = tl.sum(sums, axis=2)
    else:
        parts = _zeros(TILE_M, TILE_N, K_PARTS, INT_ACC, SCALES)
        x, y = _scales(
            scales, offs_m, offs_n, k_begin, m, n, k, TILE_N, TILE_K, K_PARTS, SCALES
        )  # fmt: skip
        for k0 in tl.range(k_begin, k_end, TILE_K, num_stages=STAGES):
            b_tile = _load(b, offs_n, n, k0, k, ldb, TILE_K, not B_ROW, MASK_N, MASK_K)
            a_tile = _load(a, offs_m, m, k0, k, lda, TILE_K, A_ROW, MASK_M, MASK_K)
            parts = _multiply(a_tile, b_tile, parts, x, y, K_PARTS, PRECISION, SCALES)
            x, y = _scales(
                scales, offs_m, offs_n, k0 + TILE_K, m, n, k, TILE_N, TILE_K, K_PARTS, SCALES
            )  # fmt: skip
        acc = _added_up(parts)
    if PDL != "none":
        gdc_launch_dependents()
    _finish(
        c, acc, m, n, ldc, extra, flags, partials, splits, TILE_M, TILE_N, C_ROW, SCHEDULER,
        REDUCTION, DONE, INT_ACC, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
    )  # fmt: skip


@triton.jit
def gemm_small_m_tma(
    a, b, c, m, n, k, ldc, extra, scales, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    K_PARTS: tl.constexpr, SCALES: tl.constexpr, PDL: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """As `gemm_small_m`, with a and b tensor descriptors, as in `gemm_tma`, and c a pointer. PDL is
    ``none`` or ``wait``."""
    if PDL != "none":
        gdc_wait()
    k_begin, k_end = _part(k, splits, TILE_K, SCHEDULER == "split_k")
    col = tl.program_id(0) * TILE_N
    offs_m = tl.arange(0, TILE_M)
    offs_n = col + tl.arange(0, TILE_N)
    extra = hold(extra, offs_m, offs_n, m, n, TAKES, FOLD, True, True)
    parts = _zeros(TILE_M, TILE_N, K_PARTS, INT_ACC, SCALES)
    x, y = _scales(scales, offs_m, offs_n, k_begin, m, n, k, TILE_N, TILE_K, K_PARTS, SCALES)
    for k0 in range(k_begin, k_end, TILE_K):
        b_tile = b.load([k0, col]).T if B_ROW else b.load([col, k0])
        a_tile = a.load([0, k0]) if A_ROW else a.load([k0, 0]).T
        parts = _multiply(a_tile, b_tile, parts, x, y, K_PARTS, PRECISION, SCALES)
        x, y = _scales(
            scales, offs_m, offs_n, k0 + TILE_K, m, n, k, TILE_N, TILE_K, K_PARTS, SCALES
        )  # fmt: skip
    acc = _added_up(parts)
    if PDL != "none":
        gdc_launch_dependents()
    _finish(
        c, acc, m, n, ldc, extra, flags, partials, splits, TILE_M, TILE_N, C_ROW, SCHEDULER,
        REDUCTION, "", INT_ACC, TAKES, FOLD, LARGEST, True, True, CHAIN,
    )  # fmt: skip
