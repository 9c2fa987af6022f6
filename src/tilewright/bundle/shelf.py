"""`Shelf`: the bundles that a dispatcher uses.

A dispatcher uses the bundles given to it, else those that ``TILEWRIGHT_BUNDLE`` names, else those
that wheels of kernels installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

from tilewright import variables
from tilewright.bundle.bundle import Bundle, package_folders
from tilewright.checks import flag
from tilewright.errors import BadArgument, shown
from tilewright.registry import Entry
from tilewright.tables.merge import Several
from tilewright.tables.table import Table

VARIABLE, TRUST_VARIABLE = variables.BUNDLE, variables.BUNDLE_TRUSTED
"""Environment variables: the bundles to use, separated as in PATH; and whether to trust them
whoever made them (``1``), or only if this user did (``0``, or empty)."""

OFF = "none"
"""In place of a bundle: use none, not even an installed one."""

Given = Bundle | str | os.PathLike[str] | Sequence[Bundle | str | os.PathLike[str]]


class Shelf:
    """Several bundles used as one. A kernel comes from the first bundle that has it."""

    def __init__(self, bundles: Sequence[Bundle] = ()) -> None:
        self.bundles = tuple(bundles)
        self.where = ", ".join(bundle.where for bundle in self.bundles)
        self.prioritised = any(bundle.manifest.priorities for bundle in self.bundles)
        self._entries: dict[str, tuple[Entry, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.bundles)

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that there are kernels for."""
        return tuple(dict.fromkeys(arch for bundle in self.bundles for arch in bundle.archs))

    def find(self, name: str, arch: str) -> Bundle | None:
        """The bundle that gives a kernel, if one has it."""
        return next((bundle for bundle in self.bundles if bundle.has(name, arch)), None)

    def names(self, arch: str) -> tuple[str, ...]:
        """The kernels there are for an architecture."""
        return tuple(dict.fromkeys(name for b in self.bundles for name in b.names(arch)))

    def entries(self, arch: str) -> tuple[Entry, ...]:
        """The kernels for an architecture, as a registry has them."""
        if arch not in self._entries:
            every = (entry for bundle in self.bundles for entry in bundle.entries(arch))
            first: dict[object, Entry] = {}
            for entry in every:
                first.setdefault(entry.config, entry)
            self._entries[arch] = tuple(first.values())
        return self._entries[arch]

    @cached_property
    def table(self) -> Table | Several | None:
        """Their tuned choices, if there are any. Raises `BadFile`."""
        found = [table for bundle in self.bundles if (table := bundle.table) is not None]
        return Several(found) if len(found) > 1 else found[0] if found else None


def opened(given: Given | None = None) -> Shelf | None:
    """The bundles given, else those of ``TILEWRIGHT_BUNDLE``; an empty shelf for `OFF`; None if
    neither is there. Raises as `Bundle` does, and `BadArgument`."""
    trusted = False
    if given is None:
        said = os.environ.get(VARIABLE, "")
        if not said:
            return None
        trusted = flag(TRUST_VARIABLE, False)
        given = said if said == OFF else [path for path in said.split(os.pathsep) if path]
    if isinstance(given, str) and given == OFF:
        return Shelf()
    if isinstance(given, Bundle | str | os.PathLike):
        given = [given]
    elif not isinstance(given, Sequence):
        raise BadArgument(f"{shown(given)} is neither a bundle nor the path of one")
    return Shelf([b if isinstance(b, Bundle) else Bundle(b, trusted) for b in given])


@cache
def installed() -> Shelf:
    """The bundles of wheels of kernels, by name. Raises as `Bundle` does."""
    found: list[Path] = []
    for folder in package_folders():
        found += sorted(folder.glob("*.bundle"))
    return Shelf([Bundle(path) for path in dict.fromkeys(found)])
