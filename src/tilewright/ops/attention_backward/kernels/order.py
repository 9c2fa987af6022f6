"""Sequences by length, the longest first, where they have lengths of their own.

Workgroups start in the order of their numbers, and a GPU starts the next wherever one has ended. So
if the sequences that take longest come first, the short ones fill the end; if one comes last, its
tiles run while most of the GPU has nothing left to do. The lengths lie on the device, so a kernel
finds the order: each sequence counts the longer ones. It takes a workgroup for each 32 sequences
and passes over all lengths; nothing was timed.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.lengths import keys_of, queries_of
from tilewright.ops.device.lengths import length_at


@triton.jit
def _lengths(
    b, batch, q_offsets, kv_offsets, q_used, kv_used, q_len, kv_len, total_q, total_kv,
    PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, USEDKV: tl.constexpr,
):  # fmt: skip
    """Queries and keys of sequences `b` together, and rows that K has for them; -1 and 0 of those
    that are none."""
    known = tl.minimum(b, batch - 1)
    _, n_q = queries_of(known, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    _, room = keys_of(known, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, False, False)
    n_kv = room
    if USEDKV:
        n_kv = length_at(kv_used, known, room)
    return tl.where(b < batch, n_q + n_kv, -1), tl.where(b < batch, room, 0)


@triton.jit
def sequences_by_length(
    order, q_offsets, kv_offsets, q_used, kv_used, batch, q_len, kv_len, total_q, total_kv,
    TILE: tl.constexpr, PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr,
    USEDKV: tl.constexpr,
):  # fmt: skip
    """order [2, batch]: the sequences, the longest first, those of one length by number; and of
    each the tiles of TILE keys before its own. The arguments are those of the catalogue
    (`arguments`)."""
    ROWS: tl.constexpr = 32
    OTHERS: tl.constexpr = 32
    own = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine, _ = _lengths(
        own, batch, q_offsets, kv_offsets, q_used, kv_used, q_len, kv_len, total_q, total_kv,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV,
    )  # fmt: skip
    rank = tl.zeros((ROWS,), tl.int32)
    tiles = tl.zeros((ROWS,), tl.int32)
    for start in range(0, batch, OTHERS):
        other = start + tl.arange(0, OTHERS)
        theirs, room = _lengths(
            other, batch, q_offsets, kv_offsets, q_used, kv_used, q_len, kv_len, total_q, total_kv,
            PACKEDQ, PACKEDKV, USEDQ, USEDKV,
        )  # fmt: skip
        longer = theirs[None, :] > mine[:, None]
        before = longer | ((theirs[None, :] == mine[:, None]) & (other[None, :] < own[:, None]))
        rank += tl.sum(before.to(tl.int32), 1)
        tiles += tl.sum(tl.where(before, ((room + TILE - 1) // TILE)[None, :], 0), 1)
    tl.store(order + rank, own, mask=own < batch)
    tl.store(order + batch + rank, tiles, mask=own < batch)
