"""What the kernels of the backward pass share: rows of tiles, and the gradient of a tile of scores.

A tile of scores is [queries, keys]. A kernel that owns keys multiplies the other way round, for its
sums then have keys for rows, and transposes the tile: that moves no data, for the layout of a tile
in registers is transposed with it.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.dropout import random_bytes
from tilewright.ops.attention.kernels.keys import columns, load_piece, ragged, width
from tilewright.ops.attention.kernels.scores import LOG2E, biased, capped, in_base2, seen, sloped


@triton.jit
def load_rows(
    x, rows, strides, there, WIDTHS: tl.constexpr, DIM: tl.constexpr, MASKED: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """A tile as a tuple of pieces. `x`, `rows`: see `row_places`."""
    found = ()
    for n in tl.static_range(len(WIDTHS)):
        d, far = columns(x, strides, WIDTHS, n, 0, False, False, UNIT)
        found += (load_piece(x, rows, d, far, there, DIM, ragged(WIDTHS, n, DIM), MASKED),)
    return found


@triton.jit
def zeros(ROWS: tl.constexpr, WIDTHS: tl.constexpr):
    """Sums of a tile, as a tuple of pieces."""
    found = ()
    for n in tl.static_range(len(WIDTHS)):
        found += (tl.zeros((ROWS, width(WIDTHS, n)), tl.float32),)
    return found


@triton.jit
def products(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x·yᵀ [ROWS, COLUMNS], where both are tuples of pieces."""
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for n in tl.static_range(len(x)):
        found = tl.dot(x[n], y[n].to(x[n].dtype).T, found, input_precision="ieee")
    return found


ROLLED_COLUMNS = tl.constexpr(32)


@triton.jit
def products_of(
    x, y, x_at, y_at, like, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, ROLLED: tl.constexpr,
):  # fmt: skip
    """`products` of tiles of rows of DIM elements in the dtype that `like` points to.

    x_at, y_at: where their rows lie: a pointer, how far rows are from it, strides, which are there.
    ROLLED: load both again, a few columns at a time, in a loop that the compiler cannot unroll,
    because it does not know the grid's second size, 1. Each warp of RDNA holds whole rows of both
    operands, RDNA 3 twice: unrolled, those of head dim 128 alone fill the registers."""
    if ROLLED:
        x_base, x_rows, x_strides, x_there = x_at
        y_base, y_rows, y_strides, y_there = y_at
        found = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, DIM * tl.num_programs(1), ROLLED_COLUMNS):
            d = first + tl.arange(0, ROLLED_COLUMNS)
            x_far = d
            y_far = d
            if not UNIT:
                x_far = d * x_strides[3]
                y_far = d * y_strides[3]
            left = load_piece(x_base, x_rows, d, x_far, x_there, DIM, True, True)
            right = load_piece(y_base, y_rows, d, y_far, y_there, DIM, True, True)
            left, right = left.to(like.dtype.element_ty), right.to(like.dtype.element_ty)
            found = tl.dot(left, right.T, found, input_precision="ieee")
    else:
        found = products(x, y, ROWS, COLUMNS)
    return found


@triton.jit
def add_products(sums, weights, y):
    """sums + weights·y, where `sums` and `y` are tuples of pieces."""
    found = ()
    for n in tl.static_range(len(sums)):
        found += (tl.dot(weights, y[n].to(weights.dtype), sums[n], input_precision="ieee"),)
    return found


@triton.jit
def store_rows(
    x, rows, strides, sums, weight, there, valid, accumulate, WIDTHS: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    """Store sums times `weight` in the rows that are `there`; 0 in those that are not `valid`,
    whatever the sums are. If `accumulate` is not 0, add them instead. The rows of gradients are
    contiguous."""
    for n in tl.static_range(len(WIDTHS)):
        d, far = columns(x, strides, WIDTHS, n, 0, False, False, True)
        inside = there[:, None]
        if ragged(WIDTHS, n, DIM):
            inside = inside & (d < DIM)[None, :]
        at = x + (rows[:, None] + far[None, :])
        out = tl.where(valid[:, None], sums[n] * weight, 0.0)
        if accumulate != 0:  # a branch: a load under a mask costs registers in every launch
            out += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, out.to(x.dtype.element_ty), mask=inside)


