"""From a call of attention to its problem, and back: the options and operands that a call takes by
keyword, the problem that it states, the outputs that it makes, and the options that state a
problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.attention import broadcast, elsewhere, features, stated
from tilewright.ops.attention.operands import contiguous, dense, in_layout, operands
from tilewright.ops.attention.problem import FP8, LAYOUTS, AttentionProblem, Strides
from tilewright.ops.keywords import operand, option
from tilewright.ops.nouns import Call, Operand, View

OPTIONS = {
    "mask": option("str", "none"),
    "causal": option("bool", False),
    "is_causal": option("bool", False),
    "window": option("tuple[int | None, int | None]", (None, None)),
    "first": option("int", 0),
    "corner": option("str", "bottom_right"),
    "block_size": option("int"),
    "density": option("float", 0.0),
    "softcap": option("float", 0.0),
    "dropout": option("float", 0.0),
    "lse": option("bool", False),
    "random": option("bool", False),
    "layout": option("str", "bshd"),
    "kv_layout": option("str"),
    "max_q": option("int"),
    "max_kv": option("int"),
    "head_dim_v": option("int"),
    "scale_block": option("int"),
    "rotary": option("str", "half"),
    "dtype_o": option("dtype"),
    "deterministic": option("bool", False),
    "batch_invariant": option("bool", False),
}

_NAMED = {
    name: operand()
    for name in (
        "bias", "blocks", "slopes", "sinks", "q_offsets", "kv_offsets", "q_used", "kv_used",
        "left_pad", "page_table", "page_list", "page_starts",
    )
} | {
    name: operand("fp32") for name in ("q_scale", "k_scale", "v_scale", "o_scale")
} | {
    name: operand() for name in ("new_k", "new_v", "rotary_cos", "rotary_sin")
}  # fmt: skip

KEYWORDS = OPTIONS | _NAMED

_WORD_OF = {
    "slopes": "alibi",
    "sinks": "sinks",
    "q_offsets": "packedq",
    "kv_offsets": "packedkv",
    "q_used": "usedq",
    "kv_used": "usedkv",
    "left_pad": "leftpad",
    "page_table": "pagetable",
    "page_list": "pagelist",
    "o_scale": "oscale",
}
"""Operands passed by keyword that each say a feature."""


def word_of(name: str) -> str:
    """The feature that an operand passed by keyword says; "" if it says none by itself."""
    return _WORD_OF.get(name, "")


# --- outputs --------------------------------------------------------------------------------------


def outputs(call: Call) -> tuple[Operand, ...]:
    """The outputs of a call that passes none. Sizes may be symbols (``torch.compile``), so no
    problem is stated of them."""
    said, named = call.options, call.named
    flat = all(len(x.shape) == 3 for x in call.inputs)  # and so is O
    q, k, *v = broadcast.together(call.inputs, named, said)
    layout = _layout("layout", said.get("layout", "bshd"))
    vectorised = v and len(v[0].shape) == 5
    dim = v[0].shape[3 if vectorised else -1] if v else said.get("head_dim_v", k.shape[-1])
    dtype = said.get("dtype_o") or ("bf16" if q.dtype in FP8 else q.dtype)
    packed = "q_offsets" in named
    batch, rows, heads, _ = (0, *q.shape) if packed else in_layout(q.shape, layout)
    lse = (heads, rows) if packed else (batch, heads, rows)
    found = [("o", (*q.shape[1 if flat and not packed else 0 : -1], dim), dtype)]
    if said.get("lse"):
        found.append(("lse", lse, "fp32"))
    if said.get("random"):
        batch = named["q_offsets"].shape[0] - 1 if packed else batch
        shape = (batch, heads, said.get("max_q", rows), _most_keys(k, layout, named, said))
        found.append(("random", shape, "uint8"))
    return tuple(Operand(name, shape, dense(shape), dtype, "out") for name, shape, dtype in found)


def _most_keys(k: View, layout: str, named: Any, said: Any) -> int:
    """Keys that a sequence has at most."""
    if "max_kv" in said:
        most: int = said["max_kv"]
        return most
    table = named.get("page_table")
    if len(k.shape) == 5:
        rows = k.shape[3]
    else:
        rows = in_layout(k.shape, said.get("kv_layout", layout if table is None else "bshd"))[1]
    return rows if table is None else table.shape[1] * rows


# --- from a call to its problem -------------------------------------------------------------------


def problem_of(call: Call) -> AttentionProblem:
    """The problem that a call states, in which Q, K and V may be broadcast. Raises
    `BadArgument`."""
    inputs = broadcast.together(call.inputs, call.named, call.options)
    outputs = call.outputs
    if outputs and "q_offsets" not in call.named:
        outputs = (broadcast.with_batch(outputs[0], call.options), *outputs[1:])
    return stated_by(replace(call, inputs=tuple(inputs), outputs=outputs))


def stated_by(call: Call) -> AttentionProblem:
    """The problem of a call that broadcasts nothing but a bias. Raises `BadArgument`."""
    said = dict(call.options)
    for name in said:
        if name not in OPTIONS:
            has = f"{', '.join(OPTIONS)}, and takes {', '.join(_NAMED)}"
            raise elsewhere.unknown(name, "option", KEYWORDS, has)
    for name in call.named:
        if name not in _NAMED:
            raise elsewhere.unknown(name, "operand", _NAMED, f"{', '.join(_NAMED)} by keyword")
    if len(call.inputs) not in (2, 3):
        raise BadArgument(
            f"attention takes 3 operands (q, k, v), or 2 (q, k) if it is latent, and was given "
            f"{len(call.inputs)}"
        )
    q, k, *v = call.inputs
    named = call.named
    words = {word for name, word in _WORD_OF.items() if name in named}
    words |= {word for word in ("lse", "random") if said.pop(word, False)}
    layout = _layout("layout", said.pop("layout", "bshd"))
    paged = bool(words & {"pagetable", "pagelist"})
    kv_layout = _layout("kv_layout", said.pop("kv_layout", "bshd" if paged else layout))
    fields: dict[str, Any] = {"layout": layout, "kv_layout": kv_layout}
    fields |= _q_fields(q, layout, named, said)
    if not v:
        words.add("latent")
        if "head_dim_v" in said:
            checks.whole("head_dim_v", said["head_dim_v"], 1)
        fields["head_dim_v"] = said.pop("head_dim_v", k.shape[-1] if k.shape else 0)
    fields |= _kv_fields(k, v[0] if v else None, kv_layout, named, words, said)
    fields |= _mask_fields(said)
    fields |= _blocks_fields(named, said)
    fields |= _scale_fields(named, words, said)
    if "new_k" in named:
        _rank("new_k", named["new_k"], 4)
        fields["new_kv"] = named["new_k"].shape[1]
    fields |= _rotary_fields(named, words, said)
    if "bias" in named:
        named, found = broadcast.with_bias(named, fields["q_len"], dense)
        fields |= found
    if "slopes" in named:
        fields["slopes_batched"] = len(named["slopes"].shape) == 2
    fields |= {name: said.pop(name) for name in ("softcap", "dropout") if name in said}
    for name in ("deterministic", "batch_invariant"):
        fields[name] = said.pop(name, False)
        if type(fields[name]) is not bool:
            raise BadArgument(f"{name} = {fields[name]!r} is not True or False")
    target = call.outputs[0] if call.outputs else None
    fields["dtype_o"] = said.pop("dtype_o", target.dtype if target is not None else "")
    if target is not None:
        fields["o_strides"] = _strides("o", target, layout, "q_offsets" in named)
    for name in ("max_q", "max_kv", "head_dim_v", "block_size", "density", "scale_block", "rotary"):
        if name in said:
            raise BadArgument(f"{name}={said[name]!r} says nothing in this call; leave it out")
    views = {"q": q, "k": k, **({"v": v[0]} if v else {}), **({"o": target} if target else {})}
    columns = stated.by_columns(fields.get("v_strides", ()), fields["dtype_kv"])
    alignment = alignment_of(views, apart=("v",) if columns else ())
    if "bias" in named:  # its rows may be any bytes apart
        alignment = math.gcd(alignment, named["bias"].address)
    problem = AttentionProblem(others=features.join(words), alignment=alignment, **fields)
    _check(problem, {**views, **named})
    return problem


def _layout(name: str, word: Any) -> str:
    if word not in LAYOUTS:
        raise BadArgument(f"{name} = {word!r} is not one of {', '.join(LAYOUTS)}")
    return str(word)


def _rank(name: str, view: View, rank: int) -> None:
    if len(view.shape) != rank:
        why = f"{name} has {len(view.shape)} dimensions, not {rank}"
        if (len(view.shape), rank) == (3, 4):
            why += f"; of one sequence pass {name}[None], of packed ones their offsets"
        raise BadArgument(why)


def _strides(name: str, view: View, layout: str, packed: bool) -> Strides:
    """The strides of (batch, row, head, dim); () if the array is contiguous."""
    _rank(name, view, 3 if packed else 4)
    if view.strides == dense(view.shape) or 0 in view.shape:
        return ()
    if packed:
        return (0, *view.strides)
    return in_layout(view.strides, layout)


def _q_fields(q: View, layout: str, named: Any, said: dict[str, Any]) -> dict[str, Any]:
    packed = "q_offsets" in named
    strides = _strides("q", q, layout, packed)
    found: dict[str, Any] = {"q_strides": strides, "dtype": q.dtype, "head_dim": q.shape[-1]}
    if packed:
        if "max_q" not in said:
            raise BadArgument(
                "packed queries (q_offsets) need max_q=, the most that a sequence has"
            )
        batch = max(0, named["q_offsets"].shape[0] - 1)
        return found | {
            "batch": batch, "q_len": said.pop("max_q"), "total_q": q.shape[0], "heads": q.shape[1],
        }  # fmt: skip
    batch, rows, heads, _ = in_layout(q.shape, layout)
    return found | {"batch": batch, "q_len": rows, "heads": heads}


def _kv_fields(
    k: View, v: View | None, layout: str, named: Any, words: set[str], said: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype_kv": k.dtype}
    paged = bool(words & {"pagetable", "pagelist"})
    if paged and len(k.shape) == 5:
        words.add("vectorised")
        rows, heads, dim_v = k.shape[3], k.shape[1], v.shape[3] if v else 0
    else:
        packed = "packedkv" in words
        found["k_strides"] = _strides("k", k, layout, packed)
        if v is not None:
            found["v_strides"] = _strides("v", v, layout, packed)
        if packed:
            if "max_kv" not in said:
                raise BadArgument(
                    "packed keys (kv_offsets) need max_kv=, the most that a sequence has"
                )
            found["total_kv"], rows, heads = k.shape[0], said.pop("max_kv"), k.shape[1]
        else:
            _, rows, heads, _ = in_layout(k.shape, layout)
        dim_v = v.shape[-1] if v is not None else 0
    if dim_v:
        found["head_dim_v"] = dim_v
    if paged:
        name = "page_table" if "pagetable" in words else "page_list"
        if not named[name].shape:
            raise BadArgument(f"{name} has no dimensions; it is a table, or a list, of pages")
        entries = named[name].shape[-1]
        found |= {"pages": k.shape[0], "page_size": rows, "page_entries": entries}
        if name == "page_list" and "max_kv" not in said:
            raise BadArgument("a page list needs max_kv=, the most keys that a sequence has")
        rows = said.pop("max_kv", entries * rows)
    return found | {"kv_len": rows, "kv_heads": heads}


_CAUSAL = {"causal": "bottom_right", "is_causal": "top_left"}
"""FlashAttention's word and torch's for a causal mask, which differ in the corner."""


def _causal(said: dict[str, Any]) -> None:
    """Say the mask of `_CAUSAL` in words of ours."""
    for name, corner in _CAUSAL.items():
        value = said.pop(name, False)
        if type(value) is not bool:
            raise BadArgument(f"{name} = {value!r} is not True or False")
        if value and said.setdefault("corner", corner) != corner:
            raise BadArgument(
                f"{name}=True is a causal mask by corner {corner}; for corner {said['corner']} "
                "say mask='causal'"
            )
        if value:
            said["mask"] = "causal"


def _mask_fields(said: dict[str, Any]) -> dict[str, Any]:
    _causal(said)
    mask = said.pop("mask", "none")
    if mask not in ("none", "causal"):
        raise BadArgument(f"mask = {mask!r} is neither none nor causal; windows are window=(l, r)")
    window = said.pop("window", (None, None))
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise BadArgument(f"window = {window!r} is not (left, right)")
    left, right = window
    if mask == "causal":
        right = 0 if right is None else min(0, right)
    found = {"left": left, "right": right}
    return found | {name: said.pop(name) for name in ("first", "corner") if name in said}


def _blocks_fields(named: Any, said: dict[str, Any]) -> dict[str, Any]:
    if "blocks" not in named:
        return {}
    _rank("blocks", named["blocks"], 4)
    if "block_size" not in said:
        raise BadArgument("blocks need block_size=, the queries and the keys of a block")
    found = {"blocks_shape": named["blocks"].shape[:2], "block_size": said.pop("block_size")}
    checks.whole("block_size", found["block_size"], 1)
    return found | {"density": said.pop("density", 0.0)}


def _scale_fields(named: Any, words: set[str], said: dict[str, Any]) -> dict[str, Any]:
    if "k_scale" not in named:
        return {}
    rank = len(named["k_scale"].shape)
    words.add({1: "tscale", 2: "hscale", 3: "bscale"}.get(rank, "tscale"))
    if rank == 3:
        if "scale_block" not in said:
            raise BadArgument("scales of blocks need scale_block=, the rows that share one")
        return {"scale_block": said.pop("scale_block")}
    return {}


def _rotary_fields(named: Any, words: set[str], said: dict[str, Any]) -> dict[str, Any]:
    if "rotary_cos" not in named:
        return {}
    style = said.pop("rotary", "half")
    if style not in stated.ROTARY:
        raise BadArgument(f"rotary = {style!r} is neither interleaved nor half")
    words.add(stated.ROTARY[style])
    _rank("rotary_cos", named["rotary_cos"], 2)
    places, half = named["rotary_cos"].shape
    return {"rotary_len": places, "rotary_dim": 2 * half}


def alignment_of(views: Mapping[str, View], apart: Sequence[str] = ()) -> int:
    """Bytes, at most 16, that all addresses and all strides but those of 1 are multiples of; 1
    where neighbours in a row are no neighbours in memory.

    apart: operands of which they need not be.
    """
    found = 16
    for name, view in views.items():
        size = DTYPES[view.dtype].bytes
        numbers = [view.address]
        for extent, stride in zip(view.shape, view.strides, strict=True):
            if stride != 1 and extent > 1:
                numbers.append(stride * size)
        if view.shape and view.shape[-1] > 1 and view.strides[-1] != 1 and name not in apart:
            numbers.append(1)
        found = math.gcd(found, *numbers)
    return found


def _check(p: AttentionProblem, views: dict[str, View]) -> None:
    """Raise `BadArgument` unless the arrays are the problem's operands."""
    declared = {one.name: one for one in operands(p)}
    for name, view in views.items():
        one = declared.get(name)
        if one is None:
            continue  # told by the caller, with what there is
        single = one.shape == (1,) and view.shape == ()
        if one.shape != tuple(view.shape) and not single:
            raise BadArgument(
                f"{name} is {_size(view.shape)}, but beside the others must be {_size(one.shape)}"
            )
        if one.dtype != view.dtype:
            raise BadArgument(f"{name} is {view.dtype}, but must be {one.dtype}")
        free = name in ("q", "o", "bias") or (name in ("k", "v") and "vectorised" not in p.words)
        if not free and 0 not in view.shape and not contiguous(view):
            raise BadArgument(f"{name} is not contiguous; pass {name}.contiguous()")


