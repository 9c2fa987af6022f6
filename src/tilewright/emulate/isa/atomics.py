"""Atomics on global memory.

Lanes take their turns in order, and waves in the order of their numbers. On a GPU the order is any,
so sums of floating-point numbers may differ from a GPU's in their rounding. On CDNA, fp32 atomics
flush denormals to zero, and others keep them (CDNA3 ISA, 10.3.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.emulate.isa import transfer
from tilewright.emulate.isa.buffers import placing
from tilewright.emulate.isa.globals import places
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.transfer import Width
from tilewright.emulate.memory import Addresses, Bools, Memory, Words
from tilewright.emulate.waits import Access, Entry
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.effects import bits
from tilewright.listing.operand import Operand
from tilewright.listing.text import Instruction

_FUNCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "smin": np.minimum,
    "umin": np.minimum,
    "min": np.minimum,
    "smax": np.maximum,
    "umax": np.maximum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "pk_add": np.add,
}
_KINDS: dict[str, Any] = {
    "u32": np.uint32,
    "i32": np.int32,
    "u64": np.uint64,
    "i64": np.int64,
    "b32": np.uint32,
    "b64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}
_NAME = re.compile(r"(?:buffer|global)_atomic_(pk_add|[a-z]+?)(?:_(x2|[uibf]+\d+))?")
_INTEGER = ("add", "sub", "smin", "umin", "smax", "umax", "and", "or", "xor", "swap", "cmpswap")
_NAMES_GFX9 = tuple(f"{name}{wide}" for name in _INTEGER for wide in ("", "_x2"))
_NAMES_LATER = (
    *(f"{name}_{kind}" for name in ("add", "sub", "min", "max") for kind in ("u32", "u64")),
    *(f"{name}_{kind}" for name in ("min", "max") for kind in ("i32", "i64")),
    *(
        f"{name}_{kind}"
        for name in ("and", "or", "xor", "swap", "cmpswap")
        for kind in ("b32", "b64")
    ),
)
_FLOATS = ("add_f32", "add_f64", "pk_add_f16", "pk_add_bf16")


def _kind(ins: Instruction) -> tuple[str, Any]:
    """What an atomic does, and its type. gfx9 leaves the type out: 32 bits, or ``x2`` for 64."""
    found = _NAME.fullmatch(ins.base)
    if found is None:
        raise LookupError(ins.base)
    name, kind = found[1], found[2] or "u32"
    if kind == "x2":
        kind = "u64"
    if name in ("smin", "smax"):
        kind = kind.replace("u", "i")
    return name, _KINDS[kind]


def _both(names: tuple[str, ...]) -> list[str]:
    return [f"{where}_atomic_{name}" for where in ("buffer", "global") for name in names]


@means(*_both(_NAMES_GFX9), generations=transfer.GFX9)
@means(*_both(_NAMES_LATER), generations=transfer.LATER)
@means(*_both(_FLOATS))
def _atomic(ins: Instruction, context: Context) -> Executor:
    name, kind = _kind(ins)
    itemsize = np.dtype(kind).itemsize
    size = max(itemsize, 4)
    returns = _returns(ins)
    transfer.plain(ins)
    data, where = _operands(ins, context, returns, name, size)
    count = size // 4
    source = transfer.vector(data, 2 * count if name == "cmpswap" else count)
    result = ins.operands[0] if returns else None
    access: Access = "load" if returns else "store"
    to = transfer.waiting(context, access)
    flush = kind is np.float32 and context.target.cdna
    # Adding up results in floating point orders nothing.
    orders = np.issubdtype(kind, np.integer)

    def execute(waves: Waves) -> None:
        at, mask = where(waves)
        odd = mask & (at % size != 0)
        if odd.any():
            detail = f"{int(at[odd][0]):#x} is no multiple of {size}"
            context.findings.report("outside operands", ins, waves, odd, detail)
            mask = mask & ~odd
        good = context.memory.writable(at, size, mask)
        transfer.refuse(context, ins, waves, at, size, mask, good)
        given = waves.vector[source : source + data.count]
        time = 0
        if context.checks and context.races is not None:
            time = context.races.atomic(
                ins,
                waves,
                at,
                size,
                good,
                orders=orders,
                returns=returns,
                compares=name == "cmpswap",
            )
        if context.counts is not None:
            context.counts.global_access(ins, at, mask, size, True)
        if result is None and name not in ("swap", "cmpswap"):
            operand = np.ascontiguousarray(np.moveaxis(given, 0, -1)).view(kind)
            if flush:
                operand = flushed(operand)
                _flush_memory(context.memory, at, good)
            context.memory.update(at, good, kind, _FUNCTIONS[name], operand)
            if flush:
                _flush_memory(context.memory, at, good)
        else:
            change = _change(name, kind, given, count, flush)
            old = context.memory.exchange(at, good, size, change)
            if result is not None:
                transfer.put(waves, result.first, old, Width(size))
        registers = bits(result) if result is not None else 0
        waves.counters.issue(to, Entry(access, registers, time=time))

    return execute


def flushed(values: Array) -> Array:
    """fp32 values, denormals replaced by zeros of their sign."""
    small = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), values), values)


def _flush_memory(memory: Memory, at: Addresses, mask: Bools) -> None:
    """Flush fp32 values in memory."""
    words = memory.load(at, 4, mask)
    memory.store(at, flushed(words.view(np.float32)).view(np.uint32), 4, mask)


def _returns(ins: Instruction) -> bool:
    """Whether it returns the old value. ``sc0`` says so on gfx942 and gfx950, ``glc`` before and on
    gfx11, ``th:TH_ATOMIC_RETURN`` on gfx12."""
    hint = str(ins.modifiers.get("th", ""))
    return "sc0" in ins.flags or "glc" in ins.flags or "TH_ATOMIC_RETURN" in hint


def _operands(
    ins: Instruction, context: Context, returns: bool, name: str, size: int
) -> tuple[Operand, Callable[[Waves], tuple[Addresses, Bools]]]:
    """The data's operand, and addresses with the lanes that access them."""
    if ins.base.startswith("buffer"):
        data, address, resource, offset = ins.operands
        placed = placing(ins, context, address, resource, offset)

        def inside(waves: Waves) -> tuple[Addresses, Bools]:
            found = placed(waves)
            return found.at, waves.active & (found.offset + size <= found.size)

        return data, inside
    address, data, base = ins.operands[returns:]
    where = places(ins, context, address, base, size)
    return data, lambda waves: (where(waves), waves.active)


def _change(
    name: str, kind: Any, given: Words, count: int, flush: bool
) -> Callable[[int, int], int]:
    """The new value, of the old one and a lane's index."""
    values = np.ascontiguousarray(np.moveaxis(given, 0, -1)).reshape(-1, len(given))
    own = np.ascontiguousarray(values[:, :count]).view(f"u{4 * count}")[:, 0]
    if name == "swap":
        return lambda old, i: int(own[i])
    if name == "cmpswap":
        compare = np.ascontiguousarray(values[:, count:]).view(f"u{4 * count}")[:, 0]
        return lambda old, i: int(own[i]) if old == int(compare[i]) else old
    bits_ = np.dtype(f"u{4 * count}")

    def change(old: int, i: int) -> int:
        both = np.array([old, own[i]], bits_).view(kind)
        before, value = flushed(both) if flush else both.reshape(2, -1)
        after = np.atleast_1d(_FUNCTIONS[name](before, value)).astype(kind)
        return int((flushed(after) if flush else after).view(bits_)[0])

    return change
