"""`Said`: what a call says besides its tensors, and the text that stands for it in a graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import NoneType
from typing import Any

import torch

from tilewright.calls import Spoken, scalars_of
from tilewright.errors import BadArgument

Numbers = Sequence[int | float]
"""The numbers of a call: scalars, then those that `Said.numbers` places. Under ``torch.compile``
some are symbols."""

SYMBOLS = (torch.SymInt, torch.SymFloat)


@dataclass(frozen=True, slots=True)
class Said:
    """What a call says besides its tensors and numbers.

    named: names of the operands passed by keyword, which follow those passed by position.
    scalars: names of the scalars given at the call (`Launching.scalars`).
    options: the other keywords, with their values, by name.
    numbers: places of the numbers in options that are given apart, as scalars are, and may be
        symbols: ``softcap``, or ``window.0`` for the first of the tuple ``window``, in which None
        holds the place.
    written: places, among the operands passed by position, of those that are written in place. The
        first is given apart from the others (see `operators`).
    """

    named: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    numbers: tuple[str, ...] = ()
    written: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Canonical JSON; empty where nothing is said."""
        parts = {
            "named": self.named,
            "scalars": self.scalars,
            "options": dict(self.options),
            "numbers": self.numbers,
            "written": self.written,
        }
        there = {name: part for name, part in parts.items() if part}
        return json.dumps(there, sort_keys=True, separators=(",", ":")) if there else ""

    def keywords(self, tensors: Sequence[Any], numbers: Numbers) -> dict[str, Any]:
        """The call's keywords.

        tensors: all of its operands.
        """
        if not (self.named or self.scalars or self.options or self.numbers):
            return {}
        named = tensors[len(tensors) - len(self.named) :] if self.named else ()
        whole, scalars = self.whole(numbers)
        return {
            **dict(zip(self.named, named, strict=True)),
            **dict(zip(self.scalars, scalars, strict=True)),
            **dict(whole.options),
        }

    def whole(self, numbers: Numbers) -> tuple[Said, Numbers]:
        """This call with all numbers of the options in their places, and the scalars alone. Raises
        `BadArgument` if there are more or fewer numbers."""
        if not self.numbers:
            return self, numbers
        count = len(self.scalars)
        if len(numbers) != count + len(self.numbers):
            raise BadArgument(
                f"the operator is told of {count + len(self.numbers)} numbers "
                f"({', '.join((*self.scalars, *self.numbers))}) and was given {len(numbers)}"
            )
        options = dict(self.options)
        for path, number in zip(self.numbers, numbers[count:], strict=True):
            name, *places = path.split(".")
            options[name] = _put(options.get(name), places, number)
        return replace(self, options=tuple(sorted(options.items())), numbers=()), numbers[:count]

    def settled(self, numbers: Numbers) -> tuple[Said, Numbers]:
        """This call, with only scalars and symbols given apart."""
        if not self.numbers:
            return self, numbers
        whole, scalars = self.whole(numbers)
        options, paths, symbols = apart(dict(whole.options), is_symbol)
        return replace(whole, options=options, numbers=paths), [*scalars, *symbols]

    def together(self, others: Sequence[Any], first: Any) -> list[Any]:
        """All operands of a call that gives the first of those written in place apart."""
        place = self.written[0]
        return [*others[:place], first, *others[place:]]

    def positional(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The operands passed by position, of all of them."""
        return tensors[: len(tensors) - len(self.named)] if self.named else tensors


def _put(value: Any, places: Sequence[str], number: Any) -> Any:
    """`value`, a tuple of tuples, with a number at a place within it."""
    if not places:
        return number
    parts = list(value)
    parts[int(places[0])] = _put(parts[int(places[0])], places[1:], number)
    return tuple(parts)


Options = tuple[tuple[str, Any], ...]


def apart(
    options: Mapping[str, Any], wanted: Callable[[Any], bool]
) -> tuple[Options, tuple[str, ...], list[Any]]:
    """Options by name without the `wanted` numbers, the places of these (`Said.numbers`), and the
    numbers. Dynamo can follow it."""
    paths: list[str] = []
    numbers: list[Any] = []
    left = []
    for name in sorted(options):
        value = _without(options[name], name, wanted, paths, numbers)
        if value is not None:
            left.append((name, value))
    return tuple(left), tuple(paths), numbers


def _without(
    value: Any, path: str, wanted: Callable[[Any], bool], paths: list[str], numbers: list[Any]
) -> Any:
    if isinstance(value, tuple | list):
        parts = []
        for place, part in enumerate(value):
            parts.append(_without(part, f"{path}.{place}", wanted, paths, numbers))
        return tuple(parts)
    if not wanted(value):
        return value
    paths.append(path)
    numbers.append(value)
    return None


def is_number(value: Any) -> bool:
    """Whether this is a number, or a symbol for a number, which dynamo takes for one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_symbol(value: Any) -> bool:
    return isinstance(value, SYMBOLS)


def holds_symbol(value: Any) -> bool:
    """Whether the value of an option is a symbol, or a tuple with one within."""
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
        return False
    return any(map(holds_symbol, value)) if isinstance(value, tuple | list) else is_symbol(value)


_PLAIN = frozenset({bool, int, float, str, NoneType, torch.Tensor, torch.nn.Parameter})
"""Kinds of values that most options have, and none of which is a symbol."""


def exchanged(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of an option with each number, also within tuples, changed."""
    if isinstance(value, tuple | list):
        return tuple([exchanged(one, change) for one in value])
    return change(value)


NOTHING = Said()


@lru_cache(maxsize=1024)
def read(text: str) -> Said:
    """What `Said.text` stands for. Raises `BadArgument` for any other text."""
    if not text:
        return NOTHING
    try:
        parts = json.loads(text)
        named, scalars = parts.pop("named", []), parts.pop("scalars", [])
        numbers, written = parts.pop("numbers", []), parts.pop("written", [])
        options = {name: _hashable(value) for name, value in parts.pop("options", {}).items()}
        if parts:
            raise ValueError(f"unknown part {next(iter(parts))!r}")
    except (ValueError, AttributeError, TypeError) as error:
        raise BadArgument(f"said={text!r} is not of an operator of Tilewright: {error}") from None
    ordered = tuple(sorted(options.items()))
    return Said(tuple(named), tuple(scalars), ordered, tuple(numbers), tuple(written))


def _hashable(value: Any) -> Any:
    """A list of JSON's as the tuple that it was."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def of(op: str, spoken: Spoken) -> tuple[Said, list[int | float]]:
    """What the keywords of a call say, and the numbers that it gives: scalars and symbols."""
    if not (spoken.named or spoken.scalars or spoken.options):
        return NOTHING, []
    given = [
        (name, value)
        for name, value in zip(scalars_of(op), spoken.scalars, strict=True)
        if value is not None
    ]
    options, paths, symbols = apart(spoken.options, is_symbol)
    said = Said(tuple(spoken.named), tuple(name for name, _ in given), options, paths)
    return said, [*(value for _, value in given), *symbols]
