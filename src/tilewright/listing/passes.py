"""How many passes a matrix instruction takes. A pass is four cycles: the time in which a wave
issues one vector instruction.

Source: LLVM's scheduling models (SISchedule.td: SIDPFullSpeedModel for gfx90a, SIDPGFX942… and
SIDPGFX950FullSpeedModel), and the CDNA3 ISA manual's "Dependency Resolution" table.
gfx908 is taken to have the passes of gfx90a.
"""

from __future__ import annotations

import re

from tilewright.errors import BadFile
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

_SHAPE = re.compile(r"v_mfma_(?:scale_)?[fi]32_(\d+)x\d+x\d+_?([a-z]\w*)")
_FP8 = (0, 1)
"""Formats of f8f6f4, by number, that take twice the passes of the narrower ones."""


def passes(ins: Instruction, generation: Generation) -> int:
    """The passes of an MFMA. Raises `BadFile` for another instruction."""
    found = _SHAPE.fullmatch(ins.base)
    if found is None:
        raise BadFile(f"{ins.base} is no MFMA whose passes are known")
    small, types = found[1] == "16", found[2]
    if generation in ("cdna1", "cdna2"):
        return 8 if small else 16
    if types == "f8f6f4":
        modifiers = dict(ins.modifiers)
        wide = modifiers.get("cbsz", 0) in _FP8 or modifiers.get("blgp", 0) in _FP8
        return (4 if small else 8) * (2 if wide else 1)
    if types == "f32":
        return 8 if small else 16
    return 4 if small else 8
