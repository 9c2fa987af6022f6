"""Rows in columns of bytes: the content of a table file, and of a table in use.

Nothing is decoded before it is asked for. Each text stands once, sorted, in one blob. Each field of
a family's problems has the sorted list of its values in the table. A problem's key is the place of
each of its values in these lists, as fixed-width big-endian bytes. Keys are sorted within each
device and family, so a look-up is a bisection of the bytes. A field that has its default in every
row is left out, so a family's new field changes neither old files nor their digests. The same rows,
in any order, give the same bytes.

Numbers are little-endian; times are float64 microseconds; an error of -1 stands for None. The
column `ours` has the number of a text plus 1, or 0; it is left out if it is 0 in every row.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, fields
from functools import cached_property
from operator import ge
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.dtypes import COUNTERPART
from tilewright.errors import BadArgument, BadFile, UnknownName, shown
from tilewright.jsonfile import convert
from tilewright.tables.payload import (
    NUMBER,
    REFERENCES,
    TIMES,
    UNVERIFIED,
    Block,
    Column,
    Family,
    Origin,
    Payload,
    check_keys,
    decode,
    u32,
)
from tilewright.tables.row import Row


def pack(rows: Sequence[Row]) -> bytes:
    """The rows as bytes. No two rows are of one problem on one device."""
    devices = sorted({row.device for row in rows}, key=_device_text)
    texts = sorted({t for row in rows for t in (*row.kernels, row.measured_at)})
    origins = sorted({(row.versions, row.driver, row.timed) for row in rows})
    of_text, of_origin = _numbers(texts), _numbers(origins)
    families = [
        Family(name, _columns([r.problem for r in rows if r.problem.family == name]))
        for name in sorted({r.problem.family for r in rows})
    ]
    codings = [
        _Coding(ops.family(f.name).problem_type, [(c.field, c.values) for c in f.columns])
        for f in families
    ]
    blocks, ordered = [], []
    for (d, device), (f, coding) in itertools.product(enumerate(devices), enumerate(codings)):
        found = [r for r in rows if r.device == device and type(r.problem) is coding.type]
        keyed = sorted(((coding.key(r.problem) or b"", r) for r in found), key=lambda pair: pair[0])
        if keyed:
            blocks.append(Block(d, f, len(keyed), b"".join(key for key, _ in keyed)))
            ordered += [row for _, row in keyed]
    ties = [of_text[name] for row in ordered for name in row.ties]
    past = itertools.accumulate(len(row.ties) for row in ordered)
    ours = [of_text[row.ours] + 1 if row.ours else 0 for row in ordered]
    payload = Payload(
        [asdict(device) for device in devices],
        families,
        [Origin(*origin) for origin in origins],
        blocks,
        "".join(texts).encode(),
        u32(itertools.accumulate(len(text.encode()) for text in texts)),
        u32(ties),
        b"".join(
            TIMES.pack(r.median_us, *r.interval_us, UNVERIFIED if r.error is None else r.error)
            for r in ordered
        ),
        b"".join(
            REFERENCES.pack(
                of_text[r.kernel],
                of_text[r.measured_at],
                of_origin[r.versions, r.driver, r.timed],
                end,
            )
            for r, end in zip(ordered, past, strict=True)
        ),
        u32(ours) if any(ours) else b"",
    )
    return payload.encoded()


class Packed:
    """Reads the bytes of `pack` row by row.

    Raises `BadFile`, which begins with `where`, for bytes that `pack` did not make, and for a
    family or a problem's field that is not known here.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        self._data, self.devices = decode(data, where)
        found = self._data
        self._codings = [_coding(family, where) for family in found.families]
        for block in found.blocks:
            coding = self._codings[block.family]
            check_keys(block, coding.widths, [len(v) for _, v in coding.values], where)
        self._firsts = [0, *itertools.accumulate(block.rows for block in found.blocks)]
        self._blocks = {
            (self.devices[block.device], found.families[block.family].name): number
            for number, block in enumerate(found.blocks)
        }

    def __len__(self) -> int:
        return self._firsts[-1]

    def __iter__(self) -> Iterator[Row]:
        for block, first in zip(self._data.blocks, self._firsts, strict=False):
            coding, device = self._codings[block.family], self.devices[block.device]
            for number in range(block.rows):
                key = block.keys[number * coding.width : (number + 1) * coding.width]
                try:
                    problem = coding.problem(key)
                except BadArgument as error:
                    raise self._no_row(first + number, error) from None
                yield self._row(first + number, problem, device)

    def types(self, family: str, device: Device) -> frozenset[str] | None:
        """As `Table.types`."""
        place = self._blocks.get((device, family))
        return None if place is None else self._codings[self._data.blocks[place].family].types

    def find(self, problem: Any, device: Device) -> Row | None:
        """The row of `problem` on `device`; None if there is none."""
        place = self._blocks.get((device, problem.family))
        if place is None:
            return None
        block = self._data.blocks[place]
        coding = self._codings[block.family]
        key = coding.key(problem)
        if key is None:
            return None
        width, keys = coding.width, block.keys
        number = bisect_left(
            range(block.rows), key, key=lambda i: keys[i * width : (i + 1) * width]
        )
        if number == block.rows or keys[number * width : (number + 1) * width] != key:
            return None
        if not coding.at_defaults(problem) and coding.problem(key) != problem:
            return None
        return self._row(self._firsts[place] + number, problem, device)

    def _row(self, number: int, problem: Any, device: Device) -> Row:
        found = self._data
        median, low, high, error = TIMES.unpack_from(found.times, number * TIMES.size)
        at = number * REFERENCES.size
        kernel, when, origin, past = REFERENCES.unpack_from(found.references, at)
        first = 0 if number == 0 else REFERENCES.unpack_from(found.references, at - 16)[3]
        ties = (NUMBER.unpack_from(found.ties, 4 * i)[0] for i in range(first, past))
        ours = NUMBER.unpack_from(found.ours, 4 * number)[0] if found.ours else 0
        made_by = found.origins[origin]
        try:
            return Row(
                device,
                problem,
                self._text(kernel),
                tuple(map(self._text, ties)),
                median,
                (low, high),
                None if error == UNVERIFIED else error,
                self._text(when),
                made_by.versions,
                made_by.driver,
                made_by.timed,
                self._text(ours - 1) if ours else "",
            )
        except BadArgument as wrong:
            raise self._no_row(number, wrong) from None

    def _no_row(self, number: int, error: BadArgument) -> BadFile:
        return BadFile(f"{self._where}: row {number + 1}: {error}")

    def _text(self, number: int) -> str:
        ends = self._data.text_ends
        begin = 0 if number == 0 else NUMBER.unpack_from(ends, 4 * number - 4)[0]
        return self._data.texts[begin : NUMBER.unpack_from(ends, 4 * number)[0]].decode()


