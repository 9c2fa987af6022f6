"""Architectures by name, from the data files."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tilewright.arch.model import Arch
from tilewright.errors import BadFile, UnknownArch
from tilewright.jsonfile import convert, load_json

_DATA = Path(__file__).parent / "data"


@functools.cache
def archs() -> tuple[str, ...]:
    """The names of all known architectures, sorted."""
    return tuple(sorted(file.stem for file in _DATA.glob("*.json")))


def arch(name: str | Arch) -> Arch:
    """The architecture called `name`, in any case; an `Arch` is returned as it is.

    Accepts the words compilers and drivers use: ``sm90`` and ``sm_90a`` for ``sm_90``,
    ``gfx942:sramecc+:xnack-`` for ``gfx942``; products and known devices (``H100``, ``rtx4090``,
    ``h100_pcie``); and GPUs of this machine (``cuda:0``, ``native``), which are looked at then.

    Raises `UnknownArch` for one that no data file describes: there is no default and no nearest
    relative, because limits and instructions differ between relatives. For a GPU of this machine,
    raises `NoDriver`, and `BadArgument` where it is not clear which is meant.
    """
    if isinstance(name, Arch):
        return name
    found = known_arch(name)
    if found is not None:
        return found
    from tilewright.arch import words

    gpu = words.gpu(name)
    if gpu is not None:
        return arch(gpu.arch)
    product = words.product_of(name)
    # No hint at a name that is spelt alike: sm_86, gfx90c and V100 are GPUs too, but other ones.
    near = f" ({product} is of {words.arch_of(product)})" if product else ""
    raise UnknownArch(f"unknown architecture '{name}'{near}; known: {', '.join(archs())}")


@functools.cache
def known_arch(name: str) -> Arch | None:
    """As `arch`, but for GPUs of this machine, which are not looked at; None if unknown."""
    plain = _plain(name)
    if plain in archs():
        return _load(plain)
    from tilewright.arch import known, words

    device = known.called(name)
    if device is not None:
        return _load(device.arch)
    product = words.product_of(name)
    exact = product and words.joined(product) == words.joined(name)
    return _load(words.arch_of(product)) if exact else None


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
