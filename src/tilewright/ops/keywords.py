"""`Keyword`: what a family says of a keyword of its calls: whether it is an array or an option.

The scalars of a call are keywords too; `Launching.scalars` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword of a call.

    kind: an ``operand`` is an array; an ``option`` is anything else that states the problem.
    type: of an option, as an annotation says it: ``"str"``, ``"int | None"``. ``"dtype"`` is an
        element type: a name, or torch's or NumPy's.
    default: of an option that a call leaves out.
    number: the dtype of the array [1] that a number becomes which is passed for this operand; ""
        where a number says too little.
    meaning: a few words, for errors.
    """

    kind: Literal["operand", "option"]
    type: str = ""
    default: Any = None
    number: str = ""
    meaning: str = ""


def operand(number: str = "") -> Keyword:
    """An array."""
    return Keyword("operand", number=number)


def option(type: str, default: Any = None, meaning: str = "") -> Keyword:
    """Anything but an array."""
    return Keyword("option", type, default, meaning=meaning)
