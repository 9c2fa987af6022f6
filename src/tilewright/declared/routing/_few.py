"""Which tokens are few enough that one workgroup chooses their experts and sorts by them."""

from __future__ import annotations

from tilewright.ops.powers import power_of_two

MOST_ELEMENTS = 8192
"""Logits that a workgroup's registers hold."""
MOST_CHOICES = 128
"""Choices that are compared with each other, each with each."""


def fit(tokens: int, columns: int, k: int) -> bool:
    """Whether one workgroup has room. columns: elements of a tile's row, at least the experts."""
    rows = power_of_two(max(1, tokens))
    few = rows * power_of_two(max(1, k)) <= MOST_CHOICES
    return few and rows * power_of_two(max(1, columns)) <= MOST_ELEMENTS
