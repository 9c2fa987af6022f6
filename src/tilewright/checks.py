"""Checks numbers from outside when a noun is made of them. This file alone says which numbers count
as a size, a time or a share, and how the errors read.

The bounds are far beyond any machine. They keep arithmetic finite: dividing by a time of 5e-324
gives infinity, and every sum with an infinite time is infinite.
"""

from __future__ import annotations

import re

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


def parse_flag(name: str, word: str) -> bool:
    """What ``true`` or ``false`` states. Raises `BadArgument`, which begins with `name`, for any
    other word."""
    if word not in ("true", "false"):
        raise BadArgument(f"{name} = {shown(word)} is not true or false")
    return word == "true"


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


def microseconds(name: str, value: object) -> None:
    """Raise `BadArgument` unless `value` is a time: from `LEAST_US` to `MOST_US` microseconds."""
    number(name, value, LEAST_US, MOST_US)


def _not(name: str, said: str, kind: str, least: float, most: float) -> str:
    lower = f" from {least:g}" if least != -MOST_WHOLE else ""
    upper = f" to {most:g}" if most != MOST_WHOLE else ""
    return f"{name} = {said} is not {kind}{lower}{upper}"
