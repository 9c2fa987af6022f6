"""The logarithms of sums that LSE has no place for, under a bias.

LSE of a row is its maximum plus the logarithm of the sum of exponentials below it. Beside a large
maximum the logarithm is rounded away: a row whose biases are all -10^9, or the least number of
fp32, has the LSE of one of its keys, and its weights, exp(score - LSE), would each be 1. So the
kernels take two numbers from a score, first `tops`, then `logs`. Of most rows these are 0 and LSE.
Of rows whose LSE is far from 0 the scores are computed here once more, and they are the maximum, in
units of log2(e), and the logarithm of the sum, which is natural as LSE is. Both lie as LSE does.

Rows that are far from 0 are rare, so a workgroup mostly reads its LSE, and writes it. Nothing was
timed yet.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import pieces, row_places, sequence
from tilewright.ops.attention.kernels.scores import LOG2E, in_base2
from tilewright.ops.attention_backward.kernels.steps import (
    load_rows,
    products_of,
    row_numbers,
    scores,
)

FAR = tl.constexpr(1024.0)
"""An LSE up to this is off by 2^-14, and so are weights: less than they are rounded."""


@triton.jit
def logarithms(
    q, k, lse, tops, logs, bias, sinks, q_offsets, kv_offsets, q_used, kv_used, q_strides,
    k_strides, bias_strides, heads, group, q_len, kv_len, total_q, total_kv, left, right, first,
    bottom_right, softcap, scale,
    HEAD_DIM: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, USEDKV: tl.constexpr,
    UNIT: tl.constexpr, ROLLED: tl.constexpr,
):  # fmt: skip
    """The two numbers of each row. The arguments are those of the catalogue (`arguments`)."""
    ROWS: tl.constexpr = 32
    STEP: tl.constexpr = 32
    WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    tiles = tl.cdiv(q_len, ROWS)
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles % heads
    b = tl.program_id(0) // tiles // heads
    q_start, n_q, kv_start, n_kv = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
        total_kv, 0,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV, False, False,
    )  # fmt: skip
    i0 = tile * ROWS
    if i0 >= n_q:
        return
    r = tl.arange(0, ROWS)
    i = i0 + r
    there = i < n_q
    at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
    log = tl.load(lse + at, mask=there, other=0.0)
    top = tl.zeros((ROWS,), tl.float32)
    far = (tl.abs(log) > FAR) & (log != float("-inf"))
    if tl.max(far.to(tl.int32), 0) > 0:
        shift = (n_kv - n_q) * bottom_right
        q_base, q_rows = row_places(q, q_strides, b, q_start, i0, r, head)
        x_at = (q_base, q_rows, q_strides, there)
        x = ()
        if not ROLLED:
            x = load_rows(*x_at, WIDTHS, HEAD_DIM, True, UNIT)
        biases = bias + b.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
        biases += i.to(tl.int64) * bias_strides[2]
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        if SINKS:
            most = in_base2(tl.load(sinks + head + i * 0))
            total = tl.where(most == float("-inf"), 0.0, 1.0)
        for j0 in range(0, n_kv, STEP):
            j = j0 + r
            k_base, k_rows = row_places(k, k_strides, b, kv_start, j0, r, head // group)
            keys_at = (k_base, k_rows, k_strides, j < n_kv)
            keys = ()
            if not ROLLED:
                keys = load_rows(*keys_at, WIDTHS, HEAD_DIM, True, UNIT)
            s = products_of(x, keys, x_at, keys_at, k, ROWS, STEP, HEAD_DIM, UNIT, ROLLED)
            s, _ = scores(
                s, i, j, biases, 0.0, n_q, n_kv, kv_len, shift, left, right, first, softcap,
                scale * LOG2E, MASK, SOFTCAP, True, False, True,
            )  # fmt: skip
            new = tl.maximum(most, tl.max(s, 1))
            base = tl.where(new == float("-inf"), 0.0, new)
            total = total * tl.exp2(most - base) + tl.sum(tl.exp2(s - base[:, None]), 1)
            most = new
        top = tl.where(far, most, 0.0)
        log = tl.where(far, tl.log2(total) / LOG2E, log)
    tl.store(tops + at, top, mask=there)
    tl.store(logs + at, log, mask=there)
