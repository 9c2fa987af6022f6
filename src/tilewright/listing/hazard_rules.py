"""Which instruction must keep how far from which: the architectures' tables of wait states.

A wait state is the time of one issued instruction; ``s_nop n`` is n + 1 of them, every other
instruction one, an MFMA too. The states between two instructions are those of the instructions
that a wave executes between them.

Sources: the CDNA3 ISA manual, "Manually Inserted Wait States" and "Dependency Resolution: Required
Independent Instructions"; LLVM's GCNHazardRecognizer.cpp, which has the numbers of every generation
(`checkMAIHazards90A`, `checkMAIVALUHazards` and the functions of the hazard that a rule names);
`createsVALUHazard` of newer versions has a window for stores with an SGPR offset, measured on
gfx950.

Left out, because no kernel here has the instructions: fp64 MFMAs, interpolation, GDS, moves by
relative registers, ``s_rfe``, exports, LDS-direct; of gfx1250, writes of the mode register and the
base of scratch memory. From gfx10 on, the hardware itself waits for vector results, and
``s_delay_alu`` is about speed alone.
"""

from __future__ import annotations

import re

from tilewright.listing.effects import SCC_BIT, bits, scalar_bits, vector_bits
from tilewright.listing.hazard_facts import Facts, Rule, vector_nops
from tilewright.listing.operand import EXEC, M0, VCC
from tilewright.listing.target import Generation

_VECTOR = vector_bits(0, 1024)
_SCALAR = scalar_bits(0, VCC + 2)
"""The scalar registers that instructions name, and VCC."""
_EXEC, _VCC, _M0 = scalar_bits(EXEC, 2), scalar_bits(VCC, 2), scalar_bits(M0)
_HARDWARE = SCC_BIT + 1
"""The bit of the first hardware register (``s_setreg``)."""

_CDNA2: tuple[Generation, ...] = ("cdna2",)
_CDNA34: tuple[Generation, ...] = ("cdna3", "cdna4")
_CDNA = _CDNA2 + _CDNA34

_WIDE = re.compile(r"\w+_store_(dwordx[34]|b96|b128)")
_HARDWARE_NAMES = ("HW_REG_MODE", "HW_REG_STATUS", "HW_REG_TRAPSTS", "HW_REG_HW_ID")


def _vector_instructions(f: Facts) -> int:
    """Counts vector instructions: nothing else helps."""
    return int(f.valu)


# Vector instructions ------------------------------------------------------------------------------


def _scalar_result(f: Facts) -> int:
    """Scalar registers, VCC and EXEC that a vector instruction writes."""
    return f.writes & (_SCALAR | _EXEC) if f.valu else 0


def _exec_result(f: Facts) -> int:
    return f.writes & _EXEC if f.valu else 0


def _dpp(f: Facts) -> bool:
    return f.ins.encoding in ("dpp", "e64_dpp")


def _lane_number(f: Facts) -> int:
    """The scalar register with the lane of ``v_readlane`` or ``v_writelane``."""
    return bits(f.ins.at(2)) if f.base in ("v_readlane_b32", "v_writelane_b32") else 0


def _reads_lanes(f: Facts) -> bool:
    return f.base in ("v_readlane_b32", "v_readfirstlane_b32")


def _hardware_register(f: Facts, *mnemonics: str) -> int:
    """The hardware register of an instruction, as a bit; all that have no number here are one."""
    if not f.base.startswith(mnemonics):
        return 0
    text = " ".join(each.text for each in f.ins.operands)
    known = [number for number, name in enumerate(_HARDWARE_NAMES) if name in text]
    return 1 << (_HARDWARE + (known[0] if known else len(_HARDWARE_NAMES)))


def _to_shared_memory(f: Facts) -> bool:
    return "lds" in set(f.ins.flags) or "_lds_" in f.base


def _stored(f: Facts) -> int:
    """The data of a store of more than 8 bytes a lane."""
    if not _WIDE.fullmatch(f.base):
        return 0
    return bits(f.ins.at(0 if f.base.startswith("buffer") else 1))


