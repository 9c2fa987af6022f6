"""The table of instructions: what each mnemonic means, as a function that makes its executor.

An executor is made once for each instruction of a program, and called for each step. So whatever
an operand or a modifier decides is decided when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.emulate.findings import Findings
from tilewright.emulate.waves import Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.target import GENERATIONS, Generation, Target
from tilewright.listing.text import Instruction


@dataclass(slots=True)
class Context:
    """What executors work on.

    labels: of the program, the index of the instruction behind each.
    memory, shared, scratch: the launch's global memory, and the shared memory (LDS) and the scratch
        of the workgroups that execute.
    order, races: which accesses happen before which, and the notes of races in global memory.
    counts: what memory accesses are counted in; None if nobody counts.
    checks: whether findings are looked for.
    """

    target: Target
    findings: Findings
    labels: Mapping[str, int] = field(default_factory=dict)
    memory: Any = None
    shared: Any = None
    scratch: Any = None
    order: Any = None
    races: Any = None
    counts: Any = None
    checks: bool = True


Executor = Callable[[Waves], object]
"""Executes an instruction. Returns None to go on; branches and barriers return what `machine`
states."""

Maker = Callable[[Instruction, Context], Executor]
_MEANINGS: dict[tuple[str, Generation], Maker] = {}


def means(*mnemonics: str, generations: Collection[Generation] = ()) -> Callable[[Maker], Maker]:
    """Let the decorated function make the executors of these mnemonics (without the encoding's
    suffix), on some generations or, by default, on all. A mnemonic has one meaning on each."""

    def register(maker: Maker) -> Maker:
        for mnemonic in mnemonics:
            for generation in generations or set(GENERATIONS.values()):
                if (mnemonic, generation) in _MEANINGS:
                    raise ValueError(f"{mnemonic} has two meanings on {generation}")
                _MEANINGS[mnemonic, generation] = maker
        return maker

    return register


def known() -> dict[str, frozenset[Generation]]:
    """Every mnemonic that has a meaning, and on which generations."""
    found: dict[str, set[Generation]] = {}
    for mnemonic, generation in _MEANINGS:
        found.setdefault(mnemonic, set()).add(generation)
    return {mnemonic: frozenset(where) for mnemonic, where in sorted(found.items())}


def executor(ins: Instruction, context: Context) -> Executor:
    """Make the executor of an instruction.

    Raises `UnknownInstruction`, with the line and the text, for a mnemonic without a meaning, for a
    form that its meaning does not know, and for a modifier or a flag that it did not ask for.
    """
    generation = context.target.generation
    maker = _MEANINGS.get((ins.base, generation))
    where = f"line {ins.line}: `{ins.text}`"
    if maker is None:
        raise UnknownInstruction(f"{where}: the emulator does not know it on {generation}")
    try:
        made = maker(ins, context)
    except (UnknownInstruction, LookupError, TypeError, ValueError) as error:
        raise UnknownInstruction(
            f"{where}: the emulator does not know this form: {error}"
        ) from error
    ignored = [*ins.modifiers.ignored, *ins.flags.ignored]
    if ignored:
        words = ", ".join(ignored)
        raise UnknownInstruction(f"{where}: the emulator does not know {words} of it")
    return made
