"""Which keys a query sees.

Query i of n_q and key j of n_kv are compared in one of two ways: by their places (``top_left``), or
so that the last query is in the place of the last key (``bottom_right``):

    at = i + (n_kv - n_q if bottom_right else 0)
    seen = at - left <= j <= at + right,  or  j < first and j <= at + right

`left` and `right` may be None, which sets no bound, and negative, which moves the window away from
the query. ``causal`` is right = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MASKS = ("none", "causal", "window")
"""none: every key. causal: a bound on the right alone. window: bounds on both sides, and the first
keys besides."""

CORNERS = ("bottom_right", "top_left")

NO_BOUND = 2**30
"""The window's side, for a kernel, that has no bound."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Bounds as in the module's text.

    left, right: None for no bound.
    first: keys at the beginning that `left` does not hide.
    bottom_right: which corner the diagonal goes through.
    """

    left: int | None = None
    right: int | None = None
    first: int = 0
    bottom_right: bool = True

    @property
    def kind(self) -> str:
        """The word of `MASKS` for kernels that compute it."""
        if self.left is not None:
            return "window"
        return "none" if self.right is None else "causal"

    def seen(self, queries: Any, keys: Any, n_q: int, n_kv: int) -> Any:
        """Whether each query sees each key: a boolean array [queries, keys].

        queries, keys: places, integer arrays of NumPy's or torch's.
        """
        at = queries[:, None] + (n_kv - n_q if self.bottom_right else 0)
        keys = keys[None, :]
        found = (keys >= 0) & (keys < n_kv) & (at == at)
        if self.right is not None:
            found = found & (keys <= at + self.right)
        if self.left is not None:
            found = found & ((keys >= at - self.left) | (keys < self.first))
        return found

    def pairs(self, n_q: int, n_kv: int) -> int:
        """How many pairs of a query and a key that it sees there are."""
        if self.right is None and self.left is None:
            return n_q * n_kv
        shift = n_kv - n_q if self.bottom_right else 0
        right = NO_BOUND if self.right is None else self.right
        seen = _below(n_q, n_kv, shift + right + 1)
        if self.left is not None:
            # Keys under both bounds, without the first ones, which the left bound leaves.
            end = min(shift - self.left, shift + right + 1)
            seen -= _below(n_q, n_kv, end) - _below(n_q, min(self.first, n_kv), end)
        return seen


def _below(n_q: int, n_kv: int, shift: int) -> int:
    """Pairs with j < i + shift: the sum over i of min(max(i + shift, 0), n_kv)."""
    start = max(0, min(n_q, -shift))  # rows that see nothing
    full = max(0, min(n_q, n_kv - shift))  # rows before `full` do not see all
    full = max(full, start)
    ramp = full - start
    return ramp * (start + shift) + ramp * (ramp - 1) // 2 + (n_q - full) * n_kv
