"""HSTU's attention, forward: O = (SiLU(alpha · Q·Kᵀ) / N, masked) · V of jagged sequences.

Idea. A workgroup computes TILE rows of O of a head: Q stays, K and V pass by in steps of STEP keys.
A weight depends on its own score alone, so there is no maximum, no sum to divide by, and nothing is
scaled again. Division by N comes after the sums: weights of fp16 are then no subnormal numbers.

Order. As in attention's portable kernel (`ops.attention.kernels.basic`): steps whose keys all rows
see are a loop of their own, without comparisons, and the last tiles of a sequence, which see most
keys, start first. The longest sequences start first. Tiles are numbered along the sequences, so
that there are no workgroups for lengths that no sequence has.

Data. Ordinary loads, which Triton pipelines. A key behind the end is zeros; its weight is SiLU(0),
zero.

What limits it: two products for each step, and an exponential and a root for each score. In a build
for sm_90 (Triton 3.6.0, head dim 128) a step is 358 instructions of a lane for its 32 scores, where
a division in place of the root made it 551. 124,518 rows of 512 sequences, 4 heads of 128, bf16,
took an H200 306 µs in tiles of 64 × 64, 362 of 64 × 32 and 417 of 128 × 64 (single launches,
2026-11-30); torch's form over padded sequences, compiled, 3,622.
"""

import triton
import triton.language as tl

from tilewright.declared.attention.kernels._jagged import (
    keys_of_tile,
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
def _step(
    sums, x, x_at, j0, i, k, v, k_row, k_head, v_row, v_head, start, n, head, prefix, history,
    alpha,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_WIDTHS: tl.constexpr, V_WIDTHS: tl.constexpr, WINDOW: tl.constexpr, FULL: tl.constexpr,
    ROLLED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after keys `j0` to `j0 + STEP`."""
    r = tl.arange(0, STEP)
    j = j0 + r
    k_base, k_rows = rows_at(k, k_row, k_head, start + j0, r, head)
    v_base, v_rows = rows_at(v, v_row, v_head, start + j0, r, head)
    keys = ()
    if not ROLLED:
        keys = load_rows(k_base, k_rows, (), j < n, K_WIDTHS, HEAD_DIM, MASKED, True)
    values = load_rows(v_base, v_rows, (), j < n, V_WIDTHS, V_DIM, MASKED, True)
    s = alpha * products_of(
        x, keys, x_at, (k_base, k_rows, (), j < n), k, TILE, STEP, HEAD_DIM, True, ROLLED
    )
    p = s * sigmoid(s)
    if MASKED:
        p = tl.where(seen(i, j, prefix, history, WINDOW, FULL), p, 0.0)
    return add_products(sums, p.to(k.dtype.element_ty), values)


@triton.jit
def hstu_attention(
    q, k, v, offsets, num_targets, o, order, bounds, rows, heads, q_row, q_head, k_row, k_head,
    v_row, v_head, max_seq_len, alpha,
    TILE: tl.constexpr, STEP: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    ROLLED: tl.constexpr, has_num_targets: tl.constexpr, causal: tl.constexpr,
    contextual_seq_len: tl.constexpr, max_attn_len: tl.constexpr,
    min_full_attn_seq_len: tl.constexpr,
):  # fmt: skip
    """A tile of O."""
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
        o, (0, heads * V_DIM, V_DIM, 1), last + count, rows, head, place, places, V_WIDTHS, V_DIM,
        32,
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
    q_base, q_rows = rows_at(q, q_row, q_head, start + i0, r, head)
    x_at = (q_base, q_rows, (), i < n)
    x = ()
    if not ROLLED:
        x = load_rows(q_base, q_rows, (), i < n, K_WIDTHS, HEAD_DIM, True, True)
    whole, whole_end, runs, masked = keys_of_tile(
        i0, i1, prefix, history, STEP, max_attn_len, min_full_attn_seq_len
    )
    sums = zeros(TILE, V_WIDTHS)
    for j0 in range(whole, whole_end, STEP):
        sums = _step(
            sums, x, x_at, j0, i, k, v, k_row, k_head, v_row, v_head, start, n, head, prefix,
            history, alpha, TILE, STEP, HEAD_DIM, V_DIM, K_WIDTHS, V_WIDTHS, max_attn_len,
            min_full_attn_seq_len, ROLLED, False,
        )  # fmt: skip
    for t in range(masked):
        j0 = step_at(t, runs, STEP)
        sums = _step(
            sums, x, x_at, j0, i, k, v, k_row, k_head, v_row, v_head, start, n, head, prefix,
            history, alpha, TILE, STEP, HEAD_DIM, V_DIM, K_WIDTHS, V_WIDTHS, max_attn_len,
            min_full_attn_seq_len, ROLLED, True,
        )  # fmt: skip
    base, far = rows_at(
        o, (heads * V_DIM).to(tl.int64), (head * 0 + V_DIM).to(tl.int64), start + i0, r, head
    )
    store_rows(base, far, (), sums, 1.0 / max_seq_len, i < n, i < n, 0, V_WIDTHS, V_DIM)
