"""The gradient of a bias from the gradients of scores that `gluon_ws` wrote: a workgroup owns a
tile of it, and adds up over the sequences and heads that share it, in one order. In Triton.

Scores that no query and key have are zero: nothing was written there, and what is read is dropped
before it is added. Tiles without any are not read. It is bound by the memory's bandwidth, and was
not timed alone.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import sequence
from tilewright.ops.attention.kernels.scores import seen


@triton.jit
def bias_sums(
    ds, dbias, q_offsets, kv_offsets, q_used, kv_used, bias_batch, bias_heads, batch, heads, q_len,
    kv_len, total_q, total_kv, accumulate, left, right, first, bottom_right,
    MASK: tl.constexpr, PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr,
    USEDKV: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of the bias's gradient. The arguments are those of the catalogue (`arguments`)."""
    q_tiles = tl.cdiv(q_len, ROWS)
    kv_tiles = tl.cdiv(kv_len, COLUMNS)
    own = tl.program_id(0) // (q_tiles * kv_tiles)
    i0 = tl.program_id(0) // kv_tiles % q_tiles * ROWS
    j0 = tl.program_id(0) % kv_tiles * COLUMNS
    i = i0 + tl.arange(0, ROWS)
    j = j0 + tl.arange(0, COLUMNS)
    columns = kv_len // 8 * 8  # it is a multiple: vectors of 16 bytes are whole
    inside = (i < q_len)[:, None] & (j < columns)[None, :]
    # A head's scores may be more than 32 bits count; a tile's are not.
    tile = i0.to(tl.int64) * columns
    within = tl.arange(0, ROWS)[:, None] * columns + j[None, :]
    size = q_len.to(tl.int64) * columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    # One loop over all that shares the tile: sequences, and heads of each.
    alike = heads // bias_heads
    for n in range(batch // bias_batch * alike):
        b = own // bias_heads + n // alike  # one of the two is 0, and so for heads
        head = own % bias_heads + n % alike
        _, n_q, _, n_kv = sequence(
            b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q,
            total_kv, 0,
            PACKEDQ, PACKEDKV, USEDQ, USEDKV, False, False,
        )  # fmt: skip
        shift = (n_kv - n_q) * bottom_right
        last = min(i0 + ROWS, n_q) - 1
        some = (i0 < n_q) & (j0 < n_kv)
        if MASK != "none":
            some = some & (j0 <= last + shift + right)
        if MASK == "window":
            some = some & ((j0 + COLUMNS > i0 + shift - left) | (j0 < first))
        if some:
            x = tl.load(ds + ((b * heads + head) * size + tile) + within, mask=inside, other=0.0)
            there = (i < n_q)[:, None] & seen(i, j, n_kv, shift, left, right, first, MASK)
            total += tl.where(there, x.to(tl.float32), 0.0)
    to = dbias + (own * size + tile) + within
    if accumulate != 0:
        total += tl.load(to, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, total.to(dbias.dtype.element_ty), mask=inside)
