"""CK Tile's words for attention: the command line of its example ``tile_example_fmha_fwd``.

    ck="-b=2 -h=8 -h_k=2 -s=1024 -d=128 -mask=t:128,30 -bias=e -lse=1"

is read as the problem that this command computes, what it leaves out as CK's default. Words that
say how to run it (seeds, timers, the number of splits, the scale, which a call gives here) say
nothing about the problem. Read from example/ck_tile/01_fmha in ROCm/composable_kernel: README.md,
example_fmha_fwd.cpp, mask.hpp.

Its group mode draws the sequences' lengths about the given one; here packed sequences have that one
on average. A share of dropout is rounded to a multiple of 1/256. ``-s_k`` counts the new keys of a
cache, as kv_len does here. Words for rows that are not used, for V and for scales become:

    -mode=1 -s=9,5 -s_qpad=16,8           packed rows, of which each sequence uses its own number
    -q_eff_lens=9,5, -kv_eff_lens=9,5     the same, of arrays that have -s rows of each sequence
    -vlayout=c                            strides of V
    -qscale=bs, -qscale=ph                scales of blocks of 128 rows; of a sequence and head

The lengths themselves are given at the call, as are values.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from tilewright import checks
from tilewright.errors import BadArgument, nearest, shown
from tilewright.ops.foreign import Driver

PROGRAM = "tile_example_fmha_fwd"
"""The example, whose name may be in front of a line."""

DEFAULTS = {
    "mode": "0", "b": "2", "h": "8", "h_k": "-1", "s": "3328", "s_k": "-1", "s_knew": "0",
    "s_kpad": "-1", "d": "128", "d_v": "-1", "logits_soft_cap": "0", "squant": "auto",
    "qscale": "n", "iperm": "1", "operm": "1", "bias": "n", "prec": "fp16", "mask": "0",
    "vlayout": "r", "lse": "0", "p_drop": "0", "rotary_dim": "0", "rotary_interleaved": "1",
    "page_block_size": "0", "cache_batch_idx": "0", "init_sink": "0", "s_qpad": "-1",
    "q_eff_lens": "", "kv_eff_lens": "",
}  # fmt: skip
"""The words that say what to compute, with CK's defaults."""

RUNNING = (
    "v", "scale_s", "range_q", "range_k", "range_v", "range_p", "range_o", "num_splits", "kname",
    "init", "seed", "drop_seed", "drop_offset", "drop_prefs", "timer", "warmup", "repeat", "json",
    "jsonfile",
)  # fmt: skip
"""The words that say how to run it, or give values."""

_TYPES = {
    "fp16": ("fp16", "fp16"), "bf16": ("bf16", "bf16"), "fp32": ("fp32", "fp32"),
    "fp8": ("fp8", "fp8"), "bf8": ("bf8", "bf8"), "fp8bf16": ("fp8", "bf16"),
    "fp8fp32": ("fp8", "fp32"),
}  # fmt: skip
"""(dtype, dtype_o) by ``-prec``."""


_SCALE_BLOCK = 128
"""Rows of a block of scales, as CK's kernels have them."""

_SCALES = {
    "bs": {"bscale": "true", "scale_block": str(_SCALE_BLOCK)}, "ph": {"hscale": "true"},
}  # fmt: skip
"""Words of scales that are not one for each array, by ``-qscale``."""


