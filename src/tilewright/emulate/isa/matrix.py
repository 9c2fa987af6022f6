"""Matrix instructions: MFMA of CDNA, WMMA of RDNA and gfx1250, with scales and without.

D = A·B + C. Every lane takes part, whatever EXEC says (CDNA3 ISA, "Matrix Arithmetic Instructions";
the RDNA manuals require EXEC to be all ones). Elements lie as `layouts` says.

What is computed. Integers: exactly, and the sum wraps at 32 bits, or is limited to int32 by
``clamp``. Floats: products and their sum in float64, C added there, and one rounding to fp32. Sums
of up to 128 products of fp16, bf16, fp8 and narrower formats are exact in float64 unless their
exponents differ by more than 30. GPUs align and cut the products of a few elements at a time and
round in between: the order and the widths are not in the manuals, and errors of some units in the
last place of the largest term are within them. xf32 drops the lowest 13 bits of its inputs
(`formats`).

Denormals. On gfx90a, fp16 and bf16 MFMAs flush denormal inputs and results to zero, those of fp32
keep them (MIOpen's documentation, "MI200 MFMA behavior specifics"; PyTorch's "Numerical accuracy");
gfx942 and later keep all. On RDNA3, WMMA flushes denormals of bf16 inputs, of C and of the result;
RDNA4 keeps all (characterised on gfx1100 and gfx1201 by AMD's emulator, rocjitsu: gfx11_dot2.h,
gfx12_dot.h). gfx1250 is taken to be like RDNA4.

Scales are e8m0: 2^(s - 127), NaN for 255, one for 32 elements of K.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.emulate.isa import layouts
from tilewright.emulate.isa.dot import normal
from tilewright.emulate.isa.formats import FORMATS, Format
from tilewright.emulate.isa.layouts import Layout
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import Operand
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

Reader = Callable[[Waves], Array]

_EIGHT = [f"{a}_{b}" for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
_CDNA3 = [
    "mfma_f32_32x32x2_f32",
    "mfma_f32_16x16x4_f32",
    "mfma_f32_32x32x8_f16",
    "mfma_f32_16x16x16_f16",
    "mfma_f32_32x32x8_bf16",
    "mfma_f32_16x16x16_bf16",
    "mfma_i32_32x32x16_i8",
    "mfma_i32_16x16x32_i8",
    *(f"mfma_f32_32x32x16_{types}" for types in _EIGHT),
    *(f"mfma_f32_16x16x32_{types}" for types in _EIGHT),
]
_CDNA1 = [
    "mfma_f32_32x32x2f32",
    "mfma_f32_16x16x4f32",
    "mfma_f32_32x32x8f16",
    "mfma_f32_16x16x16f16",
    "mfma_i32_32x32x8i8",
    "mfma_i32_16x16x16i8",
]
MNEMONICS: dict[Generation, list[str]] = {
    "cdna1": [*_CDNA1, "mfma_f32_32x32x4bf16", "mfma_f32_16x16x8bf16"],
    "cdna2": [*_CDNA1, "mfma_f32_32x32x8bf16_1k", "mfma_f32_16x16x16bf16_1k"],
    "cdna3": [*_CDNA3, "mfma_f32_32x32x4_xf32", "mfma_f32_16x16x8_xf32"],
    "cdna4": [
        *_CDNA3,
        "mfma_f32_32x32x16_f16",
        "mfma_f32_16x16x32_f16",
        "mfma_f32_32x32x16_bf16",
        "mfma_f32_16x16x32_bf16",
        "mfma_i32_32x32x32_i8",
        "mfma_i32_16x16x64_i8",
        "mfma_f32_32x32x64_f8f6f4",
        "mfma_f32_16x16x128_f8f6f4",
        "mfma_scale_f32_32x32x64_f8f6f4",
        "mfma_scale_f32_16x16x128_f8f6f4",
    ],
    "rdna3": [
        "wmma_f32_16x16x16_f16",
        "wmma_f32_16x16x16_bf16",
        "wmma_i32_16x16x16_iu8",
        "wmma_i32_16x16x16_iu4",
    ],
    "rdna4": [
        "wmma_f32_16x16x16_f16",
        "wmma_f32_16x16x16_bf16",
        *(f"wmma_f32_16x16x16_{types}" for types in _EIGHT),
        "wmma_i32_16x16x16_iu8",
        "wmma_i32_16x16x16_iu4",
        "wmma_i32_16x16x32_iu4",
    ],
    "gfx1250": [
        "wmma_f32_16x16x4_f32",
        "wmma_f32_16x16x32_f16",
        "wmma_f32_16x16x32_bf16",
        *(f"wmma_f32_16x16x64_{types}" for types in _EIGHT),
        *(f"wmma_f32_16x16x128_{types}" for types in _EIGHT),
        "wmma_i32_16x16x64_iu8",
        "wmma_f32_16x16x128_f8f6f4",
        "wmma_scale_f32_16x16x128_f8f6f4",
    ],
}
"""The matrix instructions of each generation that have a meaning here, without ``v_``. Left out,
because no kernel uses them: sparse ones (SMFMAC, SWMMAC), fp64, several blocks, results of 16
bits."""

_FLUSHING: tuple[Generation, ...] = ("cdna1", "cdna2")
"""Generations of CDNA that take denormal inputs for zeros."""

_NAME = re.compile(r"v_\w+_(f32|i32)_(\d+)x(\d+)x(\d+)_?([a-z]\w*)")
_OCP = {"fp8": "e4m3fn", "bf8": "e5m2"}
_FNUZ = {"fp8": "e4m3fnuz", "bf8": "e5m2fnuz"}
_WHOLE = tuple(FORMATS[name] for name in ("s8", "u8", "s4", "u4"))
_SELECTED = ("e4m3fn", "e5m2", "e2m3", "e3m2", "e2m1")
"""The formats of f8f6f4, by the number in ``cbsz`` and ``blgp``."""
_NAMED = {
    "MATRIX_FMT_FP8": 0,
    "MATRIX_FMT_BF8": 1,
    "MATRIX_FMT_FP6": 2,
    "MATRIX_FMT_BF6": 3,
    "MATRIX_FMT_FP4": 4,
}


_E8M0 = np.append(np.exp2(np.arange(255) - 127.0), np.nan)
"""The value of each scale."""


@dataclass(frozen=True, slots=True)
class Product:
    """What a mnemonic and its modifiers say.

    rows, columns, depth: of the product of rows × depth and depth × columns. a, b: formats.
    whole: whether C and D are int32, else fp32.
    """

    rows: int
    columns: int
    depth: int
    a: Format
    b: Format
    whole: bool


def product(ins: Instruction, generation: Generation) -> Product:
    """What an instruction multiplies. Raises ValueError for a modifier's unknown value."""
    found = _NAME.fullmatch(ins.base)
    if found is None:
        raise ValueError(f"{ins.base} is no matrix instruction")
    kind, types = found[1], found[5].removesuffix("_1k")
    rows, columns, depth = int(found[2]), int(found[3]), int(found[4])
    a, b = (FORMATS[name] for name in _formats(ins, generation, types))
    return Product(rows, columns, depth, a, b, kind == "i32")


