"""Vector instructions on integers and bits of 16 and 32 bits."""

from __future__ import annotations

from functools import reduce

import numpy as np

from tilewright.emulate.isa.access import Reader, destination, source
from tilewright.emulate.isa.elementwise import elementwise
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

_U = np.uint32
_Q = np.uint64


def _by(count: Array) -> Array:
    """A shift's count: the low five bits."""
    return count & _U(31)


def _by_i(count: Array) -> Array:
    return _by(count).view(np.int32)


def _by_16(count: Array) -> Array:
    return count & np.uint16(15)


def _low24(x: Array) -> Array:
    return x & _U(0xFFFFFF)


def _low24_i(x: Array) -> Array:
    """The low 24 bits as a signed number."""
    return (x << _U(8)).view(np.int32) >> np.int32(8)


def _high(product: Array) -> Array:
    high: Array = product >> product.dtype.type(32)
    return high.astype(np.uint32)


def _mul_hi_u(a: Array, b: Array) -> Array:
    return _high(a.astype(_Q) * b.astype(_Q))


def _mul_hi_i(a: Array, b: Array) -> Array:
    return _high(a.astype(np.int64) * b.astype(np.int64)).view(np.int32)


def _ones(count: Array) -> Array:
    """So many low bits set; counts are below 32."""
    return (_U(1) << count) - _U(1)


def _bfe_u(x: Array, offset: Array, width: Array) -> Array:
    return (x >> _by(offset)) & _ones(_by(width))


def _bfe_i(x: Array, offset: Array, width: Array) -> Array:
    """The field, its highest bit as its sign; a field of no bits is 0."""
    field, size = _bfe_u(x, offset, width), _by(width)
    sign = (field >> ((size - _U(1)) & _U(31))) & _U(1)
    extended = np.where(sign == 1, field | ~_ones(size), field)
    return np.where(size == 0, _U(0), extended).view(np.int32)


def _reversed(x: Array) -> Array:
    for step, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        x = ((x >> _U(step)) & _U(mask)) | ((x & _U(mask)) << _U(step))
    return (x >> _U(16)) | (x << _U(16))


def _alignbit(high: Array, low: Array, count: Array) -> Array:
    both = (high.astype(_Q) << _Q(32)) | low.astype(_Q)
    return (both >> _by(count).astype(_Q)).astype(_U)


def _alignbyte(high: Array, low: Array, count: Array) -> Array:
    return _alignbit(high, low, (count & _U(3)) << _U(3))


def _perm(high: Array, low: Array, selectors: Array) -> Array:
    """Each byte of the result is chosen by a byte of `selectors`: 0 to 7 a byte of {high, low}, 8
    to 11 the sign of bits 15, 31, 47, 63 of it, 12 zero, above 12 all ones."""
    first = selectors.flat[0]
    if selectors.shape[-1] == 1 and (selectors == first).all():
        return _permuted(high, low, int(first).to_bytes(4, "little"))
    both = (high.astype(_Q) << _Q(32)) | low.astype(_Q)
    made: Array = np.zeros(1, _U)
    for place in range(0, 32, 8):
        chosen = (selectors >> _U(place)) & _U(0xFF)
        byte = ((both >> ((chosen & _U(7)).astype(_Q) << _Q(3))) & _Q(0xFF)).astype(_U)
        sign = (both >> (((chosen & _U(3)).astype(_Q) << _Q(4)) + _Q(15))) & _Q(1)
        byte = np.where(chosen >= 8, sign.astype(_U) * _U(0xFF), byte)
        byte = np.where(chosen >= 12, np.where(chosen == 12, _U(0), _U(0xFF)), byte)
        made = made | (byte << _U(place))
    return made


def _permuted(high: Array, low: Array, chosen: bytes) -> Array:
    """`_perm` where all lanes choose the same bytes."""
    made: Array = np.zeros(1, _U)
    for place, each in enumerate(chosen):
        kept = _U(0xFF << 8 * place)
        if each >= 12:
            made = made | (kept if each > 12 else _U(0))
            continue
        word = low if each in (0, 1, 2, 3, 8, 9) else high
        if each >= 8:
            made = made | ((word >> _U(31 if each % 2 else 15)) & _U(1)) * kept
        elif place > each % 4:
            made = made | ((word << _U(8 * (place - each % 4))) & kept)
        else:
            made = made | ((word >> _U(8 * (each % 4 - place))) & kept)
    return made


def _med3(a: Array, b: Array, c: Array) -> Array:
    middle: Array = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    return middle