def _store_states(generation: Generation, cause: Facts, effect: Facts) -> int:
    offset = cause.ins.at(3) if cause.base.startswith("buffer") else None
    if offset is not None and offset.file == "s":
        return 0 if generation == "cdna2" else 1
    return 1 if generation == "cdna2" else 2


def _half_result(f: Facts) -> int:
    """The register of which a vector instruction writes a part, chosen by a modifier."""
    if not f.plain:
        return 0
    modifiers = dict(f.ins.modifiers)
    selects = modifiers.get("op_sel", ())
    high = isinstance(selects, tuple) and len(selects) == len(f.ins.operands) and any(selects[-1:])
    return f.writes & _VECTOR if high or modifiers.get("dst_sel", "DWORD") != "DWORD" else 0


def _swaps(f: Facts) -> bool:
    return f.base.startswith(("v_permlane16_swap", "v_permlane32_swap"))


def _dot(f: Facts) -> bool:
    return f.base.startswith("v_dot")


def _dot_states(generation: Generation, cause: Facts, effect: Facts) -> int:
    """A dot product may accumulate at once into what the same instruction has just written."""
    if cause.base != effect.base:
        return 3
    a, b = (bits(effect.ins.at(place)) for place in (1, 2))
    return 3 if cause.writes & (a | b) else 0


_VECTOR_RULES = (
    Rule(
        "a vector instruction writes a scalar register that a memory access reads",
        _CDNA,
        _scalar_result,
        lambda f: f.reads & _SCALAR if f.memory else 0,
        5,
    ),
    Rule(
        "a register is written that DPP reads in other lanes",
        _CDNA,
        lambda f: f.writes & _VECTOR,
        lambda f: f.reads & _VECTOR if _dpp(f) else 0,
        2,
    ),
    Rule(
        "a vector instruction writes EXEC before DPP",
        _CDNA,
        _exec_result,
        lambda f: _EXEC if _dpp(f) else 0,
        5,
    ),
    Rule(
        "a vector instruction writes VCC before v_div_fmas",
        _CDNA,
        lambda f: f.writes & _VCC if f.valu else 0,
        lambda f: _VCC if f.base.startswith("v_div_fmas") else 0,
        4,
    ),
    Rule(
        "a vector instruction writes the lane's number of v_readlane or v_writelane",
        _CDNA,
        _scalar_result,
        _lane_number,
        4,
    ),
    Rule(
        "s_setreg before an access to the same hardware register",
        _CDNA,
        lambda f: _hardware_register(f, "s_setreg"),
        lambda f: _hardware_register(f, "s_setreg", "s_getreg"),
        2,
    ),
    Rule(
        "a scalar instruction writes M0 before a load to shared memory or a message",
        _CDNA,
        lambda f: 0 if f.valu else f.writes & _M0,
        lambda f: _M0 if _to_shared_memory(f) or f.base.startswith("s_sendmsg") else 0,
        1,
    ),
    Rule(
        "a vector instruction overwrites what a wide store has yet to read",
        _CDNA,
        _stored,
        lambda f: f.writes if f.valu else 0,
        2,
        _store_states,
    ),
    Rule(
        "a transcendental's result is read by another vector instruction",
        _CDNA34,
        lambda f: f.writes & _VECTOR if f.transcendental else 0,
        lambda f: f.reads if f.valu and not f.transcendental else 0,
        1,
    ),
    Rule(
        "half a register is written, and the register used",
        _CDNA34,
        _half_result,
        lambda f: f.reads | f.writes if f.valu else 0,
        1,
    ),
    Rule(
        "a vector instruction writes a scalar register that another reads",
        _CDNA34,
        lambda f: _scalar_result(f) & _SCALAR,
        lambda f: f.reads if f.valu else 0,
        2,
    ),
    Rule(
        "a vector register is written that v_readlane or v_readfirstlane reads",
        _CDNA34,
        lambda f: f.writes & _VECTOR if f.valu else 0,
        lambda f: f.reads & _VECTOR if _reads_lanes(f) else 0,
        1,
    ),
    Rule(
        "a vector instruction writes EXEC before lanes are read or written",
        _CDNA34,
        _exec_result,
        lambda f: _EXEC if _reads_lanes(f) or f.base == "v_writelane_b32" else 0,
        4,
    ),
    Rule(
        "a vector register is written that v_permlane…_swap reads",
        ("cdna4",),
        lambda f: f.writes & _VECTOR if f.valu else 0,
        lambda f: f.reads & _VECTOR if _swaps(f) else 0,
        2,
    ),
    Rule(
        "v_cmpx writes EXEC before v_permlane…_swap",
        ("cdna4",),
        lambda f: _EXEC if f.base.startswith("v_cmpx") else 0,
        lambda f: _EXEC if _swaps(f) else 0,
        4,
    ),
    Rule(
        "a dot product's result is used",
        _CDNA,
        lambda f: f.writes if _dot(f) else 0,
        lambda f: f.reads | f.writes if f.valu or f.memory or f.lds else 0,
        3,
        _dot_states,
    ),
)

