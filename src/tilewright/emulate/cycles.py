"""How long an instruction holds its SIMD's matrix or vector unit.

These are the architecture's issue rates: clocks during which the unit takes no other instruction.
They say nothing of latency, of waits, or of what other units do meanwhile.

Sources: for MFMA of CDNA 2 and 3 and for WMMA of RDNA, the cycles of AMD's Matrix Instruction
Calculator; for CDNA 4 and gfx1250, the clocks that LLVM's scheduling model (SISchedule.td) holds
the matrix unit for, an MFMA's pass being four. For vector instructions LLVM's model again: a wave
of 64 takes four clocks of CDNA's 16 lanes, one of 32 takes one clock of RDNA's, and transcendental
instructions have a quarter of that rate.
"""

from __future__ import annotations

import re

from tilewright.emulate.kinds import kind_of
from tilewright.emulate.target import Generation, Target
from tilewright.emulate.text import Instruction
from tilewright.errors import UnknownInstruction

_F64 = ((r"v_mfma_f64_16x16x4_?f64", 32), (r"v_mfma_f64_4x4x4_?(4b_?)?f64", 16))

_CDNA3 = (
    (r"v_mfma_.32_4x4x.*", 8),
    (r"v_mfma_.32_16x16x[14]_.*", 32),
    (r"v_mfma_.32_16x16x(8_xf32|16_.*|32_.*)", 16),
    (r"v_mfma_.32_32x32x(4_xf32|8_.*|16_.*)", 32),
    (r"v_mfma_.32_32x32x[124]_.*", 64),
    (r"v_smfmac_.32_16x16x.*", 16),
    (r"v_smfmac_.32_32x32x.*", 32),
)

MATRIX: dict[Generation, tuple[tuple[str, int], ...]] = {
    "cdna2": (
        *_F64,
        (r"v_mfma_.32_4x4x.*", 8),
        (r"v_mfma_.32_16x16x.*", 32),
        (r"v_mfma_.32_32x32x.*", 64),
    ),
    "cdna3": (*_F64, *_CDNA3),
    "cdna4": (
        (r"v_mfma_f64_16x16x4_f64", 64),
        (r"v_mfma_(scale_)?f32_16x16x128_f8f6f4", 16),
        (r"v_mfma_(scale_)?f32_32x32x64_f8f6f4", 32),
        (r"v_mfma_i32_16x16x64_i8", 16),
        (r"v_mfma_i32_32x32x32_i8", 32),
        *_F64,
        *_CDNA3,
    ),
    "rdna3": ((r"v_wmma_.*_16x16x16_(f16|bf16|iu8)", 32), (r"v_wmma_.*_16x16x16_iu4", 16)),
    "rdna4": (
        (r"v_s?wmmac?_.*_(f16|bf16)", 16),
        (r"v_s?wmmac?_.*_iu[48]", 8),
        (r"v_s?wmmac?_.*_(fp8|bf8)_(fp8|bf8)", 8),
    ),
    "gfx1250": (
        (r"v_wmma_f32_16x16x4_f32", 16),
        (r"v_wmma_.*_16x16x32_(f16|bf16)", 8),
        (r"v_wmma_.*_16x16x64_(fp8|bf8)_(fp8|bf8)", 4),
        (r"v_wmma_.*_16x16x128_(fp8|bf8)_(fp8|bf8)", 8),
        (r"v_wmma_.*_iu[48]", 16),
        (r"v_wmma_(scale(16)?_)?f32_16x16x128_f8f6f4", 4),
        (r"v_wmma_(scale(16)?_)?f32_32x16x128_f4", 8),
    ),
}
"""Clocks of each matrix instruction, by the first pattern that matches its whole mnemonic. Those of
f8f6f4 are for operands of 4 and 6 bits; an operand of 8 bits doubles them."""

_EIGHT_BITS = {"0", "1", "MATRIX_FMT_FP8", "MATRIX_FMT_BF8"}
_FORMATS = {"cdna4": ("cbsz", "blgp"), "gfx1250": ("matrix_a_fmt", "matrix_b_fmt")}

_SLOW_ON_RDNA = (
    (r"v_mul_(lo|hi)_[ui]32|v_mad_.*64_[ui]32|v_mad_u32|v_mul_u64", 4),
    (r"v_(lshlrev|lshrrev|ashrrev)_[bi]64|v_lshl_add_u64|v_(add|sub)_nc_u64|v_mov_b64", 2),
)
"""Vector instructions with less than the full rate there: whole multiplications of 32 bits, and
instructions on 64. CDNA 2 and later have full rate in both."""


def issue_cycles(ins: Instruction, target: Target) -> int:
    """Clocks that one wave's instruction holds the matrix or vector unit of its SIMD; 0 for an
    instruction of another unit. Raises `UnknownInstruction` for a matrix instruction that the
    table lacks."""
    kind = kind_of(ins.base)
    if kind == "matrix":
        return _matrix(ins, target.generation)
    if kind not in ("vector", "transcendental"):
        return 0
    pass_of_all_lanes = 4 if target.cdna else target.lanes // 32
    if kind == "transcendental":
        return 4 * pass_of_all_lanes
    if not target.cdna:
        for pattern, clocks in _SLOW_ON_RDNA:
            if re.fullmatch(pattern, ins.base):
                return clocks * pass_of_all_lanes
    return pass_of_all_lanes


def _matrix(ins: Instruction, generation: Generation) -> int:
    for pattern, clocks in MATRIX[generation]:
        if re.fullmatch(pattern, ins.base):
            return clocks * (2 if _reads_8_bits(ins, generation) else 1)
    raise UnknownInstruction(
        f"line {ins.line}: `{ins.text}`: the matrix rates of {generation} lack this instruction"
    )


def _reads_8_bits(ins: Instruction, generation: Generation) -> bool:
    if not ins.base.endswith("f8f6f4"):
        return False
    formats = (str(ins.modifiers.get(name, 0)) for name in _FORMATS[generation])
    return any(format_ in _EIGHT_BITS for format_ in formats)
