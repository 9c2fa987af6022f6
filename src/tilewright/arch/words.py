"""The words that people have for GPUs, besides the names in the data files.

A product (``H100``, ``rtx4090``, ``AMD Instinct MI300X``), in any case, with or without its maker,
and however its parts are held together; and GPUs of this machine (``cuda:0``, ``native``).
"""

from __future__ import annotations

import functools
import re
from itertools import accumulate

from tilewright.arch.model import Device
from tilewright.errors import BadArgument

NATIVE = "native"

_BRANDS = {"nvidia", "geforce", "tesla", "amd", "instinct", "radeon"}
_HERE = re.compile(r"(?:cuda|hip)(?::(\d+))?")


def joined(word: str) -> str:
    """A word as it is compared: ``rtx4090`` for ``NVIDIA GeForce RTX 4090`` and ``rtx_4090``."""
    return "".join(_parts(word))


def product_of(word: str) -> str:
    """The product that a word names, or begins with: ``H100`` for ``h100`` and ``H100 NVL``, but
    not for ``h100x``; ``""`` if none."""
    beginnings = accumulate(_parts(word))
    return next((_products()[b] for b in reversed([*beginnings]) if b in _products()), "")


def arch_of(product: str) -> str:
    """The name of the architecture of a product, as `product_of` gives it."""
    return _archs()[product]


def gpu(word: str) -> Device | None:
    """The GPU of this machine that a word names: by its number, ``cuda:1`` (AMD's too; ``cuda`` is
    the first), or ``native`` where all are alike; None for other words.

    Raises `NoDriver`, and `BadArgument` for a number that is not here and for GPUs that differ.
    """
    from tilewright.arch.detect import live_device, live_devices

    plain = word.strip().lower()
    if plain == NATIVE:
        here = live_devices()
        if len(set(here)) > 1:
            listed = ", ".join(f"cuda:{number} {d.name}" for number, d in enumerate(here))
            raise BadArgument(f"the GPUs of this machine differ; say which one: {listed}")
        return here[0]
    found = _HERE.fullmatch(plain)
    return None if found is None else live_device(int(found[1] or 0))


def number(word: str) -> int | None:
    """The number in ``cuda:1``; None for other words."""
    found = _HERE.fullmatch(word.strip().lower())
    return None if found is None else int(found[1] or 0)


def _parts(word: str) -> list[str]:
    return [p for p in re.split(r"[\s_-]+", word.strip().lower()) if p and p not in _BRANDS]


@functools.cache
def _products() -> dict[str, str]:
    """Products by their joined words."""
    return {joined(product): product for product in _archs()}


@functools.cache
def _archs() -> dict[str, str]:
    """The architecture's name of each product."""
    from tilewright.arch.load import arch, archs

    return {product: name for name in archs() for product in arch(name).products}
