"""Operands of AMD's assembly language, as the compiler prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

ACCUMULATION = 256
"""Number of accumulation register a0 among the vector registers: a0 is v256. Kernels with
accumulation registers (CDNA) name at most 256 others, and those that name more (gfx1250) have
none."""

VCC, TTMP, M0, EXEC = 106, 108, 124, 126
"""Numbers of special scalar registers here, on every generation. They lie where CDNA has them."""

MODE = 128
"""Number of the mode register among the scalar registers here. No operand names it."""

SCALARS = 256
"""Scalar registers of a wave here, the special ones included."""

_SPECIAL = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "m0": (M0, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
}
_REGISTER = re.compile(r"(v|s|a|ttmp)([0-9]{1,4})(?:\.([lh]))?")
_RANGE = re.compile(r"(v|s|a|ttmp)\[([0-9]{1,4}):([0-9]{1,4})\]")
_WHOLE = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,19})")
_LITERAL = re.compile(r"lit(?:64)?\((.*)\)")
_FIRST = {
    "v": ("v", 0, 1024),
    "a": ("v", ACCUMULATION, 256),
    "s": ("s", 0, 128),
    "ttmp": ("s", TTMP, 16),
}
"""By the letters of a register: its file, the number of the first there, and how many there are at
most."""

File = Literal["v", "s", "constant", "scc", "none", "text"]
"""v: vector registers, accumulation registers included. s: scalar registers. constant: `value`.
scc: the condition bit. none: no register (``off``, ``null``). text: anything else, such as a label
or a counter, which the instruction's meaning reads."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand.

    text: as the listing has it.
    first, count: the registers' numbers; count is 1 for a constant.
    value: of a constant. Its bits depend on the type that the instruction reads.
    negate, absolute, sext: the modifiers around it, applied in the order absolute, negate.
    half: ``"l"`` or ``"h"`` if only this half of a register is named, else ``""``.
    """

    text: str
    file: File
    first: int = 0
    count: int = 1
    value: int | float = 0
    negate: bool = False
    absolute: bool = False
    sext: bool = False
    half: str = ""

    @property
    def registers(self) -> range:
        """The registers' numbers."""
        return range(self.first, self.first + self.count)


@lru_cache(maxsize=8192)  # the same few hundred in every line of a listing
def operand(text: str) -> Operand:
    """Read one operand. Any text is one: what is not a register or a number is of file ``text``."""
    inner, negate, absolute, sext = text, False, False, False
    if found := re.fullmatch(r"sext\((.*)\)", inner):
        sext, inner = True, found[1]
    if found := re.fullmatch(r"neg\((.*)\)", inner):
        negate, inner = True, found[1]
    elif re.fullmatch(r"-(\||[vsa]\d|[vsa]\[|ttmp|vcc|m0|exec|src_).*", inner):
        negate, inner = True, inner[1:]
    if found := re.fullmatch(r"\|(.*)\||abs\((.*)\)", inner):
        absolute, inner = True, found[1] or found[2]
    file, first, count, value, half = _plain(inner)
    return Operand(text, file, first, count, value, negate, absolute, sext, half)


def whole(text: str) -> int | None:
    """The integer that a text states, decimal or hexadecimal, of at most 64 bits or 20 digits; None
    for any other text."""
    return int(text, 0) if _WHOLE.fullmatch(text) else None


def _plain(text: str) -> tuple[File, int, int, int | float, str]:
    """An operand without modifiers: file, first register, count, value, half."""
    file: File
    if found := _REGISTER.fullmatch(text):
        file, base, most = _FIRST[found[1]]  # type: ignore[assignment]
        if (first := int(found[2])) < most:
            return file, base + first, 1, 0, found[3] or ""
    if found := _RANGE.fullmatch(text):
        file, base, most = _FIRST[found[1]]  # type: ignore[assignment]
        if (first := int(found[2])) <= (last := int(found[3])) < most:
            return file, base + first, last - first + 1, 0, ""
    if text in _SPECIAL:
        return "s", *_SPECIAL[text], 0, ""
    if text in ("off", "null"):
        return "none", 0, 0, 0, ""
    if text in ("scc", "src_scc"):
        return "scc", 0, 0, 0, ""
    if found := _LITERAL.fullmatch(text):
        text = found[1]
    if (number := whole(text)) is not None:
        return "constant", 0, 1, number, ""
    try:
        return "constant", 0, 1, float(text), ""
    except ValueError:
        return "text", 0, 0, 0, ""
