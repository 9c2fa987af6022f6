"""Reasons against configs that several families give: an architecture lacks a dtype, a pipeline, or
room for as many threads."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.arch.model import Arch


def dtypes(arch: Arch, names: Iterable[str]) -> str | None:
    """That `arch` does not take one of these dtypes; None if it takes all."""
    for name in dict.fromkeys(names):
        support = arch.dtypes.get(name)
        if support is None or support.support == "refused":
            why = f": {support.note}" if support is not None and support.note else ""
            return f"{arch.name} does not take {name}{why}"
    return None


def no_pipeline(arch: Arch, name: str, has: Iterable[str]) -> str:
    """That `arch` cannot run pipeline `name`, but can run those in `has`."""
    return f"{arch.name} has no pipeline {name}; it has {', '.join(has)}"


def warps(arch: Arch, number: int) -> str | None:
    """That so many warps are more threads than a workgroup of `arch` may have; None if not."""
    threads = number * arch.warp_size
    if threads > arch.max_threads:
        return f"{number} warps are {threads} threads, over {arch.max_threads}"
    return None