@triton.jit
def clear_rows(
    x, strides, begin, end, head, tile, tiles, WIDTHS: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Store 0 in packed rows `begin` to `end`, which no sequence has. `tiles` workgroups do it
    together."""
    for row in range(begin + tile * ROWS, end, tiles * ROWS):
        r = tl.arange(0, ROWS)
        base = x + (head * 0 + row).to(tl.int64) * strides[1]
        rows = r * strides[1] + head.to(tl.int64) * strides[2]
        there = row + r < end
        store_rows(base, rows, strides, zeros(ROWS, WIDTHS), 0.0, there, there, 0, WIDTHS, DIM)


@triton.jit
def row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ: tl.constexpr):
    """Where rows `i` of a head are in LSE, and in all that lies as it does."""
    if PACKEDQ:
        found = head.to(tl.int64) * total_q + q_start + i
    else:
        found = (b * heads + head).to(tl.int64) * q_len + i
    return found


@triton.jit
def row_numbers_read(logs, tops, delta, at, there, BIAS: tl.constexpr):
    """What is taken from the scores of rows, in units of log2(e), in turn: LSE, or under a bias
    `tops` and the logarithm (see `logarithms`); and delta. LSE is infinite for rows that see
    nothing, and for those that are not there: their weights are 0."""
    log_sum = tl.load(logs + at, mask=there, other=float("-inf"))
    log_sum = tl.where(log_sum == float("-inf"), float("inf"), in_base2(log_sum))
    found = (log_sum,)
    if BIAS:
        found = (tl.load(tops + at, mask=there, other=0.0), log_sum)
    return found, tl.load(delta + at, mask=there, other=0.0)


@triton.jit
def scores(
    s, i, j, bias, slope, n_q, n_kv, kv_len, shift, left, right, first, softcap, factor,
    MASK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """For a tile of products Q·Kᵀ: the scores, in units of log2(e), and the derivative of the soft
    cap, 1 without.

    i: of each row the query. j: the keys. bias: pointers to the rows' biases."""
    s = s * factor
    through = 1.0
    if SOFTCAP:
        s = capped(s, softcap)
        share = s / (softcap * LOG2E)
        through = 1.0 - share * share
    if BIAS:
        s = biased(s, bias, i, j, n_q, n_kv, kv_len, MASKED)
    if ALIBI:
        s = sloped(s, slope, i, j, shift)
    if MASKED:
        s = tl.where(seen(i, j, n_kv, shift, left, right, first, MASK), s, float("-inf"))
    return s, through


@triton.jit
def weights(
    s, i, j, j0, line, log_sum, bias, slope, n_q, n_kv, kv_len, shift, left, right, first, softcap,
    dropped, factor, seed, offset,
    TILE_Q: tl.constexpr, TILE_KV: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """For a tile of products Q·Kᵀ: the softmax's weights; the derivative of the soft cap, 1
    without; and which weights dropout keeps, True without.

    i, line: of each row the query, and b · heads + h. j: the keys, from `j0`, a multiple of 16.
    log_sum: as `row_numbers_read` gives it. bias: pointers to the rows' biases."""
    kept = True
    s, through = scores(
        s, i, j, bias, slope, n_q, n_kv, kv_len, shift, left, right, first, softcap, factor,
        MASK, SOFTCAP, BIAS, ALIBI, MASKED,
    )  # fmt: skip
    for n in tl.static_range(len(log_sum)):
        s = s - log_sum[n][:, None]
    p = tl.exp2(s)
    if DROPOUT:
        kept = random_bytes(j0, i, line, seed, offset, TILE_Q, TILE_KV) >= dropped
    return p, through, kept


@triton.jit
def score_gradients(p, dp, delta, kept, again, DROPOUT: tl.constexpr):
    """The gradients of scores, bias included: P∘(dP - delta), where dP is dO·Vᵀ of the weights that
    dropout keeps, times `again`, by which it divides."""
    if DROPOUT:
        dp = tl.where(kept, dp * again, 0.0)
    return p * (dp - delta[:, None])
