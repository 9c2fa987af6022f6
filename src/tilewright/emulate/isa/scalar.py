"""Scalar instructions on integers and masks.

SCC is what the manuals say of each: a carry, a signed overflow, which operand a minimum took, or
whether the result has a bit set."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import (
    TYPES,
    Reader,
    bits,
    scalar_destination,
    scalar_source,
    set_condition,
)
from tilewright.emulate.isa.integer import popcount
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.relative import relative
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import EXEC
from tilewright.listing.text import Instruction

_U, _Q = np.uint32, np.uint64
Function = Callable[..., Array]


def _not_zero(result: Array, *sources: Array) -> Array:
    return np.not_equal(result, 0)


def _carry(result: Array, a: Array, b: Array) -> Array:
    return np.less(result, a)


def _borrow(result: Array, a: Array, b: Array) -> Array:
    return np.less(a, b)


def _overflow_of_sum(result: Array, a: Array, b: Array) -> Array:
    over: Array = ((a < 0) == (b < 0)) & ((a < 0) != (result < 0))
    return over


def _overflow_of_difference(result: Array, a: Array, b: Array) -> Array:
    over: Array = ((a < 0) != (b < 0)) & ((a < 0) != (result < 0))
    return over


def _less(result: Array, a: Array, b: Array) -> Array:
    return np.less(a, b)


def _greater(result: Array, a: Array, b: Array) -> Array:
    return np.greater(a, b)


def _by(count: Array) -> Array:
    low: Array = count & _U(31)
    return low


def _by_64(count: Array) -> Array:
    return (count & _U(63)).astype(_Q)


def _mul_hi(a: Array, b: Array) -> Array:
    wide = np.int64 if a.dtype == np.int32 else np.uint64
    return ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)


def _field(x: Array, place: Array) -> Array:
    """Bits of x: from bit place[4:0] (or [5:0] of 64 bits), place[22:16] many; the highest is the
    sign of a signed x. A shift by all of x's bits leaves none of an unsigned field's mask."""
    size = x.dtype.itemsize * 8
    code = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    wide = code.dtype.type
    offset = (place & _U(size - 1)).astype(wide)
    width = np.minimum((place >> _U(16)) & _U(0x7F), size).astype(np.int64)
    spare = (size - width).clip(0, size - 1).astype(wide)
    left = (code >> offset) << spare
    field = (left.view(x.dtype) >> spare.astype(x.dtype)).view(x.dtype)
    return np.where(width == 0, x.dtype.type(0), field)


def _mask(count: Array, offset: Array) -> Array:
    return ((_U(1) << _by(count)) - _U(1)) << _by(offset)


def _bit_reversed(x: Array) -> Array:
    found: Array = np.zeros_like(x)
    for bit in range(32):
        found = found | (((x >> _U(bit)) & _U(1)) << _U(31 - bit))
    return found


def _count_64(x: Array) -> Array:
    low, high = (x & _Q(0xFFFFFFFF)).astype(_U), (x >> _Q(32)).astype(_U)
    return popcount(low) + popcount(high)


def _lowest(x: Array) -> Array:
    """The number of the lowest bit set; -1 if none is."""
    below = (x & (~x + x.dtype.type(1))) - x.dtype.type(1)
    count = _count_64(below) if x.dtype == _Q else popcount(below)
    return np.where(x == 0, np.int32(-1), count.view(np.int32))


def _highest(x: Array) -> Array:
    """How many zeros lie above the highest bit set; -1 if none is."""
    size = x.dtype.itemsize * 8
    for step in (1, 2, 4, 8, 16, 32):
        if step < size:
            x = x | (x >> x.dtype.type(step))
    count = _count_64(x) if x.dtype == _Q else popcount(x)
    return np.where(x == 0, np.int32(-1), np.int32(size) - count.view(np.int32))


_LOW = _U(0xFFFF)
_HIGH = _U(16)

_2, _2I, _2Q = "u32 <- u32 u32", "i32 <- i32 i32", "u64 <- u64 u64"
_AND_NOT: Function = lambda a, b: a & ~b  # noqa: E731
_OR_NOT: Function = lambda a, b: a | ~b  # noqa: E731

TABLE: dict[str, tuple[str, Function, Function | None]] = {
    "s_add_u32 s_add_co_u32": (_2, operator.add, _carry),
    "s_sub_u32 s_sub_co_u32": (_2, operator.sub, _borrow),
    "s_add_i32 s_add_co_i32": (_2I, operator.add, _overflow_of_sum),
    "s_sub_i32 s_sub_co_i32": (_2I, operator.sub, _overflow_of_difference),
    "s_add_nc_u64": (_2Q, operator.add, None),
    "s_sub_nc_u64": (_2Q, operator.sub, None),
    "s_mul_u64": (_2Q, operator.mul, None),
    "s_mul_i32": (_2, operator.mul, None),
    "s_mul_hi_u32": (_2, _mul_hi, None),
    "s_mul_hi_i32": (_2I, _mul_hi, None),
    "s_min_i32": (_2I, np.minimum, _less),
    "s_max_i32": (_2I, np.maximum, _greater),
    "s_min_u32": (_2, np.minimum, _less),
    "s_max_u32": (_2, np.maximum, _greater),
    "s_and_b32": (_2, operator.and_, _not_zero),
    "s_or_b32": (_2, operator.or_, _not_zero),
    "s_xor_b32": (_2, operator.xor, _not_zero),
    "s_nand_b32": (_2, lambda a, b: ~(a & b), _not_zero),
    "s_nor_b32": (_2, lambda a, b: ~(a | b), _not_zero),
    "s_xnor_b32": (_2, lambda a, b: ~(a ^ b), _not_zero),
    "s_andn2_b32 s_and_not1_b32": (_2, _AND_NOT, _not_zero),
    "s_orn2_b32 s_or_not1_b32": (_2, _OR_NOT, _not_zero),
    "s_and_b64": (_2Q, operator.and_, _not_zero),
    "s_or_b64": (_2Q, operator.or_, _not_zero),
    "s_xor_b64": (_2Q, operator.xor, _not_zero),
    "s_nand_b64": (_2Q, lambda a, b: ~(a & b), _not_zero),
    "s_nor_b64": (_2Q, lambda a, b: ~(a | b), _not_zero),
    "s_xnor_b64": (_2Q, lambda a, b: ~(a ^ b), _not_zero),
    "s_andn2_b64 s_and_not1_b64": (_2Q, _AND_NOT, _not_zero),
    "s_orn2_b64 s_or_not1_b64": (_2Q, _OR_NOT, _not_zero),
    "s_lshl_b32": (_2, lambda a, b: a << _by(b), _not_zero),
    "s_lshr_b32": (_2, lambda a, b: a >> _by(b), _not_zero),
    "s_ashr_i32": ("i32 <- i32 u32", lambda a, b: a >> _by(b).view(np.int32), _not_zero),
    "s_lshl_b64": ("u64 <- u64 u32", lambda a, b: a << _by_64(b), _not_zero),
    "s_lshr_b64": ("u64 <- u64 u32", lambda a, b: a >> _by_64(b), _not_zero),
    "s_ashr_i64": ("i64 <- i64 u32", lambda a, b: a >> _by_64(b).view(np.int64), _not_zero),
    "s_bfe_u32": (_2, _field, _not_zero),
    "s_bfe_i32": ("i32 <- i32 u32", _field, _not_zero),
    "s_bfe_u64": ("u64 <- u64 u32", _field, _not_zero),
    "s_bfe_i64": ("i64 <- i64 u32", _field, _not_zero),
    "s_bfm_b32": (_2, _mask, None),
    "s_pack_ll_b32_b16": (_2, lambda a, b: (a & _LOW) | (b << _HIGH), None),
    "s_pack_lh_b32_b16": (_2, lambda a, b: (a & _LOW) | (b & ~_LOW), None),
    "s_pack_hl_b32_b16": (_2, lambda a, b: (a >> _HIGH) | (b << _HIGH), None),
    "s_pack_hh_b32_b16": (_2, lambda a, b: (a >> _HIGH) | (b & ~_LOW), None),
    "s_mov_b32": ("u32 <- u32", lambda a: a, None),
    "s_mov_b64": ("u64 <- u64", lambda a: a, None),
    "s_not_b32": ("u32 <- u32", lambda a: ~a, _not_zero),
    "s_not_b64": ("u64 <- u64", lambda a: ~a, _not_zero),
    "s_abs_i32": ("i32 <- i32", lambda a: np.where(a < 0, -a, a), _not_zero),
    "s_brev_b32": ("u32 <- u32", _bit_reversed, None),
    "s_bcnt1_i32_b32": ("u32 <- u32", popcount, _not_zero),
    "s_bcnt1_i32_b64": ("u32 <- u64", _count_64, _not_zero),
    "s_ff1_i32_b32 s_ctz_i32_b32": ("i32 <- u32", _lowest, None),
    "s_ff1_i32_b64 s_ctz_i32_b64": ("i32 <- u64", _lowest, None),
    "s_flbit_i32_b32 s_clz_i32_u32": ("i32 <- u32", _highest, None),
    "s_flbit_i32_b64 s_clz_i32_u64": ("i32 <- u64", _highest, None),
    "s_sext_i32_i8": ("i32 <- i32", lambda a: (a << np.int32(24)) >> np.int32(24), None),
    "s_sext_i32_i16": ("i32 <- i32", lambda a: (a << np.int32(16)) >> np.int32(16), None),
}
"""Mnemonics: kinds of the result and the sources, the function, and SCC of the result and the
sources (None: it stays)."""

_ROWS = {name: row for names, row in TABLE.items() for name in names.split()}


def _reader(ins: Instruction, index: int, kind: str, context: Context) -> Reader:
    """A scalar source, which may be the difference of two labels."""
    place = ins.operands[index]
    if place.file != "text":
        return scalar_source(ins, index, kind)
    value = np.array([relative(place.text, context.labels)], np.uint32)
    return lambda waves: value


@means(*_ROWS)
def _general(ins: Instruction, context: Context) -> Executor:
    kinds, function, condition = _ROWS[ins.base]
    result, _, rest = kinds.partition(" <- ")
    reads = rest.split()
    if len(ins.operands) != len(reads) + 1:
        raise ValueError(f"it has {len(ins.operands)} operands instead of {len(reads) + 1}")
    sources = [_reader(ins, 1 + i, kind, context) for i, kind in enumerate(reads)]
    write = scalar_destination(ins, 0, result)

    def execute(waves: Waves) -> None:
        given = [each(waves) for each in sources]
        made = function(*given)
        if condition is not None:
            set_condition(waves, condition(made, *given))
        write(waves, made)

    return execute


@means("s_addc_u32", "s_add_co_ci_u32", "s_subb_u32", "s_sub_co_ci_u32")
def _with_carry(ins: Instruction, context: Context) -> Executor:
    """A sum or a difference with SCC as the carry or borrow, in and out."""
    a, b = (_reader(ins, i, "u32", context) for i in (1, 2))
    write, adds = scalar_destination(ins), "add" in ins.base

    def execute(waves: Waves) -> None:
        x, y, carry = (each.astype(np.int64) for each in (a(waves), b(waves), waves.scc))
        total = x + y + carry if adds else x - y - carry
        set_condition(waves, (total < 0) | (total >> 32 > 0))
        write(waves, total.astype(np.uint32))

    return execute


@means("s_cselect_b32", "s_cselect_b64")
def _select(ins: Instruction, context: Context) -> Executor:
    kind = "u" + ins.base[-2:]
    a, b = (scalar_source(ins, i, kind) for i in (1, 2))
    write = scalar_destination(ins, 0, kind)
    return lambda waves: write(waves, np.where(waves.scc, a(waves), b(waves)))


@means("s_cmov_b32", "s_cmov_b64")
def _move_if(ins: Instruction, context: Context) -> Executor:
    kind = "u" + ins.base[-2:]
    new, old = scalar_source(ins, 1, kind), scalar_source(ins, 0, kind)
    write = scalar_destination(ins, 0, kind)
    return lambda waves: write(waves, np.where(waves.scc, new(waves), old(waves)))


_ASKED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": operator.eq,
    "lg": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@means(
    *(f"s_cmp_{name}_{kind}" for name in _ASKED for kind in ("i32", "u32")),
    "s_cmp_eq_u64",
    "s_cmp_lg_u64",
)
def _compare(ins: Instruction, context: Context) -> Executor:
    _, _, name, kind = ins.base.split("_")
    a, b, asked = scalar_source(ins, 0, kind), scalar_source(ins, 1, kind), _ASKED[name]
    return lambda waves: set_condition(waves, asked(a(waves), b(waves)))


@means("s_bitcmp0_b32", "s_bitcmp1_b32")
def _bit_is(ins: Instruction, context: Context) -> Executor:
    a, b = scalar_source(ins, 0), scalar_source(ins, 1)
    wanted = _U(int(ins.base[8]))
    return lambda waves: set_condition(waves, ((a(waves) >> _by(b(waves))) & _U(1)) == wanted)


@means("s_bitset0_b32", "s_bitset1_b32", "s_bitset0_b64", "s_bitset1_b64")
def _set_bit(ins: Instruction, context: Context) -> Executor:
    """One bit of the destination, by its number; the others stay."""
    kind = "u" + ins.base[-2:]
    number, old = scalar_source(ins, 1), scalar_source(ins, 0, kind)
    write, sets = scalar_destination(ins, 0, kind), ins.base[8] == "1"
    one, last = TYPES[kind](1), _U(bits(kind) - 1)

    def execute(waves: Waves) -> None:
        bit = one << (number(waves) & last).astype(TYPES[kind])
        held = old(waves)
        write(waves, held | bit if sets else held & ~bit)

    return execute


def _short(ins: Instruction, index: int, signed: bool) -> int:
    """A 16-bit constant of an instruction's own field."""
    value = ins.operands[index].value
    if ins.operands[index].file != "constant" or not isinstance(value, int):
        raise ValueError(f"{ins.operands[index].text} is no constant")
    value &= 0xFFFF
    return value - 0x10000 if signed and value & 0x8000 else value


