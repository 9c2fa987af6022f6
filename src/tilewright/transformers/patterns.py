"""Which keys a mask function of transformers lets a query see, read from the function itself.

transformers composes masks out of functions of (batch, head, query, key). Those that it makes
itself are known by their code, and what they were made with by their closures. A function that is
not known has no pattern: its mask is computed instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import masking_utils as made

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Pattern:
    """left, right: how many keys beside its own place a query sees; None for no bound."""

    left: int | None = None
    right: int | None = None

    @property
    def causal(self) -> bool:
        return self.right == 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """A causal mask within chunks of `size` tokens, of which one begins at place pads [batch]."""

    size: int
    pads: Any


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Sequences behind one another: pattern is that of each, ids [batch, tokens] counts them."""

    pattern: Pattern
    ids: Any


_PAIR = made.and_masks(made.causal_mask_function, made.causal_mask_function).__code__
_ZERO = torch.zeros(1, 1, dtype=torch.int64)
_WINDOW = made.sliding_window_overlay(1).__code__
_WINDOW_BOTH = made.sliding_window_bidirectional_overlay(1).__code__
_CHUNK = made.chunked_overlay(1, _ZERO).__code__
_IDS = made.packed_sequence_mask_function(_ZERO).__code__
_REMAP = getattr(made, "remap_positions_for_packed_sequence", None)  # before 5.21 there was none
_REMAPPED = None if _REMAP is None else _REMAP(made.causal_mask_function, _ZERO).__code__


def pattern_of(function: Function) -> Pattern | Chunks | Packed | None:
    """The pattern of a mask function; None for one that is not known."""
    if function is made.causal_mask_function:
        return Pattern(right=0)
    if function is made.bidirectional_mask_function:
        return Pattern()
    if getattr(function, "__code__", None) is not _PAIR:
        return None
    parts = _held(function)["mask_functions"]
    if len(parts) != 2:
        return None
    first, second = parts
    codes = tuple(getattr(part, "__code__", None) for part in parts)
    if codes[1] is _IDS:  # places in a sequence are as far apart as places in the row
        remapped = _REMAPPED is not None and codes[0] is _REMAPPED
        each = pattern_of(_held(first)["mask_function"] if remapped else first)
        if isinstance(each, Pattern) and each.causal:
            return Packed(each, _held(second)["packed_sequence_mask"])
        return None
    if second is made.causal_mask_function and codes[0] is _WINDOW:
        return Pattern(left=_held(first)["sliding_window"] - 1, right=0)
    if second is made.causal_mask_function and codes[0] is _CHUNK:
        return Chunks(_held(first)["chunk_size"], _held(first)["left_padding"])
    if second is made.bidirectional_mask_function and codes[0] is _WINDOW_BOTH:
        width = _held(first)["sliding_window"]
        return Pattern(left=width, right=width)
    return None


def _held(function: Any) -> dict[str, Any]:
    """What a function's closure holds, by name."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, cells, strict=True))
