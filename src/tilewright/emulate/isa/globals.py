"""Global and scratch loads and stores."""

from __future__ import annotations

import numpy as np

from tilewright.emulate.isa import transfer
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.transfer import Places
from tilewright.emulate.memory import Addresses
from tilewright.emulate.waits import Entry
from tilewright.emulate.waves import Waves
from tilewright.listing.effects import bits
from tilewright.listing.operand import Operand
from tilewright.listing.text import Instruction


def places(
    ins: Instruction, context: Context, address: Operand, base: Operand, size: int
) -> Places:
    """Addresses: 64 bits in vector registers, or 64 bits in scalar registers and a 32-bit offset of
    each lane; and a constant.

    The lane's offset is unsigned, but signed on gfx1250, where ``scale_offset`` multiplies it by
    the size of the access (LLVM: ``hasSignedGVSOffset``, ``hasScaleOffset``).
    """
    constant = ins.modifiers.whole("offset")
    scale = size if "scale_offset" in ins.flags else 1
    if base.file == "none":
        if scale != 1:
            raise ValueError("scale_offset without a scalar base")
        wide = transfer.wide_addresses(transfer.vector(address, 2))
        return lambda waves: wide(waves) + constant
    if base.file != "s" or base.count != 2:
        raise ValueError(f"a base {base.text}")
    register, offset = base.first, transfer.vector(address, 1)
    kind = np.int32 if context.target.generation == "gfx1250" else np.uint32

    def based(waves: Waves) -> Addresses:
        start = transfer.scalar_address(waves, register) + constant
        lanes = waves.vector[offset].view(kind).astype(np.int64) * scale
        total: Addresses = start[:, None] + lanes
        return total

    return based


@means(*(f"global_load_{word}" for word in transfer.GFX9_LOADS), generations=transfer.GFX9)
@means(*(f"global_load_{word}" for word in transfer.LATER_LOADS), generations=transfer.LATER)
def _load(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("global_load_"))
    transfer.no_halves(ins, wide, context)
    coherent = transfer.plain(ins)
    data, address, base = ins.operands
    first = transfer.vector(data, wide.registers)
    where = places(ins, context, address, base, wide.size)
    to, registers = transfer.waiting(context, "load"), bits(data)

    def execute(waves: Waves) -> None:
        values, time = transfer.load(
            context, ins, waves, where(waves), wide.size, waves.active, coherent=coherent
        )
        transfer.put(waves, first, values, wide)
        waves.counters.issue(to, Entry("load", registers, time=time))

    return execute


@means(*(f"global_store_{word}" for word in transfer.GFX9_STORES), generations=transfer.GFX9)
@means(*(f"global_store_{word}" for word in transfer.LATER_STORES), generations=transfer.LATER)
def _store(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("global_store_"))
    transfer.plain(ins)
    address, data, base = ins.operands
    first = transfer.vector(data, wide.registers)
    where = places(ins, context, address, base, wide.size)
    to = transfer.waiting(context, "store")

    def execute(waves: Waves) -> None:
        values = transfer.taken(waves, first, wide)
        time = transfer.store(context, ins, waves, where(waves), values, wide.size, waves.active)
        waves.counters.issue(to, Entry("store", time=time))

    return execute


@means(
    *(f"global_load_lds_{word}" for word in ("dword", "dwordx3", "dwordx4")),
    generations=transfer.GFX9,
)
def _load_to_lds(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("global_load_lds_"))
    coherent = transfer.plain(ins)
    address, base = ins.operands
    where = places(ins, context, address, base, wide.size)
    to = transfer.waiting(context, "load")
    landing = transfer.to_lds(ins, context, wide.size, low=2)

    def execute(waves: Waves) -> None:
        values, time = transfer.load(
            context, ins, waves, where(waves), wide.size, waves.active, coherent=coherent
        )
        at = landing(waves)
        if context.counts is not None:
            context.counts.lds_access(ins, at, waves.active, wide.size, True)
        lands = context.shared.store(ins, waves, at, values, wide.size, waves.active, flying=True)
        waves.counters.issue(to, Entry("load", time=time, lands=lands))

    return execute


# --------------------------------------------------------------------------------------- scratch


def _in_scratch(ins: Instruction, address: Operand, base: Operand) -> Places:
    """Where in scratch an instruction accesses: at a constant, and 32 bits in a vector and in a
    scalar register."""
    transfer.plain(ins)
    constant = ins.modifiers.whole("offset")
    vector = None if address.file == "none" else transfer.vector(address, 1)
    if base.file != "none" and (base.file != "s" or base.count != 1):
        raise ValueError(f"a base {base.text}")
    scalar = base.first if base.file == "s" else None

    def at(waves: Waves) -> Addresses:
        place: Addresses = np.full(waves.active.shape, constant, np.int64)
        if vector is not None:
            place = place + waves.vector[vector]
        if scalar is not None:
            place = place + waves.scalar[scalar][:, None]
        return place

    return at


@means(*(f"scratch_load_{word}" for word in transfer.GFX9_LOADS), generations=transfer.GFX9)
@means(*(f"scratch_load_{word}" for word in transfer.LATER_LOADS), generations=transfer.LATER)
def _load_scratch(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("scratch_load_"))
    transfer.no_halves(ins, wide, context)
    data, address, base = ins.operands
    first, at = transfer.vector(data, wide.registers), _in_scratch(ins, address, base)
    to, registers = transfer.waiting(context, "load"), bits(data)

    def execute(waves: Waves) -> None:
        values = context.scratch.load(ins, waves, at(waves), wide.size, waves.active)
        transfer.put(waves, first, values, wide)
        waves.counters.issue(to, Entry("load", registers))

    return execute


@means(*(f"scratch_store_{word}" for word in transfer.GFX9_STORES), generations=transfer.GFX9)
@means(*(f"scratch_store_{word}" for word in transfer.LATER_STORES), generations=transfer.LATER)
def _store_scratch(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("scratch_store_"))
    address, data, base = ins.operands
    first, at = transfer.vector(data, wide.registers), _in_scratch(ins, address, base)
    to = transfer.waiting(context, "store")

    def execute(waves: Waves) -> None:
        values = transfer.taken(waves, first, wide)
        context.scratch.store(ins, waves, at(waves), values, wide.size, waves.active)
        waves.counters.issue(to, Entry("store"))

    return execute
