"""Masks of blocks: which blocks of keys each block of queries sees, as lists that tiles walk.

Idea. Steps that test a mask one by one cannot be pipelined: loads behind a branch wait for it. So a
kernel of its own (`list_blocks`, a step of the launch) writes the blocks that a row of the mask
has into a list, and a tile loads the number of its next block as it would an entry of a page table
(Dong et al., "Flex Attention", 2024, and FlashInfer, which take such lists from the caller).

Lists. A line is a row of the mask for one sequence: [batch, heads of the mask, blocks of queries].
Its list has a place for each block of keys. Blocks that every query of the row sees whole stand at
the beginning, in order, and need no mask in the kernel. Those that the mask of elements or the end
of the keys cuts stand at the end, the first of them last. Blocks of which no query sees a key are
left out. Counts are [line, 2]: whole blocks, cut ones. Lines behind a sequence's queries hold
anything: no tile reads them.

What limits it: a workgroup reads one line of the mask and writes its list, so a mask is read once
and the lists have four times its bytes; beside attention over the blocks this is little.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import sequence
from tilewright.ops.attention.kernels.lengths import pages_of

CHUNK = tl.constexpr(256)
"""Blocks of keys that a workgroup looks at together."""


@triton.jit
def list_blocks(
    blocks, block_list, block_counts, q_offsets, kv_offsets, q_used, kv_used, left_pad, page_table,
    page_list, page_starts, q_len, kv_len, total_q, total_kv, new_kv, page_entries, block_size,
    block_batch, block_heads, left, right, first, bottom_right,
    MASK: tl.constexpr, PAGE: tl.constexpr, PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr,
    USEDQ: tl.constexpr, USEDKV: tl.constexpr, LEFTPAD: tl.constexpr, PAGETABLE: tl.constexpr,
    PAGELIST: tl.constexpr, APPEND: tl.constexpr,
):  # fmt: skip
    """The grid has a workgroup for each line."""
    rows = tl.cdiv(q_len, block_size)
    columns = tl.cdiv(kv_len, block_size)
    line = tl.program_id(0)
    row = line % rows
    h = line // rows % block_heads
    b = line // rows // block_heads
    _, room = pages_of(
        b, page_table, page_list, page_starts, page_entries, kv_len, PAGE, PAGETABLE, PAGELIST
    )  # fmt: skip
    _, n_q, _, n_kv = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, left_pad, q_len, room, total_q, total_kv, new_kv,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV, LEFTPAD, APPEND,
    )  # fmt: skip
    i0 = row * block_size
    i1 = min(i0 + block_size, n_q) - 1
    shift = (n_kv - n_q) * bottom_right
    end = n_kv  # of the keys that some query sees, and of those that each does
    whole_end = n_kv
    if MASK != "none":
        end = min(end, i1 + shift + right + 1)
        whole_end = min(whole_end, i0 + shift + right + 1)
    seen_at = blocks + (((b % block_batch) * block_heads + h).to(tl.int64) * rows + row) * columns
    to = block_list + line.to(tl.int64) * columns
    whole = 0
    cut = 0
    for c0 in range(0, columns, CHUNK):
        c = c0 + tl.arange(0, CHUNK)
        j0 = c * block_size
        j1 = j0 + block_size
        seen = tl.load(seen_at + c, mask=c < columns, other=0) != 0
        seen = seen & (j0 < end)
        all_see = j1 <= whole_end
        if MASK == "window":
            seen = seen & ((j1 > i0 + shift - left) | (j0 < first))
            all_see = all_see & (j0 >= i1 + shift - left)
        is_whole = (seen & all_see).to(tl.int32)
        is_cut = seen.to(tl.int32) - is_whole
        tl.store(to + (whole + tl.cumsum(is_whole, 0) - 1), c, mask=is_whole != 0)
        tl.store(to + (columns - cut - tl.cumsum(is_cut, 0)), c, mask=is_cut != 0)
        whole += tl.sum(is_whole, 0)
        cut += tl.sum(is_cut, 0)
    counts = block_counts + line.to(tl.int64) * 2
    tl.store(counts, whole)
    tl.store(counts + 1, cut)


@triton.jit
def listed(
    block_list, block_counts, b, h, i0, i1, n_kv, q_len, kv_len, shift, right, block_size,
    block_heads, TILE_KV: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """For a tile of queries `i0` to `i1`, which are of one block: where its list begins, the list's
    places, keys of whole blocks, and of cut ones up to the last step that the tile needs."""
    columns = tl.cdiv(kv_len, block_size)
    mine = h * tl.where(block_heads > 1, 1, 0)
    line = (b * block_heads + mine).to(tl.int64) * tl.cdiv(q_len, block_size) + i0 // block_size
    at = block_list + line * columns
    whole = tl.load(block_counts + line * 2)
    cut = tl.load(block_counts + line * 2 + 1)
    end = n_kv
    if MASK != "none":
        end = min(end, i1 + shift + right + 1)
    last = tl.load(at + (columns - cut), mask=cut > 0, other=0)
    beyond = max((last + 1) * block_size - end, 0) // TILE_KV * TILE_KV
    cut_keys = max(cut * block_size - min(beyond, block_size), 0)
    return at, columns, whole * block_size, cut_keys


@triton.jit
def listed_key(at, x, block_size):
    """The first key of the step that is `x` keys from the beginning of the blocks listed at `at`,
    one behind the other."""
    return tl.load(at + x // block_size) * block_size + x % block_size


@triton.jit
def listed_key_back(at, columns, x, block_size):
    """The same, of blocks that are listed from the end of `columns` places."""
    return tl.load(at + (columns - 1 - x // block_size)) * block_size + x % block_size