@means("s_movk_i32")
def _move_short(ins: Instruction, context: Context) -> Executor:
    value = np.array([_short(ins, 1, True)], np.int32)
    write = scalar_destination(ins, 0, "i32")
    return lambda waves: write(waves, value)


@means("s_addk_i32", "s_addk_co_i32", "s_mulk_i32")
def _with_short(ins: Instruction, context: Context) -> Executor:
    """A sum (SCC: signed overflow) or a product (SCC stays) with a constant of 16 bits."""
    value = np.array([_short(ins, 1, True)], np.int32)
    read, write = scalar_source(ins, 0, "i32"), scalar_destination(ins, 0, "i32")
    if "mul" in ins.base:
        return lambda waves: write(waves, read(waves) * value)

    def execute(waves: Waves) -> None:
        x = read(waves)
        total = x + value
        set_condition(waves, _overflow_of_sum(total, x, value))
        write(waves, total)

    return execute


@means(*(f"s_cmpk_{name}_{kind}" for name in _ASKED for kind in ("i32", "u32")))
def _compare_short(ins: Instruction, context: Context) -> Executor:
    _, _, name, kind = ins.base.split("_")
    value = np.array([_short(ins, 1, kind == "i32")], TYPES[kind])
    read, asked = scalar_source(ins, 0, kind), _ASKED[name]
    return lambda waves: set_condition(waves, asked(read(waves), value))


