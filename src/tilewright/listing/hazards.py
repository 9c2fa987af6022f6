"""Wait states: do instructions keep the distance that the architecture asks for?

The hardware does not notice when some results are used too early; the compiler must put enough
instructions in between. `shortages` looks along every way through a program, whether any launch
takes it or not: from each instruction that endangers registers, as far as the rules reach. It is
exact where the compiler's own search is not (see docs/emulation.md): what lies behind a branch that
is taken is not counted, and a block is looked at for each distance at which it is reached.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.listing.effects import SCALAR_BIT, Effects, names, scalar_bits
from tilewright.listing.hazard_facts import Facts, Rule, facts
from tilewright.listing.hazard_rules import RULES, waited
from tilewright.listing.operand import VCC
from tilewright.listing.text import Instruction, Program


@dataclass(frozen=True, slots=True)
class Shortage:
    """An instruction that may come too soon behind another.

    ins: the later instruction. cause: the earlier one.
    detail: the wait states asked for and present.
    remedy: instructions that mend it right in front of the later one; empty if none is known.
    """

    ins: Instruction
    cause: Instruction
    detail: str
    remedy: tuple[str, ...]


def shortages(program: Program, touched: Sequence[Effects]) -> list[Shortage]:
    """Every shortage of wait states, one for each rule and later instruction, the worst of each.

    touched: the registers of each instruction.
    """
    known = [
        facts(ins, registers, program.target.generation)
        for ins, registers in zip(program.instructions, touched, strict=True)
    ]
    follows = [_following(program, ins) for ins in program.instructions]
    found = []
    for rule in RULES:
        if program.target.generation in rule.generations:
            found += _broken(program, known, follows, rule)
    return found + _uncommitted(program, known, follows)


_FAR = re.compile(r"\(([\w.$]+)-[\w.$]+\)&4294967295")
"""What the compiler adds to the program counter for a long jump: a difference of labels."""
_FARTHER = re.compile(r"s_add_pc_i64 ([\w.$]+)-[\w.$]+")
"""A long jump in one instruction."""


def _following(program: Program, ins: Instruction) -> tuple[int, ...]:
    """The instructions that may be executed next."""
    behind = (ins.index + 1,) if ins.index + 1 < len(program.instructions) else ()
    if ins.base == "s_endpgm":
        return ()
    if ins.base in ("s_setpc_b64", "s_set_pc_i64"):
        address = program.instructions[max(0, ins.index - 4) : ins.index]
        labels = [found[1] for each in address if (found := _FAR.search(each.text))]
    elif found := _FARTHER.fullmatch(ins.text):
        labels = [found[1]]
    elif ins.base.startswith(("s_branch", "s_cbranch")):
        labels = [ins.at(0).text]
    else:
        return behind
    places = (program.labels.get(label, -1) for label in labels)
    target = tuple(place for place in places if 0 <= place < len(program.instructions))
    return behind + target if ins.base.startswith("s_cbranch") else target


def _broken(
    program: Program, known: Sequence[Facts], follows: Sequence[tuple[int, ...]], rule: Rule
) -> list[Shortage]:
    """Where a program breaks a rule."""
    effects = [rule.effect(each) for each in known]
    touched = functools.reduce(operator.or_, effects)
    if not touched:
        return []
    counts = [rule.counts(each) for each in known]
    worst: dict[int, int] = {}
    found: dict[int, Shortage] = {}
    for first, cause in enumerate(known):
        endangered = rule.cause(cause) & touched
        ways = [(index, 0, endangered) for index in follows[first]] if endangered else []
        seen = set(ways)
        while ways:
            index, between, mask = ways.pop()
            here = known[index]
            if shared := effects[index] & mask:
                asked = rule.asked(program.target.generation, cause, here)
                if asked - between > worst.get(index, 0):
                    worst[index] = asked - between
                    detail = _detail(rule, cause, shared, between, asked)
                    found[index] = Shortage(
                        here.ins, cause.ins, detail, rule.remedy(asked - between)
                    )
            mask &= ~here.d  # from here on, that is the result of another matrix instruction
            between += counts[index]
            over = between >= rule.most if rule.stops is None else rule.stops(between)
            if over or not mask or (rule.ends is not None and rule.ends(here)):
                continue
            for following in follows[index]:
                way = (following, between, mask)
                if way not in seen:
                    seen.add(way)
                    ways.append(way)
    return [found[index] for index in sorted(found)]


def _detail(rule: Rule, cause: Facts, shared: int, between: int, asked: int) -> str:
    where = f"line {cause.ins.line}, `{cause.ins.text}`"
    numbers = "" if asked > 1000 else f": {between} of {asked} wait states"
    registers = names(shared) or "a hardware register"
    return f"{rule.asks} ({registers}, {where}){numbers}"


# Scalar registers of gfx1201 ----------------------------------------------------------------------

_VCC = scalar_bits(VCC, 2)
_SCALARS = scalar_bits(0, VCC) | _VCC
_WAIT = "s_wait_alu 0xf1fc"
"""Waits for every scalar register that any unit writes."""
_EVEN = sum(1 << bit for bit in range(SCALAR_BIT, SCALAR_BIT + VCC + 2, 2))


@dataclass(frozen=True, slots=True)
class _Uncommitted:
    """Scalar registers, as bitmasks. read: pairs that a vector instruction has read. scalar,
    vector: registers that a scalar or a vector instruction has written since, and that may not have
    their value yet for a vector instruction."""

    read: int = 0
    scalar: int = 0
    vector: int = 0

    def joined(self, other: _Uncommitted) -> _Uncommitted:
        return _Uncommitted(
            self.read | other.read, self.scalar | other.scalar, self.vector | other.vector
        )


def _uncommitted(
    program: Program, known: Sequence[Facts], follows: Sequence[tuple[int, ...]]
) -> list[Shortage]:
    """On gfx1200 and gfx1201, a scalar register that a vector instruction has read once, and that
    is written later, may still have its old value for a vector instruction, and for a scalar one if
    it is VCC: unless ``s_wait_alu`` (``sa_sdst``, ``va_sdst``, ``va_vcc``) or an access to memory
    lies between.

    Source: LLVM's AMDGPUWaitSGPRHazards.cpp.
    """
    if program.target.generation != "rdna4":
        return []
    before = [_Uncommitted() for _ in known]
    ways_in = Counter(index for each in follows for index in each)
    ready, seen = [0], {0}
    while ready:
        index = ready.pop()
        after, _ = _committed(known[index], before[index])
        for following in follows[index]:
            # What only this instruction leads to has its state; a state that was known less of may
            # have had more registers in it.
            joined = after if ways_in[following] == 1 else before[following].joined(after)
            if following not in seen or joined != before[following]:
                seen.add(following)
                before[following] = joined
                ready.append(following)
    found = []
    for here, state in zip(known, before, strict=True):
        _, late = _committed(here, state)
        if late:
            detail = f"{names(late)} was written, and s_wait_alu is missing"
            found.append(Shortage(here.ins, here.ins, detail, (_WAIT,)))
    return found


def _committed(here: Facts, state: _Uncommitted) -> tuple[_Uncommitted, int]:
    """The state behind an instruction, and the registers that it reads too early."""
    base = here.ins.base
    scalar, vector = state.scalar, state.vector
    if base.startswith(("s_load", "s_buffer_load")) or (here.memory and base.startswith("buffer")):
        return _Uncommitted(state.read), 0
    if base == "s_wait_alu":
        counters = waited(here)
        scalar = 0 if "sa_sdst" in counters else scalar
        vector &= _VCC if "va_sdst" in counters else -1
        vector &= ~_VCC if "va_vcc" in counters else -1
        return _Uncommitted(state.read, scalar, vector), 0
    if not (here.valu or base.startswith("s_")):
        return state, 0
    again = here.reads & state.read
    if not here.valu:  # a scalar instruction waits for vector instructions itself
        if again & vector & _VCC:
            scalar, vector = scalar & ~_VCC, vector & ~_VCC
        if again & ~_VCC:
            vector &= _VCC
    late = again & (scalar | vector if here.valu else scalar)
    if late:
        scalar, vector = scalar & ~late, vector & ~late
    read = state.read | (_pairs(here.reads & _SCALARS) if here.valu else 0)
    written = here.writes & read
    if here.valu:
        return _Uncommitted(read, scalar & ~(written & _VCC), vector | written), late
    return _Uncommitted(read, scalar | written, vector & ~(written & _VCC)), late


def _pairs(mask: int) -> int:
    """The registers of a mask, and the other of each pair."""
    even = (mask | mask >> 1) & _EVEN
    return even | even << 1
