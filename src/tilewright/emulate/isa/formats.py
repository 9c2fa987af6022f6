"""The element formats that matrix instructions read, decoded from registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from tilewright.emulate.waves import Array


@dataclass(frozen=True, slots=True)
class Format:
    """An element format.

    bits: of an element.
    decode: from uint32 (…, registers) to (…, elements), float32 or whole numbers, the element in
        the lowest bits first.
    least: the smallest normal number, 0.0 for formats whose denormals are never flushed.
    """

    bits: int
    decode: Callable[[Array], Array]
    least: float = 0.0


def _bf16(words: Array) -> Array:
    return (words.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _truncated(words: Array) -> Array:
    """Keep the sign, the exponent and ten bits of the mantissa of fp32."""
    return (words & np.uint32(0xFFFFE000)).view(np.float32)


def _looked_up(type_: str) -> Callable[[Array], Array]:
    """Decode bytes, by a table of all 256."""

    def decode(words: Array) -> Array:
        return np.take(table(type_), words.view(np.uint8))

    return decode


@cache
def table(type_: str) -> Array:
    """The values of all codes of a type of `ml_dtypes`, as fp32."""
    codes = np.arange(256, dtype=np.uint8)
    return np.asarray(codes.view(getattr(ml_dtypes, type_)).astype(np.float32))


def _six(type_: str) -> Callable[[Array], Array]:
    """Decode elements of six bits, which cross bytes and registers."""
    weights = np.array([1, 2, 4, 8, 16, 32], np.uint8)

    def decode(words: Array) -> Array:
        bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        codes = bits.reshape(*bits.shape[:-1], -1, 6) @ weights
        return np.take(table(type_), codes)

    return decode


def _nibbles(words: Array) -> Array:
    """The lower and the upper half of each byte, in this order."""
    codes = words.view(np.uint8)
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)


def _e2m1(words: Array) -> Array:
    return np.take(table("float4_e2m1fn"), _nibbles(words))


def _s4(words: Array) -> Array:
    return (_nibbles(words) << 4).view(np.int8) >> 4


FORMATS = {
    "f32": Format(32, lambda words: words.view(np.float32)),
    "xf32": Format(32, _truncated),
    "f16": Format(16, lambda words: words.view(np.float16).astype(np.float32), 2.0**-14),
    "bf16": Format(16, _bf16, 2.0**-126),
    "e4m3fn": Format(8, _looked_up("float8_e4m3fn")),
    "e5m2": Format(8, _looked_up("float8_e5m2")),
    "e4m3fnuz": Format(8, _looked_up("float8_e4m3fnuz")),
    "e5m2fnuz": Format(8, _looked_up("float8_e5m2fnuz")),
    "e2m3": Format(6, _six("float6_e2m3fn")),
    "e3m2": Format(6, _six("float6_e3m2fn")),
    "e2m1": Format(4, _e2m1),
    "s8": Format(8, lambda words: words.view(np.int8)),
    "u8": Format(8, lambda words: words.view(np.uint8)),
    "s4": Format(4, _s4),
    "u4": Format(4, _nibbles),
}
"""By name. xf32 is fp32 with its lowest 13 bits dropped: that is how AMD's libraries convert to it
(rocWMMA, hipBLASLt, Tensile); no manual says whether the instructions drop or round them."""
