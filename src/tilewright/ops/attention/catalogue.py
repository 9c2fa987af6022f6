"""What attention's kernels take: each parameter's meaning, by its name.

A parameter of a feature that the config lacks is a constant 0, so that one signature serves all
configs.

Rows are numbered as in LSE: ``(b * heads + h) * q_len + i``, and ``h * total_q + start + i`` for
packed Q (see `operands.lse_shape`). Partial results of splits lie by row: [splits, rows] and
[splits, rows, head_dim_v].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.mask import NO_BOUND
from tilewright.ops.attention.operands import bias_of, lse_shape, strides_of
from tilewright.ops.attention.problem import FP8, AttentionProblem
from tilewright.ops.binder import Array, Catalogue, Constant, Context, Given, Numbers, sizes


def having(*words: str) -> Callable[[Any], bool]:
    """Whether a config has one of these words; without words, always."""
    return lambda c: not words or not c.words.isdisjoint(words)


def float_of(c: Any) -> str:
    """The dtype of rotary tables, and of a bias that has none of its own."""
    return "bf16" if c.dtype in FP8 else c.dtype


def bias_type(c: Any) -> str:
    """The dtype of a bias."""
    if "biasbool" in c.words:
        return "bool"
    return "fp32" if "bias32" in c.words else float_of(c)


def _bias_strides(x: Context) -> tuple[int, ...]:
    """The bias's strides (batch, head, query); 0 for a dimension of one element."""
    shape, strides = bias_of(x.problem)
    return tuple(s if n > 1 else 0 for n, s in zip(shape[:3], strides[:3], strict=True))


