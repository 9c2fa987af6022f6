"""dK and dV: a workgroup owns TILE keys, and adds up over queries and over the heads that share the
keys. No two workgroups add to the same sum, so results repeat bit for bit without atomics.

Idea. With P from LSE (Dao et al., "FlashAttention", 2022, appendix B), for each step of queries:

    Pᵀ  = exp(K·Qᵀ - LSE)        dV += Pᵀ·dO
    dPᵀ = V·dOᵀ                  dK += (P∘(dP - delta))ᵀ·Q

Products have the keys for rows, so that Pᵀ and dSᵀ are first operands of their second products, as
they lie in registers.

Data movement. K and V stay; Q, dO, LSE and delta pass by. Both are read once for each tile of keys,
from L2 for all but the first.

Order. Steps that no mask cuts are a loop of their own. Where the last keys of a sequence do not
fill a tile, all its steps take the masked loop. Under a causal mask the first keys are seen by most
queries, and their tiles start first as they are numbered. Of sequences that have lengths of their
own, the longest start first (`order`). Under a mask of blocks both loops walk the lists of a head's
blocks of queries (see `blocks`).

What limits it. Nothing was timed yet. By its code: four products for each step, whose sums of
TILE·(head dims) numbers stay in registers. What compilers make of it:
docs/notes/attention_backward-basic.md.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.blocks import listed_key, listed_key_back
from tilewright.ops.attention.kernels.keys import pieces, row_places, sequence
from tilewright.ops.attention.kernels.scores import LOG2E, masked_tile, slope_of, spans
from tilewright.ops.attention_backward.kernels.blocks import listed_queries
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

NO_BOUND = tl.constexpr(2**30)


@triton.jit
def _step(
    dk_sums, dv_sums, x, z, x_at, z_at, i0, head, j, j0, q, do, logs, tops, delta, bias,
    bias_strides, slope, q_strides, do_strides, b, q_start, n_q, n_kv, heads, q_len, kv_len,
    total_q, shift, left, right,
    first, softcap, dropped, factor, again, seed, offset,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    K_WIDTHS: tl.constexpr, V_WIDTHS: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr, PACKEDQ: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, UNIT: tl.constexpr, ROLLED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after queries `i0` to `i0 + STEP` of a head."""
    r = tl.arange(0, STEP)
    i = i0 + r
    there = i < n_q
    q_base, q_rows = row_places(q, q_strides, b, q_start, i0, r, head)
    queries = load_rows(q_base, q_rows, q_strides, there, K_WIDTHS, HEAD_DIM, MASKED, UNIT)
    do_base, do_rows = row_places(do, do_strides, b, q_start, i0, r, head)
    given = load_rows(do_base, do_rows, do_strides, there, V_WIDTHS, HEAD_DIM_V, MASKED, UNIT)
    at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
    log_sum, row_sum = row_numbers_read(logs, tops, delta, at, there, BIAS)
    if BIAS:
        bias = bias + i.to(tl.int64) * bias_strides[2]
    s = products_of(
        x, queries, x_at, (q_base, q_rows, q_strides, there), q,
        TILE, STEP, HEAD_DIM, UNIT, ROLLED,
    )  # fmt: skip
    p, through, kept = weights(
        s.T, i, j, j0, b * heads + head + i * 0, log_sum, bias,
        slope, n_q, n_kv, kv_len, shift, left, right, first, softcap, dropped, factor, seed, offset,
        STEP, TILE, MASK, SOFTCAP, BIAS, ALIBI, DROPOUT, MASKED,
    )  # fmt: skip
    if DV:
        used = p
        if DROPOUT:
            used = tl.where(kept, p, 0.0)
        dv_sums = add_products(dv_sums, used.T.to(q.dtype.element_ty), given)
    if DK:
        dp = products_of(
            z, given, z_at, (do_base, do_rows, do_strides, there), q,
            TILE, STEP, HEAD_DIM_V, UNIT, ROLLED,
        )  # fmt: skip
        ds = score_gradients(p, dp.T, row_sum, kept, again, DROPOUT) * through
        dk_sums = add_products(dk_sums, ds.T.to(q.dtype.element_ty), queries)
    return dk_sums, dv_sums


