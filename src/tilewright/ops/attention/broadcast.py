"""Operands with fewer dimensions or elements than the others: Q, K and V that are shared by
sequences or heads, and a bias. A dimension that is not there has a stride of 0, and nothing is
copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.errors import BadArgument
from tilewright.ops.nouns import View

APART = ("q_offsets", "kv_offsets", "page_table", "page_list", "new_k")
"""Operands beside which Q, K and V are not [batch, …], or K and V are written."""


def together(
    views: Sequence[View], named: Mapping[str, Any], said: Mapping[str, Any]
) -> list[View]:
    """Q, K and perhaps V of four dimensions each, with the batch of all, K and V with the heads of
    both, and Q with at least theirs. Views that cannot be brought together are returned as they
    are.

    named: the operands passed by keyword. said: the call's options.
    """
    layout = said.get("layout", "bshd")
    if any(name in named for name in APART) or said.get("kv_layout", layout) != layout:
        return list(views)
    found = [_with_batch(x) for x in views] if layout == "bhsd" else list(views)
    if any(len(x.shape) != 4 for x in found):
        return found
    batch = _common(x.shape[0] for x in found)
    found = [_expanded(x, 0, batch) for x in found]
    heads = 1 if layout == "bhsd" else 2
    if len(found) == 3:
        of_keys = _common(x.shape[heads] for x in found[1:])
        found[1:] = [_expanded(x, heads, of_keys) for x in found[1:]]
        if found[0].shape[heads] == 1:
            found[0] = _expanded(found[0], heads, of_keys)
    return found


def with_batch(view: View, said: Mapping[str, Any]) -> View:
    """O of three dimensions, as torch has it, with a batch of 1."""
    return _with_batch(view) if said.get("layout") == "bhsd" else view


def _with_batch(view: View) -> View:
    if len(view.shape) != 3:
        return view
    far = view.shape[0] * view.strides[0]
    return replace(view, shape=(1, *view.shape), strides=(far, *view.strides))


def _common(sizes: Any) -> Any:
    """The first of some sizes that is not 1; 1 if there is none."""
    return next((n for n in sizes if n != 1), 1)


def _expanded(view: View, dim: int, size: Any) -> View:
    if view.shape[dim] != 1 or size == 1:
        return view
    shape, strides = list(view.shape), list(view.strides)
    shape[dim], strides[dim] = size, 0
    return replace(view, shape=tuple(shape), strides=tuple(strides))


def shared(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions along which elements share memory."""
    return tuple(i for i, (n, s) in enumerate(zip(shape, strides, strict=True)) if n > 1 and not s)


def with_bias(
    named: Mapping[str, View], q_len: int, dense: Any
) -> tuple[Mapping[str, View], dict[str, Any]]:
    """The operands, with a bias of four dimensions; and what a problem says of it. Raises
    `BadArgument`.

    dense: from a shape to the strides of a contiguous array.
    """
    bias = named["bias"]
    if not 2 <= len(bias.shape) <= 4:
        raise BadArgument(f"bias has {len(bias.shape)} dimensions, not 2, 3 or 4")
    more = 4 - len(bias.shape)
    shape, strides = (1,) * more + tuple(bias.shape), (0,) * more + tuple(bias.strides)
    if strides[3] != 1 and shape[3] > 1:
        raise BadArgument(
            "bias has keys that are no neighbours in memory; pass bias.contiguous(), or, if one "
            "number is for all keys of a query, leave it out: the softmax is the same"
        )
    strides = (*(s if n > 1 else 0 for n, s in zip(shape[:3], strides[:3], strict=True)), 1)
    plain = tuple(s if n > 1 else 0 for n, s in zip(shape[:3], dense(shape)[:3], strict=True))
    found = {
        "bias_shape": shape[:2] if shape[2] == q_len else shape[:3],
        "bias_dtype": bias.dtype,
        "bias_strides": () if 0 in shape or strides[:3] == plain else strides,
    }
    return {**named, "bias": replace(bias, shape=shape, strides=strides)}, found
