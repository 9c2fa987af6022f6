"""Masks of blocks, by columns: which blocks of queries see each block of keys, as lists that tiles
of keys walk.

Idea. What attention's `list_blocks` writes for a row of the mask, `list_queries` writes for a
column of it: so the host waits for nothing, and the order of a sum is that of the queries.

Lists. A line is a column of the mask for one sequence: [batch, heads of the mask, blocks of keys].
Its list has a place for each block of queries. Blocks of which every query sees every key, and has
a row to be read, stand at the beginning, in order. The others that see some key stand at the end,
the first of them last. Counts are [line, 2]: whole blocks, cut ones.

What limits it: a workgroup reads one column of the mask, a byte of each row; beside the gradients
over the blocks this is little. Nothing was timed yet.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import sequence

CHUNK = tl.constexpr(256)
"""Blocks of queries that a workgroup looks at together."""


@triton.jit
def list_queries(
    blocks, query_list, query_counts, q_offsets, kv_offsets, q_used, kv_used, q_len, kv_len,
    total_q, total_kv, block_size, block_batch, block_heads, left, right, first, bottom_right,
    MASK: tl.constexpr, PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr,
    USEDKV: tl.constexpr,
):  # fmt: skip
    """The grid has a workgroup for each line."""
    rows = tl.cdiv(q_len, block_size)
    columns = tl.cdiv(kv_len, block_size)
    line = tl.program_id(0)
    column = line % columns
    h = line // columns % block_heads
    b = line // columns // block_heads
    _, n_q, _, n_kv = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, kv_used, q_len, kv_len, total_q, total_kv, 0,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV, False, False,
    )  # fmt: skip
    j0 = column * block_size
    j1 = min(j0 + block_size, n_kv)
    shift = (n_kv - n_q) * bottom_right
    plane = ((b % block_batch) * block_heads + h).to(tl.int64) * rows
    to = query_list + line.to(tl.int64) * rows
    whole = 0
    cut = 0
    for r0 in range(0, rows, CHUNK):
        r = r0 + tl.arange(0, CHUNK)
        i0 = r * block_size
        i1 = tl.minimum(i0 + block_size, n_q) - 1
        seen = tl.load(blocks + ((plane + r) * columns + column), mask=r < rows, other=0) != 0
        seen = seen & (i0 < n_q) & (j0 < n_kv)
        all_see = (i0 + block_size <= n_q) & (j0 + block_size <= n_kv)
        if MASK != "none":
            seen = seen & (j0 <= i1 + shift + right)
            all_see = all_see & (j1 <= i0 + shift + right + 1)
        if MASK == "window":
            seen = seen & ((j1 > i0 + shift - left) | (j0 < first))
            all_see = all_see & (j0 >= i1 + shift - left)
        is_whole = (seen & all_see).to(tl.int32)
        is_cut = seen.to(tl.int32) - is_whole
        tl.store(to + (whole + tl.cumsum(is_whole, 0) - 1), r, mask=is_whole != 0)
        tl.store(to + (rows - cut - tl.cumsum(is_cut, 0)), r, mask=is_cut != 0)
        whole += tl.sum(is_whole, 0)
        cut += tl.sum(is_cut, 0)
    counts = query_counts + line.to(tl.int64) * 2
    tl.store(counts, whole)
    tl.store(counts + 1, cut)


@triton.jit
def listed_queries(
    query_list, query_counts, b, head, j0, j1, n_q, n_kv, q_len, kv_len, shift, left, right, first,
    block_size, block_heads, STEP: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """For a tile of keys `j0` to `j1`, which are of one block: where the list of a head begins, the
    list's places, queries of whole blocks; of cut ones, the first step that the tile needs, counted
    in queries, and how many steps it needs."""
    rows = tl.cdiv(q_len, block_size)
    mine = head * tl.where(block_heads > 1, 1, 0)
    line = (b * block_heads + mine).to(tl.int64) * tl.cdiv(kv_len, block_size) + j0 // block_size
    at = query_list + line * rows
    whole = tl.load(query_counts + line * 2, mask=j0 < n_kv, other=0)
    cut = tl.load(query_counts + line * 2 + 1, mask=j0 < n_kv, other=0)
    begin = 0
    end = n_q
    if MASK != "none":
        begin = j0 - shift - right
    if MASK == "window":
        end = tl.where(j0 < first, end, min(end, j1 - shift + left + 1))
    lowest = tl.load(at + (rows - 1), mask=cut > 0, other=0) * block_size
    highest = (tl.load(at + (rows - cut), mask=cut > 0, other=0) + 1) * block_size
    before = min(max(begin - lowest, 0), block_size) // STEP * STEP
    behind = min(max(highest - end, 0), block_size) // STEP * STEP
    steps = max(cut * block_size - before - behind, 0) // STEP
    return at, rows, whole * block_size, before, steps
