"""Powers of two, of which sides of tiles are."""

from __future__ import annotations


def power_of_two(count: int) -> int:
    """The least power of two that is not less than `count`: 1 for 0."""
    return 1 << max(0, count - 1).bit_length()
