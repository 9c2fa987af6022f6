"""Gradients of HSTU's attention: dQ, dK and dV of jagged sequences. Each workgroup owns its sums,
so results repeat bit for bit without atomics.

Idea. With s = alpha · Q·Kᵀ and σ = 1 / (1 + exp(-s)), the weights are P = s·σ / N, and

    dS = (dO·Vᵀ) · σ·(1 + s·(1 - σ)) / N, masked
    dQ = alpha · dS·K      dK = alpha · dSᵀ·Q      dV = Pᵀ·dO

Nothing of the forward pass is needed: a weight depends on its own score alone. One kernel has tiles
of queries, and adds up dQ over keys; one has tiles of keys, and adds up dK and dV over queries.
Division by N and alpha come after the sums.

Order. Steps in which all rows see all keys are loops of their own; what takes longest starts first,
and tiles are numbered along the sequences, as in `hstu_attention`.

What limits it: three products for each step of dQ, and four of dK and dV. In a build for sm_90
(Triton 3.6.0, head dim 128, tiles of 128 × 64) the steps are 493 and 524 instructions of a lane for
32 scores. For 124,518 rows of 512 sequences, 4 heads of 128, bf16, both took an H200 785 µs in
tiles of 64 × 32, 992 of 128 × 64 (933 in three stages) and 2,609 of 64 × 16 in eight warps (single
launches, 2026-11-30); torch's form over padded sequences, compiled, 7,543.
"""

import triton
import triton.language as tl

from tilewright.declared.attention.kernels._jagged import (
    keys_of_tile,
    queries_of_tile,
    rows_at,
    seen,
    sequence_of,
    step_at,
    tile_of,
)
from tilewright.ops.attention.kernels.keys import pieces
from tilewright.ops.attention_backward.kernels.steps import (
    add_products,
    clear_rows,
    load_rows,
    products_of,
    store_rows,
    zeros,
)
from tilewright.ops.device.sigmoid import sigmoid


@triton.jit
def _weights(s):
    """SiLU of scores, and its derivative."""
    share = sigmoid(s)
    weight = s * share
    return weight, share + (weight - weight * share)