def _scale_strides(name: str) -> Callable[[Context], tuple[int, ...]]:
    """Strides of (sequence, head, block of rows). With ``hscale`` the head is that of the keys."""

    def found(x: Context) -> tuple[int, ...]:
        p = x.problem
        if "tscale" in p.words:
            return (0, 0, 0)
        if "hscale" in p.words:
            return (p.kv_heads, 1, 0)
        heads, rows = (p.heads, p.q_len) if name == "q" else (p.kv_heads, p.kv_len)
        blocks = -(-rows // p.scale_block)
        return (heads * blocks, blocks, 1)

    return found


L2_SHARE = 0.64
"""The share of a device's L2 that K and V may fill: 32 MB of an H200's 50."""


def turned_len(p: AttentionProblem) -> int:
    """Keys of a column of values that were turned: the copy engine wants columns 16 bytes apart,
    or a multiple."""
    count = 16 // DTYPES[p.dtype_kv].bytes
    return -(-p.kv_len // count) * count


def turned_shape(p: AttentionProblem) -> tuple[int, ...]:
    """The shape of values that were turned."""
    return p.batch, p.kv_heads, p.head_dim_v, turned_len(p)


def rotates(c: AttentionConfig) -> bool:
    """Whether Q is rotated into a temporary before it is read."""
    return bool(c.words & {"rotaryi", "rotaryh"})


def q_strides(p: AttentionProblem) -> tuple[int, ...]:
    """Strides of Q as the attention kernel reads it: rotated Q is contiguous."""
    if p.rotary_dim:
        outer = 0 if "packedq" in p.words else p.q_len * p.heads * p.head_dim
        return (outer, p.heads * p.head_dim, p.head_dim, 1)
    return strides_of(p, "q")


def kv_strides(p: AttentionProblem, name: str) -> tuple[int, ...]:
    """Strides of K or V; pages of groups of elements have none."""
    return (0, 0, 0, 0) if "vectorised" in p.words else strides_of(p, name)


def _latent(x: Context) -> bool:
    return "latent" in x.config.words


def _splits(c: AttentionConfig) -> bool:
    return c.scheduler == "split"


def _rotated(p: AttentionProblem) -> tuple[int, ...]:
    return (p.total_q or p.batch * p.q_len, p.heads, p.head_dim)


def _rows(p: AttentionProblem) -> int:
    return math.prod(lse_shape(p))


def array(
    dtype: str | Callable[[Any], str],
    *words: str,
    operand: Callable[[Context], str] | None = None,
    aligned: bool = False,
) -> Array:
    """An operand of configs with one of these words. aligned: whether as the config says."""
    promise = (lambda c: c.alignment) if aligned else (lambda c: 1)
    return Array(dtype, operand, having(*words), promise)


def temporary(
    shape: Callable[[Any], tuple[int, ...]], *words: str, dtype: str | Callable[[Any], str] = "fp32"
) -> Array:
    """Memory that configs with one of these words have between steps."""
    return Array(dtype, there=having(*words), shape=lambda x: shape(x.problem))


def integer(value: Callable[[Any], int], *words: str) -> Numbers:
    """A number of the problem's, for configs with one of these words."""
    return Numbers("i32", lambda x: value(x.problem), having(*words))


def strides(
    value: Callable[[Any], tuple[int, ...]], *words: str, dtype: str | None = None
) -> Numbers:
    """Strides in elements of (batch or page, row, head, dim). dtype: of an aligned array, whose
    strides but the last are multiples of its alignment."""

    def multiples(c: Any) -> tuple[int, ...]:
        count = c.alignment // DTYPES[getattr(c, dtype)].bytes if dtype else 1
        return count, count, count, 1

    types = ("i64", "i32", "i32", "i32")
    return Numbers(types, lambda x: value(x.problem), having(*words), multiples)


_SCALED = ("tscale", "hscale", "bscale")
_PAGED = ("pagetable", "pagelist")
_ROTARY = ("rotaryi", "rotaryh")


def _has(word: str) -> Constant:
    return lambda c, _: word in c.words


CATALOGUE: Catalogue = {
    "q": array("dtype", operand=lambda x: "rotated_q" if rotates(x.config) else "q", aligned=True),
    "k": array("dtype_kv", aligned=True),
    "v": array("dtype_kv", operand=lambda x: "k" if _latent(x) else "v", aligned=True),
    "o": array("dtype_o", aligned=True),
    # For a kernel that also has a descriptor of O.
    "o_rows": array("dtype_o", operand=lambda _: "o", aligned=True),
    "lse": array("fp32", "lse"),
    "random": array("uint8", "random"),
    "bias": array(bias_type, "bias"),
    "blocks": array("bool", "blocks"),
    "slopes": array("fp32", "alibi"),
    "sinks": array("fp32", "sinks"),
    "q_offsets": array("int32", "packedq"),
    "kv_offsets": array("int32", "packedkv"),
    "q_used": array("int32", "usedq"),
    "kv_used": array("int32", "usedkv"),
    "left_pad": array("int32", "leftpad"),
    "page_table": array("int32", "pagetable"),
    "page_list": array("int32", "pagelist"),
    "page_starts": array("int32", "pagelist"),
    # No kernel reads it where Q has none.
    "q_scale": array(
        "fp32", *_SCALED, operand=lambda x: "q_scale" if x.config.dtype in FP8 else "k_scale"
    ),
    "k_scale": array("fp32", *_SCALED),
    "v_scale": array("fp32", *_SCALED, operand=lambda x: "k_scale" if _latent(x) else "v_scale"),
    "o_scale": array("fp32", "oscale"),
    "new_k": array("dtype", "append"),
    "new_v": array("dtype", "append", operand=lambda x: "new_k" if _latent(x) else "new_v"),
    "rotary_cos": array(float_of, *_ROTARY),
    "rotary_sin": array(float_of, *_ROTARY),
    # Temporaries. Under a bias LSE has two kinds (see `kernels.combine`).
    "rotated_q": temporary(_rotated, *_ROTARY, dtype="dtype"),
    "turned_v": temporary(turned_shape, dtype="dtype_kv"),
    "block_list": temporary(
        lambda p: (p.batch, p.blocks_shape[1], *p.block_counts), "blocks", dtype="int32"
    ),
    "block_counts": temporary(
        lambda p: (p.batch, p.blocks_shape[1], p.block_counts[0], 2), "blocks", dtype="int32"
    ),
    "counter": Array("int32", shape=lambda _: (1,), initial=lambda _: "kept_zero"),
    "partial_o": Array(
        "fp32", there=_splits, shape=lambda x: (x.splits, _rows(x.problem), x.problem.head_dim_v)
    ),
    "partial_lse": Array(
        "fp32",
        there=_splits,
        shape=lambda x: (2 if x.problem.bias_shape else 1, x.splits, _rows(x.problem)),
    ),
    "q_strides": strides(q_strides, dtype="dtype"),
    "given_q_strides": strides(lambda p: strides_of(p, "q")),
    "k_strides": strides(lambda p: kv_strides(p, "k"), dtype="dtype_kv"),
    "v_strides": strides(lambda p: kv_strides(p, "v"), dtype="dtype_kv"),
    "o_strides": strides(lambda p: strides_of(p, "o"), dtype="dtype_o"),
    "bias_batch": integer(lambda p: p.bias_shape[0], "bias"),
    "bias_heads": integer(lambda p: p.bias_shape[1], "bias"),
    "bias_strides": Numbers(("i64",) * 3, _bias_strides, having("bias")),
    "q_scale_strides": Numbers(("i32",) * 3, _scale_strides("q"), having(*_SCALED)),
    "kv_scale_strides": Numbers(("i32",) * 3, _scale_strides("kv"), having(*_SCALED)),
    **sizes("batch", "heads", "kv_heads", "group", "q_len", "kv_len", "first"),
    "turned_len": integer(turned_len),
    "total_q": integer(lambda p: p.total_q, "packedq"),
    "total_kv": integer(lambda p: p.total_kv, "packedkv"),
    "rows": integer(_rows),
    "pages": integer(lambda p: p.pages, *_PAGED),
    # Entries name no page if there is none.
    "page_entries": integer(lambda p: p.page_entries if p.pages else 0, *_PAGED),
    "slopes_stride": integer(lambda p: p.heads * p.slopes_batched, "alibi"),
    "scale_block": integer(lambda p: p.scale_block, "bscale"),
    "block_size": integer(lambda p: p.block_size, "blocks"),
    "block_batch": integer(lambda p: p.blocks_shape[0], "blocks"),
    "block_heads": integer(lambda p: p.blocks_shape[1], "blocks"),
    "new_kv": integer(lambda p: p.new_kv, "append"),
    "rotary_dim": integer(lambda p: p.rotary_dim, *_ROTARY),
    "rotary_len": integer(lambda p: p.rotary_len, *_ROTARY),
    "splits": Numbers("i32", lambda x: x.splits, _splits),
    "split_len": Numbers("i32", lambda x: x.config.split_len, _splits),
    # The mask (see `mask`).
    "left": integer(lambda p: NO_BOUND if p.left is None else p.left),
    "right": integer(lambda p: NO_BOUND if p.right is None else p.right),
    "bottom_right": integer(lambda p: int(p.mask.bottom_right)),
    "softcap": Numbers("fp32", lambda x: x.problem.softcap, having("softcap")),
    # A weight whose random byte is under it becomes 0.
    "dropped": integer(lambda p: int(p.dropout * 256), "dropout"),
    "scale": Given("fp32"),
    "seed": Given("i64", having("dropout")),
    "offset": Given("i64", having("dropout")),
    "PAGE": lambda c, _: c.page_size,
    "SPLIT": lambda c, _: c.scheduler == "split",
    "STAGES": lambda c, _: c.num_stages,
    "UNIT": lambda c, _: c.alignment > 1,  # neighbours in a row are neighbours in memory
    "LARGEST_KV": lambda c, _: int(DTYPES[c.dtype_kv].largest),
    "LARGEST_O": lambda c, _: int(DTYPES[c.dtype_o].largest),
    **{word.upper(): _has(word) for word in FEATURES},
}
"""Features' constants say whether the config has them."""
