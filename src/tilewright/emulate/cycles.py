"""How long an instruction holds its SIMD's matrix or vector unit.

These are the architecture's issue rates: clocks during which the unit takes no other instruction.
They say nothing of latency, of waits, or of what other units do meanwhile.

Sources: for MFMA `passes`, with which the cycles of AMD's Matrix Instruction Calculator agree; for
WMMA of RDNA that calculator; for gfx1250, the clocks that LLVM's scheduling model (SISchedule.td)
holds the matrix unit for. For vector instructions LLVM's model again: a wave of 64 takes four
clocks of CDNA's 16 lanes, one of 32 takes one clock of RDNA's, and transcendental instructions have
a quarter of that rate.
"""

from __future__ import annotations

import re

from tilewright.emulate.kinds import kind_of
from tilewright.errors import UnknownInstruction
from tilewright.listing.passes import passes
from tilewright.listing.target import CDNA, Generation, Target
from tilewright.listing.text import Instruction

WMMA: dict[Generation, tuple[tuple[str, int], ...]] = {
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
"""Clocks of each WMMA, by the first pattern that matches its whole mnemonic. Those of f8f6f4 are
for operands of 4 and 6 bits; an operand of 8 bits doubles them."""

_EIGHT_BITS = {"0", "MATRIX_FMT_FP8", "MATRIX_FMT_BF8"}

_PASS = 4
"""Clocks of a pass of an MFMA."""

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
    try:
        if generation in CDNA:
            return _PASS * passes(ins, generation)
        clocks = next(c for pattern, c in WMMA[generation] if re.fullmatch(pattern, ins.base))
    except (ValueError, StopIteration):
        raise UnknownInstruction(
            f"line {ins.line}: `{ins.text}`: the matrix rates of {generation} lack this instruction"
        ) from None
    return clocks * (2 if _reads_8_bits(ins) else 1)


def _reads_8_bits(ins: Instruction) -> bool:
    """Whether a WMMA of mixed formats has an operand of 8 bits, as it has by default."""
    if not ins.base.endswith("f8f6f4"):
        return False
    formats = (str(ins.modifiers.get(f"matrix_{x}_fmt", 0)) for x in "ab")
    return any(format_ in _EIGHT_BITS for format_ in formats)