def words(line: str) -> dict[str, str]:
    """Tilewright's words for a line of CK's. Raises `BadArgument` for what CK does not have, and
    for what has no counterpart here."""
    said = _split(line)
    w = {**DEFAULTS, **said}
    if _switch(w, "cache_batch_idx"):
        raise BadArgument(
            "ck: -cache_batch_idx=1 has no counterpart here; pages as long as a sequence "
            "(-page_block_size) are chosen by a table too"
        )
    batch, heads = _count(w, "b"), _count(w, "h")
    kv_heads = heads if w["h_k"] == "-1" else _count(w, "h_k")
    group = _switch(w, "mode")
    q_len, total_q = _lengths(w, "s", batch, group)
    kv_len, total_kv = (q_len, total_q) if w["s_k"] == "-1" else _lengths(w, "s_k", batch, group)
    used_q, total_q = _used(w, ("s", "s_qpad", "q_eff_lens"), group, q_len, total_q)
    used_kv, total_kv = _used(w, ("s_k", "s_kpad", "kv_eff_lens"), group, kv_len, total_kv)
    d = _count(w, "d")
    d_v = d if w["d_v"] == "-1" else _count(w, "d_v")
    found = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
        "head_dim": d, "head_dim_v": d_v,
    }  # fmt: skip
    result = {name: str(value) for name, value in found.items()}
    result |= _types(w) | _mask(w["mask"]) | _bias(w["bias"], batch, heads) | _cache(w)
    if group:
        result |= {"packedq": "true", "total_q": str(total_q)}
        if "page_size" not in result:
            result |= {"packedkv": "true", "total_kv": str(total_kv)}
    result |= _layout(w, group, (heads, q_len, total_q, d, d_v), (kv_heads, total_kv, d, d_v))
    if w["vlayout"] != "r":
        result["v_strides"] = _columns(w, group, kv_heads, total_kv if group else kv_len, d_v)
    result |= {word: "true" for word, on in (("usedq", used_q), ("usedkv", used_kv)) if on}
    for flag, word in (("lse", "lse"), ("init_sink", "sinks")):
        if _switch(w, flag):
            result[word] = "true"
    if cap := _number(w, "logits_soft_cap"):
        result["softcap"] = str(cap)
    if dropped := round(256 * _number(w, "p_drop")):
        result["dropout"] = str(dropped / 256)
    return result


def _split(line: str) -> dict[str, str]:
    said: dict[str, str] = {}
    for text in line.removeprefix(PROGRAM).split():
        name, equals, value = text.removeprefix("-").partition("=")
        if not (text.startswith("-") and name and equals and (value or DEFAULTS.get(name) == "")):
            raise BadArgument(f"ck: {shown(text)} is not -WORD=VALUE, as in -b=2")
        if name in said:
            raise BadArgument(f"ck: -{name} is given twice")
        if name not in DEFAULTS and name not in RUNNING:
            raise BadArgument(
                f"ck: there is no -{name}{nearest(name, DEFAULTS)}; known: {', '.join(DEFAULTS)}"
            )
        said[name] = value
    return said


def _count(w: Mapping[str, str], name: str) -> int:
    return checks.parse_whole(f"ck: -{name}", w[name])


def _switch(w: Mapping[str, str], name: str) -> bool:
    return checks.parse_whole(f"ck: -{name}", w[name], 0, 1) == 1


def _number(w: Mapping[str, str], name: str) -> float:
    try:
        return float(w[name])
    except ValueError:
        raise BadArgument(f"ck: -{name} = {shown(w[name])} is not a number") from None


def _lengths(w: Mapping[str, str], name: str, batch: int, group: bool) -> tuple[int, int]:
    """The most rows of a sequence, and those of all."""
    each = [checks.parse_whole(f"ck: -{name}", part) for part in w[name].split(",")]
    if len(each) == 1:
        return each[0], batch * each[0]
    if not group or len(each) != batch:
        raise BadArgument(
            f"ck: -{name} has {len(each)} lengths; that takes -mode=1 and -b={len(each)}"
        )
    return max(each), sum(each)


