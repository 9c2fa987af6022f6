"""GEMM through pointers: the kernel that serves every shape, layout, dtype and architecture.

Idea. One workgroup computes one TILE_M × TILE_N tile of C, walking K in steps of TILE_K. The
scheduler decides which tile, and how much of K (see `schedule`).

Data movement. Operands are read with ordinary loads. Triton turns these into asynchronous copies to
shared memory (sm_80 and later), buffer loads (AMD, operands under 2 GiB) or plain vector loads, and
software-pipelines them over `num_stages`.

Edges. If a ragged dimension is an operand's *outer* dimension, indices past the end wrap around:
addresses stay inside the matrix, the loads stay wide, and the results are never stored. If it is
the *innermost* dimension, loads are masked. MASK_M, MASK_N and MASK_K say which dimensions need
this treatment; the config's `pad_*` and the layout decide (see `sizes.masked`).

Operations on A and B before the product (multi-ABD) act on the loaded tiles, in registers (see
`pre`).

Seen in the compiled code: on gfx942 and gfx950, 8- and 16-bit operands are read with buffer loads,
fp32 operands with global loads, whatever is promised about their addresses.

What limits it. Without the copy engine every warp spends issue slots on addresses. On sm_90 the
`tma` pipeline is faster for large shapes. There this pipeline is the fallback for shapes that
tensor maps cannot describe (rows that are not multiples of 16 bytes); on architectures without a
copy engine it is the only pipeline.
"""

import triton
import triton.language as tl

from tilewright.ops.device.batching import (
    extra_of,
    in_batch,
    in_matrix,
    in_sum,
    matrix_of,
    summed_k,
)
from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.epilogue import load as load_operand
from tilewright.ops.device.reduce import (
    add,
    load,
    reduce,
    reduce_split,
    store,
    take_turn,
    within_tile,
)
from tilewright.ops.device.scale import load_scales, scaled
from tilewright.ops.device.schedule import (
    contributors,
    shared_steps,
    split_range,
    stream_segment,
    tile_coordinates,
)
from tilewright.ops.device.widen import widened
from tilewright.ops.gemm.kernels.pre import combine


@triton.jit
def _accumulate(
    a, b, pre_a, pre_b, scales, m, n, k, lda, ldb, batch, z, tile_m, tile_n, k_begin, k_end,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES_A: tl.constexpr, TAKES_B: tl.constexpr, LARGEST_AB: tl.constexpr,
    BATCHING: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    ALIGNMENT: tl.constexpr, SCALES: tl.constexpr, CHAIN_A: tl.constexpr, CHAIN_B: tl.constexpr,
):  # fmt: skip
    """The tile's sum over K from `k_begin` (a multiple of TILE_K) to `k_end`, in matrix `z`."""
    if BATCHING != "summed":
        a = matrix_of(a, batch, z, 1, BATCHING, ALIGNMENT)
        b = matrix_of(b, batch, z, 2, BATCHING, ALIGNMENT)
    offs_m = tile_m * TILE_M + tl.arange(0, TILE_M)
    offs_n = tile_n * TILE_N + tl.arange(0, TILE_N)
    offs_k = (0 if BATCHING == "summed" else k_begin) + tl.arange(0, TILE_K)
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
    if SCALES != "":
        k1 = min(k_begin, k_end - 1)  # the last part of a split K may be empty
        x, y = load_scales(
            scales, tile_m * TILE_M, tile_n * TILE_N, k1, m, n, TILE_M, TILE_N, SCALES
        )
    for k0 in range(k_begin, k_end, TILE_K):
        at = k0
        a_at = a_ptrs
        b_at = b_ptrs
        if BATCHING == "summed":
            here, at = in_sum(k0, k, TILE_K)
            a_at = matrix_of(a_ptrs, batch, here, 1, BATCHING, ALIGNMENT) + at // TILE_K * a_step
            b_at = matrix_of(b_ptrs, batch, here, 2, BATCHING, ALIGNMENT) + at // TILE_K * b_step
        in_k = tl.arange(0, TILE_K) < k - at
        if MASK_M and not A_ROW:
            a_mask = (offs_m < m)[:, None] & (in_k[None, :] if MASK_K else True)
            a_tile = tl.load(a_at, mask=a_mask, other=0.0)
        elif MASK_K:
            a_tile = tl.load(a_at, mask=in_k[None, :], other=0.0)
        else:
            a_tile = tl.load(a_at)
        if MASK_N and B_ROW:
            b_mask = (offs_n < n)[None, :] & (in_k[:, None] if MASK_K else True)
            b_tile = tl.load(b_at, mask=b_mask, other=0.0)
        elif MASK_K:
            b_tile = tl.load(b_at, mask=in_k[:, None], other=0.0)
        else:
            b_tile = tl.load(b_at)
        a_tile = combine(
            a_tile, pre_a, tile_m * TILE_M, k0, m, k, CHAIN_A, TAKES_A, A_ROW,
            MASK_M, MASK_K, LARGEST_AB,
        )  # fmt: skip
        b_tile = combine(
            b_tile, pre_b, k0, tile_n * TILE_N, k, n, CHAIN_B, TAKES_B, B_ROW,
            MASK_K, MASK_N, LARGEST_AB,
        )  # fmt: skip
        b_tile = widened(b_tile, a_tile)
        if SCALES != "":
            partial = tl.dot(a_tile, b_tile, input_precision=PRECISION)
            acc += scaled(partial, x, y, SCALES)
            k1 = min(k0 + TILE_K, k_end - 1)
            x, y = load_scales(
                scales, tile_m * TILE_M, tile_n * TILE_N, k1, m, n, TILE_M, TILE_N, SCALES
            )
        else:
            acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        if BATCHING != "summed":
            a_ptrs += a_step
            b_ptrs += b_step
    return acc


