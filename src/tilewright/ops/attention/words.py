"""Problems from words, as on a command line or in a list of problems.

    batch heads kv_heads q_len kv_len head_dim head_dim_v    sizes
    dtype dtype_kv dtype_o                                   fp8, bf8: the architecture's
    mask=none|causal|causal_top_left, window=LEFT,RIGHT      with none for no bound; first, corner
    softcap=30, dropout=0.25, bias=BATCHxHEADS, or …x1 with one row for all queries, bias_dtype
    blocks=BATCHxHEADS, block_size=128, density=0.1          a mask of blocks
    lse=true, sinks=true, alibi=true…                        each feature; features=lse+sinks
    packed=true                                              packedq and packedkv
    page_size=16                                             pages by a table; or pagelist=true
    new_kv=1, rotary=interleaved|half                        rows appended, and rotated
    ck="-b=2 -h=8 -s=1024 -mask=t"                           CK Tile's words for all of it (`ck`)

The other fields of `AttentionProblem` are words as well. What is left out follows from the others
(`stated.derived`): packed rows are as many as sequences of full length have, and so are pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import checks
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument, shown
from tilewright.ops.attention import ck, features, stated
from tilewright.ops.attention.mask import CORNERS
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.foreign import with_lines
from tilewright.ops.spelling import spelled

MASK_WORDS = ("none", "causal", *(f"causal_{corner}" for corner in CORNERS))

KNOWN = (
    *stated.SIZES, *stated.TYPES, "mask", "window", *stated.COUNTS, *stated.NUMBERS, "bias",
    "blocks", *stated.FLAGS, "packed", "features", "rotary", *stated.SWITCHES, *stated.NAMES,
    *stated.STRIDES, "ck",
)  # fmt: skip
"""Every word."""

NEEDED = {"batch": 4, "heads": 32, "q_len": 4096, "kv_len": 4096, "head_dim": 128}
"""Sizes that words must say, each with one that a problem may have."""


def parse(words: Mapping[str, str], fp8: str) -> AttentionProblem:
    """The problem that words state. Raises `BadArgument`.

    fp8: the kind of fp8 that the architecture has (`Arch.fp8`).
    """
    words = spelled("an attention problem", with_lines(words, ck.DRIVERS), KNOWN)
    missing = [size for size in NEEDED if size not in words]
    if missing:
        example = f"{missing[0]}={NEEDED[missing[0]]}"
        raise BadArgument(f"an attention problem needs {', '.join(missing)} (as in {example})")
    said = _features(words)
    v = _values(words, fp8)
    if v.get("new_kv"):
        said.add("append")
    said |= stated.implied(frozenset(said), v.get("page_size", 0))
    v.setdefault("kv_heads", 1 if "latent" in said else v["heads"])
    v.setdefault("head_dim_v", v["head_dim"])
    v.setdefault("dtype", "bf16")
    v.setdefault("dtype_kv", v["dtype"])
    v.setdefault("dtype_o", stated.usual_o(v["dtype"]))
    v |= _mask(words)
    found = stated.derived(v, frozenset(said)) | v
    others = said - {"append"}
    return AttentionProblem(**found, others=features.join(others))


def _features(words: Mapping[str, str]) -> set[str]:
    """The features that words say by name."""
    said = set(features.split(words["features"])) if words.get("features") else set()
    if others := sorted(said.intersection(stated.BY_FIELD)):
        raise BadArgument(f"features: '{others[0]}' has a word of its own")
    for word in (*stated.FLAGS, "packed"):
        if word in words and checks.parse_flag(word, words[word]):
            said |= {"packedq", "packedkv"} if word == "packed" else {word}
    style = words.get("rotary", "")
    if style and style not in stated.ROTARY:
        raise BadArgument(f"rotary = {shown(style)} is not one of {', '.join(stated.ROTARY)}")
    return said | ({stated.ROTARY[style]} if style else set())


def _values(words: Mapping[str, str], fp8: str) -> dict[str, Any]:
    """The fields that words say one by one."""
    v: dict[str, Any] = {}
    for word, text in words.items():
        if word in (*stated.SIZES, *stated.COUNTS):
            v[word] = checks.parse_whole(word, text)
        elif word in stated.TYPES:
            v[word] = resolve(text, fp8)
        elif word in stated.NUMBERS:
            v[word] = _number(word, text)
        elif word in stated.NAMES:
            v[word] = text
        elif word in stated.STRIDES:
            v[word] = tuple(
                checks.parse_whole(word, part, -checks.MOST_WHOLE) for part in text.split(",")
            )
        elif word == "bias":
            v["bias_shape"] = _bias(text)
        elif word == "blocks":
            v["blocks_shape"] = _blocks(text)
        elif word in stated.SWITCHES:
            v[word] = checks.parse_flag(word, text)
    return v


def _number(word: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadArgument(f"{word} = {shown(text)} is not a number") from None


def _bias(text: str) -> tuple[int, ...]:
    return _shape("bias", text, (2, 3), "BATCHxHEADS, as in 1x32, or 4x1x1")


def _blocks(text: str) -> tuple[int, ...]:
    return _shape("blocks", text, (2,), "BATCHxHEADS, as in 1x32")


def _shape(word: str, text: str, counts: tuple[int, ...], form: str) -> tuple[int, ...]:
    try:
        parts = tuple(checks.parse_whole(word, part) for part in text.split("x"))
    except BadArgument:
        parts = ()
    if len(parts) not in counts:
        raise BadArgument(f"{word} = {shown(text)} is not {form}")
    return parts


def _mask(words: Mapping[str, str]) -> dict[str, Any]:
    """The bounds, and the corner where ``mask`` says it."""
    mask = words.get("mask", stated.NONE)
    if mask not in MASK_WORDS:
        raise BadArgument(
            f"mask = {shown(mask)} is not one of {', '.join(MASK_WORDS)}; windows are "
            "window=LEFT,RIGHT"
        )
    left, right = _window(words["window"]) if "window" in words else (None, None)
    if mask == stated.NONE:
        return {"left": left, "right": right}
    found: dict[str, Any] = {"left": left, "right": 0 if right is None else min(0, right)}
    if corner := mask.removeprefix("causal").removeprefix("_"):
        if words.get("corner", corner) != corner:
            raise BadArgument(f"mask = {mask} and corner = {words['corner']} contradict each other")
        found["corner"] = corner
    return found


def _window(text: str) -> tuple[int | None, int | None]:
    parts = text.split(",")
    if len(parts) != 2:
        raise BadArgument(f"window = {shown(text)} is not LEFT,RIGHT, as in 1023,0")
    left, right = (
        None if part == stated.NONE else checks.parse_whole("window", part, -checks.MOST_WHOLE)
        for part in parts
    )
    return left, right
