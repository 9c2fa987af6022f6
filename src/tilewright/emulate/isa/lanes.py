"""Instructions that move values between lanes, or between lanes and scalar registers."""

from __future__ import annotations

import numpy as np

from tilewright.emulate.isa.access import (
    UNNUMBERED,
    Reader,
    destination,
    scalar_destination,
    scalar_source,
    source,
    word,
)
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.text import Instruction


@means("v_readfirstlane_b32")
def _first_lane(ins: Instruction, context: Context) -> Executor:
    """The value of the first active lane; lane 0's if none is active."""
    read, write = source(ins, 1, "u32", context.target), scalar_destination(ins)

    def execute(waves: Waves) -> None:
        value = np.broadcast_to(read(waves), waves.active.shape)
        if waves.full:
            write(waves, value[:, 0])
        else:
            write(waves, value[np.arange(waves.count), waves.active.argmax(1)])

    return execute


def _lane(read: Reader, waves: Waves) -> Array:
    """Lane numbers, int64 (waves,)."""
    number = np.broadcast_to(read(waves), (waves.count,)) & np.uint32(waves.lanes - 1)
    return number.astype(np.int64)


@means("v_readlane_b32")
def _read_lane(ins: Instruction, context: Context) -> Executor:
    """The value of one lane, active or not."""
    read, number = source(ins, 1, "u32", context.target), scalar_source(ins, 2)
    write = scalar_destination(ins)

    def execute(waves: Waves) -> None:
        value = np.broadcast_to(read(waves), waves.active.shape)
        write(waves, value[np.arange(waves.count), _lane(number, waves)])

    return execute


@means("v_writelane_b32")
def _write_lane(ins: Instruction, context: Context) -> Executor:
    """Write one lane, active or not."""
    read, number, op = scalar_source(ins, 1), scalar_source(ins, 2), ins.operands[0]
    if op.file != "v" or op.count != 1 or op.half:
        raise ValueError(f"{op.text} is no vector register")

    def execute(waves: Waves) -> None:
        waves.vector[op.first][np.arange(waves.count), _lane(number, waves)] = read(waves)

    return execute


@means("v_permlane16_b32", "v_permlanex16_b32", generations=("rdna3", "rdna4", "gfx1250"))
def _permute_rows(ins: Instruction, context: Context) -> Executor:
    """Any lane of the own row of 16 (of the other row of the pair, x16), chosen by four bits for
    each lane in two scalars. RDNA3 ISA, V_PERMLANE16_B32: ``op_sel``'s first bit reads inactive
    lanes; its second gives zero instead of leaving a lane alone whose source is inactive."""
    lanes = np.arange(context.target.lanes)
    row = lanes // 16 ^ (1 if "x16" in ins.base else 0)
    shift = (lanes % 8 * 4).astype(np.uint32)
    read = source(ins, 1, "u32", context.target, number=UNNUMBERED)
    low, high = scalar_source(ins, 2), scalar_source(ins, 3)
    inactive, zero = (*ins.modifiers.bits("op_sel", (0, 0)), 0)[:2]
    op = ins.operands[0]
    if op.file != "v":
        raise ValueError(f"{op.text} is no vector register")

    def execute(waves: Waves) -> None:
        shape = waves.active.shape
        word_ = np.where(lanes % 16 < 8, low(waves)[:, None], high(waves)[:, None])
        chosen = row * 16 + ((word_ >> shift) & np.uint32(15)).astype(np.int64)
        chosen = np.broadcast_to(chosen, shape)
        found = np.take_along_axis(np.broadcast_to(read(waves), shape), chosen, 1)
        written = waves.active
        if not inactive and not waves.full:
            readable = np.take_along_axis(waves.active, chosen, 1)
            if zero:
                found = np.where(readable, found, np.uint32(0))
            else:
                written = written & readable
        np.copyto(waves.vector[op.first], found, where=written)

    return execute


@means("v_permlane32_swap_b32", "v_permlane16_swap_b32", generations=("cdna4", "gfx1250"))
def _swap_rows(ins: Instruction, context: Context) -> Executor:
    """The upper lanes of the first register and the lower lanes of the second change places: of the
    wave (32), or of each half of it (16). CDNA4 ISA, V_PERMLANE32_SWAP_B32, which moves inactive
    lanes unless a modifier says otherwise; with inactive lanes it is not known here."""
    size = int(ins.base[10:12])
    first, second = ins.operands
    if first.file != "v" or second.file != "v":
        raise ValueError("an operand is no vector register")
    lanes = np.arange(context.target.lanes)
    lower, upper = lanes[lanes // size % 2 == 0], lanes[lanes // size % 2 == 1]

    def execute(waves: Waves) -> None:
        if not waves.full:
            raise UnknownInstruction(
                f"line {ins.line}: `{ins.text}`: the emulator does not know it with inactive lanes"
            )
        a, b = waves.vector[first.first], waves.vector[second.first]
        moved = a[:, upper]
        a[:, upper] = b[:, lower]
        b[:, lower] = moved

    return execute


@means("v_swap_b32")
def _swap(ins: Instruction, context: Context) -> Executor:
    """Two registers change places in the active lanes."""
    first, second = word(ins.operands[0]), word(ins.operands[1])
    into_first = destination(ins, 0, "u32", context.target)
    into_second = destination(ins, 1, "u32", context.target)

    def execute(waves: Waves) -> None:
        a, b = first(waves).copy(), second(waves).copy()
        into_first(waves, b)
        into_second(waves, a)

    return execute
