"""The compiler's listing of a kernel, parsed: instructions, labels, descriptor, arguments.

The listing is the text that the compiler assembled the code object from (`proof` shows that it
assembles to the same bytes), so nothing has to be decoded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import BadFile, shown
from tilewright.listing.operand import Operand, operand, whole
from tilewright.listing.target import Target, target_of

Value = int | str | tuple[int, ...]


class Asked(Mapping[str, Value]):
    """Modifiers or flags of an instruction, by name, and which of them somebody asked for.

    An instruction's meaning must ask for each of them: what it did not ask for, it does not know.
    """

    __slots__ = ("_values", "asked")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def whole(self, name: str, default: int = 0) -> int:
        """The value of a modifier that is an integer."""
        value = self.get(name, default)
        if not isinstance(value, int):
            raise BadFile(f"modifier {name}:{value} is no integer")
        return value

    def bits(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The value of a modifier that is a list, such as ``op_sel:[0,1]``."""
        value = self.get(name, default)
        if not isinstance(value, tuple):
            raise BadFile(f"modifier {name}:{value} is no list")
        return value

    @property
    def ignored(self) -> Collection[str]:
        """The names that nobody asked for."""
        return [name for name in self._values if name not in self.asked]


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction.

    index: its number in the program. line: of the listing, from 1.
    name: the mnemonic as written; base: without the encoding's suffix; encoding: that suffix
        (``"e32"``, ``"e64"``, ``"sdwa"``, ``"dpp"``, ``"e64_dpp"`` or ``""``).
    modifiers: ``offset:16`` and the like, by name. flags: words without a value, ``"offen"``; ask
        by ``"offen" in ins.flags``.
    source: file and line of the kernel's source, ``""`` where the listing has none.
    parts: the two halves of a dual instruction, else ``()``.
    """

    index: int
    line: int
    text: str
    name: str
    base: str
    encoding: str
    operands: tuple[Operand, ...]
    modifiers: Asked
    flags: Asked
    source: str = ""
    parts: tuple[Instruction, ...] = ()

    def at(self, place: int) -> Operand:
        """The operand at a place. Raises `BadFile`, naming the line, if there is none."""
        if place >= len(self.operands):
            raise BadFile(f"line {self.line}: {self.text}: it has no operand {place + 1}")
        return self.operands[place]

    def whole(self, place: int) -> int:
        """The whole number at a place. Raises `BadFile`, naming the line, for anything else."""
        value = self.at(place).value
        if self.at(place).file != "constant" or not isinstance(value, int):
            raise BadFile(f"line {self.line}: {self.text}: operand {place + 1} is no whole number")
        return value


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """An argument of a kernel as its metadata describes it. kind: ``"global_buffer"``,
    ``"by_value"``, ``"hidden_…"``."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel.

    labels: the index of the instruction behind each label.
    descriptor: the ``.amdhsa_`` directives, without this prefix.
    resources: numbers of the metadata, such as ``group_segment_fixed_size`` and ``vgpr_count``.
    """

    target: Target
    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    descriptor: Mapping[str, int]
    arguments: tuple[KernelArgument, ...]
    resources: Mapping[str, int]


_ENCODING = re.compile(r"(.*?)_(e64_dpp|e32|e64|sdwa|dpp)")
_MODIFIER = re.compile(r"(?<![\w\[])([a-z_]\w*):(\[[^\]]*\]|\w+\([^)]*\)|[^\s,]+)")
_WORDS = ("s_wait", "s_delay_alu", "s_sendmsg", "s_clause", "s_nop", "s_sleep")
"""Mnemonics whose operand is one text with blanks, such as ``vmcnt(0) lgkmcnt(0)``."""
_CACHE = ("buffer_wb", "buffer_inv", "buffer_gl", "global_wb", "global_inv")
"""Cache operations, which have flags alone."""
_FAR = re.compile(r"v(?:\d+|\[\d+:\d+\])\s*/\*(v(?:\d+|\[\d+:\d+\]))\*/")
"""A register from v256 on as the listing has it: what the instruction encodes, and which register
that is in the mode that ``s_set_vgpr_msb`` has set."""
_DUAL = " :: "


def parse(text: str) -> Program:
    """Parse a listing with one kernel. Raises `BadFile` that names the line, and `BadArgument` for
    a target that the emulator does not know."""
    lines = _Lines()
    for number, raw in enumerate(text.splitlines(), 1):
        lines.read(number, raw)
    if not lines.target or not lines.code:
        raise BadFile("the listing has no .amdgcn_target or no instructions")
    for ins in lines.code:
        jumps = ins.base == "s_branch" or ins.base.startswith("s_cbranch")
        if jumps and not (ins.operands and ins.operands[0].text in lines.labels):
            raise BadFile(f"line {ins.line}: {ins.text}: the listing has no such label")
    if "wavefront_size" not in lines.resources:
        raise BadFile("the listing's metadata has no .wavefront_size")
    target = target_of(lines.target, lines.resources["wavefront_size"], lines.descriptor)
    return Program(
        target,
        lines.name,
        tuple(lines.code),
        lines.labels,
        lines.descriptor,
        tuple(map(_argument, lines.arguments)),
        lines.resources,
    )


def _argument(said: Mapping[str, Any]) -> KernelArgument:
    for name in ("offset", "size", "value_kind"):
        if name not in said:
            raise BadFile(f"the listing's metadata has an argument without .{name}")
    return KernelArgument(said["offset"], said["size"], said["value_kind"])


@dataclass(slots=True)
class _Lines:
    """What was read so far."""

    target: str = ""
    name: str = ""
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    descriptor: dict[str, int] = field(default_factory=dict)
    arguments: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    source: str = ""
    reach: int = 0
    where: str = "code"

    def read(self, number: int, raw: str) -> None:
        """Read one line."""
        if ".amdgpu_metadata" in raw:
            self.where = "metadata" if self.where != "metadata" else "end"
        elif self.where == "metadata":
            self._metadata(number, raw)
        else:
            self._assembly(number, re.split(r";|//", raw, maxsplit=1)[0].strip())

    def _metadata(self, number: int, raw: str) -> None:
        found = re.match(r"\s*(?:- )?\s*\.(\w+):\s+(\S+)", raw)
        if found is None:
            return
        name, value = found[1], found[2]
        if name in ("address_space", "offset") and "- " in raw:
            self.arguments.append({})
        if name in ("offset", "size", "value_kind"):
            if not self.arguments:
                raise BadFile(f"line {number}: {raw.strip()}: it is of no argument")
            stated = value if name == "value_kind" else whole(value)
            if stated is None:
                raise BadFile(f"line {number}: {raw.strip()}: {shown(value)} is no number")
            self.arguments[-1][name] = stated
        elif (size := whole(value)) is not None:
            self.resources[name] = size

    def _assembly(self, number: int, line: str) -> None:
        if not line:
            return
        label = re.fullmatch(r"([\w.$]+):", line) if line.endswith(":") else None
        if label:
            if self.where == "code":
                self.labels[label[1]] = len(self.code)
        elif not line.startswith("."):
            if self.where == "code":
                self._code(number, line)
        elif found := re.match(r"\.amdhsa_(\w+)\s+(\S+)", line):
            self.descriptor[found[1]] = whole(found[2]) or 0
        elif found := re.match(r'\.amdgcn_target\s+"[\w-]*--(\w+)', line):
            self.target = found[1]
        elif found := re.match(r"\.type\s+([\w.$]+),@function", line):
            self.name = found[1]
        elif found := re.match(r'\.file\s+(\d+)\s+(?:".*"\s+)?"(.*?)"', line):
            self.files[found[1]] = found[2].rpartition("/")[2]
        elif found := re.match(r"\.loc\s+(\d+)\s+(\d+)", line):
            self.source = f"{self.files.get(found[1], '?')}:{found[2]}" if found[2] != "0" else ""
        elif line.startswith(".section"):
            self.where = "end" if self.code else "code"

    def _code(self, number: int, line: str) -> None:
        try:
            self._instruction(number, line)
        except BadFile as error:
            raise BadFile(f"line {number}: {line}: {error}") from None

    def _instruction(self, number: int, line: str) -> None:
        ins = instruction(_FAR.sub(r"\1", line), len(self.code), number, self.source)
        self.code.append(ins)
        if ins.base == "s_set_vgpr_msb":
            self.reach = ins.whole(0)
        blocks = {self.reach >> field & 3 for field in (0, 2, 4, 6)}
        for part in ins.parts or (ins,):
            for place in part.operands:
                # Accumulation registers have numbers from v256 on too, and need no mode.
                far = place.file == "v" and not place.text.lstrip("-|").startswith("a")
                if far and place.first >> 8 not in blocks:
                    raise BadFile(
                        f"{place.text} is out of reach of the mode that s_set_vgpr_msb has set"
                    )


def instruction(text: str, index: int = 0, line: int = 1, source: str = "") -> Instruction:
    """Parse one instruction."""
    if _DUAL in text:
        halves = [half.strip().replace("v_dual_", "v_", 1) for half in text.split(_DUAL)]
        parts = tuple(instruction(half, index, line, source) for half in halves)
        return Instruction(
            index, line, text, "v_dual", "v_dual", "", (), Asked({}), Asked({}), source, parts
        )
    name, _, rest = text.replace("\t", " ").partition(" ")
    found = _ENCODING.fullmatch(name)
    base, encoding = (found[1], found[2]) if found else (name, "")
    if name.startswith(_WORDS):
        stated = (operand(rest.strip()),) if rest.strip() else ()
        return Instruction(
            index, line, text, name, base, encoding, stated, Asked({}), Asked({}), source
        )
    modifiers = {m[1]: _value(m[2]) for m in _MODIFIER.finditer(rest)}
    places = _split(_MODIFIER.sub(" ", rest).strip())
    flags: dict[str, Value] = {}
    if not all(places):
        raise BadFile("an operand is empty")
    if places:
        last, *words = places[-1].split() if "(" not in places[-1] else [places[-1]]
        flags = dict.fromkeys(words, 1)
        places[-1] = last
        if base.startswith(_CACHE) and not re.match(r"[vsa]\d", last):
            flags = dict.fromkeys([last, *words], 1)
            places = []
    return Instruction(
        index,
        line,
        text,
        name,
        base,
        encoding,
        tuple(operand(place) for place in places),
        Asked(modifiers),
        Asked(flags),
        source,
    )


def _value(text: str) -> Value:
    if text.startswith("["):
        stated = [whole(each.strip()) for each in text[1:-1].split(",")]
        numbers = tuple(number for number in stated if number is not None)
        if len(numbers) < len(stated):
            raise BadFile(f"{shown(text)} is no list of numbers")
        return numbers
    number = whole(text)
    return text if number is None else number


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    if "(" not in text and "[" not in text:
        return [part.strip() for part in text.split(",")] if text else []
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        if character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text else []
