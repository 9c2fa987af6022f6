"""The vendors' libraries of each backend."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from tilewright.errors import LibraryRefused
from tilewright.ops.library import (
    CUBLASLT,
    CUDNN,
    HIPBLASLT,
    MIOPEN,
    kind,
    library_name,
    major,
)
from tilewright.runtime.cublaslt import CublasLt
from tilewright.runtime.cudnn import Cudnn
from tilewright.runtime.hipblaslt import HipblasLt
from tilewright.runtime.miopen import Miopen
from tilewright.runtime.prepared import Library, loaded

ALGORITHMS = 8
"""How many algorithms a library is asked for, by default. On NVIDIA, `torch.mm` takes the first."""

_TYPES: dict[str, type[CublasLt | HipblasLt | Cudnn | Miopen]] = {
    CUBLASLT: CublasLt,
    HIPBLASLT: HipblasLt,
    CUDNN: Cudnn,
    MIOPEN: Miopen,
}


def names(kind: str) -> list[str]:
    """The names of a library by its known major versions, the preferred one first."""
    return [library_name(kind, version) for version in _TYPES[kind].majors]


@cache
def opened(name: str) -> Library:
    """The library called `name` (``cublaslt13``), opened once: the one that this process has
    loaded, as torch does; else that of a package; else the system's. Raises `LibraryRefused`."""
    of, version = _TYPES.get(kind(name)), major(name)
    if of is None or version not in of.majors:
        known = sorted(one for kind in _TYPES for one in names(kind))
        raise LibraryRefused(f"{name} is not known here, which knows {', '.join(known)}")
    files = of.files(version)
    for lib in loaded(files, of.folders):
        return of(lib, name)
    raise LibraryRefused(
        f"{files[0]} is not on this machine: install {of.install.format(version)}, or tune for the "
        "library that is there"
    )


def present(kind: str) -> Library:
    """The library that is here, the newest that is known. Raises `LibraryRefused`."""
    first, *others = names(kind)
    for name in others:
        with suppress(LibraryRefused):
            return opened(first)
        first = name
    return opened(first)
