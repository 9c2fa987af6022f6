"""dQ, and of each row the sum that the gradient of its head's slope adds up: a workgroup owns TILE
queries of a head, and adds up over keys. No two workgroups add to the same sum, so results repeat
bit for bit without atomics.

Idea. P is computed again from LSE, as for dK and dV, and dQ += (P∘(dP - delta))·K. Together with
that kernel, seven products are computed where one pass with atomics on dQ needs five: that is the
price of sums that repeat, and of no fp32 copy of dQ.

Data movement. Q and dO stay; K and V pass by in steps of STEP keys.

Order. As in the forward kernel: steps that need no mask are a loop of their own, and tiles that see
most keys start first. Of sequences that have lengths of their own, the longest do (`order`). Under
a mask of blocks both loops walk lists of blocks (see attention's `blocks`).

What limits it. Nothing was timed yet. By its code: three products for each step.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.blocks import listed, listed_key, listed_key_back
from tilewright.ops.attention.kernels.keys import pieces, row_places, sequence
from tilewright.ops.attention.kernels.scores import LOG2E, masked_tile, slope_of, spans
from tilewright.ops.attention_backward.kernels.steps import (
    add_products,
    clear_rows,
    load_rows,
    products_of,
    row_numbers,
    row_numbers_read,
    score_gradients,
    store_rows,
    weights,
    zeros,
)


@triton.jit
def _step(
    sums, distances, x, given, x_at, given_at, j0, g, i, line, log_sum, row_sum, k, v, bias, slope,
    k_strides, v_strides, b, kv_start, n_q, n_kv, kv_len, shift, left, right, first, softcap,
    dropped, factor, again, seed, offset,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    K_WIDTHS: tl.constexpr, V_WIDTHS: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr, DQ: tl.constexpr,
    DSLOPES: tl.constexpr, UNIT: tl.constexpr, ROLLED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after keys `j0` to `j0 + STEP`."""
    r = tl.arange(0, STEP)
    j = j0 + r
    k_base, k_rows = row_places(k, k_strides, b, kv_start, j0, r, g)
    keys = load_rows(k_base, k_rows, k_strides, j < n_kv, K_WIDTHS, HEAD_DIM, MASKED, UNIT)
    v_base, v_rows = row_places(v, v_strides, b, kv_start, j0, r, g)
    values = load_rows(v_base, v_rows, v_strides, j < n_kv, V_WIDTHS, HEAD_DIM_V, MASKED, UNIT)
    s = products_of(
        x, keys, x_at, (k_base, k_rows, k_strides, j < n_kv), k,
        TILE, STEP, HEAD_DIM, UNIT, ROLLED,
    )  # fmt: skip
    p, through, kept = weights(
        s, i, j, j0, line, log_sum, bias, slope, n_q, n_kv, kv_len,
        shift, left, right, first, softcap, dropped, factor, seed, offset,
        TILE, STEP, MASK, SOFTCAP, BIAS, ALIBI, DROPOUT, MASKED,
    )  # fmt: skip
    dp = products_of(
        given, values, given_at, (v_base, v_rows, v_strides, j < n_kv), k,
        TILE, STEP, HEAD_DIM_V, UNIT, ROLLED,
    )  # fmt: skip
    ds = score_gradients(p, dp, row_sum, kept, again, DROPOUT)
    if DSLOPES:
        far = tl.abs((i + shift)[:, None] - j[None, :]).to(tl.float32)
        distances += tl.sum(ds * far, 1)
    if DQ:
        sums = add_products(sums, (ds * through).to(k.dtype.element_ty), keys)
    return sums, distances


