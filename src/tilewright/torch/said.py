"""`Said`: what a call says besides its tensors, and the text that stands for it in a graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.calls import Spoken, scalars_of
from tilewright.errors import BadArgument

Numbers = Sequence[int | float]


@dataclass(frozen=True, slots=True)
class Said:
    """What a call says besides its tensors and numbers.

    named: names of the operands passed by keyword, which follow those passed by position.
    scalars: names of the scalars given at the call (`Launching.scalars`).
    options: the other keywords, with their values, by name.
    written: places, among the operands passed by position, of those that are written in place. The
        first is given apart from the others (see `operators`).
    """

    named: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    written: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Canonical JSON; empty where nothing is said."""
        parts = {
            "named": self.named,
            "scalars": self.scalars,
            "options": dict(self.options),
            "written": self.written,
        }
        there = {name: part for name, part in parts.items() if part}
        return json.dumps(there, sort_keys=True, separators=(",", ":")) if there else ""

    def keywords(self, tensors: Sequence[Any], numbers: Numbers) -> dict[str, Any]:
        """The call's keywords.

        tensors: all of its operands.
        """
        if not (self.named or self.scalars or self.options):
            return {}
        named = tensors[len(tensors) - len(self.named) :] if self.named else ()
        return {
            **dict(zip(self.named, named, strict=True)),
            **dict(zip(self.scalars, numbers, strict=True)),
            **dict(self.options),
        }

    def together(self, others: Sequence[Any], first: Any) -> list[Any]:
        """All operands of a call that gives the first of those written in place apart."""
        place = self.written[0]
        return [*others[:place], first, *others[place:]]

    def positional(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The operands passed by position, of all of them."""
        return tensors[: len(tensors) - len(self.named)] if self.named else tensors


NOTHING = Said()


@lru_cache(maxsize=1024)
def read(text: str) -> Said:
    """What `Said.text` stands for. Raises `BadArgument` for any other text."""
    if not text:
        return NOTHING
    try:
        parts = json.loads(text)
        named, scalars = parts.pop("named", []), parts.pop("scalars", [])
        written = parts.pop("written", [])
        options = {name: _hashable(value) for name, value in parts.pop("options", {}).items()}
        if parts:
            raise ValueError(f"unknown part {next(iter(parts))!r}")
    except (ValueError, AttributeError, TypeError) as error:
        raise BadArgument(f"said={text!r} is not of an operator of Tilewright: {error}") from None
    return Said(tuple(named), tuple(scalars), tuple(sorted(options.items())), tuple(written))


def _hashable(value: Any) -> Any:
    """A list of JSON's as the tuple that it was."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def of(op: str, spoken: Spoken) -> tuple[Said, list[int | float]]:
    """What the keywords of a call say, and the numbers that it gives."""
    if not (spoken.named or spoken.scalars or spoken.options):
        return NOTHING, []
    given = [
        (name, value)
        for name, value in zip(scalars_of(op), spoken.scalars, strict=True)
        if value is not None
    ]
    said = Said(
        tuple(spoken.named),
        tuple(name for name, _ in given),
        tuple(sorted(spoken.options.items())),
    )
    return said, [value for _, value in given]
