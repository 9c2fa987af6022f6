"""Conversions between formats. All round to nearest, ties to even, unless their name says how."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import (
    UNNUMBERED,
    Reader,
    destination,
    part_destination,
    source,
    word,
)
from tilewright.emulate.isa.elementwise import elementwise
from tilewright.emulate.isa.formats import table
from tilewright.emulate.isa.modes import limited_f16, saturates
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.rounding import encoded, to_bf16, to_f16_toward_zero
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.target import Generation, Target
from tilewright.listing.text import Instruction

_LOW = np.uint32(0xFFFF)


def to_integer(x: Array, low: int, high: int) -> Array:
    """Floats as float64 whole numbers: truncated, limited to a range, NaN as 0."""
    return np.where(np.isnan(x), 0, np.clip(np.trunc(x.astype(np.float64)), low, high))


def to_u32(x: Array) -> Array:
    """Floats as uint32, truncated and limited; NaN is 0."""
    return to_integer(x, 0, 0xFFFFFFFF).astype(np.uint32)


def to_i32(x: Array) -> Array:
    """Floats as int32, truncated and limited; NaN is 0."""
    return to_integer(x, -(1 << 31), (1 << 31) - 1).astype(np.int32)


elementwise("v_cvt_f32_u32", "f32 <- u32", lambda a: a.astype(np.float32))
elementwise("v_cvt_f32_i32", "f32 <- i32", lambda a: a.astype(np.float32))
elementwise("v_cvt_u32_f32", "u32 <- f32", to_u32)
elementwise("v_cvt_i32_f32", "i32 <- f32", to_i32)
elementwise("v_cvt_f32_f16", "f32 <- f16", lambda a: a.astype(np.float32))
elementwise("v_cvt_f32_bf16", "f32 <- bf16", lambda a: a)
elementwise("v_cvt_f16_u16", "f16 <- u16", lambda a: a.astype(np.float16))
elementwise("v_cvt_f16_i16", "f16 <- i16", lambda a: a.astype(np.float16))


def _from_byte(number: int) -> Callable[[Array], Array]:
    shift = np.uint32(8 * number)
    return lambda a: ((a >> shift) & np.uint32(0xFF)).astype(np.float32)


for _number in range(4):
    elementwise(f"v_cvt_f32_ubyte{_number}", "f32 <- u32", _from_byte(_number))


@means("v_cvt_f16_f32")
def _to_f16(ins: Instruction, context: Context) -> Executor:
    read = source(ins, 1, "f32", context.target)
    write = destination(ins, 0, "f16", context.target)

    def execute(waves: Waves) -> None:
        x = read(waves)
        write(waves, limited_f16(waves, x.astype(np.float16), x))

    return execute


def _halves(low: Array, high: Array) -> Array:
    """Two arrays of 16-bit codes as one of 32 bits."""
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


elementwise("v_pack_b32_f16", "u32 <- f16 f16", lambda a, b: _halves(a.view("u2"), b.view("u2")))
elementwise(
    "v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32",
    "u32 <- f32 f32",
    lambda a, b: _halves(to_f16_toward_zero(a).view("u2"), to_f16_toward_zero(b).view("u2")),
)
elementwise("v_cvt_pk_bf16_f32", "u32 <- f32 f32", lambda a, b: _halves(to_bf16(a), to_bf16(b)))


@means("v_cvt_pk_f16_f32")
def _to_two_f16(ins: Instruction, context: Context) -> Executor:
    a, b = (source(ins, i, "f32", context.target) for i in (1, 2))
    write = destination(ins, 0, "u32", context.target)

    def execute(waves: Waves) -> None:
        x, y = a(waves), b(waves)
        low, high = (limited_f16(waves, each.astype(np.float16), each) for each in (x, y))
        write(waves, _halves(low.view(np.uint16), high.view(np.uint16)))

    return execute


def small_float(name: str, target: Target) -> str:
    """ml_dtypes' name of the format that ``fp8``, ``bf8`` or ``fp4`` means: MI300 (gfx942) has the
    formats without negative zero, all later GPUs OCP's."""
    if name == "fp4":
        return "float4_e2m1fn"
    stem = {"fp8": "float8_e4m3", "bf8": "float8_e5m2"}[name]
    if target.generation == "cdna3":
        return stem + "fnuz"
    return stem + "fn" if name == "fp8" else stem


