"""Large spaces are expanded once in each process of tests.

A dispatcher expands the default space of the first problem of a kind, which takes a second for a
GEMM. Users have one dispatcher. Tests have hundreds, most of them for the same few spaces.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tilewright.arch import arch as arch_called
from tilewright.space import KernelSpace

LARGE = 500
"""Combinations: fewer take no time."""


class _Made(Sequence[Any]):
    """The dropped combinations of a space, megabytes that hardly any test asks for: found again
    when they are."""

    def __init__(self, expand: Any, space: KernelSpace, arch: Any) -> None:
        self._of = expand, space, arch

    def _all(self) -> tuple[Any, ...]:
        expand, space, arch = self._of
        return expand(space, arch).dropped

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, place: Any) -> Any:
        return self._all()[place]

    def __iter__(self) -> Any:
        return iter(self._all())


def keep(patch: pytest.MonkeyPatch) -> None:
    """Patch `KernelSpace.expand` to keep what it finds for the architectures that there are."""
    expand = KernelSpace.expand
    known: dict[Any, Any] = {}

    @functools.wraps(expand)
    def once(space: KernelSpace, arch: Any) -> Any:
        this = arch_called(arch)
        if this is not arch_called(this.name):  # a test's own
            return expand(space, this)
        key = space.key, this.name
        if key in known:
            return known[key]
        found = expand(space, this)
        if len(found.configs) + len(found.dropped) >= LARGE:
            known[key] = replace(found, dropped=_Made(expand, space, this))
        return found

    patch.setattr(KernelSpace, "expand", once)