def _size(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


# --- back -----------------------------------------------------------------------------------------


def options(p: AttentionProblem) -> dict[str, Any]:
    """The options that, with the operands, state `p`."""
    words = p.words
    said: dict[str, Any] = {}
    if p.left is not None or p.right is not None:
        said["window"] = (p.left, p.right)
    if p.first:
        said["first"] = p.first
    if p.corner != "bottom_right":
        said["corner"] = p.corner
    said |= {
        name: getattr(p, name)
        for name in ("softcap", "dropout", "block_size", "density", "scale_block")
        if getattr(p, name)
    }
    said |= {name: True for name in ("lse", "random") if name in words}
    said |= {name: True for name in ("deterministic", "batch_invariant") if getattr(p, name)}
    if p.layout != "bshd":
        said["layout"] = p.layout
    if p.kv_layout != ("bshd" if p.paged else p.layout):
        said["kv_layout"] = p.kv_layout
    if "packedq" in words:
        said["max_q"] = p.q_len
    if words & {"packedkv", "pagelist"} or (p.paged and p.kv_len != p.page_entries * p.page_size):
        said["max_kv"] = p.kv_len
    if "latent" in words:
        said["head_dim_v"] = p.head_dim_v
    for style, word in stated.ROTARY.items():
        if word in words:
            said["rotary"] = style
    if p.dtype_o != ("bf16" if p.dtype in FP8 else p.dtype):
        said["dtype_o"] = p.dtype_o
    return said
