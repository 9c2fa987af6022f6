"""Checks numbers from outside when a noun is made of them. This file alone says which numbers count
as a size, a time or a share, and how the errors read.

The bounds are far beyond any machine. They keep arithmetic finite: dividing by a time of 5e-324
gives infinity, and every sum with an infinite time is infinite.
"""

from __future__ import annotations

import math
import numbers
import os
import re
import sys
from typing import Any

from tilewright.errors import BadArgument, shown

MOST_WHOLE = 2**63 - 1
"""The largest integer in a file: the limit of SQLite, msgpack and most other programs."""

LEAST_US, MOST_US = 1e-6, 1e13
"""Limits of a time in microseconds: from a picosecond to a hundred days."""

LEAST_POSITIVE = 1e-9

MOST_ERROR = 1e300
"""The largest error, as a multiple of the tolerance."""

MOST_SECONDS = 1e7
"""Limit in seconds of a time limit, a budget or a piece of work: a hundred days."""


def whole(name: str, value: object, least: int = 0, most: int = MOST_WHOLE) -> None:
    """Raise `BadArgument`, which begins with `name`, unless `value` is an integer from `least` to
    `most`."""
    if type(value) is not int or not least <= value <= most:
        raise BadArgument(_not(name, shown(value), "a whole number", least, most))


def parse_whole(name: str, word: str, least: int = 0, most: int = MOST_WHOLE) -> int:
    """The integer that `word` states in decimal digits. Raises `BadArgument` as `whole` does."""
    # Python refuses to convert thousands of digits.

    value = int(word) if len(word) <= 20 and _DIGITS.fullmatch(word) else None
    if value is None or not least <= value <= most:
        raise BadArgument(_not(name, shown(word), "a whole number", least, most))
    return value


_DIGITS = re.compile(r"[+-]?\d+", re.ASCII)


def flag(variable: str, usual: bool) -> bool:
    """What an environment variable says: ``1`` or ``0``; `usual` if it is empty or not set. Raises
    `BadArgument` for anything else."""
    said = os.environ.get(variable, "")
    if said not in ("", "0", "1"):
        raise BadArgument(f"{variable}: {shown(said)} is neither 1 nor 0")
    return said == "1" if said else usual


def parse_flag(name: str, word: str) -> bool:
    """What ``true`` or ``false`` states. Raises `BadArgument`, which begins with `name`, for any
    other word."""
    if word not in ("true", "false"):
        raise BadArgument(f"{name} = {shown(word)} is not true or false")
    return word == "true"


def truth(name: str, value: object) -> None:
    """Raise `BadArgument`, which begins with `name`, unless `value` is True or False."""
    if type(value) is not bool:
        raise BadArgument(f"{name} = {shown(value)} is not True or False")


def number(name: str, value: object, least: float = 0.0, most: float = 1e18) -> None:
    """Raise `BadArgument`, which begins with `name`, unless `value` is a number from `least` to
    `most`."""
    # NaN is in no range, and integers of any size can be compared.
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise BadArgument(_not(name, shown(value), "a number", least, most))


def positive(name: str, value: object) -> None:
    """As `number`, for values over 0. Values so near to 0 that a division overflows are refused
    too."""
    if isinstance(value, int | float) and value <= 0:
        raise BadArgument(f"{name} must be positive, not {shown(value)}")
    number(name, value, LEAST_POSITIVE)


def finite(name: str, value: object) -> None:
    """Raise `BadArgument`, which begins with `name`, unless `value` is a number other than NaN and
    the infinities."""
    # By comparing, which dynamo can follow where the number is a symbol.
    if type(value) is not int and (type(value) is not float or not -math.inf < value < math.inf):
        raise BadArgument(f"{name} = {shown(value)} is not a finite number")


PLAIN = frozenset({int, float, str, bool, type(None)})
"""The types of single values that `plain` leaves as they are."""


def plain(name: str, value: Any) -> Any:
    """A number of another library as Python's own: NumPy's numbers, arrays and tensors without
    dimensions, and fractions. Sequences become tuples of such. Anything else is returned as it is.

    The number in a tensor on a GPU is read back, for which the host waits.

    Raises `BadArgument`, which begins with `name`, for a tensor without a value: in a captured
    graph, in a trace, or where torch should record its gradient.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, tuple | list):
        if type(value) is tuple and PLAIN.issuperset(map(type, value)):
            return value
        return tuple([plain(name, one) for one in value])
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Number) and not isinstance(value, complex):
        return _as_float(name, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        own = value.item()
        return own if type(own) in PLAIN else _as_float(name, own)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return plain(name, _item(name, value))
    return value


def _as_float(name: str, value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadArgument(f"{name} = {shown(value)} is not a number") from None


def _item(name: str, array: Any) -> Any:
    """The number in an array or a tensor without dimensions."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return array.item()
    if array.requires_grad and torch.is_grad_enabled():
        raise BadArgument(
            f"{name} requires a gradient, and none is recorded of a number; pass {name}.item()"
        )
    if array.is_cuda and torch.cuda.is_current_stream_capturing():
        raise BadArgument(
            f"{name} is a tensor on a GPU, whose number cannot be read while a graph is captured; "
            "pass a Python number"
        )
    try:
        return array.item()
    except RuntimeError as error:  # fake tensors, meta tensors, tensors of vmap
        raise BadArgument(
            f"{name} is a {type(array).__name__} without a value here; pass a Python number"
        ) from error


def microseconds(name: str, value: object) -> None:
    """Raise `BadArgument` unless `value` is a time: from `LEAST_US` to `MOST_US` microseconds."""
    number(name, value, LEAST_US, MOST_US)


def _not(name: str, said: str, kind: str, least: float, most: float) -> str:
    lower = f" from {least:g}" if least != -MOST_WHOLE else ""
    upper = f" to {most:g}" if most != MOST_WHOLE else ""
    return f"{name} = {said} is not {kind}{lower}{upper}"