_SAVING: dict[str, Function] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn2": lambda s, e: s & ~e,
    "and_not1": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "or_not1": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "and_not0": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
    "or_not0": lambda s, e: ~s | e,
}
"""What becomes of EXEC, by the source and EXEC."""


@means(*(f"s_{name}_saveexec_b{size}" for name in _SAVING for size in (32, 64)))
def _save_mask(ins: Instruction, context: Context) -> Executor:
    """EXEC goes to the destination, and a function of it and the source becomes EXEC."""
    name, _, kind = ins.base[2:].partition("_saveexec_b")
    if int(kind) != context.target.lanes:
        raise ValueError(f"{kind} lanes of {context.target.lanes}")
    function, kind = _SAVING[name], "u" + kind
    read, old = scalar_source(ins, 1, kind), _exec_reader(kind)
    write = scalar_destination(ins, 0, kind)

    def execute(waves: Waves) -> None:
        given, saved = read(waves), old(waves)
        made = function(given, saved)
        set_condition(waves, made != 0)
        write(waves, saved)
        _set_exec(waves, made)

    return execute


def _exec_reader(kind: str) -> Reader:
    if bits(kind) == 32:
        return lambda waves: waves.scalar[EXEC].copy()
    return lambda waves: (
        waves.scalar[EXEC].astype(_Q) | (waves.scalar[EXEC + 1].astype(_Q) << _Q(32))
    )


def _set_exec(waves: Waves, mask: Array) -> None:
    waves.scalar[EXEC] = (mask & mask.dtype.type(0xFFFFFFFF)).astype(_U)
    if mask.dtype == _Q:
        waves.scalar[EXEC + 1] = (mask >> _Q(32)).astype(_U)
    waves.reread_active()
