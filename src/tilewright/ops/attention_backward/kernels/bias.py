"""The gradient of a bias: a workgroup owns a tile of it, and adds up over the sequences and heads
that share it, in one order: results repeat bit for bit without atomics.

It computes the tile's scores again, two products for each sequence and head, so that the kernels of
dQ, dK and dV need not write dS to memory. A tile that no query and key see is zero. What limits it:
each tile of Q, K, V and dO is read for one tile of scores alone. Nothing was timed yet.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import pieces, row_places, sequence
from tilewright.ops.attention.kernels.scores import LOG2E
from tilewright.ops.attention_backward.kernels.steps import (
    load_rows,
    products_of,
    row_numbers,
    row_numbers_read,
    score_gradients,
    weights,
)


@triton.jit
def gradients_of_bias(
    q, k, v, do, logs, tops, delta, dbias, bias, q_offsets, kv_offsets, q_used, kv_used, q_strides,
    k_strides, v_strides, do_strides, bias_strides, bias_batch, bias_heads, batch, heads, group,
    q_len, kv_len, total_q, total_kv, accumulate, left, right, first, bottom_right, softcap,
    dropped, scale, seed, offset,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    MASK: tl.constexpr, SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, PACKEDQ: tl.constexpr,
    PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, USEDKV: tl.constexpr, UNIT: tl.constexpr,
    ROLLED: tl.constexpr,
):  # fmt: skip
    """A tile of the bias's gradient. The arguments are those of the catalogue (`arguments`)."""
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    V_WIDTHS: tl.constexpr = pieces(HEAD_DIM_V, 16)
    q_tiles = tl.cdiv(q_len, TILE)
    kv_tiles = tl.cdiv(kv_len, STEP)
    own = tl.program_id(0) // (q_tiles * kv_tiles)
    i0 = tl.program_id(0) // kv_tiles % q_tiles * TILE
    j0 = tl.program_id(0) % kv_tiles * STEP
    i = i0 + tl.arange(0, TILE)
    j = j0 + tl.arange(0, STEP)
    factor = scale * LOG2E
    again = 1.0
    if DROPOUT:
        again = 256.0 / (256 - dropped)
    total = tl.zeros((TILE, STEP), tl.float32)
    # One loop over all that shares the tile: sequences, and heads of each.
    alike = heads // bias_heads
    for n in range(batch // bias_batch * alike):
        b = own // bias_heads + n // alike  # one of the two is 0, and so for heads
        head = own % bias_heads + n % alike
        g = head // group
        q_start, n_q, kv_start, n_kv = sequence(
            b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
            total_kv, 0,
            PACKEDQ, PACKEDKV, USEDQ, USEDKV, False, False,
        )  # fmt: skip
        shift = (n_kv - n_q) * bottom_right
        last = min(i0 + TILE, n_q) - 1
        some = (i0 < n_q) & (j0 < n_kv)
        if MASK != "none":
            some = some & (j0 <= last + shift + right)
        if MASK == "window":
            some = some & ((j0 + STEP > i0 + shift - left) | (j0 < first))
        if some:
            r = tl.arange(0, TILE)
            c = tl.arange(0, STEP)
            there = i < n_q
            base, rows = row_places(q, q_strides, b, q_start, i0, r, head)
            x_at = (base, rows, q_strides, there)
            base, rows = row_places(k, k_strides, b, kv_start, j0, c, g)
            keys_at = (base, rows, k_strides, j < n_kv)
            base, rows = row_places(v, v_strides, b, kv_start, j0, c, g)
            values_at = (base, rows, v_strides, j < n_kv)
            base, rows = row_places(do, do_strides, b, q_start, i0, r, head)
            given_at = (base, rows, do_strides, there)
            x = ()
            keys = ()
            values = ()
            given = ()
            if not ROLLED:
                x = load_rows(*x_at, K_WIDTHS, HEAD_DIM, True, UNIT)
                keys = load_rows(*keys_at, K_WIDTHS, HEAD_DIM, True, UNIT)
                values = load_rows(*values_at, V_WIDTHS, HEAD_DIM_V, True, UNIT)
                given = load_rows(*given_at, V_WIDTHS, HEAD_DIM_V, True, UNIT)
            at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
            log_sum, row_sum = row_numbers_read(logs, tops, delta, at, there, True)
            biases = bias + b.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
            s = products_of(x, keys, x_at, keys_at, q, TILE, STEP, HEAD_DIM, UNIT, ROLLED)
            p, _, kept = weights(
                s, i, j, j0, b * heads + head + i * 0, log_sum,
                biases + i.to(tl.int64) * bias_strides[2], 0.0, n_q, n_kv, kv_len, shift, left,
                right, first,
                softcap, dropped, factor, seed, offset,
                TILE, STEP, MASK, SOFTCAP, True, False, DROPOUT, True,
            )  # fmt: skip
            dp = products_of(
                values, given, values_at, given_at, q, STEP, TILE, HEAD_DIM_V, UNIT, ROLLED
            )  # fmt: skip
            total += score_gradients(p, dp.T, row_sum, kept, again, DROPOUT)
    rows = (own.to(tl.int64) * q_len + i) * kv_len
    inside = (i < q_len)[:, None] & (j < kv_len)[None, :]
    to = dbias + (rows[:, None] + j[None, :])
    if accumulate != 0:
        total += tl.load(to, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, total.to(dbias.dtype.element_ty), mask=inside)