class _Coding:
    """How the problems of one family become keys, and back."""

    def __init__(self, kind: type[Any], columns: Sequence[tuple[str, list[Any]]]) -> None:
        self.type = kind
        self.values = columns
        self.widths = [_width(len(values)) for _, values in self.values]
        self.width = sum(self.widths)
        self._numbers: list[tuple[str, dict[Any, int]]] = []
        named = {field for field, _ in self.values}
        self.left_out = [(f.name, f.default) for f in fields(self.type) if f.name not in named]

    @cached_property
    def types(self) -> frozenset[str]:
        """The types of `COUNTERPART` that problems have."""
        had = itertools.chain(*(values for _, values in self.values))
        usual = (default for _, default in self.left_out)
        return frozenset(COUNTERPART.keys() & {*had, *usual})

    def key(self, problem: Any) -> bytes | None:
        """The problem's key, without the fields left out; None if no row has one of its values."""
        if not self._numbers:  # on first use: a large table has many values
            # Sizes first, which have the most values and which most problems have alone.
            most = sorted(self.values, key=lambda column: -len(column[1]))
            self._numbers = [(field, _numbers(map(_told, values))) for field, values in most]
        found: dict[str, int] = {}
        for field, numbers in self._numbers:
            number = numbers.get(_told(getattr(problem, field)))
            if number is None:
                return None
            found[field] = number
        columns = zip(self.values, self.widths, strict=True)
        return b"".join(found[field].to_bytes(width, "big") for (field, _), width in columns)

    def at_defaults(self, problem: Any) -> bool:
        """Whether all fields that keys leave out have their default. A field that has not may
        still have the value that the problem works out from its other fields."""
        return all(
            _told(getattr(problem, field)) == _told(default) for field, default in self.left_out
        )

    def problem(self, key: bytes) -> Any:
        """The problem whose key this is."""
        said, at = {}, 0
        for (field, values), width in zip(self.values, self.widths, strict=True):
            said[field] = values[int.from_bytes(key[at : at + width], "big")]
            at += width
        return self.type(**said)


def _coding(family: Family, where: str) -> _Coding:
    try:
        kind = ops.family(family.name).problem_type
    except UnknownName as error:
        raise BadFile(f"{where}: {error}") from None
    types = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    columns: dict[str, list[Any]] = {}
    for column in family.columns:
        if column.field not in known:
            raise BadFile(
                f"{where}: a {family.name} problem has no field {shown(column.field)} here; the "
                "table was made by another version of Tilewright"
            )
        place = f"{where}: values of {column.field}"
        # As the field has them: msgpack has only lists where a problem has tuples.
        listed: Any = GenericAlias(list, types[column.field])
        values: list[Any] = convert(column.values, listed, place)
        order = [_order(value) for value in values]
        if column.field in columns or not values or any(map(ge, order, order[1:])):
            raise BadFile(f"{place} are not sorted, each once, and stated once")
        columns[column.field] = values
    coding = _Coding(kind, [*columns.items()])
    for field, default in coding.left_out:
        if default is MISSING:
            raise BadFile(f"{where}: its {family.name} problems do not say their {field}")
    return coding


def _columns(problems: Sequence[Any]) -> list[Column]:
    """The columns of the fields that do not have their default in every problem, by name. A field
    without a default always has a column."""
    found = []
    for f in sorted(fields(problems[0]), key=lambda f: f.name):
        values = {_told(x): x for x in (getattr(problem, f.name) for problem in problems)}
        if values.keys() != {_told(f.default)}:
            found.append(Column(f.name, sorted(values.values(), key=_order)))
    return found


def _numbers(values: Iterable[Any]) -> dict[Any, int]:
    return {value: number for number, value in enumerate(values)}


def _told(value: Any) -> Any:
    """What a field's values are told apart by, as problems are (`Problem`): 0.0 is not -0.0, and 1
    is not 1.0."""
    return (value, math.copysign(1.0, value)) if type(value) is float else value


def _order(value: Any) -> tuple[Any, ...]:
    """What a field's values are sorted by: their own order, None first. Values of several types,
    in a field that takes several, are apart; of equal numbers, whole ones and -0.0 come first."""
    if value is None:
        return (0,)
    if isinstance(value, tuple):
        return 3, tuple(map(_order, value))
    if isinstance(value, str):
        return 2, value
    return 1, value, *(_told(value)[1:] if isinstance(value, float) else ())


def _width(count: int) -> int:
    """Bytes of a number below `count`; 0 for a count of 1."""
    return ((count - 1).bit_length() + 7) // 8


def _device_text(device: Device) -> bytes:
    return msgspec.json.encode(asdict(device), order="sorted")
