"""Follows values that come from registers which nothing has written.

The compiler reads such registers where the value does not matter: the upper half of a 64-bit sum
of which only the lower half is used, say. So a read alone is no fault. It is one as soon as the
value decides something that lasts: an address, stored data, a branch, which lanes are active. The
finding then names the instruction that read the register first.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.emulate.findings import Findings
from tilewright.emulate.waves import Waves
from tilewright.listing.effects import Effects, bits, names, scalar_bits
from tilewright.listing.operand import EXEC, Operand
from tilewright.listing.text import Instruction

_LASTS = re.compile(
    r"(buffer|global|flat|scratch|s_load|s_buffer|tensor)_|s_cbranch|s_setreg|s_set_?pc|"
    r"ds_(?!bpermute|permute|swizzle)"
)
_EXEC = scalar_bits(EXEC, 2)
_STORE = re.compile(r"(scratch|buffer)_store")
_MERGED = re.compile(r"s_(andn2|and_not1)_b(32|64)")
_PAIR = re.compile(r"v_pk_(add|mul|fma)_f32")
_WIDE_PRODUCT = re.compile(r"v_mad_(co_|nc_)?[iu]64_[iu]32")


def follow(
    index: int,
    program: Sequence[Instruction],
    effects: Effects,
    waves: Waves,
    findings: Findings,
) -> None:
    """Note the results of an instruction that reads unknown values, or report it.

    Call it before the instruction is executed, and in place of counting its results as known.
    """
    ins = program[index]
    lacking = [effects.reads & ~known for known in waves.known_of_each()]
    which = np.array([bits != 0 for bits in lacking])
    if not which.any():
        waves.known |= effects.writes
        return
    unknown = functools.reduce(operator.or_, lacking)
    fresh = unknown
    for bit in waves.origins:
        fresh &= ~(1 << bit)
    sources = {waves.origins[bit] for bit in _each(unknown & ~fresh)}
    if fresh:
        sources.add((index, names(fresh)))
    if not _spills(ins) and (_LASTS.match(ins.base) or effects.writes & _EXEC):
        for origin, registers in sorted(sources):
            use = "" if origin == index else f"; line {ins.line}, `{ins.text}`, depends on it"
            detail = registers + use
            findings.report("unwritten register", program[origin], waves, which, detail)
        waves.known |= unknown | effects.writes  # reported once
        return
    results = _depends(ins, effects, unknown)
    waves.known |= effects.writes & ~results
    each = waves.known_of_each()
    waves.known &= ~results
    waves.know(
        [
            (known & ~results | (0 if lacks else results)) & ~waves.known
            for known, lacks in zip(each, lacking, strict=True)
        ]
    )
    for bit in _each(results):
        waves.origins[bit] = min(sources)


def _spills(ins: Instruction) -> bool:
    """Whether the compiler keeps registers in scratch, those without a value too: at addresses that
    no lane decides. What is stored there is not followed."""
    if not _STORE.match(ins.base):
        return False
    address = ins.operands[0 if ins.base.startswith("scratch") else 1]
    return address.file == "none"


def _depends(ins: Instruction, effects: Effects, unknown: int) -> int:
    """The results that depend on registers whose values are not known."""
    if ins.base == "v_writelane_b32":
        return 0  # a spilled register, perhaps one of several that a load of all brings back
    if _MERGED.match(ins.base) and ins.operands[2].text in ("exec", "exec_lo"):
        return 0  # lanes that are not active keep their bits, which the compiler need not set
    if _WIDE_PRODUCT.match(ins.base):
        product, addend = ins.operands[0], ins.operands[-1]
        if product.file == "v" and unknown == _upper(addend):
            return effects.writes & ~(1 << product.first)
    if _PAIR.match(ins.base):
        return _depending_half(ins, unknown, 0) | _depending_half(ins, unknown, 1)
    return effects.writes


def _depending_half(ins: Instruction, unknown: int, half: int) -> int:
    """The lower or the upper result of a packed instruction on pairs of registers, if it takes an
    unknown one. The compiler computes both where it uses one."""
    stated = ins.modifiers.bits(("op_sel", "op_sel_hi")[half])
    for number, source in enumerate(ins.operands[1:]):
        upper = stated[number] if number < len(stated) else half
        taken = _upper(source) if upper else bits(source) & ~_upper(source)
        if taken & unknown:
            return 1 << ins.operands[0].first + half
    return 0


def _upper(pair: Operand) -> int:
    """The bit of the upper register of a pair; 0 for other operands."""
    if pair.file == "v":
        return 1 << pair.first + 1
    return scalar_bits(pair.first + 1, 1) if pair.file == "s" else 0


def _each(mask: int) -> Iterator[int]:
    """The bits that are set."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit
