"""Numbers as the hardware holds them, in plain Python: what tests state meanings with.

Values are Python floats, which hold every value of these formats, or Fractions before rounding.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

Number = float | Fraction | int


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    top: what the largest exponent holds: ``"ieee"`` infinity and NaN, ``"nan"`` numbers and one NaN
    (E4M3FN), ``"fnuz"`` numbers, with NaN in the place of -0, ``"none"`` numbers alone.
    """

    exponent: int
    mantissa: int
    bias: int
    top: str = "ieee"

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def largest(self) -> Fraction:
        last = (1 << self.exponent) - 1 - (self.top == "ieee")
        part = (2 << self.mantissa) - 1 - (self.top == "nan")
        return Fraction(part) * Fraction(2) ** (last - self.bias - self.mantissa)

    def decode(self, code: int) -> float:
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        exponent = code >> self.mantissa & ((1 << self.exponent) - 1)
        part = code & ((1 << self.mantissa) - 1)
        if self.top == "fnuz" and code == 1 << (self.bits - 1):
            return math.nan
        if exponent == (1 << self.exponent) - 1:
            if self.top == "ieee":
                return math.nan if part else sign * math.inf
            if self.top == "nan" and part == (1 << self.mantissa) - 1:
                return math.nan
        if exponent == 0:
            return sign * part * 2.0 ** (1 - self.bias - self.mantissa)
        return sign * (part + (1 << self.mantissa)) * 2.0 ** (exponent - self.bias - self.mantissa)

    def rounded(self, x: Number, toward_zero: bool = False) -> float:
        """The value of this format nearest to `x`, ties to even; infinity for what rounds to more
        than the largest number."""
        if isinstance(x, float) and (math.isnan(x) or math.isinf(x) or x == 0):
            return x
        exact = Fraction(x)
        if exact == 0:
            return 0.0
        size, sign = abs(exact), math.copysign(1.0, exact)
        power = max(_log2(size), 1 - self.bias)
        step = Fraction(2) ** (power - self.mantissa)
        count = size / step
        whole = math.floor(count) if toward_zero else round(count)  # Python rounds ties to even
        made = whole * step
        if made > self.largest:
            return sign * (float(self.largest) if toward_zero else math.inf)
        return sign * float(made)


def _log2(x: Fraction) -> int:
    """The largest whole power of two that is no more than `x`, as its exponent."""
    power = x.numerator.bit_length() - x.denominator.bit_length()
    return power if Fraction(2) ** power <= x else power - 1


F32 = Format(8, 23, 127)
F16 = Format(5, 10, 15)
BF16 = Format(8, 7, 127)
SMALL = {
    "fp8": Format(4, 3, 7, "nan"),
    "bf8": Format(5, 2, 15),
    "fp8 fnuz": Format(4, 3, 8, "fnuz"),
    "bf8 fnuz": Format(5, 2, 16, "fnuz"),
    "fp4": Format(2, 1, 1, "none"),
}


def f32(code: int) -> float:
    """The value of fp32 bits."""
    return F32.decode(code)


def bits32(value: float) -> int:
    """The fp32 bits of a value that fp32 holds."""
    return int.from_bytes(struct.pack("<f", value), "little")


def bits16(value: float) -> int:
    """The fp16 bits of a value that fp16 holds."""
    return int.from_bytes(struct.pack("<e", value), "little")


def special(*values: float) -> bool:
    """Whether any is NaN or infinite: then Python's own arithmetic is exact."""
    return any(math.isnan(x) or math.isinf(x) for x in values)


def added(form: Format, a: float, b: float) -> float:
    if special(a, b) or a + b == 0:
        return a + b
    return form.rounded(Fraction(a) + Fraction(b))


def multiplied(form: Format, a: float, b: float) -> float:
    if special(a, b) or a == 0 or b == 0:
        return a * b
    made = form.rounded(Fraction(a) * Fraction(b))
    return math.copysign(made, math.copysign(1, a) * math.copysign(1, b))