_SIXTEEN = {"WORD_0": 0, "WORD_1": 16, "DWORD": 0}
_EIGHT = {"BYTE_0": 0, "BYTE_1": 8, "BYTE_2": 16, "BYTE_3": 24, "DWORD": 0}


def _place(ins: Instruction, size: int) -> int:
    """The first bit of what is read: SDWA's selection of the source, or what ``byte_sel`` or
    ``op_sel`` numbers, the latter's first bit the lowest."""
    chosen = ins.modifiers.get("src0_sel")
    if chosen is not None:
        return (_EIGHT if size == 8 else _SIXTEEN)[str(chosen)]
    if "byte_sel" in ins.modifiers:  # gfx12
        return 8 * ins.modifiers.whole("byte_sel")
    bits = ins.modifiers.bits("op_sel")
    if size == 16:
        return 16 * bits[0] if bits else 0
    return 8 * (bits[0] + 2 * bits[1]) if bits else 0


@means("v_cvt_f32_fp8", "v_cvt_f32_bf8", generations=("cdna3", "cdna4", "rdna4", "gfx1250"))
def _from_one(ins: Instruction, context: Context) -> Executor:
    values = table(small_float(ins.base[-3:], context.target))
    read, shift = word(ins.operands[1]), np.uint32(_place(ins, 8))
    write = destination(ins, 0, "f32", context.target)
    byte = np.uint32(0xFF)
    return lambda waves: write(waves, values[(read(waves) >> shift) & byte])


@means("v_cvt_pk_f32_fp8", "v_cvt_pk_f32_bf8", generations=("cdna3", "cdna4", "rdna4", "gfx1250"))
def _from_two(ins: Instruction, context: Context) -> Executor:
    values = table(small_float(ins.base[-3:], context.target))
    return _from_pair(ins, context, values, 8, None)


def _from_pair(
    ins: Instruction, context: Context, values: Array, bits: int, scale: Reader | None
) -> Executor:
    """Two neighbouring codes of `bits` bits to two fp32, times a power of two."""
    read, shift = word(ins.operands[1]), np.uint32(_place(ins, 2 * bits))
    write = destination(ins, 0, "u64", context.target)
    kept, next_ = np.uint32((1 << bits) - 1), np.uint32(bits)

    def execute(waves: Waves) -> None:
        codes = read(waves) >> shift
        both = [values[codes & kept], values[(codes >> next_) & kept]]
        if scale is not None:
            power = _power(scale(waves))
            both = [(each * power).astype(np.float32) for each in both]
        low, high = (each.view(np.uint32).astype(np.uint64) for each in both)
        write(waves, low | (high << np.uint64(32)))

    return execute