def _used(
    w: Mapping[str, str], names: tuple[str, str, str], group: bool, most: int, total: int
) -> tuple[bool, int]:
    """Whether each sequence uses its own number of rows, and the rows of all, used or not.

    names: of the words for lengths, for packed rows with unused ones, and for lengths in batch
        mode. most, total: the most rows of a sequence and those of all, by the lengths.
    """
    lengths, padded, used = names
    batch = _count(w, "b")
    if w[used]:
        each = [checks.parse_whole(f"ck: -{used}", part, 0, most) for part in w[used].split(",")]
        if group or len(each) != batch:
            raise BadArgument(f"ck: -{used} has {len(each)} lengths; that takes -mode=0 and -b")
    pads = [checks.parse_whole(f"ck: -{padded}", part, -1) for part in w[padded].split(",")]
    if {*pads} == {-1}:
        return bool(w[used]), total
    if not group or w["page_block_size"] != "0":
        raise BadArgument(
            f"ck: -{padded} is of packed rows, with -mode=1; otherwise -{lengths} are the rows of "
            f"a sequence and -{used} those that are used"
        )
    said = w[lengths] if w[lengths] != "-1" else w["s"]
    least = [checks.parse_whole(f"ck: -{lengths}", part) for part in said.split(",")]
    if len(pads) == 1:
        fits, rows = max(least) <= pads[0], batch * pads[0]
    else:
        each = least * len(pads) if len(least) == 1 else least
        fits = len(pads) == batch == len(each) and all(map(operator.le, each, pads))
        rows = sum(pads)
    if not fits:
        raise BadArgument(
            f"ck: -{padded}={w[padded]} is not at least -{lengths}={said} for each of {batch}"
        )
    return True, rows


def _types(w: Mapping[str, str]) -> dict[str, str]:
    if w["prec"] not in _TYPES:
        raise BadArgument(f"ck: -prec={w['prec']} is not one of {', '.join(_TYPES)}")
    dtype, out = _TYPES[w["prec"]]
    found = {"dtype": dtype, "dtype_o": out}
    if w["squant"] not in ("auto", "0", "1"):
        raise BadArgument(f"ck: -squant={w['squant']} is not auto, 0 or 1")
    scale = {"0": "n", "1": "pt", "2": "bs", "3": "kvbs", "4": "mx", "5": "ph"}.get(
        w["qscale"], w["qscale"]
    )
    if scale not in ("n", "pt", "bs", "ph"):
        raise BadArgument(
            f"ck: -qscale={w['qscale']} has no counterpart here; n, pt, bs (blocks of "
            f"{_SCALE_BLOCK} rows) and ph (each sequence and head) have one"
        )
    if scale in _SCALES:
        if w["squant"] == "1" or out == dtype:
            raise BadArgument(
                f"ck: -qscale={w['qscale']} scales Q, K and V, and no output: say -prec=fp8bf16 or "
                "fp8fp32, and no -squant=1"
            )
        return found | _SCALES[scale]
    static = w["squant"] == "1" or (w["squant"] == "auto" and w["prec"] in ("fp8", "bf8"))
    if static or scale == "pt":
        found["tscale"] = "true"
        if out == dtype:
            found["oscale"] = "true"
    return found


def _mask(text: str) -> dict[str, str]:
    kind, colon, sizes = text.partition(":")
    if not colon:
        causal = {"0": "none", "1": "causal_top_left", "t": "causal_top_left", "2": "causal",
                  "b": "causal"}  # fmt: skip
        if text not in causal:
            raise BadArgument(f"ck: -mask={text} is not one of 0, t, b, t:L,R, b:L,R, xt:W, xb:W")
        return {"mask": causal[text]}
    if kind in ("xt", "xb"):
        size = checks.parse_whole("ck: -mask", sizes, -checks.MOST_WHOLE)
        left = size // 2 if size > 0 else -1
        bounds = [left, size - 1 - left if size > 0 else 0]
    elif kind in ("t", "b"):
        bounds = [checks.parse_whole("ck: -mask", one, -1) for one in sizes.split(",")]
        if len(bounds) not in (2, 3):
            raise BadArgument(f"ck: -mask={text} is not {kind}:LEFT,RIGHT or {kind}:L,R,FIRST")
    else:
        raise BadArgument(f"ck: -mask={text} has no counterpart here")
    left, right, *first = bounds
    corner = {"corner": "top_left"} if kind[-1] == "t" else {}
    if left < 0:
        if right == 0:
            return {"mask": "causal_top_left" if corner else "causal"}
        return {"window": f"none,{right}"} | corner if right > 0 else {"mask": "none"}
    kept = {"first": str(first[0])} if first and first[0] > 0 else {}
    return {"window": f"{left},{'none' if right < 0 else right}"} | corner | kept


