"""DPP: a source that comes from other lanes (data-parallel primitives).

CDNA3 ISA and RDNA3 ISA, "Data Parallel Processing"; LLVM's AMDGPU modifier syntax, ``dpp_ctrl``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.emulate.waves import Array
from tilewright.listing.text import Instruction

_LANES = 64
_ROW = 16
_LANE = np.arange(_LANES)
_IN_ROW = _LANE % _ROW
_ROW_START = _LANE - _IN_ROW
_ALL = np.ones(_LANES, bool)


@dataclass(frozen=True, slots=True)
class Move:
    """Which lane each lane reads. Arrays of 64; waves of 32 use the first half.

    origin: the lane that is read, the lane itself where there is none.
    inside: whether there is one.
    enabled: lanes that ``row_mask`` and ``bank_mask`` leave enabled.
    zero: whether a lane without a readable source reads zero (``bound_ctrl``); otherwise it is not
        written.
    inactive: whether sources are read from inactive lanes too (``fi``).
    """

    origin: Array
    inside: Array
    enabled: Array
    zero: bool
    inactive: bool

    def readable(self, active: Array) -> Array:
        """Whether each lane has a source, bool (waves, lanes), of the active lanes."""
        lanes = active.shape[1]
        if self.inactive:
            return np.broadcast_to(self.inside[:lanes], active.shape)
        found: Array = self.inside[:lanes] & active[:, self.origin[:lanes]]
        return found

    def written(self, active: Array) -> Array:
        """Which lanes are written, bool (waves, lanes)."""
        written: Array = active & self.enabled[: active.shape[1]]
        return written if self.zero else written & self.readable(active)


def _shifted(by: int) -> tuple[Array, Array]:
    """From `by` lanes further up in the row."""
    inside = (_IN_ROW + by >= 0) & (_IN_ROW + by < _ROW)
    return np.where(inside, _LANE + by, _LANE), inside


def _along_wave(by: int) -> tuple[Array, Array]:
    inside = (_LANE + by >= 0) & (_LANE + by < _LANES)
    return np.where(inside, _LANE + by, _LANE), inside


def _last_of_row_before() -> tuple[Array, Array]:
    return np.where(_LANE < _ROW, _LANE, _ROW_START - 1), _LANE >= _ROW


def _lane_31() -> tuple[Array, Array]:
    return np.where(_LANE < 32, _LANE, 31), _LANE >= 32


_CONTROLS: dict[str, Callable[[int], tuple[Array, Array]]] = {
    "row_shl": _shifted,
    "row_shr": lambda by: _shifted(-by),
    "row_ror": lambda by: (_ROW_START + (_IN_ROW - by) % _ROW, _ALL),
    "row_share": lambda lane: (_ROW_START + lane, _ALL),
    "row_newbcast": lambda lane: (_ROW_START + lane, _ALL),
    "row_xmask": lambda mask: (_LANE ^ mask, _ALL),
    "wave_shl": _along_wave,
    "wave_shr": lambda by: _along_wave(-by),
    "wave_rol": lambda by: ((_LANE + by) % _LANES, _ALL),
    "wave_ror": lambda by: ((_LANE - by) % _LANES, _ALL),
    "row_bcast": lambda lane: {15: _last_of_row_before, 31: _lane_31}[lane](),
}
_WORDS: dict[str, Array] = {
    "row_mirror": _ROW_START + _ROW - 1 - _IN_ROW,
    "row_half_mirror": _LANE - _LANE % 8 + 7 - _LANE % 8,
}


def move(ins: Instruction) -> Move | None:
    """What the instruction's DPP modifiers do to its first source; None without any.

    Raises ValueError for a control that is not known.
    """
    if "dpp" not in ins.encoding:
        return None
    modifiers = ins.modifiers
    inactive = modifiers.whole("fi") == 1
    if eight := modifiers.bits("dpp8"):
        # The source is any lane of the same eight; what an inactive one gives is zero.
        origin = _LANE - _LANE % 8 + np.array(eight)[_LANE % 8]
        return Move(origin, _ALL, _ALL, True, inactive)
    found: list[tuple[Array, Array]] = []
    if four := modifiers.bits("quad_perm"):
        found.append((_LANE - _LANE % 4 + np.array(four)[_LANE % 4], _ALL))
    for name, control in _CONTROLS.items():
        if name in modifiers:
            found.append(control(modifiers.whole(name)))
    found += [(origin, _ALL) for name, origin in _WORDS.items() if name in ins.flags]
    if len(found) != 1:
        raise ValueError("it has not one DPP control")
    rows, banks = modifiers.whole("row_mask", 15), modifiers.whole("bank_mask", 15)
    enabled = ((rows >> _LANE // _ROW) & (banks >> _IN_ROW // 4) & 1).astype(bool)
    # LLVM writes the bit as bound_ctrl:1, and as bound_ctrl:0 in older releases.
    return Move(*found[0], enabled, "bound_ctrl" in modifiers, inactive)
