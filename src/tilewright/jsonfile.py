"""Reads JSON files into typed values, with errors that name the file and the place.

`load_json` reads; `convert` checks and types. Both raise only `BadFile`, so a caller needs no other
handler, whatever a hand-edited file contains.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
from collections import Counter
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from tilewright.errors import BadArgument, BadFile, nearest, shown
from tilewright.reading import text as read_text

T = TypeVar("T")


MOST_NESTED = 64
"""Limit of objects and lists inside one another: more than any file here has, and low enough for
functions that recurse into each level."""


def load_json(path: str | os.PathLike[str]) -> Any:
    """The value in the JSON file at `path`. Raises `BadFile` (unreadable, or not strict JSON)."""
    return parse_json(read_text(path), os.fspath(path))


def parse_json(text: str, where: str, *, non_finite: bool = False) -> Any:
    """The value of a JSON text.

    where: the origin of the text, for errors.
    non_finite: accept NaN and Infinity.

    Raises `BadFile`. Stricter than `json.loads`. These are errors: a repeated key (one of the two
    values would be lost), NaN and Infinity (not JSON), a number beyond 64 bits or the range of a
    double, half a surrogate pair, and more than `MOST_NESTED` levels.
    """

    if not isinstance(text, str):
        raise BadArgument(f"{where}: JSON is a text, not {shown(text)}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(key for key, _ in pairs)
            twice = next(key for key, count in times.items() if count > 1)
            raise BadFile(f"{where}: key {shown(twice)} appears twice in one object")
        return found

    def constant(word: str) -> float:
        if non_finite:
            return float(word)
        raise BadFile(f"{where}: {word} is not JSON")

    def finite(word: str) -> float:
        value = float(word)
        if math.isinf(value):
            raise BadFile(f"{where}: the number {shown(word)} is out of range")
        return value

    def whole(word: str) -> int:
        value = int(word) if len(word) <= _MOST_DIGITS else _MOST_WHOLE + 1
        if not _LEAST_WHOLE <= value <= _MOST_WHOLE:
            raise BadFile(f"{where}: the number {shown(word)} is out of range")
        return value

    try:
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_constant=constant,
            parse_float=finite,
            parse_int=whole,
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadFile(f"{where}: is not JSON: {place}: {error.msg}") from error
    except RecursionError as error:
        raise BadFile(f"{where}: nested too deeply") from error
    _check_nesting(value, where)
    _check_characters(text, value, where)
    return value


_LEAST_WHOLE, _MOST_WHOLE = -(2**63), 2**64 - 1
_MOST_DIGITS = 20


def _check_nesting(value: Any, where: str) -> None:
    level = [value]
    for _ in range(MOST_NESTED + 1):
        inner = [v.values() if type(v) is dict else v for v in level if type(v) in (dict, list)]
        level = [child for children in inner for child in children if type(child) in (dict, list)]
        if not level:
            return
    raise BadFile(f"{where}: nested too deeply: over {MOST_NESTED} levels")


def _check_characters(text: str, value: Any, where: str) -> None:
    """Refuse half a surrogate pair: it is not a character, and text with it can be neither written
    nor shown."""
    try:
        if not text.isascii():
            text.encode()
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise BadFile(f"{where}: {half} is half a character (a lone surrogate)") from None


def convert(data: Any, type: type[T], where: str) -> T:
    """`data` as a `type` (a dataclass, or a container of them).

    where: the origin of `data`, for errors.

    Raises `BadFile`, with the path inside the data, for an unknown or missing field and for a value
    of the wrong type. Nothing is coerced, except a whole number given for a float.
    """
    try:
        _check_fields(data, type, where, "")
        return msgspec.convert(data, type, strict=True)
    except RecursionError:  # not from a file: `parse_json` limits the depth of those
        raise BadFile(f"{where}: nested too deeply") from None
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").removeprefix(".")
        raise BadFile(f"{where}: {place + ': ' if place else ''}{message}") from error


def _check_fields(data: Any, kind: Any, where: str, path: str) -> None:
    # msgspec ignores unknown fields of dataclasses, so a misspelt optional field would silently
    # keep its default.
    if dataclasses.is_dataclass(kind):
        if isinstance(data, dict):
            _check_object(data, kind, where, path)
        return
    if not _has_dataclass(kind):  # for example a list of 100,000 numbers
        return
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for arm in args:
            if dataclasses.is_dataclass(arm):  # at most one arm of a union is an object
                _check_fields(data, arm, where, path)
    elif origin is dict and isinstance(data, dict):
        for key, value in data.items():
            _check_fields(value, args[1], where, _join(path, key))
    elif origin in (list, tuple) and isinstance(data, (list, tuple)):
        fixed = origin is tuple and args[-1] is not Ellipsis
        for index, value in enumerate(data):
            if not fixed or index < len(args):
                _check_fields(value, args[index if fixed else 0], where, f"{path}[{index}]")


def _check_object(data: dict[str, Any], kind: Any, where: str, path: str) -> None:
    fields, required, nested = _shape(kind)
    for key in data:
        if key not in fields:
            place = _join(path, key)
            raise BadFile(
                f"{where}: unknown field '{shown(place)[1:-1]}'{nearest(key, fields)}; "
                f"known: {', '.join(fields)}"
            )
    for name in required:
        if name not in data:
            raise BadFile(f"{where}: missing field '{_join(path, name)}'")
    for name, hint in nested.items():
        if name in data:
            _check_fields(data[name], hint, where, _join(path, name))


@cache
def _shape(kind: Any) -> tuple[dict[str, None], tuple[str, ...], dict[str, Any]]:
    """The names of a dataclass's fields, the names of its required fields, and the types of the
    fields that contain dataclasses."""
    fields = [field for field in dataclasses.fields(kind) if field.init]
    none = dataclasses.MISSING
    required = (f.name for f in fields if f.default is f.default_factory is none)
    hints = get_type_hints(kind)
    nested = {f.name: hints[f.name] for f in fields if _has_dataclass(hints[f.name])}
    return dict.fromkeys(f.name for f in fields), tuple(required), nested


def _has_dataclass(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or any(map(_has_dataclass, get_args(kind)))


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