# MFMA ---------------------------------------------------------------------------------------------


def _whole_states(generation: Generation, cause: Facts, effect: Facts) -> int:
    """From an MFMA to whatever needs its whole result."""
    count = cause.passes
    if generation != "cdna2" and not cause.xdl:
        return count + 2
    return count + 3 + (generation == "cdna4" and count != 2)


def _accumulation_states(generation: Generation, cause: Facts, effect: Facts) -> int:
    """From an MFMA to one whose C overlaps its result. The result's very registers are passed on
    inside the unit."""
    count = cause.passes
    if cause.d == effect.c:
        return 0
    if generation == "cdna2":
        return count
    if not cause.xdl:
        return 0 if effect.xdl else count
    return count + 1 + (generation == "cdna4")


_MFMA_RULES = (
    Rule(
        "a vector instruction writes EXEC before an MFMA",
        _CDNA,
        lambda f: _exec_result(f) if f.plain else 0,
        lambda f: _EXEC if f.d else 0,
        4,
    ),
    Rule(
        "a vector instruction writes what an MFMA reads",
        _CDNA,
        lambda f: f.writes & _VECTOR if f.plain and not _dot(f) else 0,
        lambda f: f.a | f.b | f.c | f.reads & _VECTOR if f.d else 0,
        2,
    ),
    Rule(
        "an MFMA's result is C of another",
        _CDNA,
        lambda f: f.d,
        lambda f: f.c,
        18,
        _accumulation_states,
    ),
    Rule(
        "an MFMA's result is A or B of another",
        _CDNA,
        lambda f: f.d,
        lambda f: f.a | f.b,
        20,
        _whole_states,
    ),
    Rule(
        "an MFMA's result is used",
        _CDNA,
        lambda f: f.d,
        lambda f: f.reads | f.writes if f.plain or f.memory or f.lds else 0,
        20,
        _whole_states,
    ),
    Rule(
        "C of an MFMA is overwritten",
        _CDNA,
        lambda f: f.c,
        lambda f: f.writes if f.plain or f.memory or f.lds else 0,
        15,
        lambda generation, cause, effect: (
            cause.passes - 1 if generation == "cdna2" or cause.xdl else 0
        ),
    ),
)

# RDNA and gfx1250 ---------------------------------------------------------------------------------

_ANY = 1_000_000
"""More than can lie between: the rule is about whatever it is that stops it."""


_COUNTERS = {"sa_sdst": (0, 1), "va_vcc": (1, 1), "va_sdst": (9, 3), "va_vdst": (12, 4)}
"""The counters in the operand of ``s_waitcnt_depctr`` and ``s_wait_alu``: the first bit of each,
and its number of bits. LLVM's AMDGPUBaseInfo (DepCtr) has all."""


def waited(f: Facts) -> set[str]:
    """The counters of the arithmetic units that an instruction waits for until they are 0."""
    if f.base not in ("s_waitcnt_depctr", "s_wait_alu"):
        return set()
    text = f.ins.at(0).text
    if "(" in text:
        return {name for name in _COUNTERS if f"{name}(0)" in text}
    value = f.ins.whole(0)
    return {
        name for name, (first, size) in _COUNTERS.items() if not value >> first & (1 << size) - 1
    }


