"""The operands of attention, by name, with their shapes, strides and dtypes.

q, k, v                     by position; without v, attention is latent
bias, slopes, sinks         what is added to scores
blocks                      [1 or batch, 1 or heads, blocks of queries, blocks of keys]
q_offsets, kv_offsets       [batch + 1], the first row of each sequence in packed rows
q_used, kv_used, left_pad   [batch], rows that a sequence has, and keys that it leaves out
page_table                  [batch, entries], each sequence's pages in order
page_list, page_starts      [entries] and [batch + 1], the same as one list
q_scale, k_scale, v_scale, o_scale
new_k, new_v                rows to append, and the angles to rotate them and Q by:
rotary_cos, rotary_sin      [places, rotary_dim / 2]
o, lse, random              outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.ops.attention.problem import FP8, AttentionProblem, Strides
from tilewright.ops.nouns import Operand, Role, View

# --- shapes ------------------------------------------------------------------------------------


def dense(shape: Sequence[int]) -> Strides:
    """The strides of a contiguous array. Of a symbol it is not asked whether it is 0: the answer
    would depend on data."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(1, size) if type(size) is int else size
    return tuple(reversed(found))


def in_layout(four: Sequence[int], layout: str) -> tuple[int, ...]:
    """Sizes or strides of (batch, row, head, dim), in a layout's order."""
    outer, row, head, dim = four
    return (outer, row, head, dim) if layout == "bshd" else (outer, head, row, dim)


