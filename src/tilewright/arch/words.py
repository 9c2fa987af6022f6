"""Words for GPUs besides the names in the data files.

A product is ``H100``, ``rtx4090``, ``4090`` or ``AMD Instinct MI300X``, in any case, with or
without its maker, with spaces, dashes or underscores between its parts. A GPU of this machine is
``cuda:0`` or ``native``, an emulated one ``emulated:mi300x``; `tilewright.arch.resolve` finds them.
"""

from __future__ import annotations

import functools
import re
from itertools import accumulate

from tilewright.arch.load import archs, named

NATIVE = "native"
EMULATED = "emulated:"
"""What begins a word for an emulated GPU: ``emulated:gfx942``, ``emulated:mi300x``."""

_BRANDS = {"nvidia", "geforce", "tesla", "amd", "instinct", "radeon"}
_SERIES = re.compile(r"(?<![a-z0-9])rt?x[\s_-]*(?=[0-9])")
_HERE = re.compile(r"(?:cuda|hip)(?::(\d+))?")


def joined(word: str) -> str:
    """A word as it is compared: ``rtx4090`` for ``NVIDIA GeForce RTX 4090`` and ``rtx_4090``."""
    return "".join(_parts(word))


def product_of(word: str) -> str:
    """The product that a word names or begins with: ``H100`` for ``h100`` and ``H100 NVL``, but
    not for ``h100x``; ``""`` if there is none."""
    beginnings = accumulate(_parts(word))
    return next((_products()[b] for b in reversed([*beginnings]) if b in _products()), "")


def arch_of(product: str) -> str:
    """The name of a product's architecture. `product` is spelt as `product_of` returns it."""
    return _archs()[product]


def number(word: str) -> int | None:
    """The number in ``cuda:1`` or ``hip:1``; 0 for ``cuda`` and ``hip``; None for other words."""
    found = _HERE.fullmatch(word.strip().lower())
    return None if found is None else int(found[1] or 0)


def emulated(word: str) -> bool:
    """Whether a word names an emulated GPU."""
    return word.strip().lower().startswith(EMULATED)


def _parts(word: str) -> list[str]:
    """The parts of a word in lower case, without makers, and without a series before a number: few
    say more of a card than ``4090``."""
    found = re.split(r"[\s_-]+", _SERIES.sub("", word.strip().lower()))
    return [part for part in found if part and part not in _BRANDS]


@functools.cache
def _products() -> dict[str, str]:
    """Products by their joined words."""
    return {joined(product): product for product in _archs()}


@functools.cache
def _archs() -> dict[str, str]:
    """The name of each product's architecture."""
    return {product: name for name in archs() for product in named(name).products}