@triton.jit
def _keys_step(
    sums, x, given, x_at, given_at, j0, i, k, v, k_row, k_head, v_row, v_head, start, n, head,
    prefix, history, alpha,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_WIDTHS: tl.constexpr, V_WIDTHS: tl.constexpr, WINDOW: tl.constexpr, FULL: tl.constexpr,
    ROLLED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums of dQ after keys `j0` to `j0 + STEP`."""
    r = tl.arange(0, STEP)
    j = j0 + r
    k_base, k_rows = rows_at(k, k_row, k_head, start + j0, r, head)
    v_base, v_rows = rows_at(v, v_row, v_head, start + j0, r, head)
    keys = load_rows(k_base, k_rows, (), j < n, K_WIDTHS, HEAD_DIM, MASKED, True)
    values = ()
    if not ROLLED:
        values = load_rows(v_base, v_rows, (), j < n, V_WIDTHS, V_DIM, MASKED, True)
    s = alpha * products_of(
        x, keys, x_at, (k_base, k_rows, (), j < n), k, TILE, STEP, HEAD_DIM, True, ROLLED
    )
    dp = products_of(
        given, values, given_at, (v_base, v_rows, (), j < n), k, TILE, STEP, V_DIM, True, ROLLED
    )
    _, slope = _weights(s)
    ds = dp * slope
    if MASKED:
        ds = tl.where(seen(i, j, prefix, history, WINDOW, FULL), ds, 0.0)
    return add_products(sums, ds.to(k.dtype.element_ty), keys)


@triton.jit
def gradients_of_queries(
    q, k, v, offsets, do, num_targets, dq, order, bounds, rows, heads, q_row, q_head, k_row, k_head,
    v_row, v_head, max_seq_len, alpha,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    ROLLED: tl.constexpr, has_num_targets: tl.constexpr, causal: tl.constexpr,
    contextual_seq_len: tl.constexpr, max_attn_len: tl.constexpr,
    min_full_attn_seq_len: tl.constexpr,
):  # fmt: skip
    """A tile of dQ."""
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    V_WIDTHS: tl.constexpr = pieces(V_DIM, 16)
    batch = bounds - 1
    head = tl.program_id(0) % heads
    place = tl.program_id(0) // heads
    places = rows // TILE + batch
    last, count, _, _ = sequence_of(
        batch - 1, offsets, num_targets, rows, contextual_seq_len, causal, False
    )
    clear_rows(
        dq, (0, heads * HEAD_DIM, HEAD_DIM, 1), last + count, rows, head, place, places, K_WIDTHS,
        HEAD_DIM, 32,
    )  # fmt: skip
    b, tile = tile_of(order, batch, place)
    start, n, prefix, history = sequence_of(
        b, offsets, num_targets, rows, contextual_seq_len, causal, has_num_targets
    )
    tile = (n + TILE - 1) // TILE - 1 - tile  # what takes longest first
    if tile < 0:
        return
    i0 = tile * TILE
    i1 = tl.minimum(i0 + TILE, n) - 1
    r = tl.arange(0, TILE)
    i = i0 + r
    one = head * 0 + 1
    q_base, q_rows = rows_at(q, q_row, q_head, start + i0, r, head)
    do_base, do_rows = rows_at(
        do, (heads * V_DIM).to(tl.int64), (one * V_DIM).to(tl.int64), start + i0, r, head
    )
    x_at = (q_base, q_rows, (), i < n)
    given_at = (do_base, do_rows, (), i < n)
    x = ()
    given = ()
    if not ROLLED:
        x = load_rows(q_base, q_rows, (), i < n, K_WIDTHS, HEAD_DIM, True, True)
        given = load_rows(do_base, do_rows, (), i < n, V_WIDTHS, V_DIM, True, True)
    whole, whole_end, runs, masked = keys_of_tile(
        i0, i1, prefix, history, STEP, max_attn_len, min_full_attn_seq_len
    )
    sums = zeros(TILE, K_WIDTHS)
    for j0 in range(whole, whole_end, STEP):
        sums = _keys_step(
            sums, x, given, x_at, given_at, j0, i, k, v, k_row, k_head, v_row, v_head, start, n,
            head, prefix, history, alpha, TILE, STEP, HEAD_DIM, V_DIM, K_WIDTHS, V_WIDTHS,
            max_attn_len, min_full_attn_seq_len, ROLLED, False,
        )  # fmt: skip
    for t in range(masked):
        j0 = step_at(t, runs, STEP)
        sums = _keys_step(
            sums, x, given, x_at, given_at, j0, i, k, v, k_row, k_head, v_row, v_head, start, n,
            head, prefix, history, alpha, TILE, STEP, HEAD_DIM, V_DIM, K_WIDTHS, V_WIDTHS,
            max_attn_len, min_full_attn_seq_len, ROLLED, True,
        )  # fmt: skip
    base, far = rows_at(
        dq, (heads * HEAD_DIM).to(tl.int64), (one * HEAD_DIM).to(tl.int64), start + i0, r, head
    )
    store_rows(base, far, (), sums, alpha / max_seq_len, i < n, i < n, 0, K_WIDTHS, HEAD_DIM)


@triton.jit
def _queries_step(
    dk_sums, dv_sums, x, z, x_at, z_at, i0, j, q, do, q_row, q_head, do_row, do_head, start, n,
    head, prefix, history, alpha,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_WIDTHS: tl.constexpr, V_WIDTHS: tl.constexpr, WINDOW: tl.constexpr, FULL: tl.constexpr,
    ROLLED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums of dK and dV after queries `i0` to `i0 + STEP`."""
    r = tl.arange(0, STEP)
    i = i0 + r
    q_base, q_rows = rows_at(q, q_row, q_head, start + i0, r, head)
    do_base, do_rows = rows_at(do, do_row, do_head, start + i0, r, head)
    queries = load_rows(q_base, q_rows, (), i < n, K_WIDTHS, HEAD_DIM, MASKED, True)
    given = load_rows(do_base, do_rows, (), i < n, V_WIDTHS, V_DIM, MASKED, True)
    s = alpha * products_of(
        x, queries, x_at, (q_base, q_rows, (), i < n), q, TILE, STEP, HEAD_DIM, True, ROLLED
    )
    dp = products_of(
        z, given, z_at, (do_base, do_rows, (), i < n), q, TILE, STEP, V_DIM, True, ROLLED
    )
    p, slope = _weights(s)
    ds = dp * slope
    if MASKED:
        mask = seen(i, j, prefix, history, WINDOW, FULL).T
        p = tl.where(mask, p, 0.0)
        ds = tl.where(mask, ds, 0.0)
    dv_sums = add_products(dv_sums, p.to(q.dtype.element_ty), given)
    dk_sums = add_products(dk_sums, ds.to(q.dtype.element_ty), queries)
    return dk_sums, dv_sums


@triton.jit
def gradients_of_keys(
    q, k, v, offsets, do, num_targets, dk, dv, order, bounds, rows, heads, q_row, q_head, k_row,
    k_head, v_row, v_head, max_seq_len, alpha,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    ROLLED: tl.constexpr, has_num_targets: tl.constexpr, causal: tl.constexpr,
    contextual_seq_len: tl.constexpr, max_attn_len: tl.constexpr,
    min_full_attn_seq_len: tl.constexpr,
):  # fmt: skip
    """A tile of dK and dV."""
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    V_WIDTHS: tl.constexpr = pieces(V_DIM, 16)
    batch = bounds - 1
    head = tl.program_id(0) % heads
    place = tl.program_id(0) // heads
    places = rows // TILE + batch
    last, count, _, _ = sequence_of(
        batch - 1, offsets, num_targets, rows, contextual_seq_len, causal, False
    )
    clear_rows(
        dk, (0, heads * HEAD_DIM, HEAD_DIM, 1), last + count, rows, head, place, places, K_WIDTHS,
        HEAD_DIM, 32,
    )  # fmt: skip
    clear_rows(
        dv, (0, heads * V_DIM, V_DIM, 1), last + count, rows, head, place, places, V_WIDTHS, V_DIM,
        32,
    )  # fmt: skip
    b, tile = tile_of(order, batch, place)
    start, n, prefix, history = sequence_of(
        b, offsets, num_targets, rows, contextual_seq_len, causal, has_num_targets
    )
    j0 = tile * TILE  # under a causal mask the first keys are seen by most rows
    if j0 >= n:
        return
    j1 = tl.minimum(j0 + TILE, n) - 1
    r = tl.arange(0, TILE)
    j = j0 + r
    one = head * 0 + 1
    dk_row = (heads * HEAD_DIM).to(tl.int64)
    dv_row = (heads * V_DIM).to(tl.int64)
    dk_head = (one * HEAD_DIM).to(tl.int64)
    dv_head = (one * V_DIM).to(tl.int64)
    k_base, k_rows = rows_at(k, k_row, k_head, start + j0, r, head)
    v_base, v_rows = rows_at(v, v_row, v_head, start + j0, r, head)
    x_at = (k_base, k_rows, (), j < n)
    z_at = (v_base, v_rows, (), j < n)
    x = ()
    z = ()
    if not ROLLED:
        x = load_rows(k_base, k_rows, (), j < n, K_WIDTHS, HEAD_DIM, True, True)
        z = load_rows(v_base, v_rows, (), j < n, V_WIDTHS, V_DIM, True, True)
    whole, whole_end, runs, masked = queries_of_tile(
        j0, j1, n, prefix, history, STEP, max_attn_len, min_full_attn_seq_len
    )
    dk_sums = zeros(TILE, K_WIDTHS)
    dv_sums = zeros(TILE, V_WIDTHS)
    for i0 in range(whole, whole_end, STEP):
        dk_sums, dv_sums = _queries_step(
            dk_sums, dv_sums, x, z, x_at, z_at, i0, j, q, do, q_row, q_head, dv_row, dv_head, start,
            n, head, prefix, history, alpha, TILE, STEP, HEAD_DIM, V_DIM, K_WIDTHS, V_WIDTHS,
            max_attn_len, min_full_attn_seq_len, ROLLED, False,
        )  # fmt: skip
    for t in range(masked):
        i0 = step_at(t, runs, STEP)
        dk_sums, dv_sums = _queries_step(
            dk_sums, dv_sums, x, z, x_at, z_at, i0, j, q, do, q_row, q_head, dv_row, dv_head, start,
            n, head, prefix, history, alpha, TILE, STEP, HEAD_DIM, V_DIM, K_WIDTHS, V_WIDTHS,
            max_attn_len, min_full_attn_seq_len, ROLLED, True,
        )  # fmt: skip
    there = j < n
    base, far = rows_at(dk, dk_row, dk_head, start + j0, r, head)
    store_rows(base, far, (), dk_sums, alpha / max_seq_len, there, there, 0, K_WIDTHS, HEAD_DIM)
    base, far = rows_at(dv, dv_row, dv_head, start + j0, r, head)
    store_rows(base, far, (), dv_sums, 1.0 / max_seq_len, there, there, 0, V_WIDTHS, V_DIM)