def popcount(x: Array) -> Array:
    """How many bits are set in each uint32."""
    x = x - ((x >> _U(1)) & _U(0x55555555))
    x = (x & _U(0x33333333)) + ((x >> _U(2)) & _U(0x33333333))
    sums: Array = ((x + (x >> _U(4))) & _U(0x0F0F0F0F)) * _U(0x01010101)
    return sums >> _U(24)


_1, _2, _3 = "u32 <- u32", "u32 <- u32 u32", "u32 <- u32 u32 u32"
_2I, _3I = "i32 <- i32 i32", "i32 <- i32 i32 i32"

elementwise("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", _1, lambda a: a)
elementwise("v_not_b32", _1, lambda a: ~a)
elementwise("v_bfrev_b32", _1, _reversed)
elementwise("v_add_u32 v_add_nc_u32", _2, lambda a, b: a + b, saturates=True)
elementwise("v_sub_u32 v_sub_nc_u32", _2, lambda a, b: a - b, saturates=True)
elementwise("v_subrev_u32 v_subrev_nc_u32", _2, lambda a, b: b - a, saturates=True)
elementwise("v_add_i32 v_add_nc_i32", _2I, lambda a, b: a + b, saturates=True)
elementwise("v_sub_i32 v_sub_nc_i32", _2I, lambda a, b: a - b, saturates=True)
elementwise("v_and_b32", _2, lambda a, b: a & b)
elementwise("v_or_b32", _2, lambda a, b: a | b)
elementwise("v_xor_b32", _2, lambda a, b: a ^ b)
elementwise("v_xnor_b32", _2, lambda a, b: ~(a ^ b))
elementwise("v_min_u32", _2, np.minimum)
elementwise("v_max_u32", _2, np.maximum)
elementwise("v_min_i32", _2I, np.minimum)
elementwise("v_max_i32", _2I, np.maximum)
elementwise("v_lshlrev_b32", _2, lambda a, b: b << _by(a))
elementwise("v_lshrrev_b32", _2, lambda a, b: b >> _by(a))
elementwise("v_ashrrev_i32", "i32 <- u32 i32", lambda a, b: b >> _by_i(a))
elementwise("v_mul_lo_u32", _2, lambda a, b: a * b)
elementwise("v_mul_hi_u32", _2, _mul_hi_u)
elementwise("v_mul_hi_i32", _2I, _mul_hi_i)
elementwise("v_mul_u32_u24", _2, lambda a, b: _low24(a) * _low24(b))
elementwise("v_mul_i32_i24", "i32 <- u32 u32", lambda a, b: _low24_i(a) * _low24_i(b))
elementwise("v_mul_hi_u32_u24", _2, lambda a, b: _mul_hi_u(_low24(a), _low24(b)))
elementwise("v_mad_u32_u24", _3, lambda a, b, c: _low24(a) * _low24(b) + c)
elementwise("v_mad_i32_i24", "i32 <- u32 u32 i32", lambda a, b, c: _low24_i(a) * _low24_i(b) + c)
elementwise("v_mad_u32", _3, lambda a, b, c: a * b + c)
elementwise("v_add3_u32", _3, lambda a, b, c: a + b + c)
elementwise("v_or3_b32", _3, lambda a, b, c: a | b | c)
elementwise("v_xor3_b32", _3, lambda a, b, c: a ^ b ^ c)
elementwise("v_and_or_b32", _3, lambda a, b, c: (a & b) | c)
elementwise("v_xad_u32", _3, lambda a, b, c: (a ^ b) + c)
elementwise("v_lshl_add_u32", _3, lambda a, b, c: (a << _by(b)) + c)
elementwise("v_add_lshl_u32", _3, lambda a, b, c: (a + b) << _by(c))
elementwise("v_lshl_or_b32", _3, lambda a, b, c: (a << _by(b)) | c)
elementwise("v_bfi_b32", _3, lambda a, b, c: (a & b) | (~a & c))
elementwise("v_bfe_u32", _3, _bfe_u)
elementwise("v_bfe_i32", "i32 <- u32 u32 u32", _bfe_i)
elementwise("v_alignbit_b32", _3, _alignbit)
elementwise("v_alignbyte_b32", _3, _alignbyte)
elementwise("v_perm_b32", _3, _perm)
elementwise("v_med3_u32", _3, _med3)
elementwise("v_med3_i32", _3I, _med3)
elementwise("v_min3_u32", _3, lambda a, b, c: np.minimum(np.minimum(a, b), c))
elementwise("v_max3_u32", _3, lambda a, b, c: np.maximum(np.maximum(a, b), c))
elementwise("v_min3_i32", _3I, lambda a, b, c: np.minimum(np.minimum(a, b), c))
elementwise("v_max3_i32", _3I, lambda a, b, c: np.maximum(np.maximum(a, b), c))
elementwise("v_maxmin_i32", _3I, lambda a, b, c: np.minimum(np.maximum(a, b), c))
elementwise("v_minmax_i32", _3I, lambda a, b, c: np.maximum(np.minimum(a, b), c))
elementwise("v_maxmin_u32", _3, lambda a, b, c: np.minimum(np.maximum(a, b), c))
elementwise("v_minmax_u32", _3, lambda a, b, c: np.maximum(np.minimum(a, b), c))
elementwise("v_add_min_i32", _3I, lambda a, b, c: np.minimum(a + b, c))
elementwise("v_add_max_i32", _3I, lambda a, b, c: np.maximum(a + b, c))
elementwise("v_add_min_u32", _3, lambda a, b, c: np.minimum(a + b, c))
elementwise("v_add_max_u32", _3, lambda a, b, c: np.maximum(a + b, c))
elementwise("v_bcnt_u32_b32", _2, lambda a, b: popcount(a) + b)

