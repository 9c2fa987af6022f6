"""Rates from an amount of work and a time."""

from __future__ import annotations


def tflops(flops: float, us: float) -> float:
    """10¹² operations a second, for `flops` operations in `us` microseconds."""
    return flops / us / 1e6


def gb_per_s(moved_bytes: float, us: float) -> float:
    """10⁹ bytes a second, for `moved_bytes` bytes in `us` microseconds."""
    return moved_bytes / us / 1e3
