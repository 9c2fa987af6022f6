"""Names of kernels: the patterns of their fields, and what is said of a name that is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from tilewright.errors import BadArgument, UnknownName, shown


class Named(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)


def choice(field: str, words: Iterable[object]) -> str:
    """A pattern of one of these words, as the group `field`."""
    return f"(?P<{field}>{'|'.join(sorted(map(str, words), key=len, reverse=True))})"


def number(field: str) -> str:
    """A pattern of a number from 1 on, as the group `field`. No name has one of more digits."""
    return rf"(?P<{field}>[1-9]\d{{0,9}})"


def read(name: str, what: str, make: Callable[[], C]) -> C:
    """The config that `make` makes of the fields of `name`.

    what: what it would be the name of, for people.

    Raises `UnknownName` if the fields contradict each other (`BadArgument` of `make`), and if the
    config's own name is another spelling.
    """
    try:
        config = make()
    except BadArgument as error:
        raise UnknownName(f"{shown(name, 300)} is not the name of {what}: {error}") from None
    if config.name != name:
        raise UnknownName(f"'{name}' is not the name of {what}; near it is '{config.name}'")
    return config