_2H, _2HI = "u16 <- u16 u16", "i16 <- i16 i16"
elementwise("v_add_u16 v_add_nc_u16", _2H, lambda a, b: a + b, saturates=True)
elementwise("v_sub_u16 v_sub_nc_u16", _2H, lambda a, b: a - b, saturates=True)
elementwise("v_subrev_u16", _2H, lambda a, b: b - a, saturates=True)
elementwise("v_mul_lo_u16", _2H, lambda a, b: a * b)
elementwise("v_lshlrev_b16", _2H, lambda a, b: b << _by_16(a))
elementwise("v_lshrrev_b16", _2H, lambda a, b: b >> _by_16(a))
elementwise("v_ashrrev_i16", "i16 <- u16 i16", lambda a, b: b >> _by_16(a).view(np.int16))
elementwise("v_and_b16", _2H, lambda a, b: a & b)
elementwise("v_or_b16", _2H, lambda a, b: a | b)
elementwise("v_xor_b16", _2H, lambda a, b: a ^ b)
elementwise("v_min_u16", _2H, np.minimum)
elementwise("v_max_u16", _2H, np.maximum)
elementwise("v_min_i16", _2HI, np.minimum)
elementwise("v_max_i16", _2HI, np.maximum)
elementwise("v_mad_u16", "u16 <- u16 u16 u16", lambda a, b, c: a * b + c)
elementwise("v_mad_u32_u16", "u32 <- u16 u16 u32", lambda a, b, c: a.astype(_U) * b.astype(_U) + c)


def table3(code: int, a: Array, b: Array, c: Array) -> Array:
    """Bit by bit, the bit of `code` whose number the bits of a, b, c make."""
    terms = [
        (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
        for number in range(8)
        if code >> number & 1
    ]
    return reduce(np.bitwise_or, terms) if terms else a & a.dtype.type(0)


@means("v_bitop3_b32", "v_bitop3_b16")
def _bitop3(ins: Instruction, context: Context) -> Executor:
    """CDNA4 ISA, V_BITOP3_B32: any function of three bits, by its table."""
    kind = "u" + ins.base[-2:]
    code = ins.modifiers.whole("bitop3")
    a, b, c = (source(ins, i, kind, context.target) for i in (1, 2, 3))
    write = destination(ins, 0, kind, context.target, keeps_high=True)
    return lambda waves: write(waves, table3(code, a(waves), b(waves), c(waves)))


@means("v_bitop2_b32")
def _bitop2(ins: Instruction, context: Context) -> Executor:
    """A dual instruction's half: a `_bitop3` whose third source does not count."""
    code = ins.modifiers.whole("bitop3")
    a, b = (source(ins, i, "u32", context.target) for i in (1, 2))
    write = destination(ins, 0, "u32", context.target)

    def execute(waves: Waves) -> None:
        x, y = a(waves), b(waves)
        write(waves, table3(code, x, y, np.zeros_like(x)))

    return execute


@means("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32")
def _bits_below(ins: Instruction, context: Context) -> Executor:
    """How many bits of a mask lie below the lane, of lanes 0 to 31 (lo) or 32 to 63 (hi)."""
    below = np.arange(context.target.lanes) - (32 if "hi" in ins.base else 0)
    counted = ((1 << np.clip(below, 0, 32)) - 1).astype(np.uint32)[None]
    mask: Reader = source(ins, 1, "u32", context.target)
    addend: Reader = source(ins, 2, "u32", context.target)
    write = destination(ins, 0, "u32", context.target)
    return lambda waves: write(waves, popcount(mask(waves) & counted) + addend(waves))