def _power(scale: Array) -> Array:
    """The power of two in the exponent of fp32 codes, as float64; NaN for the largest exponent."""
    exponent = ((scale >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int32)
    return np.where(exponent == 255, np.nan, np.exp2(exponent.astype(np.float64) - 127))


_SCALED: tuple[Generation, ...] = ("cdna4",)


@means(
    "v_cvt_scalef32_pk_f32_fp8",
    "v_cvt_scalef32_pk_f32_bf8",
    "v_cvt_scalef32_pk_f32_fp4",
    generations=_SCALED,
)
def _scaled_to_f32(ins: Instruction, context: Context) -> Executor:
    """CDNA4 ISA, V_CVT_SCALEF32_PK_F32_FP8: only the scale's exponent counts."""
    name = ins.base[-3:]
    bits = 4 if name == "fp4" else 8
    values = table(small_float(name, context.target))
    scale = source(ins, 2, "u32", context.target, number=UNNUMBERED)
    return _from_pair(ins, context, values, bits, scale)


def _narrow(name: str) -> Callable[[Array], Array]:
    """fp32 values to the 16-bit codes of fp16 or bf16."""
    if name == "f16":
        return lambda x: x.astype(np.float16).view(np.uint16).astype(np.uint32)
    return to_bf16


@means(
    *(
        f"v_cvt_scalef32_pk_{wide}_{small}"
        for wide in ("f16", "bf16")
        for small in ("fp8", "bf8", "fp4")
    ),
    generations=_SCALED,
)
def _scaled_to_half(ins: Instruction, context: Context) -> Executor:
    """Two codes to two halves of 16 bits, times a power of two."""
    wide, name = ins.base.split("_")[-2:]
    bits = 4 if name == "fp4" else 8
    values, narrow = table(small_float(name, context.target)), _narrow(wide)
    read, shift = word(ins.operands[1]), np.uint32(_place(ins, 2 * bits))
    scale = source(ins, 2, "u32", context.target, number=UNNUMBERED)
    write = destination(ins, 0, "u32", context.target)
    kept, next_ = np.uint32((1 << bits) - 1), np.uint32(bits)

    def execute(waves: Waves) -> None:
        codes, power = read(waves) >> shift, _power(scale(waves))
        low = narrow((values[codes & kept] * power).astype(np.float32))
        high = narrow((values[(codes >> next_) & kept] * power).astype(np.float32))
        write(waves, low | (high << np.uint32(16)))

    return execute


@means("v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32", generations=("cdna3", "cdna4", "rdna4", "gfx1250"))
def _to_two(ins: Instruction, context: Context) -> Executor:
    """Two fp32 to one half of the destination, which ``op_sel`` chooses."""
    form = small_float(ins.base.split("_")[3], context.target)
    a, b = (source(ins, i, "f32", context.target) for i in (1, 2))
    chosen = ins.modifiers.bits("op_sel", (0, 0, 0))
    write = part_destination(ins, 16 * chosen[2], 16)

    def execute(waves: Waves) -> None:
        limits = saturates(waves)
        low, high = encoded(a(waves), form, limits), encoded(b(waves), form, limits)
        write(waves, low | (high << np.uint32(8)))

    return execute


@means(*(f"v_cvt_scalef32_pk_{small}_f32" for small in ("fp8", "bf8", "fp4")), generations=_SCALED)
def _scaled_from_f32(ins: Instruction, context: Context) -> Executor:
    """CDNA4 ISA, V_CVT_SCALEF32_PK_FP8_F32: two fp32, divided by a power of two."""
    a, b = (source(ins, i, "f32", context.target) for i in (1, 2))
    return _scaled_to_small(ins, context, 3, lambda waves: (a(waves), b(waves)))


@means(
    *(
        f"v_cvt_scalef32_pk_{small}_{wide}"
        for small in ("fp8", "bf8", "fp4")
        for wide in ("f16", "bf16")
    ),
    generations=_SCALED,
)
def _scaled_from_half(ins: Instruction, context: Context) -> Executor:
    """Both halves of a register, divided by a power of two."""
    read = word(ins.operands[1])
    as_bf16 = ins.base.endswith("bf16")

    def both(waves: Waves) -> tuple[Array, Array]:
        halves = read(waves)
        codes = halves & _LOW, halves >> np.uint32(16)
        if as_bf16:
            low, high = ((each << np.uint32(16)).view(np.float32) for each in codes)
            return low, high
        low, high = (each.astype(np.uint16).view(np.float16).astype(np.float32) for each in codes)
        return low, high

    return _scaled_to_small(ins, context, 2, both)


def _scaled_to_small(
    ins: Instruction,
    context: Context,
    index: int,
    both: Callable[[Waves], tuple[Array, Array]],
) -> Executor:
    """Two values, divided by the power of two of operand `index`, to a part of the destination."""
    name = ins.base.split("_")[4]
    form, bits = small_float(name, context.target), 4 if name == "fp4" else 8
    scale = source(ins, index, "u32", context.target, number=UNNUMBERED)
    chosen = (*ins.modifiers.bits("op_sel"), 0, 0, 0, 0)
    place = 16 * chosen[index] if bits == 8 else 8 * (chosen[2] + 2 * chosen[3])
    write = part_destination(ins, place, 2 * bits)

    def execute(waves: Waves) -> None:
        power, limits = _power(scale(waves)), saturates(waves)
        low, high = (
            encoded((each / power).astype(np.float32), form, limits) for each in both(waves)
        )
        write(waves, low | (high << np.uint32(bits)))

    return execute
