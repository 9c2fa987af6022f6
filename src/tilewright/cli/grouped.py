"""A dataclass of options as one parameter of a command.

Several commands share groups of options. Each group is a dataclass whose fields carry typer's
annotations and defaults, and a command takes the whole object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: a field of a dataclass is an option of its own. A field
    may be such a dataclass again.

    Raises `ValueError` if two options have one name.
    """
    hints = get_type_hints(command, include_extras=True)
    given = [(p.name, hints[p.name], p.default) for p in signature(command).parameters.values()]
    options = [option for one in given for option in _flat(*one)]

    @wraps(command)
    def call(**values: Any) -> None:
        command(**{name: _made(name, hint, values) for name, hint, _ in given})

    call.__signature__ = Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call


def _flat(name: str, hint: Any, default: Any) -> Iterator[Parameter]:
    """The options of a parameter: itself, or a group's fields."""
    if not _is_group(hint):
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    for field in _fields(hint):
        yield from _flat(*field)


def _made(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """The value of a parameter: an option's, or a group made of its options' values."""
    if not _is_group(hint):
        return values[name]
    return hint(**{field: _made(field, its, values) for field, its, _ in _fields(hint)})


def _is_group(hint: Any) -> bool:
    return is_dataclass(hint)


@cache
def _fields(group: Any) -> list[tuple[str, Any, Any]]:
    """The name, annotation and default of each field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    return [
        (f.name, hints[f.name], Parameter.empty if f.default is MISSING else f.default)
        for f in fields(group)
    ]
