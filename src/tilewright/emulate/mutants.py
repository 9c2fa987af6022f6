"""Faults that are put into a kernel, one instruction at a time, to see which of them emulation
notices.

A mutant replaces one instruction by another, or by ``s_nop 0``. It keeps the program's length, so
labels and wait states stay what they are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.listing.effects import SCALAR_BIT, effects
from tilewright.listing.operand import ACCUMULATION, EXEC, Operand
from tilewright.listing.text import Instruction, Program, instruction

Kind = Literal["barrier", "wait", "address", "operand", "instruction"]

KINDS: dict[Kind, str] = {
    "barrier": "a barrier, or one half of it, is left out",
    "wait": "a wait for one counter is left out, or lets one access more be in flight",
    "address": "a memory access has another offset, or takes its address from another register",
    "operand": "an instruction reads another register, or another constant",
    "instruction": "an instruction is left out",
}

NOTHING = "s_nop 0"

_BARRIER = re.compile(r"s_barrier(_signal|_wait)?")
_COUNTER = re.compile(r"(\w+)\((\d+)\)")
_WAIT = re.compile(r"s_wait_(\w*cnt)|s_waitcnt_vscnt")
_MEMORY = re.compile(r"(ds|buffer|global|flat|scratch)_(?!inv|wb|gl)|s_(buffer_)?load_")
_OFFSET = re.compile(r"\boffset[01]?:(-?\d+)")
_KEPT = re.compile(
    r"s_(barrier|wait|nop|delay_alu|clause|endpgm|branch|setprio|sleep|set_inst_prefetch|sendmsg|"
    r"icache|dcache|set_vgpr_msb|code_end)|buffer_(inv|wb|gl)|global_(inv|wb)|v_nop"
)
"""Instructions that the other kinds of mutants leave alone: they move no data."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed instruction.

    index: of the instruction in its program; line: of the listing.
    before, after: its text.
    """

    kind: Kind
    index: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}: `{self.before}` → `{self.after}`"

    def program(self, original: Program) -> Program:
        """The program with this change."""
        code = list(original.instructions)
        old = code[self.index]
        code[self.index] = instruction(self.after, old.index, old.line, old.source)
        return replace(original, instructions=tuple(code))


def mutants(program: Program, executed: Sequence[int], seed: int = 0) -> list[Mutant]:
    """Every mutant of an instruction that is executed; registers and offsets are drawn at random.

    executed: for each instruction how often.
    """
    rng = random.Random(seed)
    spare = _Registers(program)
    made: list[Mutant] = []
    for ins in program.instructions:
        if executed[ins.index]:
            for kind, after in _changes(ins, spare, rng):
                made.append(Mutant(kind, ins.index, ins.line, ins.text, after))
    return made


def sample(
    found: Iterable[Mutant], most: int, waits: int, barriers: int, seed: int = 0
) -> list[Mutant]:
    """At most so many mutants of waits, of barriers, and of each other kind, drawn at random."""
    by_kind: dict[Kind, list[Mutant]] = {kind: [] for kind in KINDS}
    for each in found:
        by_kind[each.kind].append(each)
    rng = random.Random(seed)
    chosen = []
    for kind, those in by_kind.items():
        limit = {"barrier": barriers, "wait": waits}.get(kind, most)
        if limit < len(those):
            those = sorted(rng.sample(those, limit), key=lambda mutant: mutant.index)
        chosen += those
    return chosen


class _Registers:
    """The registers that a program writes, by file: a fault takes its operand from among them."""

    def __init__(self, program: Program) -> None:
        written = 0
        for ins in program.instructions:
            written |= effects(ins, program.target).writes
        bits = [bit for bit in range(written.bit_length()) if written >> bit & 1]
        self._written = {
            "v": {bit for bit in bits if bit < SCALAR_BIT},
            "s": {bit - SCALAR_BIT for bit in bits if SCALAR_BIT <= bit < SCALAR_BIT + EXEC},
        }

    def other(self, place: Operand, rng: random.Random) -> str | None:
        """The text of other registers for an operand; None if there are no others."""
        written = self._written[place.file]
        accumulation = place.first >= ACCUMULATION and "a" in place.text
        step = 1 if place.count == 1 else 2  # wide operands begin at an even register
        starts = [
            first
            for first in sorted(written)
            if first % step == 0
            and first != place.first
            and written.issuperset(range(first, first + place.count))
            and (place.file == "s" or (first >= ACCUMULATION) == accumulation)
        ]
        if place.file == "s":
            starts = [first for first in starts if first + place.count <= _LAST_PLAIN_SCALAR]
        if not starts:
            return None
        first = rng.choice(starts)
        letter = "a" if accumulation else place.file
        first -= ACCUMULATION if accumulation else 0
        last = first + place.count - 1
        half = f".{place.half}" if place.half else ""
        return f"{letter}{first}{half}" if place.count == 1 else f"{letter}[{first}:{last}]"


_LAST_PLAIN_SCALAR = 102


def _changes(ins: Instruction, spare: _Registers, rng: random.Random) -> Iterator[tuple[Kind, str]]:
    """The mutants of one instruction: their kinds and texts."""
    if _BARRIER.fullmatch(ins.base):
        yield "barrier", NOTHING
    elif ins.base.startswith(("s_waitcnt", "s_wait_")):
        for weaker in _weaker(ins):
            yield "wait", weaker
    if ins.parts or _KEPT.match(ins.base):
        return
    if _MEMORY.match(ins.base):
        if "swizzle" not in ins.base:  # whose offset is a pattern
            yield "address", _offset(ins, rng)
        if after := _address(ins, spare, rng):
            yield "address", after
    elif not ins.base.startswith("s_cbranch") and (after := _operand(ins, spare, rng)):
        yield "operand", after
    yield "instruction", NOTHING


def _weaker(ins: Instruction) -> Iterator[str]:
    """A wait without each of its counters, and with each of them greater by one."""
    if ins.base == "s_waitcnt":
        for found in _COUNTER.finditer(ins.text):
            without = (ins.text[: found.start()] + ins.text[found.end() :]).rstrip()
            yield without if _COUNTER.search(without) else NOTHING
            more = f"{found[1]}({int(found[2]) + 1})"
            yield ins.text[: found.start()] + more + ins.text[found.end() :]
    elif counters := _WAIT.fullmatch(ins.base):
        head, _, last = ins.text.rpartition(" ")
        value = int(last, 0)
        yield NOTHING
        if "_" in (counters[1] or ""):  # two counters, in a byte each
            yield f"{head} {value | 0x3F:#x}"
            yield f"{head} {value | 0x3F00:#x}"
        yield f"{head} {value + 1:#x}"


def _offset(ins: Instruction, rng: random.Random) -> str:
    """A memory access a little further on."""
    found = list(_OFFSET.finditer(ins.text))
    if not found:
        if ins.base.startswith("s_"):
            head, _, last = ins.text.rpartition(" ")
            return f"{head} {int(last, 0) + 8:#x}" if re.fullmatch(r"0x\w+|\d+", last) else NOTHING
        word = "offset1:3" if re.match(r"ds_\w+2(st64|addr)?\w*_b", ins.base) else "offset:16"
        at = re.search(
            r"(?<= offen)|(?<= idxen)|(?= (lds|sc[01]|nt|[gsd]lc|th:|scope:|gds)\b)|$", ins.text
        )
        assert at is not None
        return f"{ins.text[: at.start()]} {word}{ins.text[at.start() :]}"
    one = rng.choice(found)
    step = 1 if one[0].startswith(("offset0", "offset1")) else 16
    value = int(one[1])
    other = value - step if value >= step else value + step
    return ins.text[: one.start(1)] + str(other) + ins.text[one.end(1) :]


def _address(ins: Instruction, spare: _Registers, rng: random.Random) -> str | None:
    """A memory access whose address comes from other registers."""
    places = [place for place in _addresses(ins) if place.file in ("v", "s")]
    return _replaced(ins, places, spare, rng)


def _addresses(ins: Instruction) -> Sequence[Operand]:
    """The operands that an address comes from."""
    to_lds = "lds" in set(ins.flags) or "_lds" in ins.base
    loads = ins.base.startswith("s_") or (("load" in ins.base or "read" in ins.base) and not to_lds)
    if ins.base.startswith("buffer"):
        return ins.operands[0:1] if to_lds else ins.operands[1:2]
    if ins.base.startswith("ds_"):
        return ins.operands[1:2] if loads or "permute" in ins.base else ins.operands[0:1]
    return ins.operands[1:3] if loads or "_atomic" in ins.base else ins.operands[0:1]


def _operand(ins: Instruction, spare: _Registers, rng: random.Random) -> str | None:
    """An instruction with another source: register or constant."""
    sources = ins.operands if ins.base.startswith(("s_cmp", "s_bitcmp")) else ins.operands[1:]
    places = [place for place in sources if place.file in ("v", "s", "constant")]
    places = [place for place in places if place.file != "s" or place.first < _LAST_PLAIN_SCALAR]
    return _replaced(ins, places, spare, rng)


def _replaced(
    ins: Instruction, places: Sequence[Operand], spare: _Registers, rng: random.Random
) -> str | None:
    """The instruction with one of these operands replaced; None if none can be."""
    for place in rng.sample(list(places), len(places)):
        if place.file == "constant":
            other: str | None = str(place.value + 1 if place.value != 64 else 63)
        else:
            other = spare.other(place, rng)
        core = re.sub(r"^(-|\||sext\(|neg\(|abs\()+|(\||\))+$", "", place.text)
        if other is None or other == core:
            continue
        head, name, rest = ins.text.partition(ins.name)
        spots = list(re.finditer(rf"(?<![\w\[.]){re.escape(core)}(?![\w\]:.])", rest))
        if spots:
            spot = spots[-1]  # a destination comes first
            return head + name + rest[: spot.start()] + other + rest[spot.end() :]
    return None