def fused(form: Format, a: float, b: float, c: float) -> float:
    """a × b + c with one rounding."""
    if special(a, b, c):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # its sign is that of a sum of the two terms
        product = math.copysign(0.0 if a == 0 or b == 0 else 1.0, _sign(a) * _sign(b))
        return product + c if product == 0 else 0.0
    return math.copysign(form.rounded(exact), exact)


def _sign(x: float) -> float:
    return math.copysign(1.0, x)


def smaller(a: float, b: float) -> float:
    """The smaller number; a number rather than NaN; -0 rather than +0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return min((a, b), key=lambda x: (x, _sign(x)))


def larger(a: float, b: float) -> float:
    """The larger number; a number rather than NaN; +0 rather than -0."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return max((a, b), key=lambda x: (x, _sign(x)))


def signed(value: int, bits: int) -> int:
    """The low bits of a number, as a signed one."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


WORDS = [
    *(0, 1, 2, 3, 4, 7, 8, 15, 16, 24, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF),
    *(0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x1000000),
    *(0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x12345678, 0xFFFF0000),
]
FLOATS = [
    *(0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001),
    *(0xFFC12345, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF),
    *(0x3F000000, 0x3FC00000, 0x40200000, 0x4B800000, 0x4B800001, 0x4F000000, 0x4F800000),
    *(0xCF000000, 0x477FE000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001, 0x33800000),
    *(0x387FC000, 0x38800000, 0x43E00000, 0x43E80000, 0x43700000, 0x43780000, 0x42FE0000),
    *(0xC2FC0000, 0xC3150000, 0x7E800000, 0x7F000000, 0x00400000, 0x3F800001, 0x34000000),
]
HALVES = [
    *(0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 1, 0x8001, 0x3FF, 0x400),
    *(0x7BFF, 0xFBFF, 0x3800, 0x4100, 0x6400, 0x7400, 0xE408, 0x3C01, 0x1400, 0x0C00),
]


def edges(kind: str) -> Callable[[random.Random], int]:
    """Draws bits for a source of a kind: half of them at the kind's edges."""

    def word(rng: random.Random) -> int:
        return rng.choice(WORDS) if rng.random() < 0.5 else rng.getrandbits(32)

    def single(rng: random.Random) -> int:
        choice = rng.random()
        if choice < 0.5:
            return rng.choice(FLOATS)
        if choice < 0.75:  # of ordinary size
            return rng.getrandbits(24) | rng.randrange(110, 145) << 23 | rng.getrandbits(1) << 31
        return rng.getrandbits(32)

    def half(rng: random.Random) -> int:
        low, high = (
            rng.choice(HALVES) if rng.random() < 0.5 else rng.getrandbits(16) for _ in range(2)
        )
        return low | high << 16

    def short(rng: random.Random) -> int:
        low, high = (
            rng.choice(WORDS) & 0xFFFF if rng.random() < 0.5 else rng.getrandbits(16)
            for _ in range(2)
        )
        return low | high << 16

    def double(rng: random.Random) -> int:
        return word(rng) | word(rng) << 32

    return {
        "u32": word,
        "i32": word,
        "b32": word,
        "f32": single,
        "u16": short,
        "i16": short,
        "f16": half,
        "bf16": single,
        "u64": double,
        "i64": double,
    }[kind]


def value(kind: str, code: int) -> Number:
    """What bits mean as a source of a kind: of 16-bit kinds the low half."""
    if kind == "f32":
        return f32(code)
    if kind == "f16":
        return F16.decode(code & 0xFFFF)
    if kind == "bf16":
        return BF16.decode(code & 0xFFFF)
    size = int(kind[1:])
    return signed(code, size) if kind[0] == "i" else code & ((1 << size) - 1)


def code(kind: str, number: Number) -> int:
    """The bits of a result of a kind, which must hold it."""
    if kind == "f32":
        return bits32(float(number))
    if kind == "f16":
        return bits16(float(number))
    if kind == "bf16":
        return bits32(float(number)) >> 16
    return int(number) & ((1 << int(kind[1:])) - 1)


def is_nan(kind: str, bits: int) -> bool:
    """Whether the bits of a result are NaN."""
    number = value(kind, bits)
    return kind in ("f32", "f16", "bf16") and math.isnan(float(number))
