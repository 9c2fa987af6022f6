"""Loads, stores and atomics of LDS, and exchanges between lanes that go through its crossbar."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa import transfer
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.transfer import Width
from tilewright.emulate.memory import Addresses, Words
from tilewright.emulate.waits import Entry
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.effects import bits
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

_WORDS = ("b32", "b64", "b96", "b128")
_LOADS = (*_WORDS, "u8", "i8", "u16", "i16")
_HALVES = tuple(f"{word}_d16{hi}" for word in ("u8", "i8", "u16") for hi in ("", "_hi"))
_STORES = (*_WORDS, "b8", "b16", "b8_d16_hi", "b16_d16_hi")
_STRIDE = {"": 1, "_stride64": 64, "st64": 64}
_CDNA4: tuple[Generation, ...] = ("cdna4",)
_GFX1250: tuple[Generation, ...] = ("gfx1250",)


def _address(waves: Waves, register: int, offset: int) -> Addresses:
    """Byte addresses, int64 (waves, lanes). M0 has no part in them on these generations."""
    at: Addresses = waves.vector[register].astype(np.int64) + offset
    return at


def _read(context: Context, ins: Instruction, waves: Waves, at: Addresses, size: int) -> Words:
    if context.counts is not None:
        context.counts.lds_access(ins, at, waves.active, size, False)
    loaded: Words = context.shared.load(ins, waves, at, size, waves.active)
    return loaded


def _next(context: Context) -> int:
    """When the next access will be noted."""
    return int(context.order.now) + 1 if context.checks else 0


def _write(
    context: Context, ins: Instruction, waves: Waves, at: Addresses, values: Words, size: int
) -> None:
    if context.counts is not None:
        context.counts.lds_access(ins, at, waves.active, size, True)
    context.shared.store(ins, waves, at, values, size, waves.active)


@means(*(f"ds_read_{word}" for word in (*_LOADS, *_HALVES)), generations=transfer.GFX9)
@means(*(f"ds_load_{word}" for word in (*_LOADS, *_HALVES)), generations=transfer.LATER)
def _load(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("ds_read_").removeprefix("ds_load_"))
    transfer.no_halves(ins, wide, context)
    data, address = ins.operands
    first, register = transfer.vector(data, wide.registers), transfer.vector(address, 1)
    to, registers = transfer.waiting(context, "shared"), bits(data)
    offset = ins.modifiers.whole("offset")

    def execute(waves: Waves) -> None:
        began = _next(context)
        values = _read(context, ins, waves, _address(waves, register, offset), wide.size)
        transfer.put(waves, first, values, wide)
        waves.counters.issue(to, Entry("shared", registers, read=began))

    return execute


@means(*(f"ds_write_{word}" for word in _STORES), generations=transfer.GFX9)
@means(*(f"ds_store_{word}" for word in _STORES), generations=transfer.LATER)
def _store(ins: Instruction, context: Context) -> Executor:
    wide = transfer.width(ins.base.removeprefix("ds_write_").removeprefix("ds_store_"))
    address, data = ins.operands
    first, register = transfer.vector(data, wide.registers), transfer.vector(address, 1)
    to, offset = transfer.waiting(context, "shared"), ins.modifiers.whole("offset")

    def execute(waves: Waves) -> None:
        values = transfer.taken(waves, first, wide)
        _write(context, ins, waves, _address(waves, register, offset), values, wide.size)
        waves.counters.issue(to, Entry("shared", writes=True))

    return execute


@means("ds_add_u32")
def _add(ins: Instruction, context: Context) -> Executor:
    address, data = ins.operands
    value, register = transfer.vector(data, 1), transfer.vector(address, 1)
    to, offset = transfer.waiting(context, "shared"), ins.modifiers.whole("offset")

    def execute(waves: Waves) -> None:
        at = _address(waves, register, offset)
        if context.counts is not None:
            context.counts.lds_access(ins, at, waves.active, 4, True)
        context.shared.add(ins, waves, at, waves.vector[value], waves.active)
        waves.counters.issue(to, Entry("shared", writes=True))

    return execute


_PAIR = re.compile(r"ds_(?:read2|write2|load_2addr|store_2addr)(st64|_stride64)?_(b32|b64)")


def _pair(ins: Instruction) -> tuple[Width, tuple[int, int]]:
    """The width of each of two accesses, and their offsets in bytes. The instruction counts them in
    elements, or in 64 elements."""
    found = _PAIR.fullmatch(ins.base)
    if found is None:
        raise LookupError(ins.base)
    wide = transfer.width(found[2])
    step = wide.size * _STRIDE[found[1] or ""]
    modifiers = ins.modifiers
    return wide, (modifiers.whole("offset0") * step, modifiers.whole("offset1") * step)


@means(
    "ds_read2_b32",
    "ds_read2_b64",
    "ds_read2st64_b32",
    "ds_read2st64_b64",
    generations=transfer.GFX9,
)
@means(
    *(f"ds_load_2addr{stride}_{word}" for stride in ("", "_stride64") for word in ("b32", "b64")),
    generations=transfer.LATER,
)
def _load_two(ins: Instruction, context: Context) -> Executor:
    wide, offsets = _pair(ins)
    data, address = ins.operands
    first, register = transfer.vector(data, 2 * wide.registers), transfer.vector(address, 1)
    to, registers = transfer.waiting(context, "shared"), bits(data)

    def execute(waves: Waves) -> None:
        began = _next(context)
        parts = [
            _read(context, ins, waves, _address(waves, register, offset), wide.size)
            for offset in offsets
        ]
        transfer.put(waves, first, np.concatenate(parts), wide)
        waves.counters.issue(to, Entry("shared", registers, read=began))

    return execute


@means(
    *("ds_write2_b32", "ds_write2_b64", "ds_write2st64_b32", "ds_write2st64_b64"),
    generations=transfer.GFX9,
)
@means(
    *(f"ds_store_2addr{stride}_{word}" for stride in ("", "_stride64") for word in ("b32", "b64")),
    generations=transfer.LATER,
)
def _store_two(ins: Instruction, context: Context) -> Executor:
    wide, offsets = _pair(ins)
    address, *datas = ins.operands
    register = transfer.vector(address, 1)
    firsts = [transfer.vector(data, wide.registers) for data in datas]
    to = transfer.waiting(context, "shared")

    def execute(waves: Waves) -> None:
        for first, offset in zip(firsts, offsets, strict=True):
            values = transfer.taken(waves, first, wide)
            _write(context, ins, waves, _address(waves, register, offset), values, wide.size)
        waves.counters.issue(to, Entry("shared", writes=True))

    return execute


# ------------------------------------------------------------------------------ transposing loads


@means(*(f"ds_read_b64_tr_b{width}" for width in (4, 8, 16)), generations=_CDNA4)
def _load_columns(ins: Instruction, context: Context) -> Executor:
    """16 lanes load a block of 64 bits each, which are rows of elements; each lane receives a
    column. With e elements in 64 bits, lane l of 16 receives element l % e of the lanes
    j * 16/e + l // e, for j from 0 to e - 1, in this order.

    Source: CDNA4 ISA, "LDS transpose loads"; LLVM's tests of ``ds_read_tr``; Triton's
    ``ds_read_tr`` layouts (``LinearLayoutConversions``).
    """
    wide = int(ins.base.rpartition("_b")[2])
    each = 64 // wide
    return _transposing(ins, context, wide, np.arange(each) * (16 // each), 1)


@means("ds_load_tr8_b64", generations=_GFX1250)
def _load_octets(ins: Instruction, context: Context) -> Executor:
    """16 lanes load a block of 8 bytes each; each lane receives a column of 8 of these rows: lane l
    of 16 receives byte l % 8 of the lanes j, j + 1, j + 2, j + 3, j + 8, j + 9, j + 10, j + 11 with
    j = l // 8 * 4, in this order. The rows of a column are not a CDNA4's: there they are all even
    or all odd lanes.

    Source: what a public demonstration of the instruction observed on gfx1250; the addresses that
    Triton's lowering of transposing loads gives the lanes agree, or the products were wrong.
    """
    return _transposing(ins, context, 8, np.array([0, 1, 2, 3, 8, 9, 10, 11]), 4)


def _transposing(
    ins: Instruction, context: Context, wide: int, rows: Array, apart: int
) -> Executor:
    """A load of blocks of 64 bits by 16 lanes each, of which lane l receives element l % e of
    lanes `rows` + `apart` * (l // e), where e elements of `wide` bits are in a block."""
    data, address = ins.operands
    first, register = transfer.vector(data, 2), transfer.vector(address, 1)
    to, registers = transfer.waiting(context, "shared"), bits(data)
    offset = ins.modifiers.whole("offset")
    lane = np.arange(context.target.lanes)[:, None]
    giving = lane // 16 * 16 + rows + lane % 16 // rows.size * apart
    column = np.broadcast_to(lane % rows.size, giving.shape)

    def execute(waves: Waves) -> None:
        began = _next(context)
        values = _read(context, ins, waves, _address(waves, register, offset), 8)
        elements = _elements(np.moveaxis(values, 0, -1), wide)
        transposed = _packed(elements[:, giving, column], wide)
        transfer.put(waves, first, np.moveaxis(transposed, -1, 0), Width(8))
        waves.counters.issue(to, Entry("shared", registers, read=began))

    return execute


def _elements(words: Words, wide: int) -> Array:
    """The elements of `wide` bits in the last axis, one a byte or more."""
    words = np.ascontiguousarray(words)
    if wide == 16:
        return words.view(np.uint16)
    octets = words.view(np.uint8)
    if wide == 8:
        return octets
    return np.stack([octets & np.uint8(15), octets >> np.uint8(4)], -1).reshape(
        *octets.shape[:-1], -1
    )


def _packed(elements: Array, wide: int) -> Words:
    """The inverse of `_elements`."""
    elements = np.ascontiguousarray(elements)
    if wide == 4:
        elements = elements[..., ::2] | elements[..., 1::2] << np.uint8(4)
    words: Words = elements.view(np.uint32)
    return words


# ------------------------------------------------------------------------- exchanges between lanes


@means("ds_bpermute_b32")
def _pull(ins: Instruction, context: Context) -> Executor:
    """Each lane takes the value of the lane that its address names, in bytes. A lane that is not
    active gives 0."""
    data, address, source = ins.operands
    first, register, value = (transfer.vector(each, 1) for each in (data, address, source))
    to, registers = transfer.waiting(context, "shared"), bits(data)
    offset, last = ins.modifiers.whole("offset"), context.target.lanes - 1

    def execute(waves: Waves) -> None:
        lane = (_address(waves, register, offset) >> 2) & last
        given = np.where(waves.active, waves.vector[value], np.uint32(0))
        transfer.put(waves, first, np.take_along_axis(given, lane, 1)[None], Width(4))
        waves.counters.issue(to, Entry("shared", registers))

    return execute


@means("ds_permute_b32")
def _push(ins: Instruction, context: Context) -> Executor:
    """Each active lane gives its value to the lane that its address names, in bytes; of several the
    highest lane's counts, and a lane that is given nothing holds 0."""
    data, address, source = ins.operands
    first, register, value = (transfer.vector(each, 1) for each in (data, address, source))
    to, registers = transfer.waiting(context, "shared"), bits(data)
    offset, last = ins.modifiers.whole("offset"), context.target.lanes - 1

    def execute(waves: Waves) -> None:
        lane = (_address(waves, register, offset) >> 2) & last
        made = np.zeros(waves.active.shape, np.uint32)
        row, column = np.nonzero(waves.active)  # in order, so that the highest lane is last
        made[row, lane[row, column]] = waves.vector[value][row, column]
        transfer.put(waves, first, made[None], Width(4))
        waves.counters.issue(to, Entry("shared", registers))

    return execute


@means("ds_swizzle_b32")
def _swizzle(ins: Instruction, context: Context) -> Executor:
    """Each lane takes the value of a lane that the offset's pattern names: ``SWAP,n`` exchanges
    groups of n lanes. A lane that is not active gives 0."""
    data, source = ins.operands
    first, value = transfer.vector(data, 1), transfer.vector(source, 1)
    to, registers = transfer.waiting(context, "shared"), bits(data)
    lane = _pattern(str(ins.modifiers["offset"]), np.arange(context.target.lanes))

    def execute(waves: Waves) -> None:
        given = np.where(waves.active, waves.vector[value], np.uint32(0))
        transfer.put(waves, first, given[:, lane][None], Width(4))
        waves.counters.issue(to, Entry("shared", registers))

    return execute


def _pattern(text: str, lane: Array) -> Array:
    """The lane that each takes from."""
    found = re.fullmatch(r"swizzle\((\w+),(.*)\)", text.replace(" ", ""))
    if found is None:
        raise ValueError(f"offset:{text}")
    numbers = [int(each) for each in found[2].split(",")]
    patterns: dict[str, Callable[[], Array]] = {
        "SWAP": lambda: lane ^ numbers[0],
        "REVERSE": lambda: lane ^ (numbers[0] - 1),
        "BROADCAST": lambda: lane // numbers[0] * numbers[0] + numbers[1],
        "QUAD_PERM": lambda: lane // 4 * 4 + np.array(numbers)[lane % 4],
    }
    return patterns[found[1]]()