@triton.jit
def write(
    c, acc, m, n, ldc, extra, tile_m, tile_n,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, C_ROW: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, CHAIN: tl.constexpr,
    LOAD: tl.constexpr = load_operand,
):  # fmt: skip
    """The epilogue of a whole sum, and the tile of C. LOAD: see `epilogue`."""
    acc = apply(
        acc, extra, tile_m * TILE_M, tile_n * TILE_N, m, n, CHAIN, TAKES, C_ROW, MASK_M, MASK_N,
        LOAD=LOAD,
    )  # fmt: skip
    out = rounded(acc, c.dtype.element_ty, LARGEST)
    offs_m = tile_m * TILE_M + tl.arange(0, TILE_M)
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
def _write(
    c, acc, m, n, ldc, extra, batch, z, tile_m, tile_n,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, C_ROW: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, BATCHING: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, ALIGNMENT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """`write` for matrix `z` of C."""
    write(
        matrix_of(c, batch, z, 3, BATCHING, ALIGNMENT), acc, m, n, ldc,
        extra_of(extra, batch, z, TAKES, BATCHING), tile_m, tile_n,
        TILE_M, TILE_N, C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
    )  # fmt: skip


@triton.jit
def gemm_basic(
    a, b, c, m, n, k, lda, ldb, ldc, pre_a, pre_b, extra, scales, batch, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    TAKES_A: tl.constexpr, TAKES_B: tl.constexpr, LARGEST_AB: tl.constexpr, SCALES: tl.constexpr,
    BATCHING: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    ALIGNMENT: tl.constexpr, DONE: tl.constexpr, CHAIN: tl.constexpr,
    CHAIN_A: tl.constexpr, CHAIN_B: tl.constexpr,
):  # fmt: skip
    """C = A·B. A is m × k, B is k × n, C is m × n.

    ld*: strides of the outer dimension in elements. They are 64-bit integers if an operand spans 2
        GiB or more, and then so are all offsets.
    *_ROW: whether the matrix is row-major.
    flags, partials, splits: for the schedulers that share tiles (see `schedule` and `reduce`); the
        others ignore them.
    extra, TAKES, CHAIN: see `epilogue`; C has n / FOLD columns.
    pre_a, TAKES_A, CHAIN_A, and the same for B: see `pre`.
    scales, SCALES: see `scale`.
    batch, BATCHING: see `batching`; `batch` has the strides of A, B and C if they are strided.
    """
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    all_k = summed_k(k, batch, TILE_K, BATCHING)
    first = tl.program_id(0)
    if SCHEDULER == "split_k":
        tile = first // splits
        i = first % splits
        k_begin, k_end = split_range(i, splits, all_k, TILE_K)
        z, within = in_matrix(tile, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        acc = _accumulate(
            a, b, pre_a, pre_b, scales, m, n, k, lda, ldb, batch, z, tile_m, tile_n, k_begin, k_end,
            TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, TAKES_A, TAKES_B, LARGEST_AB,
            BATCHING, MASK_M, MASK_N, MASK_K, ALIGNMENT, SCALES, CHAIN_A, CHAIN_B,
        )  # fmt: skip
        if REDUCTION == "two_stage":
            size = (m if C_ROW else n).to(tl.int64) * ldc
            write(
                c + i * size, acc, m, n, ldc, extra, tile_m, tile_n,
                TILE_M, TILE_N, C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
            )  # fmt: skip
        else:
            whole, acc = reduce_split(
                acc, flags, partials, tile, i, splits, TILE_M, TILE_N, REDUCTION, DONE
            )
            if whole:
                _write(
                    c, acc, m, n, ldc, extra, batch, z, tile_m, tile_n, TILE_M, TILE_N,
                    C_ROW, TAKES, FOLD, LARGEST, BATCHING, MASK_M, MASK_N, ALIGNMENT, CHAIN,
                )  # fmt: skip
    elif SCHEDULER == "tile":
        z, within = in_matrix(first, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        acc = _accumulate(
            a, b, pre_a, pre_b, scales, m, n, k, lda, ldb, batch, z, tile_m, tile_n, 0, all_k,
            TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, TAKES_A, TAKES_B, LARGEST_AB,
            BATCHING, MASK_M, MASK_N, MASK_K, ALIGNMENT, SCALES, CHAIN_A, CHAIN_B,
        )  # fmt: skip
        _write(
            c, acc, m, n, ldc, extra, batch, z, tile_m, tile_n, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, BATCHING, MASK_M, MASK_N, ALIGNMENT, CHAIN,
        )  # fmt: skip
    else:
        shared_tiles = 0
        if SCHEDULER == "stream_k":
            shared_tiles = splits
            steps = tl.cdiv(all_k, TILE_K)
            ways, share, at, end = shared_steps(shared_tiles, steps)
            while at < end:
                tile, k_begin, k_end = stream_segment(at, end, steps, all_k, TILE_K)
                z, within = in_matrix(tile, each, BATCHING)
                tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
                acc = _accumulate(
                    a, b, pre_a, pre_b, scales, m, n, k, lda, ldb, batch, z,
                    tile_m, tile_n, k_begin, k_end,
                    TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC,
                    TAKES_A, TAKES_B, LARGEST_AB, BATCHING, MASK_M, MASK_N, MASK_K,
                    ALIGNMENT, SCALES, CHAIN_A, CHAIN_B,
                )  # fmt: skip
                earliest, count, shift = contributors(tile, steps, ways, share)
                whole = count == 1
                if count > 1:
                    base = tile if REDUCTION == "atomic" else 2 * earliest
                    last = take_turn(flags, count, base, 2, shift, REDUCTION)
                    whole, acc = reduce(
                        acc, last, flags, partials, within_tile(TILE_M, TILE_N),
                        first - earliest, count, base, 2, shift, REDUCTION,
                        store, load, add, DONE,
                    )  # fmt: skip
                if whole:
                    _write(
                        c, acc, m, n, ldc, extra, batch, z, tile_m, tile_n, TILE_M, TILE_N,
                        C_ROW, TAKES, FOLD, LARGEST, BATCHING, MASK_M, MASK_N, ALIGNMENT, CHAIN,
                    )  # fmt: skip
                at = min(end, (tile + 1) * steps)
        for tile in tl.range(shared_tiles + first, tiles, tl.num_programs(0)):
            z, within = in_matrix(tile, each, BATCHING)
            tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
            acc = _accumulate(
                a, b, pre_a, pre_b, scales, m, n, k, lda, ldb, batch, z, tile_m, tile_n, 0, all_k,
                TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, TAKES_A, TAKES_B,
                LARGEST_AB, BATCHING, MASK_M, MASK_N, MASK_K, ALIGNMENT, SCALES, CHAIN_A, CHAIN_B,
            )  # fmt: skip
            _write(
                c, acc, m, n, ldc, extra, batch, z, tile_m, tile_n, TILE_M, TILE_N,
                C_ROW, TAKES, FOLD, LARGEST, BATCHING, MASK_M, MASK_N, ALIGNMENT, CHAIN,
            )  # fmt: skip
