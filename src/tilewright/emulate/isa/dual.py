"""Dual instructions of gfx11 and later (VOPD): two at once."""

from __future__ import annotations

from tilewright.emulate.isa.registry import Context, Executor, executor, means
from tilewright.emulate.waves import Waves
from tilewright.listing.text import Instruction


@means("v_dual", generations=("rdna3", "rdna4", "gfx1250"))
def _dual(ins: Instruction, context: Context) -> Executor:
    """Both halves read before either writes (RDNA3 ISA, "Dual Issue VALU")."""
    first, second = ins.parts
    place = first.operands[0]
    if place.file != "v":
        raise ValueError(f"{place.text} is no vector register")
    registers = list(place.registers)
    if any(each in second.operands[0].registers for each in registers):
        raise ValueError("both halves write one register")
    execute_first, execute_second = executor(first, context), executor(second, context)
    reads = {number for each in second.operands if each.file == "v" for number in each.registers}
    if not reads.intersection(registers):  # then the order does not matter

        def in_order(waves: Waves) -> None:
            execute_first(waves)
            execute_second(waves)

        return in_order

    def execute(waves: Waves) -> None:
        before = waves.vector[registers]
        execute_first(waves)
        after = waves.vector[registers]
        waves.vector[registers] = before
        execute_second(waves)
        waves.vector[registers] = after

    return execute
