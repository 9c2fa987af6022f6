"""Elements of 4 bits, two in a byte, as NumPy arrays or torch tensors.

Two neighbours along an axis share a byte: the element with the lower index is in the lower four
bits. An axis of K elements becomes an axis of K/2 bytes. `int4` is two's complement. `e2m1` is the
fp4 of the OCP Microscaling Formats (MX) specification v1.0: sign, two bits of exponent (bias 1),
one bit of mantissa.
"""

from __future__ import annotations

from typing import Any

from tilewright.arrays import is_torch
from tilewright.errors import BadArgument

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of e2m1, by its lower three bits."""

VALUES: dict[str, tuple[float, ...]] = {
    "int4": (*range(8), *range(-8, 0)),
    "e2m1": (*E2M1, *(-x for x in E2M1)),
}
"""Value of each of the 16 codes."""


def pack(codes: Any, axis: int) -> Any:
    """Bytes (uint8) that hold the codes 0 … 15 of an integer array, in pairs along `axis`. Raises
    `BadArgument` for an odd number of codes."""
    low, high = _pairs(codes, axis)
    return low + 16 * high


def unpack(packed: Any, axis: int) -> Any:
    """The codes 0 … 15 (uint8) in bytes (uint8); `axis` becomes twice as long."""
    xp = library(packed)
    axis %= packed.ndim
    pairs = xp.stack((packed % 16, packed // 16), axis + 1)
    shape = (*packed.shape[:axis], 2 * packed.shape[axis], *packed.shape[axis + 1 :])
    return pairs.reshape(shape)


def decode(packed: Any, dtype: str, axis: int) -> Any:
    """The values, as float64, that bytes of `dtype` (``int4``, ``e2m1``) hold along `axis`; exact.

    packed: the bytes, as uint8, or as floats with their values.
    """
    xp = library(packed)
    if xp.__name__ == "torch":
        table = xp.tensor(VALUES[dtype], dtype=xp.float64, device=packed.device)
        return table[unpack(packed.to(xp.uint8), axis).long()]
    return xp.array(VALUES[dtype])[unpack(packed.astype(xp.uint8), axis)]


def _pairs(codes: Any, axis: int) -> tuple[Any, Any]:
    axis %= codes.ndim
    if codes.shape[axis] % 2:
        raise BadArgument(
            f"{codes.shape[axis]} elements of 4 bits along axis {axis} do not fill whole bytes; "
            "pad with zeros to an even number"
        )
    every = [slice(None)] * codes.ndim
    low, high = list(every), list(every)
    low[axis], high[axis] = slice(0, None, 2), slice(1, None, 2)
    xp = library(codes)
    codes = codes.to(xp.uint8) if xp.__name__ == "torch" else codes.astype(xp.uint8)
    return codes[tuple(low)], codes[tuple(high)]


def library(array: Any) -> Any:
    """torch or numpy, whichever `array` belongs to."""
    if is_torch(array):
        import torch

        return torch
    import numpy as np

    return np
