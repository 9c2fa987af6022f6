"""What instructions that access memory have in common: widths, global accesses with their checks,
and how loaded data reach registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.emulate import waits
from tilewright.emulate.findings import Kind
from tilewright.emulate.isa.registry import Context
from tilewright.emulate.memory import Addresses, Bools, Words
from tilewright.emulate.waves import Array, Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.operand import M0, Operand
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

Places = Callable[[Waves], Addresses]
"""Addresses (waves, lanes) of an instruction."""


@dataclass(frozen=True, slots=True)
class Width:
    """What an access of a lane moves.

    size: in bytes. signed: a narrow load extends the sign.
    half: of a register that it loads or stores, if it leaves the other half alone.
    """

    size: int
    signed: bool = False
    half: Literal["", "l", "h"] = ""

    @property
    def registers(self) -> int:
        return -(-self.size // 4)


_SIZES = {
    "byte": 1,
    "ubyte": 1,
    "sbyte": 1,
    "b8": 1,
    "u8": 1,
    "i8": 1,
    "short": 2,
    "ushort": 2,
    "sshort": 2,
    "b16": 2,
    "u16": 2,
    "i16": 2,
    "dword": 4,
    "b32": 4,
    "dwordx2": 8,
    "b64": 8,
    "dwordx3": 12,
    "b96": 12,
    "dwordx4": 16,
    "b128": 16,
    "dwordx8": 32,
    "b256": 32,
    "dwordx16": 64,
    "b512": 64,
}
_SIGNED = ("sbyte", "i8", "sshort", "i16")


GFX9: tuple[Generation, ...] = ("cdna1", "cdna2", "cdna3", "cdna4")
LATER: tuple[Generation, ...] = ("rdna3", "rdna4", "gfx1250")
"""Generations whose mnemonics say ``dwordx4``, and those that say ``b128``."""

GFX9_WORDS = ("dword", "dwordx2", "dwordx3", "dwordx4")
GFX9_LOADS = (
    *GFX9_WORDS,
    *("ubyte", "sbyte", "ushort", "sshort", "ubyte_d16", "ubyte_d16_hi"),
    *("sbyte_d16", "sbyte_d16_hi", "short_d16", "short_d16_hi"),
)
GFX9_STORES = (*GFX9_WORDS, "byte", "short", "byte_d16_hi", "short_d16_hi")
LATER_WORDS = ("b32", "b64", "b96", "b128")
LATER_LOADS = (
    *LATER_WORDS,
    *("u8", "i8", "u16", "i16", "d16_u8", "d16_hi_u8", "d16_i8", "d16_hi_i8"),
    *("d16_b16", "d16_hi_b16"),
)
LATER_STORES = (*LATER_WORDS, "b8", "b16", "d16_hi_b8", "d16_hi_b16")


def width(words: str) -> Width:
    """The width that the end of a mnemonic says: ``dwordx4``, ``b128``, ``u16_d16_hi``,
    ``d16_hi_b16``. Raises `LookupError` for any other."""
    half: Literal["", "l", "h"] = ""
    if "d16" in words:
        half = "h" if "d16_hi" in words else "l"
        words = re.sub(r"_?d16(_hi)?_?", "", words)
    return Width(_SIZES[words], words in _SIGNED, half)


def vector(operand: Operand, registers: int) -> int:
    """The first of an operand's vector registers. Raises `ValueError` unless it is so many."""
    if operand.file != "v" or operand.count != registers or operand.half:
        raise ValueError(f"{operand.text} is not {registers} vector registers")
    return operand.first


def plain(ins: Instruction, *words: str) -> bool:
    """Ask for cache policies, and for `words`, none of which changes what is moved. Returns whether
    the access goes past the caches that are not coherent between workgroups.

    Sources: LLVM's AMDGPU usage guide, memory model: at agent scope, loads have ``glc`` on gfx90a,
    gfx10 and gfx11, ``sc1`` on gfx942 and gfx950, and ``scope:SCOPE_DEV`` on gfx12.
    """
    for word in ("slc", "dlc", "nt", "sc0", *words):
        ins.flags.get(word)
    hint = str(ins.modifiers.get("th", ""))
    if hint and not hint.startswith(("TH_LOAD_", "TH_STORE_", "TH_ATOMIC_")):
        raise ValueError(f"th:{hint}")
    scope = ins.modifiers.get("scope", "SCOPE_CU")
    if scope not in ("SCOPE_CU", "SCOPE_SE", "SCOPE_DEV", "SCOPE_SYS"):
        raise ValueError(f"scope:{scope}")
    return "glc" in ins.flags or "sc1" in ins.flags or scope in ("SCOPE_DEV", "SCOPE_SYS")


def wide_addresses(registers: int) -> Places:
    """64-bit addresses in two vector registers."""

    def places(waves: Waves) -> Addresses:
        low = waves.vector[registers].astype(np.int64)
        address: Addresses = low | waves.vector[registers + 1].astype(np.int64) << 32
        return address

    return places


