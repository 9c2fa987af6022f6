"""GEMM through tensor descriptors: the copy engine moves the tiles (sm_90 and later).

Idea. As `basic`, but the host describes operands to the hardware once (one tensor map each) and one
thread requests whole tiles. The bulk tensor copy engine (TMA) computes the addresses, swizzles into
shared memory for the matrix units and signals an mbarrier.

Data movement. A and B: through shared memory, `num_stages` tiles deep, into wgmma. C: through
shared memory and out by TMA. With SPLIT the accumulator leaves in two halves, so its staging buffer
is half as large and one more operand stage fits.

Edges. The engine fills elements outside the matrix with zeros and does not write there, so nothing
needs masking. In exchange, base addresses and rows must be multiples of 16 bytes. If there are
several rows (columns) of tiles, the last usually begins earlier (see `schedule`). Operands of an
epilogue come through pointers, masked in both dimensions.

Schedulers (see `schedule`). In `persistent`, the tile loop and the K loop are flattened into one,
so that the loads of the next tile run during the epilogue of the current one. WARP_SPECIALIZE
(pipeline `tma_ws`) lets the compiler give the copies their own warp group; it does so for tcgen05
and mma.sync. On sm_90 the request has no effect, so that architecture does not list the pipeline.

What limits it. Large products: power, with 0.989 to 1.022 of cuBLAS's speed on an H200. Odd waves
and a large K belong to `gluon_ws`. Measurements: docs/notes/gemm-tma.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.ops.device.batching import (
    extra_of,
    in_batch,
    in_matrix,
    several,
    step_of,
    summed_k,
)
from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.reduce import (
    reduce,
    reduce_split,
    take_turn,
    within_tile,
)
from tilewright.ops.device.scale import load_scales, scaled
from tilewright.ops.device.schedule import (
    axes_inside,
    begin_of,
    contributors,
    shared_steps,
    split_range,
    stream_segment,
    tile_coordinates,
)


@triton.jit
def _load(operand, z, i, j, BATCHING: tl.constexpr):
    """The tile at (i, j) of an operand, or of its matrix `z`."""
    if BATCHING == "none":
        tile = operand.load([i, j])
    else:
        tile = operand.load([z, i, j])
        tile = tile.reshape(operand.block_shape[1], operand.block_shape[2])
    return tile


@triton.jit
def _accumulate(
    a, b, scales, m, n, k, batch, z, row, col, k_begin, k_end,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    BATCHING: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """The tile's sum over K from `k_begin` (a multiple of TILE_K) to `k_end`, in matrix `z`."""
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.int32 if INT_ACC else tl.float32)
    if SCALES != "":
        k1 = min(k_begin, k_end - 1)  # the last part of a split K may be empty
        x, y = load_scales(scales, row, col, k1, m, n, TILE_M, TILE_N, SCALES)
    for k0 in range(k_begin, k_end, TILE_K):
        z_a, z_b, at = step_of(k0, z, k, batch, TILE_K, BATCHING)
        if A_ROW:
            a_tile = _load(a, z_a, row, at, BATCHING)
        else:
            a_tile = _load(a, z_a, at, row, BATCHING).T
        if B_ROW:
            b_tile = _load(b, z_b, at, col, BATCHING)
        else:
            b_tile = _load(b, z_b, col, at, BATCHING).T
        if SCALES != "":
            partial = tl.dot(a_tile, b_tile, input_precision=PRECISION)
            acc += scaled(partial, x, y, SCALES)
            k1 = min(k0 + TILE_K, k_end - 1)
            x, y = load_scales(scales, row, col, k1, m, n, TILE_M, TILE_N, SCALES)
        else:
            acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc


