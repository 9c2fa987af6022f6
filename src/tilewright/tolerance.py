"""How far a result may be from the reference: the one table, by dtype and length of the sum.

The reference is computed in float64 from the operands as they were rounded, so what remains is
the kernel's own error: rounding of the output, and of the partial sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Element by element: ``|out - ref| <= relative * |ref| + scaled * rms(ref)``.

    Both zero means equal.
    """

    relative: float
    scaled: float


_SUM_ERROR: dict[str, float] = {
    # Share of rms(ref) by which a sum of one term may be off; it grows with the root of the
    # number of terms, as independent roundings do.
    "fp32": 2.0**-21,
    "fp16": 2.0**-20,
    "bf16": 2.0**-20,
    # fp8 matrix units of sm_89 and sm_90 keep about 14 bits of a partial sum (as DeepSeek-V3's
    # report found, arXiv:2412.19437, section 3.3); the others are better.
    "e4m3fn": 2.0**-11,
    "e5m2": 2.0**-11,
    "e4m3fnuz": 2.0**-11,
    "e5m2fnuz": 2.0**-11,
}

_OPERAND_ERROR: dict[str, float] = {"tf32": 2.0**-7}
"""Share of rms(ref) lost because the matrix unit reads fewer bits than were stored: tf32 keeps
10 of fp32's 23 mantissa bits of both operands, cut rather than rounded on some GPUs."""


def tolerance(operands: str, output: str, terms: int, splits: int = 1) -> Tolerance:
    """The tolerance for sums of `terms` products of `operands`, written as `output`.

    `operands` is a dtype name or ``"tf32"``; each of `splits` partial sums beyond the first is
    kept in fp32 and adds one rounding of it. Integer results must be equal.
    """
    if DTYPES[output].kind == "int":
        return Tolerance(0.0, 0.0)
    stored = "fp32" if operands == "tf32" else operands
    scaled = _SUM_ERROR[stored] * math.sqrt(terms) + _OPERAND_ERROR.get(operands, 0.0)
    return Tolerance(DTYPES[output].eps, scaled + (splits - 1) * DTYPES["fp32"].eps)