def scalar_address(waves: Waves, register: int) -> Array:
    """64-bit addresses in two scalar registers, int64 (waves,)."""
    low = waves.scalar[register].astype(np.int64)
    return np.asarray(low | waves.scalar[register + 1].astype(np.int64) << 32)


# ------------------------------------------------------------------------------- global accesses


def load(
    context: Context,
    ins: Instruction,
    waves: Waves,
    at: Addresses,
    size: int,
    mask: Bools,
    *,
    coherent: bool = False,
) -> tuple[Words, int]:
    """Load from global memory, with checks: (words, …), zero where `mask` is not set or the address
    is outside, and the time for `waits.Entry`."""
    memory = context.memory
    good = memory.readable(at, size, mask)
    refuse(context, ins, waves, at, size, mask, good)
    time = 0
    if context.checks:
        defined = memory.defined(at, size, good)
        if (defined != good).any():
            bad = good & ~defined
            detail = memory.where(int(at[bad][0]), size)
            context.findings.report("unwritten memory", ins, waves, bad, detail)
        if context.races is not None:
            time = context.races.load(ins, waves, at, size, good, coherent=coherent)
    if context.counts is not None:
        context.counts.global_access(ins, at, mask, size, False)
    return memory.load(at, size, good), time


def store(
    context: Context,
    ins: Instruction,
    waves: Waves,
    at: Addresses,
    values: Words,
    size: int,
    mask: Bools,
) -> int:
    """Store the first `size` bytes of (words, …) to global memory, with checks; the time for
    `waits.Entry`."""
    memory = context.memory
    good = memory.writable(at, size, mask)
    refuse(context, ins, waves, at, size, mask, good)
    memory.store(at, values, size, good)
    if context.counts is not None:
        context.counts.global_access(ins, at, mask, size, True)
    time = 0
    if context.checks and context.races is not None:
        time = context.races.store(ins, waves, at, size, good)
    return time


def refuse(
    context: Context,
    ins: Instruction,
    waves: Waves,
    at: Addresses,
    size: int,
    mask: Bools,
    good: Bools,
) -> None:
    """Report the accesses of `mask` that are not `good`."""
    if np.array_equal(good, mask):
        return
    bad = mask & ~good
    held = bad & context.memory.readable(at, size, bad)
    kinds: tuple[tuple[Bools, Kind], ...] = (
        (bad & ~held, "outside operands"),
        (held, "read-only operand"),
    )
    for which, kind in kinds:
        if which.any():
            detail = context.memory.where(int(at[which][0]), size)
            context.findings.report(kind, ins, waves, which, detail)


# ------------------------------------------------------------------------------------- registers


def put(waves: Waves, first: int, values: Words, wide: Width) -> None:
    """Write loaded words (words, waves, lanes) to the active lanes of vector registers."""
    if wide.signed:
        spare = np.int32(32 - 8 * wide.size)
        values = (values.view(np.int32) << spare >> spare).view(np.uint32)
    if wide.half:
        old = waves.vector[first]
        if wide.half == "h":
            values = (old & np.uint32(0xFFFF)) | (values << np.uint32(16))
        else:
            values = (old & np.uint32(0xFFFF0000)) | (values & np.uint32(0xFFFF))
    target = waves.vector[first : first + len(values)]
    if waves.full:
        target[...] = values
    else:
        np.copyto(target, values, where=waves.active)


def taken(waves: Waves, first: int, wide: Width) -> Words:
    """The words (words, waves, lanes) that a store writes."""
    values = waves.vector[first : first + wide.registers]
    return values >> np.uint32(16) if wide.half == "h" else values


def to_lds(ins: Instruction, context: Context, size: int, low: int = 0) -> Places:
    """Where loads straight to LDS put their data: at M0, the instruction's offset, and 4 bytes for
    each lane, or 16 if it loads three or four words.

    Bits `low` to 15 of M0 count; on gfx950, with its 160 KiB of LDS, bits `low` to 17. Sources:
    CDNA3 and CDNA4 ISA, 9.1.9 "Memory Buffer Load to LDS" (M0[15:0], M0[17:0]), and 10.3 for
    global loads, which leave out the lowest two bits.
    """
    if size not in (4, 12, 16):
        raise ValueError(f"{size} bytes to LDS")
    high = 18 if context.target.generation == "cdna4" else 16
    mask = np.int64((1 << high) - (1 << low))
    step = 4 if size == 4 else 16
    lanes = np.arange(context.target.lanes) * step + ins.modifiers.whole("offset")

    def places(waves: Waves) -> Addresses:
        at: Addresses = (waves.scalar[M0].astype(np.int64) & mask)[:, None] + lanes
        return at

    return places


def no_halves(ins: Instruction, wide: Width, context: Context) -> None:
    """Raise `UnknownInstruction` for a load of half a register on CDNA: whether it keeps the other
    half depends on ECC there (LLVM: D16 loads with SRAM ECC write the whole register)."""
    if wide.half and context.target.cdna:
        raise UnknownInstruction("loads of half a register depend on ECC")


def waiting(context: Context, access: waits.Access) -> waits.Counter:
    """The counter that an access adds to."""
    return waits.counter(context.target, access)
