"""Numbers with which kernels divide by sizes that a launch knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ops.division import dividing


def divisors(
    **sizes: Callable[[Any, Any], int],
) -> dict[str, Callable[[Any, Any], int]]:
    """Values with which kernels divide by each of `sizes`, by name: ``by_NAME`` and ``shift_NAME``
    (`tilewright.ops.device.division`)."""

    def part(size: Callable[[Any, Any], int], place: int) -> Callable[[Any, Any], int]:
        return lambda problem, config: dividing(size(problem, config))[place]

    return {
        f"{word}_{name}": part(size, place)
        for name, size in sizes.items()
        for place, word in enumerate(("by", "shift"))
    }