@triton.jit
def gradients_of_queries(
    q, k, v, do, logs, tops, delta, order, dq, distances, bias, slopes, q_offsets, kv_offsets,
    q_used, kv_used, block_list, block_counts,
    q_strides, k_strides, v_strides, do_strides, dq_strides, bias_strides, batch, heads, group,
    q_len, kv_len, total_q, total_kv, slopes_stride, accumulate, block_size, block_heads, left,
    right, first, bottom_right, softcap, dropped, scale, seed, offset,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    MASK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BLOCKS: tl.constexpr,
    ALIBI: tl.constexpr, DROPOUT: tl.constexpr, PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr,
    USEDQ: tl.constexpr, USEDKV: tl.constexpr, DQ: tl.constexpr, DSLOPES: tl.constexpr,
    UNIT: tl.constexpr, BY_LENGTH: tl.constexpr, ROLLED: tl.constexpr,
):  # fmt: skip
    """A tile of dQ, and Σ dS·|distance| of its rows. The arguments are those of the catalogue
    (`arguments`)."""
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    V_WIDTHS: tl.constexpr = pieces(HEAD_DIM_V, 16)
    tiles = tl.cdiv(q_len, TILE)
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles % heads
    b = tl.program_id(0) // tiles // heads
    if BY_LENGTH:
        b = tl.load(order + b)
    if MASK != "none":
        tile = tiles - 1 - tile  # what takes longest first
    q_start, n_q, kv_start, n_kv = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
        total_kv, 0,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV, False, False,
    )  # fmt: skip
    _, room, _, _ = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
        total_kv, 0,
        PACKEDQ, PACKEDKV, False, False, False, False,
    )  # fmt: skip
    if PACKEDQ and DQ:  # noqa: SIM102 (constants, then a value of the device)
        if (b == batch - 1) & (accumulate == 0):
            end = q_start + room
            clear_rows(dq, dq_strides, end, total_q, head, tile, tiles, K_WIDTHS, HEAD_DIM, 32)
    i0 = tile * TILE
    if i0 >= room:
        return
    r = tl.arange(0, TILE)
    i = i0 + r
    there = i < n_q
    line = b * heads + head + i * 0
    shift = (n_kv - n_q) * bottom_right
    g = head // group
    q_base, q_rows = row_places(q, q_strides, b, q_start, i0, r, head)
    do_base, do_rows = row_places(do, do_strides, b, q_start, i0, r, head)
    x_at = (q_base, q_rows, q_strides, there)
    given_at = (do_base, do_rows, do_strides, there)
    x = ()
    for_products = ()
    if not ROLLED:
        x = load_rows(q_base, q_rows, q_strides, there, K_WIDTHS, HEAD_DIM, True, UNIT)
        given = load_rows(do_base, do_rows, do_strides, there, V_WIDTHS, HEAD_DIM_V, True, UNIT)
        for n in tl.static_range(len(V_WIDTHS)):
            for_products += (given[n].to(q.dtype.element_ty),)
    at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
    log_sum, row_sum = row_numbers_read(logs, tops, delta, at, there, BIAS)
    slope = 0.0
    if ALIBI:
        slope = slope_of(tl.load(slopes + b * slopes_stride + head))
    if BIAS:
        bias = bias + b.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
        bias = bias + i.to(tl.int64) * bias_strides[2]
    sums = ()
    if DQ:
        sums = zeros(TILE, K_WIDTHS)
    far = tl.zeros((TILE,), tl.float32)
    factor = scale * LOG2E
    again = 1.0
    if DROPOUT:
        again = 256.0 / (256 - dropped)

    end = n_kv
    if i0 >= n_q:
        end = 0
    i1 = min(i0 + TILE, n_q) - 1
    lo, full_lo, full_hi, firsts, lefts, rights = spans(
        i0, i1, shift, left, right, first, 0, end, STEP, MASK
    )
    if BLOCKS:
        # Keys are counted along the list: whole blocks, and behind them cut ones, with a mask.
        blocks_at, blocks, whole, cut = listed(
            block_list, block_counts, b, head, i0, i1, n_kv, q_len, kv_len, shift, right,
            block_size, block_heads, STEP, MASK,
        )  # fmt: skip
        full_lo = 0
        full_hi = tl.where(i0 < n_q, whole, 0)
        firsts = 0
        lefts = 0
        rights = tl.where(i0 < n_q, cut, 0) // STEP
    for walked in range(full_lo, full_hi, STEP):
        j0 = walked
        if BLOCKS:
            j0 = listed_key(blocks_at, walked, block_size)
        sums, far = _step(
            sums, far, x, for_products, x_at, given_at, j0, g, i, line, log_sum, row_sum, k, v,
            bias, slope, k_strides, v_strides, b, kv_start, n_q, n_kv, kv_len, shift, left, right,
            first, softcap, dropped, factor, again, seed, offset,
            TILE, STEP, HEAD_DIM, HEAD_DIM_V, K_WIDTHS, V_WIDTHS, MASK, SOFTCAP, BIAS, ALIBI,
            DROPOUT, DQ, DSLOPES, UNIT, ROLLED, False,
        )  # fmt: skip
    for t in range(firsts + lefts + rights):
        j0 = masked_tile(t, 0, lo, full_hi, firsts, lefts, STEP, MASK)
        if BLOCKS:
            j0 = listed_key_back(blocks_at, blocks, t * STEP, block_size)
        sums, far = _step(
            sums, far, x, for_products, x_at, given_at, j0, g, i, line, log_sum, row_sum, k, v,
            bias, slope, k_strides, v_strides, b, kv_start, n_q, n_kv, kv_len, shift, left, right,
            first, softcap, dropped, factor, again, seed, offset,
            TILE, STEP, HEAD_DIM, HEAD_DIM_V, K_WIDTHS, V_WIDTHS, MASK, SOFTCAP, BIAS, ALIBI,
            DROPOUT, DQ, DSLOPES, UNIT, ROLLED, True,
        )  # fmt: skip
    if DSLOPES:
        tl.store(distances + at, far, mask=there)
    if DQ:
        base, rows = row_places(dq, dq_strides, b, q_start, i0, r, head)
        store_rows(
            base, rows, dq_strides, sums, scale, i < room, there, accumulate, K_WIDTHS, HEAD_DIM
        )  # fmt: skip
