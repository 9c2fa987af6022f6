"""Architectures by name, from the data files."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tilewright.arch.model import Arch
from tilewright.errors import BadFile, UnknownArch, nearest
from tilewright.jsonfile import convert, load_json

_DATA = Path(__file__).parent / "data"


@functools.cache
def archs() -> tuple[str, ...]:
    """The names of all known architectures, sorted."""
    return tuple(sorted(file.stem for file in _DATA.glob("*.json")))


def arch(name: str | Arch) -> Arch:
    """The architecture called `name`, in any case; an `Arch` is returned as it is.

    Accepts the words compilers and drivers use: ``sm90`` and ``sm_90a`` for ``sm_90``,
    ``gfx942:sramecc+:xnack-`` for ``gfx942``. Raises `UnknownArch` for one that no data file
    describes: there is no default and no nearest relative, because limits and instructions
    differ between relatives.
    """
    return name if isinstance(name, Arch) else _called(name)


@functools.cache
def _called(name: str) -> Arch:
    known = archs()
    plain = _plain(name)
    if plain not in known:
        raise UnknownArch(
            f"unknown architecture '{name}'{nearest(plain, known)}; known: {', '.join(known)}"
        )
    return _load(plain)


def _plain(name: str) -> str:
    word = name.strip().lower().partition(":")[0]
    # "a" and "f" name feature sets of the same hardware.
    sm = re.fullmatch(r"sm_?(\d+)[af]?", word)
    return f"sm_{sm[1]}" if sm else word


@functools.cache
def _load(name: str) -> Arch:
    file = _DATA / f"{name}.json"
    found = convert(load_json(file), Arch, str(file))
    if found.name != name:
        raise BadFile(f"{file}: its name is '{found.name}', its file says '{name}'")
    return found
