"""Operation families: every folder here that has a ``problem.py``; its package defines ``FAMILY``.

Nothing outside a family's folder names the family; the folders are found by looking.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from tilewright.errors import UnknownName, nearest

# Imported here, not where first used: importing the module later would put it in the place of
# the function `family` below.
from tilewright.ops.protocols import Family


@cache
def families() -> tuple[str, ...]:
    """Names of the families there are, sorted."""
    here = Path(__file__).parent
    return tuple(sorted(path.parent.name for path in here.glob("*/problem.py")))


@cache
def family(name: str) -> Family:
    """The family called `name`. Raises `UnknownName`."""
    if name not in families():
        known = ", ".join(families())
        raise UnknownName(
            f"no operation family '{name}'{nearest(name, families())}; known: {known}"
        )
    found: Family = importlib.import_module(f"{__name__}.{name}").FAMILY
    return found


def usual() -> Family:
    """The family of what names none: of CK Tile Engine's sweeps, and of aiter's files."""
    return next(found for found in map(family, families()) if found.reads_unnamed)


def family_of(kernel: str) -> Family:
    """The family that a kernel's name begins with. Raises `UnknownName`."""
    begins = [name for name in families() if kernel.startswith(f"{name}_")]
    return family(max(begins, key=len) if begins else kernel.partition("_")[0])
