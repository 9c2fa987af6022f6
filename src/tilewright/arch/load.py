"""Architectures by their own names, from the data files."""

from __future__ import annotations

import functools
import re

from tilewright.arch import files
from tilewright.arch.model import Arch
from tilewright.errors import BadFile, UnknownArch
from tilewright.jsonfile import convert, load_json


def archs() -> tuple[str, ...]:
    """The names of all known architectures, sorted: the package's, and those of files that
    ``TILEWRIGHT_GPUS`` names. Raises `BadFile` for such a file that cannot be read."""
    return tuple(files.architectures())


@functools.cache
def find(name: str) -> Arch | None:
    """The architecture called `name`, in any case and as compilers and drivers spell it: ``sm_90``
    for ``sm90`` and ``sm_90a``, ``gfx942`` for ``gfx942:sramecc+:xnack-``. None if unknown."""
    plain = _plain(name)
    return _load(plain) if plain in files.architectures() else None


def named(name: str) -> Arch:
    """As `find`, but raises `UnknownArch` if `name` is unknown."""
    found = find(name)
    if found is None:
        raise unknown(name)
    return found


def unknown(name: str, hint: str = "") -> UnknownArch:
    """The error for a name that no data file describes."""
    return UnknownArch(f"unknown architecture '{name}'{hint}; known: {', '.join(archs())}")


def _plain(name: str) -> str:
    word = name.strip().lower().partition(":")[0]
    # "a" and "f" name feature sets of the same hardware.
    sm = re.fullmatch(r"sm_?(\d+)[af]?", word)
    return f"sm_{sm[1]}" if sm else word


@functools.cache
def _load(name: str) -> Arch:
    file = files.architectures()[name]
    found = convert(load_json(file), Arch, str(file))
    if found.name != name:
        raise BadFile(f"{file}: it names the architecture '{found.name}', its file name '{name}'")
    return found
