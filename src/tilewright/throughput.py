"""What a time comes to for what there is to do in it."""

from __future__ import annotations


def tflops(flops: float, us: float) -> float:
    """10¹² operations a second, of so many in so many microseconds."""
    return flops / us / 1e6


def gb_per_s(moved_bytes: float, us: float) -> float:
    """10⁹ bytes a second."""
    return moved_bytes / us / 1e3
