"""What vector instructions mean in one lane, in plain Python: kinds of the sources and the result,
and a function of numbers. Whole numbers wrap; floats are rounded by `exact`.

Sources: AMD's "CDNA3", "CDNA4", "RDNA3" and "RDNA4" instruction set manuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from exact import (
    BF16,
    F16,
    F32,
    added,
    bits16,
    bits32,
    fused,
    larger,
    multiplied,
    signed,
    smaller,
    special,
)


@dataclass(frozen=True)
class Statement:
    """Kinds of the sources and the result, the function, and of an accumulating instruction that
    the last source is the destination. A result of kind 2f16 or 2bf16 is two numbers' bits."""

    sources: tuple[str, ...]
    result: str
    function: Callable[..., float]
    accumulates: bool = False


STATEMENTS: dict[str, Statement] = {}


def state(
    names: str, kinds: str, function: Callable[..., float], accumulates: bool = False
) -> None:
    result, _, sources = kinds.partition(" = ")
    for name in names.split():
        assert name not in STATEMENTS, name
        STATEMENTS[name] = Statement(tuple(sources.split()), result, function, accumulates)


def bit(x: int, number: int) -> int:
    return x >> number & 1


# Integers of 32 bits. -----------------------------------------------------------------------------
U1, U2, U3 = "u32 = u32", "u32 = u32 u32", "u32 = u32 u32 u32"
I2, I3 = "i32 = i32 i32", "i32 = i32 i32 i32"
state("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", U1, lambda a: a)
state("v_not_b32", U1, lambda a: 0xFFFFFFFF - a)
state("v_bfrev_b32", U1, lambda a: int(f"{a:032b}"[::-1], 2))
state("v_add_u32 v_add_nc_u32", U2, lambda a, b: a + b)
state("v_sub_u32 v_sub_nc_u32", U2, lambda a, b: a - b)
state("v_subrev_u32 v_subrev_nc_u32", U2, lambda a, b: b - a)
state("v_add_i32 v_add_nc_i32", I2, lambda a, b: a + b)
state("v_sub_i32 v_sub_nc_i32", I2, lambda a, b: a - b)
state("v_and_b32", U2, lambda a, b: sum((bit(a, i) and bit(b, i)) << i for i in range(32)))
state("v_or_b32", U2, lambda a, b: sum((bit(a, i) or bit(b, i)) << i for i in range(32)))
state("v_xor_b32", U2, lambda a, b: sum((bit(a, i) != bit(b, i)) << i for i in range(32)))
state("v_xnor_b32", U2, lambda a, b: sum((bit(a, i) == bit(b, i)) << i for i in range(32)))
state("v_min_u32", U2, min)
state("v_max_u32", U2, max)
state("v_min_i32", I2, min)
state("v_max_i32", I2, max)
state("v_lshlrev_b32", U2, lambda a, b: b * 2 ** (a % 32))
state("v_lshrrev_b32", U2, lambda a, b: b // 2 ** (a % 32))
state("v_ashrrev_i32", "i32 = u32 i32", lambda a, b: b // 2 ** (a % 32))
state("v_mul_lo_u32", U2, lambda a, b: a * b)
state("v_mul_hi_u32", U2, lambda a, b: a * b // 2**32)
state("v_mul_hi_i32", I2, lambda a, b: a * b // 2**32)
state("v_mul_u32_u24", U2, lambda a, b: (a % 2**24) * (b % 2**24))
state("v_mul_i32_i24", I2, lambda a, b: signed(a, 24) * signed(b, 24))
state("v_mul_hi_u32_u24", U2, lambda a, b: (a % 2**24) * (b % 2**24) // 2**32)
state("v_mad_u32_u24", U3, lambda a, b, c: (a % 2**24) * (b % 2**24) + c)
state("v_mad_i32_i24", I3, lambda a, b, c: signed(a, 24) * signed(b, 24) + c)
state("v_mad_u32", U3, lambda a, b, c: a * b + c)
state("v_add3_u32", U3, lambda a, b, c: a + b + c)
state("v_or3_b32", U3, lambda a, b, c: a | b | c)
state("v_xor3_b32", U3, lambda a, b, c: a ^ b ^ c)
state("v_and_or_b32", U3, lambda a, b, c: (a & b) | c)
state("v_xad_u32", U3, lambda a, b, c: (a ^ b) + c)
state("v_lshl_add_u32", U3, lambda a, b, c: a * 2 ** (b % 32) + c)
state("v_add_lshl_u32", U3, lambda a, b, c: (a + b) * 2 ** (c % 32))
state("v_lshl_or_b32", U3, lambda a, b, c: (a * 2 ** (b % 32)) % 2**32 | c)
state(
    "v_bfi_b32",
    U3,
    lambda a, b, c: sum((bit(b, i) if bit(a, i) else bit(c, i)) << i for i in range(32)),
)
state("v_bfe_u32", U3, lambda a, b, c: a // 2 ** (b % 32) % 2 ** (c % 32))
state(
    "v_bfe_i32",
    "i32 = u32 u32 u32",
    lambda a, b, c: signed(a // 2 ** (b % 32), c % 32) if c % 32 else 0,
)
state("v_alignbit_b32", U3, lambda a, b, c: (a * 2**32 + b) // 2 ** (c % 32))
state("v_alignbyte_b32", U3, lambda a, b, c: (a * 2**32 + b) // 2 ** (8 * (c % 4)))
state("v_med3_u32", U3, lambda *x: sorted(x)[1])
state("v_med3_i32", I3, lambda *x: sorted(x)[1])
state("v_min3_u32", U3, min)
state("v_max3_u32", U3, max)
state("v_min3_i32", I3, min)
state("v_max3_i32", I3, max)
state("v_maxmin_i32", I3, lambda a, b, c: min(max(a, b), c))
state("v_minmax_i32", I3, lambda a, b, c: max(min(a, b), c))
state("v_maxmin_u32", U3, lambda a, b, c: min(max(a, b), c))
state("v_minmax_u32", U3, lambda a, b, c: max(min(a, b), c))
state("v_add_min_i32", I3, lambda a, b, c: min(signed(a + b, 32), c))
state("v_add_max_i32", I3, lambda a, b, c: max(signed(a + b, 32), c))
state("v_add_min_u32", U3, lambda a, b, c: min((a + b) % 2**32, c))
state("v_add_max_u32", U3, lambda a, b, c: max((a + b) % 2**32, c))
state("v_bcnt_u32_b32", U2, lambda a, b: bin(a).count("1") + b)


def permuted(high: int, low: int, selectors: int) -> int:
    given = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    made = []
    for chosen in selectors.to_bytes(4, "little"):
        if chosen < 8:
            made.append(given[chosen])
        elif chosen < 12:
            made.append(0xFF if given[2 * (chosen - 8) + 1] & 0x80 else 0)
        else:
            made.append(0 if chosen == 12 else 0xFF)
    return int.from_bytes(bytes(made), "little")


state("v_perm_b32", U3, permuted)

# Integers of 16 bits. -----------------------------------------------------------------------------
H2 = "u16 = u16 u16"
state("v_add_u16 v_add_nc_u16", H2, lambda a, b: a + b)
state("v_sub_u16 v_sub_nc_u16", H2, lambda a, b: a - b)
state("v_subrev_u16", H2, lambda a, b: b - a)
state("v_mul_lo_u16", H2, lambda a, b: a * b)
state("v_lshlrev_b16", H2, lambda a, b: b * 2 ** (a % 16))
state("v_lshrrev_b16", H2, lambda a, b: b // 2 ** (a % 16))
state("v_ashrrev_i16", "i16 = u16 i16", lambda a, b: b // 2 ** (a % 16))
state("v_and_b16", H2, lambda a, b: a & b)
state("v_or_b16", H2, lambda a, b: a | b)
state("v_xor_b16", H2, lambda a, b: a ^ b)
state("v_min_u16", H2, min)
state("v_max_u16", H2, max)
state("v_min_i16", "i16 = i16 i16", min)
state("v_max_i16", "i16 = i16 i16", max)
state("v_mad_u16", "u16 = u16 u16 u16", lambda a, b, c: a * b + c)
state("v_mad_u32_u16", "u32 = u16 u16 u32", lambda a, b, c: a * b + c)

# Integers of 64 bits. -----------------------------------------------------------------------------
state("v_mov_b64", "u64 = u64", lambda a: a)
state("v_lshlrev_b64", "u64 = u32 u64", lambda a, b: b * 2 ** (a % 64))
state("v_lshrrev_b64", "u64 = u32 u64", lambda a, b: b // 2 ** (a % 64))
state("v_ashrrev_i64", "i64 = u32 i64", lambda a, b: b // 2 ** (a % 64))
state("v_lshl_add_u64", "u64 = u64 u32 u64", lambda a, b, c: a * 2 ** (b % 8) + c)
state("v_add_nc_u64", "u64 = u64 u64", lambda a, b: a + b)
state("v_sub_nc_u64", "u64 = u64 u64", lambda a, b: a - b)
state("v_mul_u64", "u64 = u64 u64", lambda a, b: a * b)
state("v_mad_nc_u64_u32", "u64 = u32 u32 u64", lambda a, b, c: a * b + c)
state("v_mad_nc_i64_i32", "i64 = i32 i32 i64", lambda a, b, c: a * b + c)
state("v_min_u64", "u64 = u64 u64", min)
state("v_max_u64", "u64 = u64 u64", max)
state("v_min_i64", "i64 = i64 i64", min)
state("v_max_i64", "i64 = i64 i64", max)

# Floats. ------------------------------------------------------------------------------------------
F1, F2, F3 = "f32 = f32", "f32 = f32 f32", "f32 = f32 f32 f32"
state("v_add_f32", F2, lambda a, b: added(F32, a, b))
state("v_sub_f32", F2, lambda a, b: added(F32, a, -b))
state("v_subrev_f32", F2, lambda a, b: added(F32, b, -a))
state("v_mul_f32", F2, lambda a, b: multiplied(F32, a, b))
state("v_fma_f32", F3, lambda a, b, c: fused(F32, a, b, c))
state("v_fmac_f32", F3, lambda a, b, c: fused(F32, a, b, c), accumulates=True)
state("v_min_num_f32", F2, smaller)
state("v_max_num_f32", F2, larger)
state("v_min3_f32 v_min3_num_f32", F3, lambda a, b, c: smaller(smaller(a, b), c))
state("v_max3_f32 v_max3_num_f32", F3, lambda a, b, c: larger(larger(a, b), c))
state("v_maxmin_f32 v_maxmin_num_f32", F3, lambda a, b, c: smaller(larger(a, b), c))
state("v_minmax_f32 v_minmax_num_f32", F3, lambda a, b, c: larger(smaller(a, b), c))


def or_nan(choose: Callable[[float, float], float]) -> Callable[..., float]:
    """NaN if any is, else what is chosen of all."""
    return lambda *x: math.nan if any(math.isnan(each) for each in x) else reduce(choose, x)


state("v_minimum_f32", F2, or_nan(smaller))
state("v_maximum_f32", F2, or_nan(larger))
state("v_minimum3_f32", F3, or_nan(smaller))
state("v_maximum3_f32", F3, or_nan(larger))


def middle(a: float, b: float, c: float) -> float:
    if any(math.isnan(x) for x in (a, b, c)):
        return smaller(smaller(a, b), c)
    return sorted((a, b, c), key=lambda x: (x, math.copysign(1, x)))[1]


state("v_med3_f32 v_med3_num_f32", F3, middle)


def scaled(a: float, b: int) -> float:
    if special(a) or a == 0:
        return a
    # A far smaller or larger power than any fp32 number needs gives the same.
    return math.copysign(F32.rounded(Fraction(a) * Fraction(2) ** max(-400, min(400, b))), a)


state("v_ldexp_f32", "f32 = f32 i32", scaled)


def whole(choose: Callable[[Fraction], int]) -> Callable[[float], float]:
    """A rounding to whole numbers; a zero has the sign of what was rounded."""
    return lambda a: a if special(a) else math.copysign(float(choose(Fraction(a))), a)


state("v_rndne_f32", F1, whole(round))
state("v_trunc_f32", F1, whole(math.trunc))
state("v_floor_f32", F1, lambda a: a if special(a) or a == 0 else float(math.floor(a)))
state("v_ceil_f32", F1, whole(math.ceil))

G1, G2, G3 = "f16 = f16", "f16 = f16 f16", "f16 = f16 f16 f16"
state("v_add_f16", G2, lambda a, b: added(F16, a, b))
state("v_sub_f16", G2, lambda a, b: added(F16, a, -b))
state("v_subrev_f16", G2, lambda a, b: added(F16, b, -a))
state("v_mul_f16", G2, lambda a, b: multiplied(F16, a, b))
state("v_fma_f16", G3, lambda a, b, c: fused(F16, a, b, c))
state("v_min_num_f16", G2, smaller)
state("v_max_num_f16", G2, larger)

# Conversions. -------------------------------------------------------------------------------------


def to_whole(low: int, high: int) -> Callable[[float], int]:
    def convert(a: float) -> int:
        if math.isnan(a):
            return 0
        return low if a <= low else high if a >= high else math.trunc(a)

    return convert


state("v_cvt_f32_u32", "f32 = u32", F32.rounded)
state("v_cvt_f32_i32", "f32 = i32", F32.rounded)
state("v_cvt_u32_f32", "u32 = f32", to_whole(0, 2**32 - 1))
state("v_cvt_i32_f32", "i32 = f32", to_whole(-(2**31), 2**31 - 1))
state("v_cvt_f32_f16", "f32 = f16", lambda a: a)
state("v_cvt_f32_bf16", "f32 = bf16", lambda a: a)
state("v_cvt_f16_f32", "f16 = f32", F16.rounded)
state("v_cvt_f16_u16", "f16 = u16", F16.rounded)
state("v_cvt_f16_i16", "f16 = i16", F16.rounded)
for number in range(4):
    state(
        f"v_cvt_f32_ubyte{number}",
        "f32 = u32",
        lambda a, number=number: float(a >> 8 * number & 0xFF),
    )


def two(low: int, high: int) -> int:
    return low | high << 16


def half(a: float, toward_zero: bool = False) -> int:
    return bits16(math.nan if math.isnan(a) else F16.rounded(a, toward_zero))


state("v_pack_b32_f16", "u32 = u16 u16", two)
state("v_cvt_pk_f16_f32", "2f16 = f32 f32", lambda a, b: two(half(a), half(b)))
state(
    "v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32",
    "2f16 = f32 f32",
    lambda a, b: two(half(a, True), half(b, True)),
)
state(
    "v_cvt_pk_bf16_f32",
    "2bf16 = f32 f32",
    lambda a, b: two(bits32(BF16.rounded(a)) >> 16, bits32(BF16.rounded(b)) >> 16),
)
