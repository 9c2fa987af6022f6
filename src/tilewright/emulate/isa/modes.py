"""The mode register: what kernels set of it, and what that changes."""

from __future__ import annotations

import re

import numpy as np

from tilewright.emulate.isa.access import scalar_destination
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import MODE
from tilewright.listing.text import Instruction

_OVERFLOW = 23
"""The bit FP16_OVFL: a number too large for fp16 becomes the largest, and for an 8-bit float too,
there infinity as well. Triton sets it in kernels that convert to fp8."""


def saturates(waves: Waves) -> Array:
    """Whether FP16_OVFL is set, bool (waves, 1)."""
    found: Array = ((waves.scalar[MODE] >> np.uint32(_OVERFLOW)) & np.uint32(1)).astype(bool)
    return found[:, None]


def limited_f16(waves: Waves, result: Array, *sources: Array) -> Array:
    """fp16 results, where FP16_OVFL is set with the largest number instead of an infinity that no
    source is."""
    limits = saturates(waves)
    if not limits.any():
        return result
    over = np.isinf(result) & limits
    for each in sources:
        over = over & ~np.isinf(each)
    return np.where(over, np.copysign(np.float16(65504), result), result)


_FIELD = re.compile(r"hwreg\((?:HW_REG_)?(\w+),\s*(\d+),\s*(\d+)\)")


def _field(text: str) -> tuple[str, int, int]:
    """Name, first bit and size of a hardware register's field."""
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} is no known field")
    return found[1], int(found[2]), int(found[3])


@means("s_setreg_imm32_b32")
def _set_mode(ins: Instruction, context: Context) -> Executor:
    name, first, size = _field(ins.operands[0].text)
    value = ins.operands[1].value
    if name not in ("MODE", "WAVE_MODE") or (first, size) != (_OVERFLOW, 1) or value not in (0, 1):
        raise ValueError("of the mode register, only FP16_OVFL is known")
    bit = np.uint32(1 << _OVERFLOW)

    def execute(waves: Waves) -> None:
        mode = waves.scalar[MODE]
        waves.scalar[MODE] = mode | bit if value else mode & ~bit

    return execute


@means("s_getreg_b32", generations=["gfx1250"])
def _get_cluster(ins: Instruction, context: Context) -> Executor:
    """IB_STS2, bits 6 to 9: whether, and how, workgroups are launched in clusters. The emulator
    launches none, and gives 0."""
    if _field(ins.operands[1].text) != ("IB_STS2", 6, 4):
        raise ValueError(f"{ins.operands[1].text} is not known")
    write = scalar_destination(ins)
    return lambda waves: write(waves, np.zeros(1, np.uint32))
