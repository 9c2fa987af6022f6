"""Division by sizes that a launch knows: the numbers for the kernels' `device.division`."""

from __future__ import annotations


def dividing(size: int) -> tuple[int, int]:
    """A multiplier m, as a signed number of 32 bits, and a shift s: n // size is the upper half of
    2n·m, shifted by s, for every n under 2³¹."""
    shift = max(0, size - 1).bit_length()
    multiplier = (1 << 31 + shift) // max(1, size) + 1
    return (multiplier + 2**31) % 2**32 - 2**31, shift
