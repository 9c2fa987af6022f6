"""GEMM with shuffled weights: B lies in memory in the order in which the matrix units read it.

Idea. Weights never change, so they can be shuffled once (``tilewright.shuffle``). B comes as [n /
16, k / (4 V), 64, V], where V elements are 16 bytes: blocks of 1 KiB for 16 columns, one after
another along K. A tile of B is then TILE_N / 16 contiguous runs, read by 16-byte loads for any
shape of B, and within a block the elements have the order of a CDNA matrix instruction.

Data movement. A goes through shared memory as in `basic`. B's runs are loaded in memory order and
only renamed into a TILE_K × TILE_N tile (reshape, permute), which moves nothing. On CDNA, Triton
can then load B from memory to registers and multiply; on NVIDIA B goes through asynchronous copies.

Edges. K runs along the blocks, so loads are masked by element where K ends inside a tile. Blocks
past n wrap around, as columns do in `basic`. The layout ensures that n and k consist of whole
blocks.

What limits it. The pipeline is made for few rows, where reading B takes the time. It can give every
compute unit a part of B (`split_k`), but has no scheduler that shares tiles evenly. On NVIDIA a
plain K-contiguous B is already read in whole lines, and wgmma adds the detour, so this gains
nothing over `tma` there. On AMD it was built and inspected, never run. What Triton makes of it, and
measurements: docs/notes/gemm-preshuffle.md.
"""

import triton
import triton.language as tl

from tilewright.ops.device.reduce import reduce_split
from tilewright.ops.device.schedule import split_range, tile_coordinates
from tilewright.ops.gemm.kernels.basic import write


@triton.jit
def _accumulate(
    a, b, m, n, k, lda, ldb, tile_m, tile_n, k_begin, k_end,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr, VECTOR: tl.constexpr,
    MASK_M: tl.constexpr, MASK_K: tl.constexpr,
):  # fmt: skip
    """The tile's sum over K from `k_begin` (a multiple of TILE_K) to `k_end`."""
    offs_m = tile_m * TILE_M + tl.arange(0, TILE_M)
    offs_k = k_begin + tl.arange(0, TILE_K)
    rows = offs_m
    if MASK_M and A_ROW:
        rows = offs_m % m
    if A_ROW:
        a_ptrs = a + rows[:, None] * lda + offs_k[None, :]
        a_step = TILE_K
    else:
        a_ptrs = a + rows[:, None] + offs_k[None, :] * lda
        a_step = TILE_K * lda
    blocks = (tile_n * (TILE_N // 16) + tl.arange(0, TILE_N // 16)) % (n // 16)
    along = tl.arange(0, 16 * TILE_K)
    b_ptrs = b + blocks[:, None] * ldb + (k_begin * 16 + along)[None, :]

    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.int32 if INT_ACC else tl.float32)
    for k0 in range(k_begin, k_end, TILE_K):
        in_k = tl.arange(0, TILE_K) < k - k0
        if MASK_M and not A_ROW:
            a_mask = (offs_m < m)[:, None] & (in_k[None, :] if MASK_K else True)
            a_tile = tl.load(a_ptrs, mask=a_mask, other=0.0)
        elif MASK_K:
            a_tile = tl.load(a_ptrs, mask=in_k[None, :], other=0.0)
        else:
            a_tile = tl.load(a_ptrs)
        if MASK_K:
            runs = tl.load(b_ptrs, mask=(along < (k - k0) * 16)[None, :], other=0.0)
        else:
            runs = tl.load(b_ptrs)
        # [n / 16, k / (4 V), 4, 16, V] -> [n / 16, 16, k / (4 V), 4, V] -> [n, k], transposed
        parts = tl.reshape(runs, (TILE_N // 16, TILE_K // (4 * VECTOR), 4, 16, VECTOR))
        b_tile = tl.reshape(tl.permute(parts, (0, 3, 1, 2, 4)), (TILE_N, TILE_K)).T
        acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        a_ptrs += a_step
        b_ptrs += 16 * TILE_K
    return acc


@triton.jit
def gemm_preshuffle(
    a, b, c, m, n, k, lda, ldb, ldc, extra, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, VECTOR: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    DONE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B as `gemm_basic`, with B shuffled.

    ldb: step from one row of blocks (16 columns of B) to the next.
    VECTOR: elements in 16 bytes.
    B_ROW: has no meaning.
    """
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    first = tl.program_id(0)
    tile = first
    k_begin = 0
    k_end = k
    if SCHEDULER == "split_k":
        tile = first // splits
        k_begin, k_end = split_range(first % splits, splits, k, TILE_K)
    tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
    acc = _accumulate(
        a, b, m, n, k, lda, ldb, tile_m, tile_n, k_begin, k_end, TILE_M, TILE_N, TILE_K,
        A_ROW, PRECISION, INT_ACC, VECTOR, MASK_M, MASK_K,
    )  # fmt: skip
    whole = True
    if SCHEDULER == "split_k":
        whole, acc = reduce_split(
            acc, flags, partials, tile, first % splits, splits,
            TILE_M, TILE_N, REDUCTION, DONE,
        )  # fmt: skip
    if whole:
        write(
            c, acc, m, n, ldc, extra, tile_m, tile_n, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
        )  # fmt: skip