def _formats(ins: Instruction, generation: Generation, types: str) -> tuple[str, str]:
    """The names of the formats of A and B."""
    if types in ("iu8", "iu4"):
        signed = ins.modifiers.bits("neg_lo", (0, 0, 0))
        if len(signed) != 3 or signed[2]:
            raise ValueError("neg_lo of C")
        a, b = (("u", "s")[each] + types[2:] for each in signed[:2])
        return a, b
    if types == "i8":
        return "s8", "s8"
    if types == "f8f6f4":
        if generation == "gfx1250":
            chosen = [str(ins.modifiers.get(f"matrix_{m}_fmt", "MATRIX_FMT_FP8")) for m in "ab"]
            return _SELECTED[_NAMED[chosen[0]]], _SELECTED[_NAMED[chosen[1]]]
        return _SELECTED[ins.modifiers.whole("cbsz")], _SELECTED[ins.modifiers.whole("blgp")]
    if "_" in types:
        eight = _FNUZ if generation == "cdna3" else _OCP
        a, b = (eight[each] for each in types.split("_"))
        return a, b
    return types, types


def _reader(first: int, layout: Layout, format_: Format, flushed: bool) -> Callable[[Waves], Array]:
    """A reader of A, or of B transposed: float64, or float32 for whole numbers, of shape (waves,
    across, along)."""
    registers = layout.elements * format_.bits // 32
    index = layout.lanes() * layout.elements + layout.places()
    exact = np.float32 if format_ in _WHOLE else np.float64
    least = format_.least if flushed else 0.0

    def read(waves: Waves) -> Array:
        words = np.ascontiguousarray(np.moveaxis(waves.vector[first : first + registers], 0, -1))
        found = format_.decode(words).reshape(waves.count, -1)
        values: Array = np.take(found, index, axis=1).astype(exact)
        return np.where(np.abs(values) < least, exact(0), values) if least else values

    return read


def _registers(operand: Operand, count: int) -> int:
    """The first of an operand's registers. Raises ValueError if it has another number of them."""
    if operand.file != "v" or operand.count != count:
        raise ValueError(f"{operand.text} is not {count} vector registers")
    return operand.first


def _accumulator(operand: Operand, count: int, whole: bool) -> Reader:
    """A reader of C, int32 or float32 of shape (registers, waves, lanes) or ()."""
    kind = np.dtype(np.int32 if whole else np.float32)
    if operand.negate or operand.absolute:
        raise ValueError(f"the sign of {operand.text} is changed")
    if operand.file == "constant":
        bits = operand.value & 0xFFFFFFFF if isinstance(operand.value, int) else None
        stated = np.array(operand.value, np.float32) if bits is None else np.array(bits, np.uint32)
        value = stated.view(kind)
        return lambda waves: value
    first = _registers(operand, count)
    return lambda waves: waves.vector[first : first + count].view(kind)


