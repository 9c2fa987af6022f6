"""Attention from plain pointers: the portable kernel."""

import triton
import triton.language as tl


@triton.jit
def attention_basic(
    q, k, v, o, lse, random, bias, slopes, sinks, q_offsets, kv_offsets, q_used, kv_used, left_pad,
    page_table, page_list, page_starts, q_scale, k_scale, v_scale, o_scale, partial_o, partial_lse,
    q_strides, k_strides, v_strides, o_strides, bias_strides, q_scale_strides, kv_scale_strides,
    heads, kv_heads, group, q_len, kv_len, total_q, rows, page_entries, new_kv, slopes_stride,
    scale_block, splits, split_len, left, right, first, bottom_right, softcap, dropped, scale, seed,
    offset,
    TILE_Q: tl.constexpr, TILE_KV: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    MASK: tl.constexpr, PAGE: tl.constexpr, PACK: tl.constexpr, SPLIT: tl.constexpr,
    LSE: tl.constexpr, RANDOM: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    ALIBI: tl.constexpr, SINKS: tl.constexpr, DROPOUT: tl.constexpr, PACKEDQ: tl.constexpr,
    PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, USEDKV: tl.constexpr, LEFTPAD: tl.constexpr,
    PAGETABLE: tl.constexpr, PAGELIST: tl.constexpr, VECTORISED: tl.constexpr,
    TSCALE: tl.constexpr, HSCALE: tl.constexpr, BSCALE: tl.constexpr, OSCALE: tl.constexpr,
    APPEND: tl.constexpr, LARGEST_O: tl.constexpr,
):  # fmt: skip
    tile, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    g = h // group
    i = tile * TILE_Q + tl.arange(0, TILE_Q)
    d = tl.arange(0, HEAD_DIM)
    qs = q + b * q_strides[0] + i[:, None] * q_strides[1] + h * q_strides[2] + d[None, :]
    x = tl.load(qs, mask=i[:, None] < q_len, other=0.0)
    m = tl.full((TILE_Q,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_Q,), tl.float32)
    sums = tl.zeros((TILE_Q, HEAD_DIM_V), tl.float32)
    e = tl.arange(0, HEAD_DIM_V)
    for start in range(0, kv_len, TILE_KV):
        j = start + tl.arange(0, TILE_KV)
        ks = k + b * k_strides[0] + j[:, None] * k_strides[1] + g * k_strides[2] + d[None, :]
        y = tl.load(ks, mask=j[:, None] < kv_len, other=0.0)
        s = tl.dot(x, y.T) * (scale * 1.4426950408889634)
        seen = j[None, :] < kv_len
        if MASK != "none":
            at = i[:, None] + bottom_right * (kv_len - q_len)
            seen = seen & (j[None, :] <= at + right)
        if MASK == "window":
            seen = seen & ((j[None, :] >= at - left) | (j[None, :] < first))
        s = tl.where(seen, s, float("-inf"))
        most = tl.maximum(m, tl.max(s, 1))
        base = tl.where(most == float("-inf"), 0.0, most)
        p = tl.exp2(s - base[:, None])
        again = tl.exp2(m - base)
        total = total * again + tl.sum(p, 1)
        vs = v + b * v_strides[0] + j[:, None] * v_strides[1] + g * v_strides[2] + e[None, :]
        z = tl.load(vs, mask=j[:, None] < kv_len, other=0.0)
        sums = tl.dot(p.to(z.dtype), z, sums * again[:, None])
        m = most
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    os = o + b * o_strides[0] + i[:, None] * o_strides[1] + h * o_strides[2] + e[None, :]
    tl.store(os, sums.to(o.dtype.element_ty), mask=i[:, None] < q_len)
