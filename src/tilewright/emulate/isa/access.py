"""How instructions read and write their operands, with every modifier of the encodings.

A reader gives an array of shape (waves or 1, lanes or 1) of the type that its kind says; a writer
takes one, and writes the lanes that are active. What a modifier decides is decided when the reader
or the writer is made.

Kinds: ``u32 i32 f32 b32 u16 i16 f16 bf16 u64 i64 f64``. b32 is u32 whose sign bit the modifiers of
floats may change (``v_cndmask_b32``). bf16 is read as fp32, and written from fp32, rounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa import rounding
from tilewright.emulate.isa.dpp import Move, move
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import EXEC, Operand
from tilewright.listing.target import Target
from tilewright.listing.text import Instruction

Reader = Callable[[Waves], Array]
Writer = Callable[[Waves, Array], None]

TYPES: dict[str, type[np.generic]] = {
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "b32": np.uint32,
    "u16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "bf16": np.float32,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
}
"""The type of the array that a reader of a kind gives."""

UNNUMBERED = -1
"""The number of a source that no modifier counts."""

_FLOATS = ("f32", "b32", "f16", "bf16", "f64")
_SELECTED = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "DWORD": (0, 32),
}
"""The first bit and the number of bits of each selection of SDWA."""
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)


def bits(kind: str) -> int:
    """Bits of a value of a kind."""
    return 16 if kind == "bf16" else int(kind[1:])


def constant(value: int | float, kind: str) -> int:
    """The bits of a constant where a value of this kind is read.

    Whole numbers are bits as they stand; a 32-bit literal of an fp64 operand is its upper half.
    Other numbers are values in the operand's precision, fp32 for integers (``v_mov_b32 v0, 1.0``).
    """
    if isinstance(value, float):
        if kind == "f16":
            return int.from_bytes(struct.pack("<e", value), "little")
        if kind == "bf16":
            return int(rounding.to_bf16(np.array([value], np.float32))[0])
        if bits(kind) == 64:
            return int.from_bytes(struct.pack("<d", value), "little")
        return int.from_bytes(struct.pack("<f", value), "little")
    if kind == "f64" and not -16 <= value <= 64 and value < 1 << 32:
        return (value & 0xFFFFFFFF) << 32
    if kind == "i64" and 1 << 31 <= value < 1 << 32:
        raise ValueError(f"whether {value:#x} is extended by its sign is unknown")
    return value & ((1 << max(bits(kind), 32)) - 1)


def word(op: Operand, kind: str = "u32", index: int = 0) -> Reader:
    """A reader of one 32-bit word of an operand, as uint32, without modifiers."""
    if op.file == "v":
        register = op.first + index
        return lambda waves: waves.vector[register]
    if op.file == "s":
        register = op.first + index
        return lambda waves: waves.scalar[register][:, None]
    if op.file == "constant":
        value = np.array([[constant(op.value, kind) >> 32 * index & 0xFFFFFFFF]], np.uint32)
        return lambda waves: value
    if op.file == "scc" and index == 0:
        return lambda waves: waves.scc.astype(np.uint32)[:, None]
    if op.text == "null" or op.file == "scc":
        zero = np.zeros((1, 1), np.uint32)
        return lambda waves: zero
    raise ValueError(f"{op.text} is no operand to read {kind} from")


def source(
    ins: Instruction,
    index: int,
    kind: str,
    target: Target | None = None,
    number: int | None = None,
) -> Reader:
    """A reader of operand `index` with the instruction's modifiers.

    target: whose denormal mode counts; without one, denormals are kept.
    number: of the source as modifiers count it, from 0; by default the one that operand `index` has
        behind one destination.
    Raises ValueError for a modifier that a value of this kind cannot have.
    """
    op = ins.operands[index]
    number = index - 1 if number is None else number
    size = bits(kind)
    if op.file in ("v", "s") and op.count != max(1, size // 32):
        raise ValueError(f"{op.text} has not the registers of {kind}")
    words = [word(op, kind, each) for each in range(max(1, size // 32))]
    if number == 0 and (moved := move(ins)) is not None:
        words = [_moved(each, moved) for each in words]
    shift, width = _selection(ins, op, number, size)
    if (shift, width) != (0, 32):
        words = [_selected(words[0], shift, width, op.sext, size)]
    if (op.negate or op.absolute) and kind not in _FLOATS:
        raise ValueError(f"{op.text} changes the sign of {kind}")
    sign = np.uint32(0x8000 if size == 16 else 0x80000000)
    if op.absolute:
        words[-1] = _with(words[-1], lambda x: x & ~sign)
    if op.negate:
        words[-1] = _with(words[-1], lambda x: x ^ sign)
    if kind == "f32" and target is not None and not target.denormals_32:
        words[0] = _with(words[0], rounding.flushed)
    if size == 64:
        low, high = words
        as_type = TYPES[kind]
        return lambda waves: (
            low(waves).astype(np.uint64) | (high(waves).astype(np.uint64) << _HIGH)
        ).view(as_type)
    return _typed(words[0], kind)


def _with(read: Reader, change: Callable[[Array], Array]) -> Reader:
    return lambda waves: change(read(waves))


def _typed(read: Reader, kind: str) -> Reader:
    if kind in ("u32", "b32"):
        return read
    if kind in ("i32", "f32"):
        as_type = TYPES[kind]
        return lambda waves: read(waves).view(as_type)
    if kind == "bf16":
        return lambda waves: (read(waves) << np.uint32(16)).view(np.float32)
    as_half = TYPES[kind]
    return lambda waves: read(waves).astype(np.uint16).view(as_half)


def _selection(ins: Instruction, op: Operand, number: int, size: int) -> tuple[int, int]:
    """The first bit and the number of bits that a source takes of its register: (0, 32) but for
    SDWA's selections, ``op_sel`` and registers' named halves."""
    chosen = ins.modifiers.get(f"src{number}_sel")
    if chosen is not None:
        return _SELECTED[str(chosen)]
    selected = ins.modifiers.bits("op_sel")
    high = op.half == "h" or (0 <= number < len(selected) and selected[number] == 1)
    if (op.half or high) and size != 16:
        raise ValueError(f"{op.text} is half a register, and {size} bits are read")
    return (16, 16) if high else (0, 32)


def _selected(read: Reader, shift: int, width: int, sext: bool, size: int) -> Reader:
    start, kept = np.uint32(shift), np.uint32((1 << width) - 1)
    if not sext:
        return lambda waves: (read(waves) >> start) & kept
    if size == 64:
        raise ValueError("sext of 64 bits")
    left, right = np.uint32(32 - shift - width), np.int32(32 - width)
    return lambda waves: ((read(waves) << left).view(np.int32) >> right).view(np.uint32)


def _moved(read: Reader, moved: Move) -> Reader:
    """The words that DPP brings from other lanes."""

    def from_other_lanes(waves: Waves) -> Array:
        found = np.broadcast_to(read(waves), waves.active.shape)
        lanes = found.shape[1]
        found = found[:, moved.origin[:lanes]]
        if moved.zero:
            found = np.where(moved.readable(waves.active), found, np.uint32(0))
        return found

    return from_other_lanes


def destination(
    ins: Instruction,
    index: int = 0,
    kind: str = "u32",
    target: Target | None = None,
    keeps_high: bool = False,
    sources: int | None = None,
) -> Writer:
    """A writer of vector register operand `index`, active lanes only, with the instruction's
    modifiers (clamp of floats, SDWA, ``op_sel``, DPP's masks, named halves).

    A 16-bit result leaves the other half of its register as it was from gfx10 on; before, it zeroes
    the upper half, unless it goes there by ``op_sel``, or the instruction `keeps_high` bits (LLVM's
    `zeroesHigh16BitsOfDest` lists which do).
    sources: how many the instruction has; by default the operands behind `index`. ``op_sel``'s bit
        of the destination follows theirs.
    Raises ValueError for an operand that is no vector register.
    """
    op = ins.operands[index]
    size = bits(kind)
    if op.file != "v" or op.count != max(1, size // 32):
        raise ValueError(f"{op.text} is no vector register for {kind}")
    modify = _modified(ins, kind, target)
    moved = move(ins)
    register = op.first
    if size == 64:
        return _pair_writer(register, modify, moved)
    selection = ins.modifiers.get("dst_sel")
    if selection not in (None, "DWORD"):
        shift, width = _SELECTED[str(selection)]
        unused = str(ins.modifiers["dst_unused"])
        return _part_writer(register, modify, moved, shift, width, unused)
    ins.modifiers.get("dst_unused")
    if size == 16:
        selected = ins.modifiers.bits("op_sel")
        sources = len(ins.operands) - index - 1 if sources is None else sources
        high = op.half == "h" or (sources < len(selected) and selected[sources] == 1)
        zeroes = target is not None and target.cdna and not keeps_high and not op.half
        if high or not zeroes:
            return _part_writer(register, modify, moved, 16 * high, 16, "UNUSED_PRESERVE")
    elif op.half:
        raise ValueError(f"{op.text} is half a register, and {kind} is written")
    if moved is not None:
        return _moved_writer(register, modify, moved)

    def write(waves: Waves, value: Array) -> None:
        if waves.full:
            waves.vector[register][...] = modify(value)
        else:
            np.copyto(waves.vector[register], modify(value), where=waves.active)

    return write


def part_destination(ins: Instruction, first: int, size: int) -> Writer:
    """A writer of `size` bits, as uint32, from bit `first` of vector register operand 0 on. The
    others stay."""
    op = ins.operands[0]
    if op.file != "v" or op.count != 1 or op.half or ins.encoding not in ("", "e64"):
        raise ValueError(f"{op.text} is no vector register")
    return _part_writer(op.first, _same, None, first, size, "UNUSED_PRESERVE")


def _moved_writer(register: int, modify: Callable[[Array], Array], moved: Move) -> Writer:
    def write(waves: Waves, value: Array) -> None:
        np.copyto(waves.vector[register], modify(value), where=moved.written(waves.active))

    return write


def _pair_writer(register: int, modify: Callable[[Array], Array], moved: Move | None) -> Writer:
    def write(waves: Waves, value: Array) -> None:
        both = modify(value)
        where = waves.active if moved is None else moved.written(waves.active)
        np.copyto(waves.vector[register], (both & _LOW).astype(np.uint32), where=where)
        np.copyto(waves.vector[register + 1], (both >> _HIGH).astype(np.uint32), where=where)

    return write


def _part_writer(
    register: int,
    modify: Callable[[Array], Array],
    moved: Move | None,
    shift: int,
    width: int,
    unused: str,
) -> Writer:
    """A writer of some bits of a register. unused: what happens to the others, in SDWA's words."""
    kept = np.uint32((1 << width) - 1)
    start = np.uint32(shift)
    others = np.uint32(0xFFFFFFFF) ^ (kept << start)
    if unused not in ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"):
        raise ValueError(f"dst_unused:{unused}")

    def write(waves: Waves, value: Array) -> None:
        new = (modify(value) & kept) << start
        if unused == "UNUSED_PRESERVE":
            new = new | (waves.vector[register] & others)
        elif unused == "UNUSED_SEXT":  # only the bits above the selected ones
            above = np.uint32(32 - shift - width)
            new = ((new << above).view(np.int32) >> above.view(np.int32)).view(np.uint32)
        where = waves.active if moved is None else moved.written(waves.active)
        np.copyto(waves.vector[register], new, where=where)

    return write


def _modified(ins: Instruction, kind: str, target: Target | None) -> Callable[[Array], Array]:
    """What turns a result into the bits that are written: the type, after clamp."""
    as_words = _WORDS[kind]
    if kind == "f32" and target is not None and not target.denormals_32:
        return _clamped(ins, kind, lambda x: rounding.flushed(x.view(np.uint32)))
    return _clamped(ins, kind, as_words)


def _clamped(
    ins: Instruction, kind: str, as_words: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    """Floats are clamped to 0 to 1, NaN to 0 (the descriptor's DX10_CLAMP, which is always set).
    Integers saturate, which is the meaning's business (`elementwise`)."""
    if kind not in ("f32", "f16", "bf16", "f64") or "clamp" not in ins.flags:
        return as_words

    def clamp(x: Array) -> Array:
        zero, one = x.dtype.type(0), x.dtype.type(1)
        return as_words(np.where(x > zero, np.where(x < one, x, one), zero))

    return clamp


def _same(x: Array) -> Array:
    return x.view(np.uint32)


def _half(x: Array) -> Array:
    return x.view(np.uint16).astype(np.uint32)


def _double(x: Array) -> Array:
    return x.view(np.uint64)


_WORDS: dict[str, Callable[[Array], Array]] = {
    "u32": _same,
    "i32": _same,
    "f32": _same,
    "b32": _same,
    "u16": _half,
    "i16": _half,
    "f16": _half,
    "bf16": rounding.to_bf16,
    "u64": _double,
    "i64": _double,
    "f64": _double,
}


def scalar_source(ins: Instruction, index: int, kind: str = "u32") -> Reader:
    """A reader of scalar operand `index`, of shape (waves,) or (1,)."""
    op = ins.operands[index]
    if op.file == "v" or op.negate or op.absolute or op.sext:
        raise ValueError(f"{op.text} is no scalar operand")
    read = source(ins, index, kind, number=UNNUMBERED)
    return lambda waves: read(waves)[:, 0]


def scalar_destination(ins: Instruction, index: int = 0, kind: str = "u32") -> Writer:
    """A writer of scalar operand `index`, for values of shape (waves,) or (1,). What is written to
    ``null`` is gone; what is written to ``exec`` activates lanes."""
    op = ins.operands[index]
    size = bits(kind)
    if op.text == "null":
        return lambda waves, value: None
    if op.file != "s" or op.count != max(1, size // 32):
        raise ValueError(f"{op.text} is no scalar register for {kind}")
    as_words, register = _WORDS[kind], op.first
    activates = register + op.count > EXEC and register < EXEC + 2

    def write(waves: Waves, value: Array) -> None:
        found = as_words(value)
        if size == 64:
            waves.scalar[register] = (found & _LOW).astype(np.uint32)
            waves.scalar[register + 1] = (found >> _HIGH).astype(np.uint32)
        else:
            waves.scalar[register] = found
        if activates:
            waves.reread_active()

    return write


def set_condition(waves: Waves, condition: Array) -> None:
    """Set SCC from bools of shape (waves,) or (1,)."""
    waves.scc = np.array(np.broadcast_to(condition, waves.scc.shape))


def lane_mask(ins: Instruction, index: int, target: Target) -> Reader:
    """A reader of operand `index` as a bit for each lane: bool (waves or 1, lanes)."""
    return mask_reader(ins.operands[index], target)


def mask_reader(op: Operand, target: Target) -> Reader:
    """`lane_mask` of an operand."""
    lanes = target.lanes
    if op.negate or op.absolute or op.sext:
        raise ValueError(f"{op.text} is no mask of lanes")
    if op.file == "constant":
        if not isinstance(op.value, int):
            raise ValueError(f"{op.text} is no mask of lanes")
        mask = np.array([[op.value >> lane & 1 for lane in range(lanes)]], bool)
        return lambda waves: mask
    if op.file != "s" or op.count != lanes // 32:
        raise ValueError(f"{op.text} is no mask of {lanes} lanes")
    if op.first == EXEC:
        return lambda waves: waves.active
    registers = slice(op.first, op.first + op.count)

    def read(waves: Waves) -> Array:
        words = np.ascontiguousarray(waves.scalar[registers].T)
        return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(bool)

    return read


def put_lane_mask(ins: Instruction, index: int, target: Target) -> Writer:
    """A writer of a bit for each lane, bool (waves or 1, lanes), to operand `index`. Inactive lanes
    give zeros."""
    return mask_writer(ins.operands[index], target)


def mask_writer(op: Operand, target: Target) -> Writer:
    """`put_lane_mask` to an operand."""
    if op.text == "null":
        return lambda waves, value: None
    if op.file != "s" or op.count != target.lanes // 32:
        raise ValueError(f"{op.text} is no mask of {target.lanes} lanes")
    if op.first == EXEC:
        return lambda waves, value: waves.activate(value & waves.active)
    registers = slice(op.first, op.first + op.count)

    def write(waves: Waves, value: Array) -> None:
        packed = np.packbits(value & waves.active, axis=1, bitorder="little")
        waves.scalar[registers] = packed.view(np.uint32).T

    return write
