"""Buffer loads and stores: addresses relative to a resource, checked against its size.

The resource is four scalar registers: the base address, the stride, and the number of records,
which is a number of bytes where the stride is 0 or the instruction has no index ("raw buffer"). An
access beyond them reads 0 or writes nothing, a register at a time. Sources: the "Buffer resource
descriptor" and "range checking" sections of the CDNA3 and RDNA3 ISA manuals, and for gfx1250's
57-bit base and 45-bit size LLVM's AMDGPU usage guide ("Buffer fat pointers").

Where a kernel has spilled registers on gfx90a, it accesses scratch through such a resource, which
swizzles: a bit says so, and the access goes to the lane's own `scratch`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.emulate.isa import transfer
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.transfer import Width
from tilewright.emulate.memory import Addresses, Bools, Words
from tilewright.emulate.scratch import SWIZZLE
from tilewright.emulate.waits import Entry
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.effects import bits
from tilewright.listing.operand import Operand
from tilewright.listing.text import Instruction


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an instruction accesses memory: addresses, and offsets that are checked against the
    size, both int64 (waves, lanes); the size, int64 (waves, 1)."""

    at: Addresses
    offset: Addresses
    size: Array


def placing(
    ins: Instruction, context: Context, address: Operand, resource: Operand, offset: Operand
) -> Callable[[Waves], Placed]:
    """Where an instruction with these operands accesses memory."""
    if resource.file != "s" or resource.count != 4:
        raise ValueError(f"{resource.text} is no resource")
    if "idxen" in ins.flags:
        raise ValueError("idxen")
    constant = ins.modifiers.whole("offset")
    offen = "offen" in ins.flags
    voffset = transfer.vector(address, 1) if offen else -1
    if not offen and address.file != "none":
        raise ValueError(f"an address {address.text} without offen")
    register = resource.first
    scalar = _scalar(offset)
    wide = context.target.generation == "gfx1250"

    def places(waves: Waves) -> Placed:
        words = waves.scalar[register : register + 4].astype(np.int64)
        if wide:
            base = words[0] | (words[1] & 0x1FFFFFF) << 32
            size = words[1] >> 25 | words[2] << 7 | (words[3] & 0x3F) << 39
        else:
            base = words[0] | (words[1] & 0xFFFF) << 32
            size = words[2]
        start = scalar(waves)
        relative = np.broadcast_to(np.int64(constant), waves.active.shape)
        if offen:
            relative = waves.vector[voffset].astype(np.int64) + constant
        return Placed((base + start)[:, None] + relative, relative, (size - start)[:, None])

    return places


def _scalar(offset: Operand) -> Callable[[Waves], Array]:
    """The value of the scalar offset, int64 (waves,) or (1,)."""
    if offset.file == "s":
        register = offset.first
        return lambda waves: waves.scalar[register].astype(np.int64)
    if offset.file == "none":
        value = 0
    elif offset.file == "constant" and isinstance(offset.value, int):
        value = offset.value & 0xFFFFFFFF
    else:
        raise ValueError(f"a scalar offset {offset.text}")
    return lambda waves: np.array([value], np.int64)


def whole(placed: Placed, size: int, mask: Bools) -> tuple[Bools, bool]:
    """Where in `mask` the first register of an access is inside the buffer, and whether the rest
    is where that is."""
    first = mask & (placed.offset + min(size, 4) <= placed.size)
    if size <= 4:
        return first, True
    last = mask & (placed.offset + size <= placed.size)
    return last, bool((first == last).all())


@means(*(f"buffer_load_{word}" for word in transfer.GFX9_LOADS), generations=transfer.GFX9)
@means(*(f"buffer_load_{word}" for word in transfer.LATER_LOADS), generations=transfer.LATER)
def _load(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("buffer_load_"))
    coherent = transfer.plain(ins)
    if "lds" in ins.flags:
        return _load_to_lds(ins, context, wide)
    transfer.no_halves(ins, wide, context)
    data, address, resource, offset = ins.operands
    first = transfer.vector(data, wide.registers)
    places = placing(ins, context, address, resource, offset)
    to, registers, second = transfer.waiting(context, "load"), bits(data), resource.first + 1
    may_swizzle = context.target.generation in ("cdna1", "cdna2")

    def execute(waves: Waves) -> None:
        time = 0
        if may_swizzle and (waves.scalar[second] & np.uint32(SWIZZLE)).any():
            values = context.scratch.load(ins, waves, places(waves).at, wide.size, waves.active)
        else:
            values, time = _fetch(context, ins, waves, places(waves), wide.size, coherent)
        transfer.put(waves, first, values, wide)
        waves.counters.issue(to, Entry("load", registers, time=time))

    return execute


def _fetch(
    context: Context, ins: Instruction, waves: Waves, placed: Placed, size: int, coherent: bool
) -> tuple[Words, int]:
    mask, together = whole(placed, size, waves.active)
    if together:
        return transfer.load(context, ins, waves, placed.at, size, mask, coherent=coherent)
    values, time = [], 0
    for at in range(0, size, 4):
        inside = waves.active & (placed.offset + at + 4 <= placed.size)
        word, noted = transfer.load(
            context, ins, waves, placed.at + at, 4, inside, coherent=coherent
        )
        values.append(word[0])
        time = time or noted
    return np.stack(values), time


def _load_to_lds(ins: Instruction, context: Context, wide: Width) -> Executor:
    address, resource, offset = ins.operands
    places = placing(ins, context, address, resource, offset)
    to, landing = transfer.waiting(context, "load"), transfer.to_lds(ins, context, wide.size)

    def execute(waves: Waves) -> None:
        values, time = _fetch(context, ins, waves, places(waves), wide.size, False)
        at = landing(waves)
        if context.counts is not None:
            context.counts.lds_access(ins, at, waves.active, wide.size, True)
        lands = context.shared.store(ins, waves, at, values, wide.size, waves.active, flying=True)
        waves.counters.issue(to, Entry("load", time=time, lands=lands))

    return execute


@means(*(f"buffer_store_{word}" for word in transfer.GFX9_STORES), generations=transfer.GFX9)
@means(*(f"buffer_store_{word}" for word in transfer.LATER_STORES), generations=transfer.LATER)
def _store(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("buffer_store_"))
    transfer.plain(ins)
    data, address, resource, offset = ins.operands
    first = transfer.vector(data, wide.registers)
    places = placing(ins, context, address, resource, offset)
    to, second = transfer.waiting(context, "store"), resource.first + 1
    may_swizzle = context.target.generation in ("cdna1", "cdna2")

    def execute(waves: Waves) -> None:
        values, time = transfer.taken(waves, first, wide), 0
        if may_swizzle and (waves.scalar[second] & np.uint32(SWIZZLE)).any():
            context.scratch.store(ins, waves, places(waves).at, values, wide.size, waves.active)
        else:
            placed = places(waves)
            mask, together = whole(placed, wide.size, waves.active)
            if together:
                time = transfer.store(context, ins, waves, placed.at, values, wide.size, mask)
            else:
                for at in range(0, wide.size, 4):
                    inside = waves.active & (placed.offset + at + 4 <= placed.size)
                    word = values[at // 4 : at // 4 + 1]
                    noted = transfer.store(context, ins, waves, placed.at + at, word, 4, inside)
                    time = time or noted
        waves.counters.issue(to, Entry("store", time=time))

    return execute
