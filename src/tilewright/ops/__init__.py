"""Operation families, found by name.

There are families of four origins:

- every folder here that has a ``problem.py``; its package defines ``FAMILY``;
- every page in the folders of ``tilewright/declared``: a module that declares the operation of its
  own name (`tilewright.custom.declare`);
- entry points of installed packages, of the group `ENTRY_POINTS`;
- those that a program registers (`register`), which `tilewright.custom` does for a kernel of the
  user's own. Other processes find these by the modules that `MODULES_VARIABLE` names.

Nothing outside a family's folder names the family.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path

from tilewright import variables
from tilewright.arch.model import Arch
from tilewright.errors import BadArgument, UnknownName, nearest, shown

# Imported here, not where first used: importing the module later would put it in the place of
# the function `family` below.
from tilewright.ops.protocols import Family

ENTRY_POINTS = "tilewright.families"
"""The group of entry points: ``name = "package.module:FAMILY"``, or ``"package.module"`` where
importing the module registers the family."""

MODULES_VARIABLE = variables.KERNEL_MODULES
"""Names the environment variable: modules, separated by colons, that register families and
operations, and that kernels may come from, with all below them."""

DECLARED = "tilewright.declared"
"""The package whose folders have pages."""

_registered: dict[str, Family] = {}
"""What the program registered."""
_declared: dict[str, Family] = {}
"""What the pages that were imported declare."""


def named_modules() -> list[str]:
    """The modules that `MODULES_VARIABLE` names."""
    return [*filter(None, os.environ.get(MODULES_VARIABLE, "").split(":"))]


def kernel_modules() -> list[str]:
    """The modules that kernels may come from, with all below them."""
    packages = (place.partition(":")[0].partition(".")[0] for place in _entry_points().values())
    return list(dict.fromkeys((__name__.partition(".")[0], *named_modules(), *packages)))


def register(family: Family, module: str) -> None:
    """Have `family` found by its name, in this process and in those that it starts.

    module: imported in other processes; importing it registers the family there too.

    Raises `BadArgument` if another family has this name.
    """
    name = family.name
    installed = _pages().get(name) or _entry_points().get(name, module).partition(":")[0]
    if not name.isidentifier() or name in _folders() or installed != module:
        raise BadArgument(
            f"'{name}' cannot name the family of {module}: it is no identifier, or another family's"
        )
    if name in _pages():
        _declared[name] = family
        return
    _registered[name] = family
    if module not in named_modules():
        os.environ[MODULES_VARIABLE] = ":".join([*named_modules(), module])


def families() -> tuple[str, ...]:
    """Names of the families there are, sorted."""
    _import_named(os.environ.get(MODULES_VARIABLE, ""))
    return tuple(sorted({*_folders(), *_pages(), *_entry_points(), *_registered}))


def installed() -> tuple[str, ...]:
    """Names of the families of this package and of installed ones, sorted. Nothing is imported, so
    that those of users' modules are not among them."""
    return tuple(sorted({*_folders(), *_pages(), *_entry_points()}))


def with_a_folder() -> tuple[str, ...]:
    """Names of the families that have a folder here, sorted."""
    return tuple(sorted(_folders()))


def declared() -> tuple[str, ...]:
    """Names of the operations of this package that are pages, sorted."""
    return tuple(sorted(_pages()))


def family(name: str) -> Family:
    """The family called `name`. Raises `UnknownName`."""
    if not isinstance(name, str):
        raise UnknownName(f"{shown(name)} is no name of an operation family")
    found = _registered.get(name) or _declared.get(name)
    if found is not None:
        return found
    if name in _folders():
        return _of_module(f"{__name__}.{name}:FAMILY")
    if name in _pages():
        importlib.import_module(_pages()[name])
        return _declared[name]
    known = families()
    place = _entry_points().get(name)
    if place is not None and name not in _registered:
        importlib.import_module(place.partition(":")[0])
    if name in _registered:
        return _registered[name]
    if place is not None:
        return _of_module(place)
    raise UnknownName(
        f"no operation family '{name}'{nearest(name, known)}; known: {', '.join(known)}"
    )


def pipelines(arch: Arch) -> tuple[str, ...]:
    """The pipelines of all families that `arch` can run, each once."""
    return tuple(dict.fromkeys(p for name in families() for p in family(name).pipelines(arch)))


def usual() -> Family:
    """The family of documents that name none: CK Tile Engine's sweeps, and aiter's files."""
    return next(found for found in map(family, families()) if found.formats.unnamed)


def family_of(kernel: str) -> Family:
    """The family that a kernel's name begins with. Raises `UnknownName`."""
    if not isinstance(kernel, str):
        raise UnknownName(f"{shown(kernel)} is no kernel's name")
    begins = [name for name in families() if kernel.startswith(f"{name}_")]
    if begins:
        return family(max(begins, key=len))
    known, first = families(), kernel.partition("_")[0]
    raise UnknownName(
        f"{shown(kernel, 300)} is no kernel's name, which begins with its operation family"
        f"{nearest(first, known)}: {', '.join(known)}"
    )


@cache
def _folders() -> tuple[str, ...]:
    return tuple(path.parent.name for path in Path(__file__).parent.glob("*/problem.py"))


@cache
def _pages() -> dict[str, str]:
    """The modules of pages, by the names of their operations."""
    root = Path(__file__).parents[1].joinpath(DECLARED.rpartition(".")[2])
    found = (path for path in root.glob("*/*.py") if not path.stem.startswith("_"))
    return {path.stem: f"{DECLARED}.{path.parent.name}.{path.stem}" for path in found}


@cache
def _entry_points() -> dict[str, str]:
    """What installed packages state; a folder's name is the folder's, and a page's the page's."""
    import importlib.metadata  # here, as it takes long to import

    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    taken = {*_folders(), *_pages()}
    return {one.name: one.value for one in found if one.name not in taken}


@cache
def _of_module(place: str) -> Family:
    module, _, attribute = place.partition(":")
    found: Family = getattr(importlib.import_module(module), attribute or "FAMILY")
    return found


@cache
def _import_named(modules: str) -> None:
    """Import the modules that the environment names, once, so that what they define is known."""
    for module in filter(None, modules.split(":")):
        importlib.import_module(module)