@triton.jit
def gradients_of_keys(
    q, k, v, do, logs, tops, delta, order, dk, dv, bias, slopes, q_offsets, kv_offsets, q_used,
    kv_used, query_list, query_counts, q_strides, k_strides, v_strides, do_strides, dk_strides,
    dv_strides, bias_strides, batch, heads, kv_heads, group, q_len, kv_len, total_q, total_kv,
    slopes_stride, accumulate, block_size, block_heads, left, right, first, bottom_right, softcap,
    dropped, scale, seed, offset,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    MASK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BLOCKS: tl.constexpr,
    ALIBI: tl.constexpr, DROPOUT: tl.constexpr, PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr,
    USEDQ: tl.constexpr, USEDKV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    UNIT: tl.constexpr, BY_LENGTH: tl.constexpr, ROLLED: tl.constexpr,
):  # fmt: skip
    """A tile of dK and dV. The arguments are those of the catalogue (`arguments`)."""
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    V_WIDTHS: tl.constexpr = pieces(HEAD_DIM_V, 16)
    tiles = tl.cdiv(kv_len, TILE)
    tile = tl.program_id(0) % tiles
    g = tl.program_id(0) // tiles % kv_heads
    b = tl.program_id(0) // tiles // kv_heads
    if BY_LENGTH:
        b = tl.load(order + b)
    q_start, n_q, kv_start, n_kv = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
        total_kv, 0,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV, False, False,
    )  # fmt: skip
    _, _, _, room = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
        total_kv, 0,
        PACKEDQ, PACKEDKV, False, False, False, False,
    )  # fmt: skip
    if PACKEDKV:  # noqa: SIM102 (a constant, then a value of the device)
        if (b == batch - 1) & (accumulate == 0):
            end = kv_start + room
            if DK:
                clear_rows(dk, dk_strides, end, total_kv, g, tile, tiles, K_WIDTHS, HEAD_DIM, 32)
            if DV:
                clear_rows(dv, dv_strides, end, total_kv, g, tile, tiles, V_WIDTHS, HEAD_DIM_V, 32)
    j0 = tile * TILE
    if j0 >= room:
        return
    r = tl.arange(0, TILE)
    j = j0 + r
    here = j < n_kv
    shift = (n_kv - n_q) * bottom_right
    k_base, k_rows = row_places(k, k_strides, b, kv_start, j0, r, g)
    v_base, v_rows = row_places(v, v_strides, b, kv_start, j0, r, g)
    x_at = (k_base, k_rows, k_strides, here)
    z_at = (v_base, v_rows, v_strides, here)
    x = ()
    z = ()
    if not ROLLED:
        x = load_rows(k_base, k_rows, k_strides, here, K_WIDTHS, HEAD_DIM, True, UNIT)
        if DK:
            z = load_rows(v_base, v_rows, v_strides, here, V_WIDTHS, HEAD_DIM_V, True, UNIT)
    dk_sums = ()
    dv_sums = ()
    if DK:
        dk_sums = zeros(TILE, K_WIDTHS)
    if DV:
        dv_sums = zeros(TILE, V_WIDTHS)

    # A key is seen by queries in a window too, with the bounds exchanged.
    j1 = min(j0 + TILE, n_kv) - 1
    end = n_q
    if j0 >= n_kv:
        end = 0
    lower = NO_BOUND
    upper = NO_BOUND
    whole = j0 + TILE <= n_kv
    if MASK != "none":
        lower = right
    if MASK == "window":
        upper = left
        if j0 < first:
            upper = NO_BOUND  # some of the keys are kept
            whole = whole & (j1 < first)
    lo, full_lo, full_hi, _, lefts, rights = spans(
        j0, j1, -shift, lower, upper, 0, 0, end, STEP, "window"
    )
    if not whole:
        rights += (full_hi - full_lo) // STEP
        full_hi = full_lo
    if BLOCKS:
        full_lo = 0
        lefts = 0

    factor = scale * LOG2E
    again = 1.0
    if DROPOUT:
        again = 256.0 / (256 - dropped)
    for n in range(group):
        head = g * group + n
        slope = 0.0
        if ALIBI:
            slope = slope_of(tl.load(slopes + b * slopes_stride + head))
        biases = bias
        if BIAS:
            biases = bias + b.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
        if BLOCKS:
            # Queries are counted along the list: whole blocks, and behind them cut ones.
            blocks_at, blocks, full_hi, cut_lo, rights = listed_queries(
                query_list, query_counts, b, head, j0, j1, n_q, n_kv, q_len, kv_len, shift, left,
                right, first, block_size, block_heads, STEP, MASK,
            )  # fmt: skip
        for walked in range(full_lo, full_hi, STEP):
            i0 = walked
            if BLOCKS:
                i0 = listed_key(blocks_at, walked, block_size)
            dk_sums, dv_sums = _step(
                dk_sums, dv_sums, x, z, x_at, z_at, i0, head, j, j0, q, do, logs, tops, delta,
                biases, bias_strides, slope, q_strides, do_strides, b, q_start, n_q, n_kv, heads,
                q_len, kv_len, total_q, shift, left, right, first, softcap, dropped, factor, again,
                seed, offset,
                TILE, STEP, HEAD_DIM, HEAD_DIM_V, K_WIDTHS, V_WIDTHS, MASK, SOFTCAP, BIAS, ALIBI,
                DROPOUT, PACKEDQ, DK, DV, UNIT, ROLLED, False,
            )  # fmt: skip
        for t in range(lefts + rights):
            i0 = masked_tile(t, 0, lo, full_hi, 0, lefts, STEP, "window")
            if BLOCKS:
                i0 = listed_key_back(blocks_at, blocks, cut_lo + t * STEP, block_size)
            dk_sums, dv_sums = _step(
                dk_sums, dv_sums, x, z, x_at, z_at, i0, head, j, j0, q, do, logs, tops, delta,
                biases, bias_strides, slope, q_strides, do_strides, b, q_start, n_q, n_kv, heads,
                q_len, kv_len, total_q, shift, left, right, first, softcap, dropped, factor, again,
                seed, offset,
                TILE, STEP, HEAD_DIM, HEAD_DIM_V, K_WIDTHS, V_WIDTHS, MASK, SOFTCAP, BIAS, ALIBI,
                DROPOUT, PACKEDQ, DK, DV, UNIT, ROLLED, True,
            )  # fmt: skip
    if DK:
        base, rows = row_places(dk, dk_strides, b, kv_start, j0, r, g)
        store_rows(
            base, rows, dk_strides, dk_sums, scale, j < room, here, accumulate, K_WIDTHS, HEAD_DIM
        )  # fmt: skip
    if DV:
        base, rows = row_places(dv, dv_strides, b, kv_start, j0, r, g)
        store_rows(
            base, rows, dv_strides, dv_sums, again, j < room, here, accumulate, V_WIDTHS, HEAD_DIM_V
        )  # fmt: skip