def _rows(p: AttentionProblem, name: str) -> tuple[tuple[int, ...], Strides]:
    """Shape and strides of Q, K, V or O."""
    dim = p.head_dim if name in ("q", "k") else p.head_dim_v
    words = p.words
    if name in ("q", "o"):
        packed, outer, rows, heads, layout = "packedq", p.batch, p.q_len, p.heads, p.layout
        total = p.total_q
    else:
        packed, outer, rows, heads, layout = "packedkv", p.batch, p.kv_len, p.kv_heads, p.kv_layout
        total = p.total_kv
        if p.paged:
            outer, rows = p.pages, p.page_size
    strides: Strides = getattr(p, f"{name}_strides")
    if name in ("k", "v") and "vectorised" in words:
        x = p.vector
        inner = (dim // x, rows, x) if name == "k" else (rows // x, dim, x)
        shape: tuple[int, ...] = (outer, heads, *inner)
        return shape, dense(shape)
    if packed in words:
        shape = (total, heads, dim)
        return shape, strides[1:] or dense(shape)
    shape = in_layout((outer, rows, heads, dim), layout)
    return shape, in_layout(strides, layout) if strides else dense(shape)


def strides_of(p: AttentionProblem, name: str) -> Strides:
    """Strides of Q, K, V or O in elements, of (batch or page, row, head, dim). A packed array's
    first is 0. Not for vectorised pages."""
    return p.once(_STRIDES_OF[name])


def _strides_of(p: AttentionProblem, name: str) -> Strides:
    if "latent" in p.words and name == "v":
        name = "k"
    _, strides = _rows(p, name)
    if ("packedq" if name in ("q", "o") else "packedkv") in p.words:
        return (0, *strides)
    return in_layout(strides, p.layout if name in ("q", "o") else p.kv_layout)


_STRIDES_OF = {name: partial(_strides_of, name=name) for name in ("q", "k", "v", "o")}


def bias_of(p: AttentionProblem) -> tuple[tuple[int, ...], Strides]:
    """Shape and strides of the bias, of (batch, head, query, key)."""
    rows = p.bias_shape[2:] or (p.q_len,)
    shape = (*p.bias_shape[:2], *rows, p.kv_len)
    return shape, p.bias_strides or dense(shape)


def _shapes(p: AttentionProblem) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of the operands passed by keyword that `p` has, in order."""
    words, found = p.words, {}
    float_type = "bf16" if p.dtype in FP8 else p.dtype
    if p.bias_shape:
        found["bias"] = bias_of(p)[0], p.bias_dtype or float_type
    if p.blocks_shape:
        found["blocks"] = (*p.blocks_shape, *p.block_counts), "bool"
    if "alibi" in words:
        found["slopes"] = (p.batch, p.heads) if p.slopes_batched else (p.heads,), "fp32"
    if "sinks" in words:
        found["sinks"] = (p.heads,), "fp32"
    for name, word in (("q_offsets", "packedq"), ("kv_offsets", "packedkv")):
        if word in words:
            found[name] = (p.batch + 1,), "int32"
    for name, word in (("q_used", "usedq"), ("kv_used", "usedkv"), ("left_pad", "leftpad")):
        if word in words:
            found[name] = (p.batch,), "int32"
    if "pagetable" in words:
        found["page_table"] = (p.batch, p.page_entries), "int32"
    if "pagelist" in words:
        found["page_list"] = (p.page_entries,), "int32"
        found["page_starts"] = (p.batch + 1,), "int32"
    for name, shape in scale_shapes(p).items():
        found[name] = shape, "fp32"
    if "oscale" in words:
        found["o_scale"] = (1,), "fp32"
    if "append" in words:
        found["new_k"] = (p.batch, p.new_kv, p.kv_heads, p.head_dim), p.dtype
        if "latent" not in words:
            found["new_v"] = (p.batch, p.new_kv, p.kv_heads, p.head_dim_v), p.dtype
    if p.rotary_dim:
        for name in ("rotary_cos", "rotary_sin"):
            found[name] = (p.rotary_len, p.rotary_dim // 2), float_type
    return found


def _scaled(p: AttentionProblem) -> tuple[str, ...]:
    """The scales that `p` has: of operands in fp8."""
    if not p.words & {"tscale", "hscale", "bscale"}:
        return ()
    of_q = ("q_scale",) if p.dtype in FP8 else ()
    return (*of_q, "k_scale") if "latent" in p.words else (*of_q, "k_scale", "v_scale")


def scale_shapes(p: AttentionProblem) -> dict[str, tuple[int, ...]]:
    """The shapes of the scales that `p` has, by name."""
    return {name: _scale_shape(p, name) for name in _scaled(p)}


def _scale_shape(p: AttentionProblem, name: str) -> tuple[int, ...]:
    if "tscale" in p.words:
        return (1,)
    if "hscale" in p.words:
        return (p.batch, p.kv_heads)
    heads, rows = (p.heads, p.q_len) if name == "q_scale" else (p.kv_heads, p.kv_len)
    return (p.batch, heads, -(-rows // p.scale_block))


def operands(p: AttentionProblem) -> tuple[Operand, ...]:
    """The operands of `p`: by position, by keyword, outputs."""
    words = p.words
    cache: Role = "inout" if "append" in words else "in"
    types = {"q": p.dtype, "k": p.dtype_kv, "v": p.dtype_kv, "o": p.dtype_o}
    roles: dict[str, Role] = {"q": "in", "k": cache, "v": cache, "o": "out"}
    named = ("q", "k") if "latent" in words else ("q", "k", "v")
    first = [Operand(name, *_rows(p, name), types[name], roles[name]) for name in named]
    later = [
        Operand(name, shape, bias_of(p)[1] if name == "bias" else dense(shape), dtype, keyword=True)
        for name, (shape, dtype) in _shapes(p).items()
    ]
    outputs = [Operand("o", *_rows(p, "o"), p.dtype_o, "out")]
    if "lse" in words:
        shape = lse_shape(p)
        outputs.append(Operand("lse", shape, dense(shape), "fp32", "out"))
    if "random" in words:
        shape = (p.batch, p.heads, p.q_len, p.kv_len)
        outputs.append(Operand("random", shape, dense(shape), "uint8", "out"))
    return (*first, *later, *outputs)


def lse_shape(p: AttentionProblem) -> tuple[int, ...]:
    """[heads, rows] of packed Q, else [batch, heads, rows], as FlashAttention has it."""
    return (p.heads, p.total_q) if "packedq" in p.words else (p.batch, p.heads, p.q_len)


def contiguous(view: View) -> bool:
    """Whether an array is contiguous; strides of dimensions of one element do not matter."""
    wanted = dense(view.shape)
    return all(
        size == 1 or have == want
        for size, have, want in zip(view.shape, view.strides, wanted, strict=True)
    )