def _waits_for_vectors(f: Facts) -> bool:
    """Whether an instruction waits for all vector results."""
    return f.memory or f.lds or "va_vdst" in waited(f)


def _transcendental_counts(f: Facts) -> int:
    """1 for a vector instruction, and 1000 more for a transcendental: the rule ends behind five of
    the former, or one of the latter."""
    return int(f.valu) + 1000 * f.transcendental


def _wmma_states(generation: Generation, cause: Facts, effect: Facts) -> int:
    """By the first WMMA's latency: 16 of int8, 4 of 64 deep fp8 and of fp4, 8 of all others."""
    if "iu8" in cause.base:
        latency = 16
    elif "x64_" in cause.base or _both_fp4(cause):
        latency = 4
    else:
        latency = 8
    return latency // 2 + (1 if effect.d else 0)


def _both_fp4(f: Facts) -> bool:
    modifiers = dict(f.ins.modifiers)
    return all(modifiers.get(f"matrix_{each}_fmt") == "MATRIX_FMT_FP4" for each in "ab")


_RDNA_RULES = (
    Rule(
        "v_cmpx writes EXEC before v_permlane",
        ("rdna3", "rdna4", "gfx1250"),
        lambda f: _EXEC if f.base.startswith("v_cmpx") else 0,
        lambda f: _EXEC if f.base.startswith("v_permlane") else 0,
        1,
        counts=lambda f: int(f.valu and f.base != "v_nop"),
        remedy=lambda missing: (),
    ),
    Rule(
        "a transcendental's result is read within five vector instructions without a wait",
        ("rdna3",),
        lambda f: f.writes & _VECTOR if f.transcendental else 0,
        lambda f: f.reads if f.valu else 0,
        _ANY,
        counts=_transcendental_counts,
        ends=_waits_for_vectors,
        stops=lambda between: between % 1000 > 5 or between // 1000 > 1,
        remedy=lambda missing: ("s_waitcnt_depctr 0xfff",),
    ),
    Rule(
        "a WMMA's result is A or B of the next vector instruction",
        ("rdna3", "rdna4"),
        lambda f: f.d,
        lambda f: f.a | f.b,
        1,
        counts=_vector_instructions,
        remedy=vector_nops,
    ),
    Rule(
        "a WMMA's result is A or B of another",
        ("gfx1250",),
        lambda f: f.d if f.xdl else 0,
        lambda f: f.a | f.b if f.xdl else 0,
        9,
        _wmma_states,
        _vector_instructions,
        remedy=vector_nops,
    ),
    Rule(
        "a WMMA's result is used",
        ("gfx1250",),
        lambda f: f.d if f.xdl else 0,
        lambda f: f.reads | f.writes if f.plain else 0,
        9,
        _wmma_states,
        _vector_instructions,
        remedy=vector_nops,
    ),
    Rule(
        "A or B of a WMMA is overwritten",
        ("gfx1250",),
        lambda f: f.a | f.b if f.xdl else 0,
        lambda f: f.writes if f.plain else 0,
        9,
        _wmma_states,
        _vector_instructions,
        remedy=vector_nops,
    ),
    Rule(
        "a transcendental's result is read by the next vector instruction",
        ("gfx1250",),
        lambda f: f.writes & _VECTOR if f.transcendental else 0,
        lambda f: f.reads if f.valu and not f.transcendental else 0,
        1,
        counts=_vector_instructions,
        remedy=vector_nops,
    ),
    Rule(
        "a transcendental's source is overwritten by the next vector instruction",
        ("gfx1250",),
        lambda f: f.reads & _VECTOR if f.transcendental else 0,
        lambda f: f.writes if f.valu and not f.transcendental else 0,
        1,
        counts=_vector_instructions,
        remedy=vector_nops,
    ),
)

RULES = (*_VECTOR_RULES, *_MFMA_RULES, *_RDNA_RULES)