@triton.jit
def _write(
    c, acc, m, n, extra, batch, z, row, col, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    C_ROW: tl.constexpr, TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    BATCHING: tl.constexpr, SPLIT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to a whole sum and write the tile to matrix `z` of C."""
    extra = extra_of(extra, batch, z, TAKES, BATCHING)
    if SPLIT:
        halves = tl.permute(tl.reshape(acc, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        _store(c, left, m, n, extra, z, row, col, C_ROW, TAKES, FOLD, LARGEST, BATCHING, CHAIN)
        _store(
            c, right, m, n, extra, z, row, col + TILE_N // 2,
            C_ROW, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
        )  # fmt: skip
    else:
        _store(c, acc, m, n, extra, z, row, col, C_ROW, TAKES, FOLD, LARGEST, BATCHING, CHAIN)


@triton.jit
def _store(
    c, acc, m, n, extra, z, row, col, C_ROW: tl.constexpr, TAKES: tl.constexpr,
    FOLD: tl.constexpr, LARGEST: tl.constexpr, BATCHING: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    acc = apply(acc, extra, row, col, m, n, CHAIN, TAKES, C_ROW, True, True)
    out = rounded(acc, c.dtype, LARGEST)
    if FOLD != 1:
        col = col // FOLD
    if not C_ROW:
        out = out.T
        row, col = col, row
    if several(BATCHING):
        c.store([z, row, col], out.reshape(1, out.shape[0], out.shape[1]))
    else:
        c.store([row, col], out)


@triton.jit
def gemm_tma(
    a, b, c, m, n, k, extra, scales, batch, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, SCALES: tl.constexpr,
    BATCHING: tl.constexpr,
    SPLIT: tl.constexpr, PDL: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B.

    a, b, c: tensor descriptors of the matrices as they lie in memory, so a column-major matrix is
        described as its row-major transpose.
    flags, partials, splits: for the schedulers that share tiles; the others ignore them.
    extra, TAKES, CHAIN: see `epilogue`; C has n / FOLD columns.
    scales, SCALES: see `scale`.
    batch, BATCHING: see `batching`. A batch's descriptors have three dimensions, and `batch` has
        steps of 1 or 0 for A and B.
    PDL: whether it may start before the kernel before it has ended, and so waits for that first:
        ``none`` or ``wait`` (see `gluon_fill`).
    """
    if PDL != "none":
        gdc_wait()
    # Tiles must not move if blocks consist of whole tiles: each tile has the scale of one block.
    INSIDE: tl.constexpr = (
        "" if SCALES != "" else axes_inside(A_ROW, B_ROW, C_ROW, SCHEDULER, TAKES)
    )
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
        row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
        col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
        acc = _accumulate(
            a, b, scales, m, n, k, batch, z, row, col, k_begin, k_end, TILE_M, TILE_N,
            TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, BATCHING, SCALES,
        )  # fmt: skip
        if REDUCTION == "two_stage":
            _write(
                c, acc, m, n, extra, batch, i, row, col, TILE_M, TILE_N,
                C_ROW, TAKES, FOLD, LARGEST, "strided", SPLIT, CHAIN,
            )  # fmt: skip
        else:
            whole, acc = reduce_split(
                acc, flags, partials, tile, i, splits, TILE_M, TILE_N, REDUCTION
            )
            if whole:
                _write(
                    c, acc, m, n, extra, batch, z, row, col, TILE_M, TILE_N,
                    C_ROW, TAKES, FOLD, LARGEST, BATCHING, SPLIT, CHAIN,
                )  # fmt: skip
    elif SCHEDULER == "tile":
        z, within = in_matrix(first, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
        col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
        acc = _accumulate(
            a, b, scales, m, n, k, batch, z, row, col, 0, all_k, TILE_M, TILE_N,
            TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, BATCHING, SCALES,
        )  # fmt: skip
        _write(
            c, acc, m, n, extra, batch, z, row, col, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, BATCHING, SPLIT, CHAIN,
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
                row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
                col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
                acc = _accumulate(
                    a, b, scales, m, n, k, batch, z, row, col, k_begin, k_end, TILE_M, TILE_N,
                    TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, BATCHING, SCALES,
                )  # fmt: skip
                earliest, count, shift = contributors(tile, steps, ways, share)
                whole = count == 1
                if count > 1:
                    base = tile if REDUCTION == "atomic" else 2 * earliest
                    last = take_turn(flags, count, base, 2, shift, REDUCTION)
                    whole, acc = reduce(
                        acc, last, flags, partials, within_tile(TILE_M, TILE_N),
                        first - earliest, count, base, 2, shift, REDUCTION,
                    )  # fmt: skip
                if whole:
                    _write(
                        c, acc, m, n, extra, batch, z, row, col, TILE_M, TILE_N,
                        C_ROW, TAKES, FOLD, LARGEST, BATCHING, SPLIT, CHAIN,
                    )  # fmt: skip
                at = min(end, (tile + 1) * steps)
        for tile in tl.range(
            shared_tiles + first, tiles, tl.num_programs(0),
            flatten=True, warp_specialize=WARP_SPECIALIZE,
        ):  # fmt: skip
            z, within = in_matrix(tile, each, BATCHING)
            tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
            row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
            col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
            acc = _accumulate(
                a, b, scales, m, n, k, batch, z, row, col, 0, all_k, TILE_M, TILE_N,
                TILE_K, A_ROW, B_ROW, PRECISION, INT_ACC, BATCHING, SCALES,
            )  # fmt: skip
            _write(
                c, acc, m, n, extra, batch, z, row, col, TILE_M, TILE_N,
                C_ROW, TAKES, FOLD, LARGEST, BATCHING, SPLIT, CHAIN,
            )  # fmt: skip
    if PDL != "none":
        gdc_launch_dependents()
