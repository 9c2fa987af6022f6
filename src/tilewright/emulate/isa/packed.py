"""Packed instructions: the same on both halves of 32 bits, or on both of two registers.

``op_sel`` says of each source which half the lower result takes, ``op_sel_hi`` which the upper one
takes; ``neg_lo`` and ``neg_hi`` negate sources of either. CDNA3 ISA, "Packed math".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import TYPES, Reader, destination, word
from tilewright.emulate.isa.floats import extreme, maximum, minimum
from tilewright.emulate.isa.modes import limited_f16
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.rounding import fma16, fma32
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

Function = Callable[..., Array]


def _by_16(count: Array) -> Array:
    low: Array = count & count.dtype.type(15)
    return low


_HALVES: dict[str, tuple[str, int, Function]] = {
    "v_pk_add_f16": ("f16", 2, lambda a, b: a + b),
    "v_pk_mul_f16": ("f16", 2, lambda a, b: a * b),
    "v_pk_fma_f16": ("f16", 3, fma16),
    "v_pk_min_f16": ("f16", 2, minimum),
    "v_pk_max_f16": ("f16", 2, maximum),
    "v_pk_min_num_f16": ("f16", 2, minimum),
    "v_pk_max_num_f16": ("f16", 2, maximum),
    "v_pk_add_u16": ("u16", 2, lambda a, b: a + b),
    "v_pk_sub_u16": ("u16", 2, lambda a, b: a - b),
    "v_pk_add_i16": ("i16", 2, lambda a, b: a + b),
    "v_pk_sub_i16": ("i16", 2, lambda a, b: a - b),
    "v_pk_mul_lo_u16": ("u16", 2, lambda a, b: a * b),
    "v_pk_mad_u16": ("u16", 3, lambda a, b, c: a * b + c),
    "v_pk_min_u16": ("u16", 2, np.minimum),
    "v_pk_max_u16": ("u16", 2, np.maximum),
    "v_pk_min_i16": ("i16", 2, np.minimum),
    "v_pk_max_i16": ("i16", 2, np.maximum),
    "v_pk_lshlrev_b16": ("u16", 2, lambda a, b: b << _by_16(a)),
    "v_pk_lshrrev_b16": ("u16", 2, lambda a, b: b >> _by_16(a)),
    "v_pk_ashrrev_i16": ("i16", 2, lambda a, b: b >> _by_16(a)),
}
"""Kind, sources, and meaning of a half."""

_PAIRS: dict[str, tuple[int, Function]] = {
    "v_pk_add_f32": (2, lambda a, b: a + b),
    "v_pk_mul_f32": (2, lambda a, b: a * b),
    "v_pk_fma_f32": (3, fma32),
}


def _selected(ins: Instruction, number: int) -> tuple[int, int, int, int]:
    """Which half of source `number` the lower and the upper result take, and whether each negates
    it."""
    found = []
    for name, otherwise in (("op_sel", 0), ("op_sel_hi", 1), ("neg_lo", 0), ("neg_hi", 0)):
        stated = ins.modifiers.bits(name)
        found.append(stated[number] if number < len(stated) else otherwise)
    low, high, negate_low, negate_high = found
    return low, high, negate_low, negate_high


def _check(ins: Instruction, count: int) -> None:
    if len(ins.operands) != count + 1:
        raise ValueError(f"it has {len(ins.operands)} operands instead of {count + 1}")
    for op in ins.operands:
        if op.negate or op.absolute or op.sext or op.half:
            raise ValueError(f"{op.text} has a modifier")


@means(*_HALVES)
def _halves(ins: Instruction, context: Context) -> Executor:
    kind, count, function = _HALVES[ins.base]
    _check(ins, count)
    if kind == "f16" and function in (minimum, maximum):
        function = extreme(ins.base, context.target)
    sources = [_half_source(ins, 1 + number, kind) for number in range(count)]
    write = destination(ins, 0, "u32", context.target)

    def execute(waves: Waves) -> None:
        made = []
        for given in zip(*(each(waves) for each in sources), strict=True):
            half = function(*given)
            if kind == "f16":
                half = limited_f16(waves, half, *given)
            made.append(half.view(np.uint16).astype(np.uint32))
        write(waves, made[0] | (made[1] << np.uint32(16)))

    return execute


def _half_source(ins: Instruction, index: int, kind: str) -> Callable[[Waves], tuple[Array, Array]]:
    """What the lower and the upper result take of a source."""
    low, high, negate_low, negate_high = _selected(ins, index - 1)
    if kind != "f16" and (negate_low or negate_high):
        raise ValueError("integers are negated")
    read, as_type = word(ins.operands[index], kind), TYPES[kind]

    def half(x: Array, upper: int, negate: int) -> Array:
        code = ((x >> np.uint32(16)) if upper else x).astype(np.uint16)
        return (code ^ np.uint16(0x8000) if negate else code).view(as_type)

    def both(waves: Waves) -> tuple[Array, Array]:
        x = read(waves)
        return half(x, low, negate_low), half(x, high, negate_high)

    return both


@means(*_PAIRS)
def _pairs(ins: Instruction, context: Context) -> Executor:
    count, function = _PAIRS[ins.base]
    _check(ins, count)
    if not context.target.denormals_32:
        raise ValueError("fp32 denormals are flushed")
    lows, highs = [], []
    for number in range(count):
        low, high, negate_low, negate_high = _selected(ins, number)
        lows.append(_float(_register(ins, 1 + number, low), negate_low))
        highs.append(_float(_register(ins, 1 + number, high), negate_high))
    first = ins.operands[0]
    if first.file != "v" or first.count != 2:
        raise ValueError(f"{first.text} is no pair of vector registers")

    def execute(waves: Waves) -> None:
        low = function(*(each(waves) for each in lows)).view(np.uint32)
        high = function(*(each(waves) for each in highs)).view(np.uint32)
        if waves.full:
            waves.vector[first.first][...] = low
            waves.vector[first.first + 1][...] = high
        else:
            np.copyto(waves.vector[first.first], low, where=waves.active)
            np.copyto(waves.vector[first.first + 1], high, where=waves.active)

    return execute


def _register(ins: Instruction, index: int, half: int) -> Reader:
    """Either register of a pair. A constant has a lower half alone."""
    op = ins.operands[index]
    if op.file in ("v", "s"):
        if op.count != 2:
            raise ValueError(f"{op.text} is no pair of registers")
    elif half:
        raise ValueError(f"what the upper half of {op.text} holds is not known")
    return word(op, "f32", half)


def _float(read: Reader, negate: int) -> Reader:
    if negate:
        return lambda waves: (read(waves) ^ np.uint32(0x80000000)).view(np.float32)
    return lambda waves: read(waves).view(np.float32)


@means("v_pk_mov_b32")
def _move_two(ins: Instruction, context: Context) -> Executor:
    """One register of each source: of the first by ``op_sel``'s first bit, of the second by its
    second."""
    _check(ins, 2)
    chosen = (*ins.modifiers.bits("op_sel"), 0, 0)
    ins.modifiers.get("op_sel_hi")  # the compiler may state it; it has no meaning here
    low, high = (_register(ins, 1 + number, chosen[number]) for number in (0, 1))
    write = destination(ins, 0, "u64", context.target)

    def execute(waves: Waves) -> None:
        lower, upper = low(waves).astype(np.uint64), high(waves).astype(np.uint64)
        write(waves, lower | (upper << np.uint64(32)))

    return execute
