"""A problem in words, from the problem: those of a command line, and a line for people.

What the words leave out follows from the others (`derived`), both where words are read (`words`)
and where they are written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops.attention import features
from tilewright.ops.attention.mask import CORNERS

NONE = "none"
ROTARY = {"interleaved": "rotaryi", "half": "rotaryh"}
"""The words of ``rotary=``, and the features that they say."""

SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "head_dim_v")
COUNTS = (
    "first", "scale_block", "block_size", "rotary_dim", "rotary_len", "total_q", "total_kv",
    "pages", "page_size", "page_entries", "new_kv", "alignment",
)  # fmt: skip
NUMBERS = ("softcap", "dropout", "density")
TYPES = ("dtype", "dtype_kv", "dtype_o")
SWITCHES = ("slopes_batched", "deterministic", "batch_invariant")
NAMES = ("corner", "layout", "kv_layout", "bias_dtype")
STRIDES = ("q_strides", "k_strides", "v_strides", "o_strides", "bias_strides")
BY_FIELD = (
    "softcap", "bias", "bias32", "biasbool", "blocks", "dropout", "append", *ROTARY.values()
)  # fmt: skip
"""Features that fields say."""
FLAGS = tuple(word for word in features.FEATURES if word not in BY_FIELD)
"""Features that are words of their own (``lse=true``)."""


def usual_o(dtype: str) -> str:
    """The dtype of O where none is said: that of Q; of an fp8, bf16."""
    return "bf16" if DTYPES[dtype].bytes == 1 else dtype


def implied(words: frozenset[str], page_size: int) -> set[str]:
    """Features that follow from others, and from `page_size`."""
    found = set()
    if page_size and "pagelist" not in words:
        found.add("pagetable")
    for word in words | found:
        needed = features.REQUIRED.get(word, ())
        if needed == ("usedkv",):
            found.add("usedkv")
    return found


def derived(v: Mapping[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """What fields are where no word says them.

    v: the values of the fields that words do say, `SIZES` and `TYPES` among them.
    words: the problem's features.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("first", "scale_block", "block_size", "page_size", "new_kv"), 0
    )
    found |= {
        "corner": CORNERS[0],
        "bias_dtype": "",
        "layout": "bshd",
        "softcap": 0.0,
        "dropout": 0.0,
        "density": 0.0,
        "blocks_shape": (),
    }
    found |= dict.fromkeys(STRIDES, ()) | dict.fromkeys(SWITCHES, False) | {"bias_shape": ()}
    given = found | dict(v)
    batch, page = given["batch"], given["page_size"]
    found["kv_layout"] = "bshd" if page else given["layout"]
    found["total_q"] = batch * given["q_len"] if "packedq" in words else 0
    found["total_kv"] = batch * given["kv_len"] if "packedkv" in words else 0
    entries = -(-given["kv_len"] // page) if page else 0
    found["pages"] = batch * entries
    found["page_entries"] = batch * entries if "pagelist" in words else entries
    rotated = bool(words & {*ROTARY.values()})
    found["rotary_dim"] = given["head_dim"] if rotated else 0
    found["rotary_len"] = given["kv_len"] if rotated else 0
    found["alignment"] = _alignment(given)
    return found


def by_columns(strides: Sequence[int], dtype: str) -> bool:
    """Whether values with these strides, of (batch or page, row, head, dim), are of 8 bits and lie
    by columns, as matrix units of Hopper read them. Columns are then aligned, as rows are
    elsewhere."""
    return bool(strides) and DTYPES[dtype].bytes == 1 and strides[1] == 1 != strides[3]


def _alignment(v: Mapping[str, Any]) -> int:
    """Bytes, at most 16, that rows lie apart by multiples of; addresses are taken to be aligned."""
    operands = (
        ("q_strides", "dtype", "head_dim"),
        ("k_strides", "dtype_kv", "head_dim"),
        ("v_strides", "dtype_kv", "head_dim_v"),
        ("o_strides", "dtype_o", "head_dim_v"),
    )
    found = 16
    for strides, dtype, size in operands:
        apart = [stride for stride in v[strides] if stride != 1] if v[strides] else [v[size]]
        found = math.gcd(found, *(step * DTYPES[v[dtype]].bytes for step in apart))
        columns = strides == "v_strides" and by_columns(v[strides], v[dtype])
        if v[strides] and v[strides][-1] != 1 and not columns:
            return 1
    return found


def words_of(p: Any) -> dict[str, str]:
    """The words that state the problem `p` (`words.parse`), without those that say a default."""
    v = {name: getattr(p, name) for name in (*SIZES, *COUNTS, *NUMBERS, *TYPES, *NAMES, *STRIDES)}
    usual = derived(v, p.words)
    said = {name: str(v[name]) for name in SIZES}
    for name, same in (("kv_heads", "heads"), ("head_dim_v", "head_dim")):
        if v[name] == v[same]:
            del said[name]
    said["dtype"] = p.dtype
    if p.dtype_kv != p.dtype:
        said["dtype_kv"] = p.dtype_kv
    if p.dtype_o != usual_o(p.dtype):
        said["dtype_o"] = p.dtype_o
    said |= _mask(p)
    if p.bias_shape:
        said["bias"] = "x".join(map(str, p.bias_shape))
    if p.blocks_shape:
        said["blocks"] = "x".join(map(str, p.blocks_shape))
    for name in (*COUNTS, *NUMBERS, *NAMES):
        if v[name] != usual[name] and not (name == "corner" and "mask" in said):
            said[name] = str(v[name]).removesuffix(".0")
    said |= {name: ",".join(map(str, v[name])) for name in STRIDES if v[name]}
    for style, word in ROTARY.items():
        if word in p.words:
            said["rotary"] = style
    said |= {name: "true" for name in SWITCHES if getattr(p, name)}
    left_out = implied(p.words - {"pagetable", "usedkv"}, p.page_size)
    said |= {word: "true" for word in FLAGS if word in p.words and word not in left_out}
    return said


def _mask(p: Any) -> dict[str, str]:
    if p.left is None and p.right is None:
        return {}
    if p.left is None and p.right == 0:
        return {"mask": "causal" if p.corner == CORNERS[0] else f"causal_{p.corner}"}
    bounds = (NONE if bound is None else str(bound) for bound in (p.left, p.right))
    return {"window": ",".join(bounds)}


def in_short(p: Any) -> str:
    """One line for people: ``attention b4 h32:8 4096×4096 d128 bf16 causal lse``."""
    said = words_of(p)
    for name in (*SIZES, *TYPES):
        said.pop(name, None)
    heads = f"{p.heads}:{p.kv_heads}" if p.kv_heads != p.heads else str(p.heads)
    dim = f"{p.head_dim}x{p.head_dim_v}" if p.head_dim_v != p.head_dim else str(p.head_dim)
    types = p.dtype if p.dtype_kv == p.dtype else f"{p.dtype}/{p.dtype_kv}"
    if p.dtype_o != usual_o(p.dtype):
        types += f"→{p.dtype_o}"
    shown = [f"attention b{p.batch} h{heads} {p.q_len}×{p.kv_len} d{dim} {types}"]
    for word, text in said.items():
        if word == "mask":
            shown.append(text)
        elif word == "alignment":
            shown.append(f"aligned to {text}")
        else:
            shown.append(word if text == "true" else f"{word} {text}")
    return " ".join(shown)
