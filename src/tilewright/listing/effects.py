"""Which registers an instruction reads and writes, as bitmasks.

Bits 0 to 1023 are vector registers, the next `SCALARS` are scalar registers, and the last is SCC.
The masks serve the checks of waits, of wait states and of unwritten registers. They say which
registers, not which lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.listing.operand import EXEC, M0, SCALARS, VCC, Operand
from tilewright.listing.target import Target
from tilewright.listing.text import Instruction

SCALAR_BIT = 1024
"""The bit of scalar register 0."""
SCC_BIT = SCALAR_BIT + SCALARS


@dataclass(frozen=True, slots=True)
class Effects:
    """Registers of an instruction.

    reads: whose values decide its result. writes: those it sets. tied: those it sets in part and
    otherwise keeps, such as the other half of a 16-bit load's register.
    """

    reads: int
    writes: int
    tied: int = 0

    @property
    def touches(self) -> int:
        """All of them."""
        return self.reads | self.writes | self.tied


def vector_bits(first: int, count: int = 1) -> int:
    """The bits of vector registers."""
    return ((1 << count) - 1) << first


def scalar_bits(first: int, count: int = 1) -> int:
    """The bits of scalar registers."""
    return ((1 << count) - 1) << (SCALAR_BIT + first)


def bits(operand: Operand) -> int:
    """The bits of an operand's registers; 0 for a constant."""
    if operand.file == "v":
        return vector_bits(operand.first, operand.count)
    if operand.file == "s":
        return scalar_bits(operand.first, operand.count)
    return 1 << SCC_BIT if operand.file == "scc" else 0


def names(mask: int) -> str:
    """The registers of a mask, as the listing calls them."""
    said = []
    for bit in range(SCC_BIT + 1):
        if mask >> bit & 1:
            number = bit - SCALAR_BIT
            said.append(
                f"v{bit}"
                if bit < SCALAR_BIT
                else {SCALARS: "scc", VCC: "vcc", M0: "m0", EXEC: "exec"}.get(number, f"s{number}")
            )
    return ", ".join(said)


_SCC_READ = re.compile(r"s_(cselect|cmov|addc|subb|add_co_ci|sub_co_ci|cbranch_scc)")
_SCC_WRITTEN = re.compile(
    r"s_(cmp_|cmpk_|bitcmp|add_[iu]32|add_co|addc|addk|sub_[iu]32|sub_co|subb|and|or_|or1|xor|nand|"
    r"nor|xnor|not_|lsh|ash|bfe|min_|max_|abs|bcnt|wqm|quadmask|absdiff|\w+_saveexec|andn2|orn2)"
)
_SCC_KEPT = re.compile(r"s_(min|max|add|sub|mul)_(f32|f16|num_f32|nc_u64|u64)|s_bfm")
_NOTHING = re.compile(
    r"s_(wait|nop|delay_alu|clause|sleep|setprio|set_inst_prefetch|sendmsg|endpgm|barrier|branch|"
    r"icache_inv|dcache|trap|set_vgpr_msb)|buffer_(wb|inv|gl)|global_(wb|inv)"
)
_READ_ONLY = re.compile(
    r"s_(cbranch|setreg|setpc|store|buffer_store|prefetch)|ds_(write|store)|"
    r"(buffer|global|flat|scratch)_store|global_load_lds|tensor_|exp$|v_nop|global_prefetch"
)
_ACCUMULATES = re.compile(
    r"v_(fmac|mac|pk_fmac|dot\d+(c|acc)|smfmac|swmmac)|s_(addk|mulk|bitset|fmac)"
)
_PARTIAL = re.compile(
    r"v_(writelane|cvt_sr|cvt_pk_(fp8|bf8)|cvt_scalef32_sr|cvt_scalef32_pk_(fp8|bf8|fp4)|"
    r"fma_mix(lo|hi)|bitop3_b16)|s_cmov"
)
"""Instructions that set a part of their destination and keep the rest, on every generation."""
_TYPE = re.compile(r"_b?[fiub]\d+")
_NO_HALF = re.compile(r"v_(pk_|cmp|cvt_pk|wmma|swmmac|mfma|smfmac|dot)")
_PACKED_32 = re.compile(r"v_pk_((add|mul|fma)_f32|mov_b32)")
_SWAPS = re.compile(r"v_(swap|permlane\d+_swap|swaprel)")
_TWO_RESULTS = re.compile(
    r"v_(add|sub|subrev|addc|subb|subbrev)_co|v_div_scale|v_mad_(co_)?[iu]64_[iu]32"
)
_VCC_READ = re.compile(r"v_div_fmas")
_DS_ATOMIC = re.compile(
    r"ds_(add|sub|inc|dec|min|max|and|or|xor|mskor|cmpst|pk_add|cmpstore)_(?!rtn)"
)
_MEMORY_ATOMIC = re.compile(r"(buffer|global|flat)_atomic_")
_D16 = re.compile(r"_d16(_hi)?$|_d16_(hi_)?[iub]\d+$")


