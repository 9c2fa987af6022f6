"""A layer in words, as people type them: what `plan` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright import checks
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument, shown
from tilewright.ops.spelling import spelled

NAME = "fused_moe"
_SIZES = {"tokens": 256, "hidden": 2048, "inner": 768, "experts": 128, "k": 8}
"""With sizes such as a model has."""
_WHOLE = (*_SIZES, "all_experts", "capacity", "shared")
_FLAGS = ("gated", "interleaved", "bias", "zero_b", "weights_first")
_REAL = ("limit", "alpha", "shift")
_TYPES = ("dtype", "index_dtype", "weight_dtype", "dtype_b")
_TEXT = ("activation", "scale_a", "scale_b")
_ROUTER: Mapping[str, Callable[[str, str], Any]] = {
    "scoring": lambda _, text: text,
    "renormalize": checks.parse_flag,
    "n_group": checks.parse_whole,
    "topk_group": checks.parse_whole,
    "group_score": lambda _, text: text,
}


def stated(words: Mapping[str, str], fp8: str) -> dict[str, Any]:
    """The arguments of `plan` that words state. A word of a router (`scoring` and its like) says
    that one comes first.

    fp8: what the architecture means by it, ``ocp`` or ``fnuz``.

    Raises `BadArgument`.
    """
    known = (*_WHOLE, *_TYPES, *_TEXT, *_FLAGS, *_REAL, *_ROUTER)
    found, router = dict[str, Any](), dict[str, Any]()
    for word, text in spelled(f"a {NAME} layer", words, known).items():
        if word in _ROUTER:
            router[word] = _ROUTER[word](word, text)
        elif word in _WHOLE:
            found[word] = checks.parse_whole(word, text, 1)
        elif word in _FLAGS:
            found[word] = checks.parse_flag(word, text)
        elif word in _REAL:
            found[word] = _number(word, text)
        else:
            packs = word == "dtype_b" and text in DTYPES
            found[word] = resolve(text, fp8) if word in _TYPES and not packs else text
    missing = [word for word in _SIZES if word not in found]
    if missing:
        such = f"{missing[0]}={_SIZES[missing[0]]}"
        raise BadArgument(f"a {NAME} layer needs {', '.join(missing)} (as in {such})")
    return {**found, "router": router or None}


def _number(word: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadArgument(f"{word} = {shown(text)} is not a number") from None
