"""Dot products of the packed elements of two registers.

Floats: both products, their sum and the addend in float64, and one rounding to fp32. GPUs align and
cut the terms to about 27 bits first (AMD's emulator rocjitsu has it for gfx1100 and gfx1201 in
gfx11_dot2.h and gfx12_dot.h): the difference is within one unit in the last place of the largest
term. A bf16 result drops the lower half of that fp32 number and does not round (ibid.).

Denormals are flushed as by the matrix instructions of the same generation (see `matrix`): on gfx90a
of fp16 inputs and of results, on RDNA3 of bf16 inputs, of the addend and of results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import destination, source
from tilewright.emulate.isa.formats import FORMATS, Format
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

_CDNA: tuple[Generation, ...] = ("cdna1", "cdna2", "cdna3", "cdna4")
_ACCUMULATING = ("v_dot2acc_f32_f16", "v_dot2c_f32_f16", "v_dot4c_i32_i8")
"""These add to their destination, and have no third source."""


def normal(values: Array) -> Array:
    """fp32 with denormals replaced by zeros."""
    return np.where(np.abs(values) < np.float32(2.0**-126), np.float32(0), values)


def _elements(
    ins: Instruction, index: int, format_: Format, flushed: bool
) -> Callable[[Waves], Array]:
    """A reader of the elements of a source, float64 of shape (waves or 1, lanes or 1, elements)."""
    read = source(ins, index, "u32")
    least = format_.least if flushed else 0.0

    def elements(waves: Waves) -> Array:
        words = np.ascontiguousarray(read(waves))[..., None]
        values: Array = format_.decode(words).astype(np.float64)
        return np.where(np.abs(values) < least, 0.0, values) if least else values

    return elements


@means("v_dot2_f32_f16", generations=(*_CDNA, "rdna3", "rdna4"))
@means("v_dot2c_f32_f16", generations=_CDNA)
@means("v_dot2acc_f32_f16", generations=("rdna3", "rdna4"))
@means("v_dot2_f32_bf16", generations=("cdna4", "rdna3", "rdna4"))
@means("v_dot2_bf16_bf16", generations=("rdna3", "rdna4"))
def _floats(ins: Instruction, context: Context) -> Executor:
    generation = context.target.generation
    types = ins.base.rpartition("_")[2]
    narrow = ins.base.startswith("v_dot2_bf16")
    flushed = generation in ("cdna1", "cdna2") or (generation == "rdna3" and types == "bf16")
    flushing = generation in ("cdna1", "cdna2", "rdna3")
    a, b = (_elements(ins, index, FORMATS[types], flushed) for index in (1, 2))
    addend = 0 if ins.base in _ACCUMULATING else 3
    c = source(ins, addend, "bf16" if narrow else "f32", number=2)
    write = destination(ins, 0, "u16" if narrow else "f32")

    def execute(waves: Waves) -> None:
        added = normal(c(waves)) if flushing else c(waves)
        exact = (a(waves) * b(waves)).sum(-1) + added
        made = exact.astype(np.float32)
        made = normal(made) if flushing else made
        write(waves, (made.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if narrow else made)

    return execute


@means("v_dot4_i32_iu8", generations=("rdna3", "rdna4"))
@means("v_dot4_i32_i8", "v_dot4c_i32_i8", generations=_CDNA)
def _whole(ins: Instruction, context: Context) -> Executor:
    """The sum wraps at 32 bits."""
    mixed = ins.base.endswith("iu8")
    signed = ins.modifiers.bits("neg_lo", (0, 0, 0)) if mixed else (1, 1, 0)
    if len(signed) != 3 or signed[2]:
        raise ValueError("neg_lo of the addend")
    a, b = (
        _elements(ins, 1 + number, FORMATS["s8" if signed[number] else "u8"], False)
        for number in (0, 1)
    )
    c = source(ins, 0 if ins.base in _ACCUMULATING else 3, "i32", number=2)
    write = destination(ins, 0, "i32")

    def execute(waves: Waves) -> None:
        write(waves, (a(waves) * b(waves)).sum(-1).astype(np.int32) + c(waves))

    return execute