def effects(ins: Instruction, target: Target) -> Effects:
    """The registers that `ins` reads and writes; for a dual instruction, those of both halves."""
    if ins.parts:
        both = [effects(part, target) for part in ins.parts]
        return Effects(
            _all(each.reads for each in both),
            _all(each.writes for each in both),
            _all(each.tied for each in both),
        )
    base, places = ins.base, [bits(operand) for operand in ins.operands]
    if _PACKED_32.fullmatch(base):
        places[1:] = [_halves(ins, number) for number in range(len(ins.operands) - 1)]
    if _NOTHING.match(base):
        return Effects(0, 0)
    reads, writes, tied = _explicit(ins, places, target)
    vcc = scalar_bits(VCC, target.lanes // 32)
    exec_ = scalar_bits(EXEC, target.lanes // 32)
    if base.startswith("s_"):
        if _SCC_READ.match(base):
            reads |= 1 << SCC_BIT
        if _SCC_WRITTEN.match(base) and not _SCC_KEPT.match(base):
            writes |= 1 << SCC_BIT
        if "saveexec" in base or "wrexec" in base:
            writes |= exec_
            reads |= exec_
        if base.startswith("s_cbranch_vcc"):
            reads |= vcc
        if base.startswith("s_cbranch_exec"):
            reads |= exec_
    elif base.startswith("v_"):
        if _VCC_READ.match(base) or (base == "v_cndmask_b32" and len(ins.operands) == 3):
            reads |= vcc
        if base.startswith("v_cmpx"):
            writes |= exec_
    elif "lds" in set(ins.flags) or "_lds_" in base:
        reads |= scalar_bits(M0)
    return Effects(reads & ~tied, writes, tied)


def _explicit(ins: Instruction, places: list[int], target: Target) -> tuple[int, int, int]:
    """What the operands say: (reads, writes, tied)."""
    base = ins.base
    if not places:
        return 0, 0, 0
    to_lds = "lds" in set(ins.flags)
    stores = _READ_ONLY.match(base) or to_lds or "load_async_to_lds" in base
    if stores or base.startswith(("s_cmp_", "s_cmpk_", "s_bitcmp")) or _unreturned(ins):
        return _all(places), 0, 0
    if _SWAPS.match(base):
        return _all(places), places[0] | bits(ins.at(1)), 0
    results = 2 if _TWO_RESULTS.match(base) and len(places) > 3 else 1
    if base.startswith("v_cmpx") and len(places) == 2:
        results = 0  # the result is EXEC, which the text leaves out
    writes, reads = _all(places[:results]), _all(places[results:])
    tied = 0
    if _ACCUMULATES.match(base):
        reads |= writes
    elif _PARTIAL.match(base):
        tied = writes
    elif _MEMORY_ATOMIC.match(base) and base.startswith("buffer"):
        reads |= writes  # the operand is data, and then the result
    elif _D16.search(base) or _keeps(ins) or _half_result(base, target):
        tied = writes
    return reads, writes, tied


def _halves(ins: Instruction, source: int) -> int:
    """The bits of a 64-bit source of a packed fp32 instruction: of the halves that it selects.
    ``v_pk_mov_b32`` takes one of each source."""
    operand, modifiers = ins.operands[source + 1], dict(ins.modifiers)
    chosen: set[int] = set()
    moves = ins.base == "v_pk_mov_b32"
    for name, default in (("op_sel", 0), ("op_sel_hi", 1))[: 1 if moves else 2]:
        selects = modifiers.get(name, ())
        stated = isinstance(selects, tuple) and source < len(selects)
        chosen.add(selects[source] if isinstance(selects, tuple) and stated else default)
    whole = bits(operand)
    low = whole & -whole
    return _all(low << half for half in chosen) if operand.count == 2 else whole


def _unreturned(ins: Instruction) -> bool:
    """Whether this is an atomic that returns nothing."""
    if _MEMORY_ATOMIC.match(ins.base):
        flags, hint = set(ins.flags), dict(ins.modifiers).get("th", "")
        return not (flags & {"sc0", "glc"} or "RETURN" in str(hint))
    return bool(_DS_ATOMIC.match(ins.base)) and "_rtn" not in ins.base


def _keeps(ins: Instruction) -> bool:
    """Whether it keeps part of its destination because of a modifier."""
    modifiers = dict(ins.modifiers)
    selects = modifiers.get("op_sel", ())
    half = bool(isinstance(selects, tuple) and len(selects) >= len(ins.operands) and selects[-1])
    partial = modifiers.get("dst_sel", "DWORD") != "DWORD"
    lanes = ins.encoding in ("dpp", "e64_dpp")
    return half or partial or lanes or bool(ins.operands[0].half)


def _half_result(base: str, target: Target) -> bool:
    """Whether the result has 16 bits and leaves the other half of its register alone, as from
    gfx10 on. The first type in a name is the result's."""
    if target.cdna or not base.startswith("v_") or _NO_HALF.match(base):
        return False
    found = _TYPE.search(base)
    return found is not None and found[0].endswith("16")


def _all(masks: Iterable[int]) -> int:
    made = 0
    for mask in masks:
        made |= mask
    return made
