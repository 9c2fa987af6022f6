"""What a rule says of an operation of torch: the calls here that compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ops.nouns import Call, View

Given = Mapping[str, Any]
"""The arguments of an operation by name, with a `View` for each tensor."""

MADE = "made"
"""The name under which `Given` has the results: a tuple, with None for each that is not made."""

TF32 = "tf32"
"""The name under which `Given` says whether fp32 may be multiplied as TF32."""

RECORDED = "recorded"
"""The name under which `Given` says whether a backward pass will follow; it does if nothing is
said."""


@dataclass(frozen=True, slots=True)
class Same:
    """One of the products, convolutions or attentions that an operation computes.

    op: the operation here.
    calls: calls that compute it, the fullest first: a later one leaves out what is added or scaled
        afterwards, for operands that no kernel reads.
    """

    op: str
    calls: tuple[Call, ...]


Stated = Sequence[Same]


def precision(given: Given, view: View) -> dict[str, Any]:
    """The option that says how fp32 is multiplied, where that is not the usual way."""
    return {"precision": "tf32"} if given.get(TF32) and view.dtype == "fp32" else {}


def contiguous(view: View) -> View:
    """A copy of an array."""
    return replace(view, strides=packed(view.shape), address=0)


def apart(view: View) -> View:
    """A gradient, or a copy where its elements share memory (that of a sum has strides of 0)."""
    each = zip(view.shape, view.strides, strict=True)
    return view if all(step or size == 1 for size, step in each) else contiguous(view)


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))