def _scaled(read: Reader, scale: Reader) -> Reader:
    """A reader of elements times their scales; both are (waves, across, along)."""
    return lambda waves: read(waves) * _E8M0[scale(waves)]


def _mfma_scale(ins: Instruction, number: int, layout: Layout) -> Reader:
    """A reader of the scales of A (number 0) or B (1) of an MFMA, as bytes (waves, across, along):
    ``op_sel`` and ``op_sel_hi`` name the byte of the register."""
    selects = ins.modifiers.bits("op_sel", (0, 0, 0))[number]
    selects += 2 * ins.modifiers.bits("op_sel_hi", (0, 0, 0))[number]
    shift, first = np.uint32(8 * selects), _registers(ins.operands[4 + number], 1)
    outer, inner = np.ogrid[: layout.across, : layout.along]
    lanes = outer + layout.across * (inner // layouts.SCALED)
    return lambda waves: waves.vector[first][:, lanes] >> shift & np.uint32(0xFF)


def _wmma_scale(ins: Instruction, number: int, layout: Layout) -> Reader:
    """The scales of a WMMA: ``matrix_a_scale`` names the group of lanes; a lane has the scales of
    all blocks of K, one in each byte."""
    rows = str(ins.modifiers.get(f"matrix_{'ab'[number]}_scale", "MATRIX_SCALE_ROW0"))
    row = ("MATRIX_SCALE_ROW0", "MATRIX_SCALE_ROW1").index(rows)
    first = _registers(ins.operands[4 + number], 1)
    outer, inner = np.ogrid[: layout.across, : layout.along]
    lanes = np.broadcast_to(outer + layout.across * row, (layout.across, layout.along))
    shifts = (8 * (inner // layouts.SCALED)).astype(np.uint32)
    return lambda waves: waves.vector[first][:, lanes] >> shifts & np.uint32(0xFF)


def _multiply(ins: Instruction, context: Context) -> Executor:
    """The executor of any matrix instruction."""
    generation = context.target.generation
    made = product(ins, generation)
    layout_a = layouts.operand(generation, made.rows, made.depth, made.a.bits)
    layout_b = layouts.operand(generation, made.columns, made.depth, made.b.bits)
    layout_d = layouts.result(generation, made.rows, made.columns)
    flushes = generation in _FLUSHING or (generation == "rdna3" and made.a is FORMATS["bf16"])
    read: list[Reader] = []
    for number, (layout, format_) in enumerate(((layout_a, made.a), (layout_b, made.b))):
        count = layout.elements * format_.bits // 32
        first = _registers(ins.operands[1 + number], count)
        reader = _reader(first, layout, format_, flushes)
        if "_scale_" in ins.base:
            scale = _mfma_scale if context.target.cdna else _wmma_scale
            reader = _scaled(reader, scale(ins, number, layout))
        read.append(reader)
    read_a, read_b = read
    count = layout_d.elements
    first, read_c = (
        _registers(ins.operands[0], count),
        _accumulator(ins.operands[3], count, made.whole),
    )
    # For each register and lane of D, which element of the product of rows × columns it takes.
    index = np.empty((count, made.columns * layout_d.groups), np.intp)
    columns, rows = np.ogrid[: made.columns, : made.rows]
    index[layout_d.places(), layout_d.lanes()] = rows * made.columns + columns
    finish = _whole(ins) if made.whole else _rounded(generation, made)

    def execute(waves: Waves) -> None:
        sums = np.matmul(read_a(waves), read_b(waves).transpose(0, 2, 1)).reshape(waves.count, -1)
        spread = np.take(sums, index, axis=1).transpose(1, 0, 2)
        waves.vector[first : first + count] = finish(spread, read_c(waves)).view(np.uint32)

    return execute


def _whole(ins: Instruction) -> Callable[[Array, Array], Array]:
    """What adds sums of whole numbers, exact in fp32, to C."""
    if "clamp" in ins.flags:
        limits = np.iinfo(np.int32)
        return lambda sums, c: np.clip(sums.astype(np.int64) + c, limits.min, limits.max).astype(
            np.int32
        )
    return lambda sums, c: sums.astype(np.int32) + c


def _rounded(generation: Generation, made: Product) -> Callable[[Array, Array], Array]:
    """What adds sums of floats to C."""
    if generation == "rdna3" or (generation in _FLUSHING and made.a.least):

        def flush(sums: Array, c: Array) -> Array:
            d = (sums + normal(c)).astype(np.float32)
            return normal(d)

        return flush
    return lambda sums, c: (sums + c).astype(np.float32)


for _generation, _mnemonics in MNEMONICS.items():
    means(*(f"v_{each}" for each in _mnemonics), generations=(_generation,))(_multiply)