def _bias(text: str, batch: int, heads: int) -> dict[str, str]:
    kind, _, of = text.partition(":")
    known = {"n": "n", "0": "n", "e": "e", "1": "e", "a": "a", "2": "a"}
    if kind not in known or of not in ("", "0", "1", "2"):
        raise BadArgument(f"ck: -bias={text} is not one of n, e, e:1, e:2, a, a:1")
    if known[kind] == "n":
        return {}
    if known[kind] == "a":
        return {"alibi": "true"} | ({"slopes_batched": "true"} if of == "1" else {})
    shape = {"1": (1, heads), "2": (batch, heads)}.get(of, (1, 1))
    return {"bias": f"{shape[0]}x{shape[1]}"}


def _cache(w: Mapping[str, str]) -> dict[str, str]:
    """New keys, their rotation, and pages."""
    found = {}
    if page := _count(w, "page_block_size"):
        found["page_size"] = str(page)
    if new := _count(w, "s_knew"):
        found["new_kv"] = str(new)
    rotated = checks.parse_whole("ck: -rotary_dim", w["rotary_dim"], -checks.MOST_WHOLE)
    if rotated > 0:
        found["rotary"] = "interleaved" if _switch(w, "rotary_interleaved") else "half"
        found["rotary_dim"] = str(rotated)
    return found


def _layout(
    w: Mapping[str, str], group: bool, q: tuple[int, ...], kv: tuple[int, ...]
) -> dict[str, str]:
    """Layouts; in group mode, and where Q and O lie differently, as strides."""
    by_heads = _switch(w, "iperm"), _switch(w, "operm")
    heads, q_len, total, d, d_v = q
    paged = w["page_block_size"] != "0"
    found = {"kv_layout": "bhsd"} if by_heads[0] and (paged or not group) else {}
    if not group:
        found["layout"] = "bhsd" if by_heads[0] else "bshd"
        if by_heads[0] != by_heads[1]:
            strides = (heads * q_len * d_v, d_v, q_len * d_v, 1)
            if not by_heads[1]:
                strides = (heads * q_len * d_v, heads * d_v, d_v, 1)
            found["o_strides"] = _text(strides)
        return found
    _, kv_total, k_dim, v_dim = kv
    if by_heads[0]:
        found["q_strides"] = _text((0, d, total * d, 1))
        if not paged:
            found["k_strides"] = _text((0, k_dim, kv_total * k_dim, 1))
            found["v_strides"] = _text((0, v_dim, kv_total * v_dim, 1))
    if by_heads[1]:
        found["o_strides"] = _text((0, d_v, total * d_v, 1))
    return found


def _columns(w: Mapping[str, str], group: bool, heads: int, rows: int, dim: int) -> str:
    """Strides of V where its rows are the innermost dimension: [b, heads, dim, rows], or [b, dim,
    heads, rows]."""
    if w["vlayout"] != "c":
        raise BadArgument(f"ck: -vlayout={w['vlayout']} is not r or c")
    if w["page_block_size"] != "0":
        raise BadArgument("ck: -vlayout=c of pages has no counterpart here; pages hold rows")
    of_head, of_dim = (dim * rows, rows) if _switch(w, "iperm") else (rows, heads * rows)
    return _text((0 if group else heads * dim * rows, 1, of_head, of_dim))


def _text(strides: tuple[int, ...]) -> str:
    return ",".join(map(str, strides))


DRIVERS = (Driver("ck", "", (PROGRAM,), words),)
