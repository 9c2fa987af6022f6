"""A mixture's layer as serving engines write it in Triton: rows of each expert are padded to whole
blocks, and one kernel multiplies any block with the weights of its expert.

Written anew from what such a layer is said to do. Steps, each a launch: `pad_few`, or `count`,
`pad` and `place`; `product`; `gate`; `product` with the routing's weights; `add_up`. A *slot* is a
choice: token · top_k + j. Rows of both products lie by slots, so that nothing is put back in order;
a block of `order` has the slots of one expert, and behind them numbers that are no slot. In 8 bits,
`round_rows` comes first, and `gate` rounds too: each 128 elements of a row share a scale.

`add_rows` is another last step, beside ours: sums by atomics, in any order.

Compiled for one size of an expert's block, not for a problem: sizes are arguments.
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST = tl.constexpr(448.0)
"""The largest e4m3fn."""


@triton.jit
def pad_few(ids, order, owners, total, cursor, slots, length, EXPERTS: tl.constexpr,
            EXPERTS_UP: tl.constexpr, BLOCK_M: tl.constexpr, SLOTS: tl.constexpr):  # fmt: skip
    """All of the padding in one workgroup, for few slots."""
    at = tl.arange(0, SLOTS)
    here = at < slots
    mine = tl.load(ids + at, mask=here, other=0)
    counts = tl.histogram(mine, EXPERTS_UP, mask=here)
    ends = _begin(counts, total, cursor, EXPERTS, EXPERTS_UP, BLOCK_M)
    for start in range(0, length // BLOCK_M, 16):
        _name_owners(ends, start, owners, length // BLOCK_M, EXPERTS)
    for start in range(0, length, SLOTS):
        there = start + at
        tl.store(order + there, tl.zeros([SLOTS], tl.int32) + slots, mask=there < length)
    tl.debug_barrier()
    there = tl.atomic_add(cursor + mine, 1, mask=here)
    tl.store(order + there, at, mask=here)


@triton.jit
def _begin(counts, total, cursor, EXPERTS: tl.constexpr, EXPERTS_UP: tl.constexpr,
           BLOCK_M: tl.constexpr):  # fmt: skip
    """Store where the rows of each expert begin, and the end of all. Returns where the blocks of
    each end."""
    every = tl.arange(0, EXPERTS_UP)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(blocks, axis=0)
    tl.store(cursor + every, (ends - blocks) * BLOCK_M, mask=every < EXPERTS)
    tl.store(total, tl.sum(blocks, axis=0) * BLOCK_M)
    return ends


@triton.jit
def _name_owners(ends, start, owners, blocks, EXPERTS: tl.constexpr):
    """Store the experts of 16 blocks."""
    block = start + tl.arange(0, 16)
    owner = tl.sum((block[:, None] >= ends[None, :]).to(tl.int32), axis=1)
    tl.store(owners + block, tl.minimum(owner, EXPERTS - 1), mask=block < blocks)


@triton.jit
def count(ids, counts, order, slots, length, EXPERTS: tl.constexpr, EXPERTS_UP: tl.constexpr,
          CHUNK: tl.constexpr):  # fmt: skip
    """Slots of each expert, added to counts of 0; and `order` without any slot."""
    program = tl.program_id(0)
    at = program * CHUNK + tl.arange(0, CHUNK)
    mine = tl.load(ids + at, mask=at < slots, other=0)
    here = tl.histogram(mine, EXPERTS_UP, mask=at < slots)
    every = tl.arange(0, EXPERTS_UP)
    tl.atomic_add(counts + every, here, mask=(every < EXPERTS) & (here > 0))
    for start in range(program * CHUNK, length, CHUNK * tl.num_programs(0)):
        there = start + tl.arange(0, CHUNK)
        tl.store(order + there, tl.zeros([CHUNK], tl.int32) + slots, mask=there < length)


@triton.jit
def pad(counts, owners, total, cursor, length, EXPERTS: tl.constexpr, EXPERTS_UP: tl.constexpr,
        BLOCK_M: tl.constexpr):  # fmt: skip
    """Where the rows of each expert begin, and the expert of each block."""
    every = tl.arange(0, EXPERTS_UP)
    found = tl.load(counts + every, mask=every < EXPERTS, other=0)
    ends = _begin(found, total, cursor, EXPERTS, EXPERTS_UP, BLOCK_M)
    _name_owners(ends, tl.program_id(0) * 16, owners, length // BLOCK_M, EXPERTS)


@triton.jit
def place(ids, order, cursor, slots, CHUNK: tl.constexpr):
    """Each slot behind those of its expert that came before."""
    at = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    mine = tl.load(ids + at, mask=at < slots, other=0)
    there = tl.atomic_add(cursor + mine, 1, mask=at < slots)
    tl.store(order + there, at, mask=at < slots)


@triton.jit(do_not_specialize=("slots", "top_k", "blocks", "group_m", "weighted"))
def product(a, b, c, scale_a, scale_b, weights, order, owners, total, n, k, slots, top_k, blocks,
            group_m, weighted, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            BLOCK_K: tl.constexpr, EVEN: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """c[slot] = a[slot / top_k] · b[expert]ᵀ, for the slots of a block of `order`. b is [experts,
    n, k]. weighted: whether each row is multiplied by its slot's weight. EVEN: k is whole BLOCK_Ks.
    SCALED: a has a scale for each 128 elements of a row, b for each 128 × 128."""
    across = tl.cdiv(n, BLOCK_N)
    program = tl.program_id(0)
    band = program // (group_m * across)
    height = tl.minimum(blocks - band * group_m, group_m)
    inside = program % (group_m * across)
    row_block, column_block = band * group_m + inside % height, inside // height
    if row_block * BLOCK_M >= tl.load(total):
        return
    slot = tl.load(order + row_block * BLOCK_M + tl.arange(0, BLOCK_M))
    real = slot < slots
    expert = tl.load(owners + row_block).to(tl.int64)
    row = (slot // top_k).to(tl.int64)
    column = (column_block * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    deep = tl.arange(0, BLOCK_K)
    a_at = a + row[:, None] * k + deep[None, :]
    b_at = b + expert * n * k + column[None, :].to(tl.int64) * k + deep[:, None]
    scales = tl.cdiv(k, 128)
    sa_at = scale_a + row * scales
    sb_at = scale_b + (expert * tl.cdiv(n, 128) + column // 128) * scales
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        if EVEN:
            some_a = tl.load(a_at, mask=real[:, None], other=0.0)
            some_b = tl.load(b_at)
        else:
            left = k - start
            some_a = tl.load(a_at, mask=real[:, None] & (deep[None, :] < left), other=0.0)
            some_b = tl.load(b_at, mask=deep[:, None] < left, other=0.0)
        if SCALED:
            of_a = tl.load(sa_at + start // 128, mask=real, other=0.0)
            of_b = tl.load(sb_at + start // 128)
            sums += tl.dot(some_a, some_b) * of_a[:, None] * of_b[None, :]
        else:
            sums = tl.dot(some_a, some_b, sums)
        a_at += BLOCK_K
        b_at += BLOCK_K
    weight = tl.load(weights + slot, mask=real & (weighted != 0), other=1.0)
    sums *= weight[:, None]
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    c_at = c + slot.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(c_at, sums.to(c.dtype.element_ty), mask=real[:, None] & (column[None, :] < n))


@triton.jit(do_not_specialize=("limit", "alpha", "shift"))
def gate(rows, out, scales, inner, limit, alpha, shift, BLOCK: tl.constexpr,
         CLAMPED: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """SiLU of gates, by ups: halves of a row, or, clamped, elements by turns. SCALED: rounded to 8
    bits."""
    row = tl.program_id(0).to(tl.int64)
    at = _in_groups(BLOCK)
    here = at < inner
    rows += row * 2 * inner
    if CLAMPED:
        gates = tl.load(rows + 2 * at, mask=here, other=0.0).to(tl.float32)
        ups = tl.load(rows + 2 * at + 1, mask=here, other=0.0).to(tl.float32)
        gates = tl.minimum(gates, limit)
        ups = tl.minimum(tl.maximum(ups, -limit), limit)
        made = gates * tl.sigmoid(alpha * gates) * (ups + shift)
    else:
        gates = tl.load(rows + at, mask=here, other=0.0).to(tl.float32)
        ups = tl.load(rows + inner + at, mask=here, other=0.0).to(tl.float32)
        made = gates * tl.sigmoid(gates) * ups
    if SCALED:
        made = _rounded(made, scales + row * tl.cdiv(inner, 128), inner, BLOCK)
    tl.store(out + row * inner + at, made.to(out.dtype.element_ty), mask=here)


@triton.jit
def _in_groups(BLOCK: tl.constexpr):
    """The columns of this workgroup, 128 in each row."""
    group = tl.program_id(1) * (BLOCK // 128) + tl.arange(0, BLOCK // 128)
    return group[:, None] * 128 + tl.arange(0, 128)[None, :]


@triton.jit
def _rounded(some, scales, width, BLOCK: tl.constexpr):
    """Groups divided by their scales, which are stored."""
    scale = tl.maximum(tl.max(tl.abs(some), axis=1), 1e-10) / MOST
    group = tl.program_id(1) * (BLOCK // 128) + tl.arange(0, BLOCK // 128)
    tl.store(scales + group, scale, mask=group * 128 < width)
    return tl.clamp(some / scale[:, None], -MOST, MOST)


@triton.jit
def round_rows(x, out, scales, width, BLOCK: tl.constexpr):
    """Rows in 8 bits, with a scale for each 128 elements."""
    row = tl.program_id(0).to(tl.int64)
    at = _in_groups(BLOCK)
    some = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    some = _rounded(some, scales + row * tl.cdiv(width, 128), width, BLOCK)
    tl.store(out + row * width + at, some.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def add_up(rows, out, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of a token's rows."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(TOP_K):
        sums += tl.load(rows + (token * TOP_K + j) * width + at, mask=at < width, other=0.0)
    tl.store(out + token * width + at, sums.to(out.dtype.element_ty), mask=at < width)


@triton.jit(do_not_specialize=("top_k",))
def add_rows(rows, places, weights, out, width, top_k, BLOCK: tl.constexpr):
    """out[slot / top_k] += weight · rows[place], by atomics."""
    slot = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = tl.load(places + slot).to(tl.int64)
    if there >= 0:
        some = tl.load(rows + there * width + at, mask=at < width, other=0.0).to(tl.float32)
        sums = out + (slot // top_k).to(tl.int64) * width + at
        tl.atomic_add(sums, some * tl.load(weights + slot), mask=at < width, sem="relaxed")


@triton.jit
def read(words, out, count, BLOCK: tl.constexpr, PIECES: tl.constexpr):
    """PIECES times BLOCK 32-bit words, of which nothing but one number is made: what reading takes
    by itself."""
    seen = tl.zeros([BLOCK], tl.int32)
    first = tl.program_id(0).to(tl.int64) * BLOCK * PIECES
    for piece in tl.static_range(PIECES):
        at = first + piece * BLOCK + tl.arange(0, BLOCK)
        seen ^= tl.load(words + at, mask=at < count, other=0, cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.xor_sum(seen, 0))
