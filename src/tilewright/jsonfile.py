"""JSON files into typed values, with errors that name the file and the place.

`load_json` reads, `convert` checks and types. Both raise only `BadFile`, so a caller needs no
other handler for anything a hand-edited file can contain.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from tilewright.errors import BadFile, nearest

T = TypeVar("T")


def load_json(path: str | os.PathLike[str]) -> Any:
    """The value in the JSON file at `path`. Raises `BadFile` (unreadable, or not strict JSON)."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{os.fspath(path)}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL character in the path
        raise BadFile(f"{os.fspath(path)!r}: cannot be read: {error}") from error
    return parse_json(text, os.fspath(path))


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text; `where` names its origin in errors. Raises `BadFile`.

    Stricter than `json.loads`: a repeated key (one of the two would be lost) and NaN or
    Infinity (not JSON) are errors.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise BadFile(f"{where}: key '{twice}' appears twice in one object")
        return found

    def no_constant(word: str) -> NoReturn:
        raise BadFile(f"{where}: {word} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadFile(f"{where}: {place}: {error.msg}") from error
    except RecursionError as error:
        raise BadFile(f"{where}: nested too deeply") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise BadFile(f"{where}: {error}") from error


def convert(data: Any, type: type[T], where: str) -> T:
    """`data` as a `type` (a dataclass, or a container of them); `where` names its origin.

    Raises `BadFile` with the path inside the data for an unknown or missing field and for a
    value of the wrong type. Nothing is coerced, except a whole number given for a float.
    """
    _check_fields(data, type, where, "")
    try:
        return msgspec.convert(data, type, strict=True)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").removeprefix(".")
        raise BadFile(f"{where}: {place + ': ' if place else ''}{message}") from error


def _check_fields(data: Any, kind: Any, where: str, path: str) -> None:
    # msgspec ignores unknown fields of dataclasses, and a misspelt optional one would then
    # silently keep its default.
    if dataclasses.is_dataclass(kind):
        if isinstance(data, dict):
            _check_object(data, kind, where, path)
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
                f"{where}: unknown field '{place}'{nearest(str(key), fields)}; "
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
    """The names of a dataclass's fields; of those that must be there; and the types of those that
    have dataclasses in them."""
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
