"""Long branches: the program counter in registers, and differences of labels.

A code address is the index of an instruction here. The compiler only adds differences of labels to
what ``s_getpc_b64`` gave, so that the unit does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tilewright.emulate.isa.access import scalar_destination, scalar_source
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.text import Instruction

_DIFFERENCE = re.compile(r"\(([\w.$]+)-([\w.$]+)\)(&4294967295|>>32)")
_WHOLE_DIFFERENCE = re.compile(r"([\w.$]+)-([\w.$]+)")


def relative(text: str, labels: Mapping[str, int]) -> int:
    """The lower or the upper 32 bits of a difference of labels, as the compiler writes them.

    Raises ValueError for any other text.
    """
    found = _DIFFERENCE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} is no difference of labels")
    difference = labels[found[1]] - labels[found[2]]
    return (difference if found[3].startswith("&") else difference >> 32) & 0xFFFFFFFF


@means("s_getpc_b64", "s_get_pc_i64")
def _get_position(ins: Instruction, context: Context) -> Executor:
    """The address of the instruction behind."""
    write = scalar_destination(ins, 0, "u64")
    value = np.array([ins.index + 1], np.uint64)
    return lambda waves: write(waves, value)


@means("s_add_pc_i64")
def _add_position(ins: Instruction, context: Context) -> Executor:
    """A jump by a difference of labels from the instruction behind. Raises `UnknownInstruction` for
    any other operand."""
    found = _WHOLE_DIFFERENCE.fullmatch(ins.operands[0].text)
    if found is None:
        raise UnknownInstruction(
            f"line {ins.line}: `{ins.text}`: the emulator knows it with a difference of labels only"
        )
    place = ins.index + 1 + context.labels[found[1]] - context.labels[found[2]]

    def jump(waves: Waves) -> None:
        waves.position = place

    return jump


@means("s_setpc_b64", "s_set_pc_i64")
def _set_position(ins: Instruction, context: Context) -> Executor:
    """A jump, on which all waves must agree."""
    read = scalar_source(ins, 0, "u64")

    def jump(waves: Waves) -> None:
        places = read(waves)
        if (places != places[0]).any():
            raise UnknownInstruction(
                f"line {ins.line}: `{ins.text}`: the emulator does not know it where waves jump to "
                "different addresses"
            )
        waves.position = int(places[0])

    return jump
