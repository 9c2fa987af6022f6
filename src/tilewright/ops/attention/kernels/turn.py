"""Values in fp8 by columns: the keys of a head's column become neighbours, as wgmma reads 8-bit
operands along the summed dimension alone. A part of `gluon_turned`.

A workgroup turns a tile of KEYS × COLUMNS in shared memory. Keys that a sequence does not have
become zero, because a weight of zero times NaN is NaN. What limits it is memory: each value is read
and written once (docs/notes/attention-gluon_ws.md).
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.lengths import keys_of

KEYS = tl.constexpr(128)
COLUMNS = tl.constexpr(64)


@triton.jit
def turn(
    v, turned_v, kv_used, v_strides, kv_heads, kv_len, new_kv, turned_len,
    HEAD_DIM_V: tl.constexpr, USEDKV: tl.constexpr, APPEND: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """turned_v: [batch, kv_heads, HEAD_DIM_V, turned_len]."""
    b = tl.program_id(2)
    h = tl.program_id(1) % kv_heads
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    column = tl.program_id(1) // kv_heads * COLUMNS + tl.arange(0, COLUMNS)
    _, count = keys_of(b, kv_len, 0, new_kv, kv_used, kv_used, False, USEDKV, APPEND)
    at = b.to(tl.int64) * v_strides[0] + h.to(tl.int64) * v_strides[2]
    near = column if UNIT else column * v_strides[3]  # a stride of 1 is loaded in vectors
    rows = key.to(tl.int64)[:, None] * v_strides[1] + near[None, :]
    there = (key < count)[:, None] & (column < HEAD_DIM_V)[None, :]
    x = tl.load(v + at + rows, mask=there, other=0.0)
    line = (b.to(tl.int64) * kv_heads + h) * HEAD_DIM_V + column
    length = turned_len // 16 * 16  # which it is: said so that bytes are stored in vectors
    to = turned_v + line[:, None] * length + key[None, :]
    tl.store(to, tl.trans(x), mask=(column < HEAD_DIM_V)[:, None] & (key < length)[None, :])
