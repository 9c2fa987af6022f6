"""The vendor's library of each backend."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from tilewright.errors import LibraryRefused
from tilewright.ops.library import CUBLASLT, HIPBLASLT, LIBRARIES, kind, library_name, major
from tilewright.runtime.blaslt import BlasLt, loaded
from tilewright.runtime.cublaslt import CublasLt
from tilewright.runtime.hipblaslt import HipblasLt

ALGORITHMS = 8
"""How many algorithms a library is asked for, by default. On NVIDIA, `torch.mm` takes the first."""

_TYPES: dict[str, type[BlasLt]] = {CUBLASLT: CublasLt, HIPBLASLT: HipblasLt}


def names(backend: str) -> list[str]:
    """The libraries of a backend that are known, the preferred one first."""
    of = LIBRARIES[backend]
    return [library_name(of, version) for version in _TYPES[of].majors]


@cache
def opened(name: str) -> BlasLt:
    """The library called `name` (``cublaslt13``), opened once: the one that this process has
    loaded, as torch does; else that of a package; else the system's. Raises `LibraryRefused`."""
    of, version = _TYPES.get(kind(name)), major(name)
    if of is None or version not in of.majors:
        known = sorted(one for backend in LIBRARIES for one in names(backend))
        raise LibraryRefused(f"{name} is not known here, which knows {', '.join(known)}")
    files = of.files(version)
    for lib in loaded(files, of.folders):
        return of(lib, name)
    raise LibraryRefused(
        f"{files[0]} is not on this machine: install {of.install.format(version)}, or tune for the "
        "library that is there"
    )


def present(backend: str) -> BlasLt:
    """The library of a backend that is here, the newest that is known. Raises `LibraryRefused`."""
    first, *others = names(backend)
    for name in others:
        with suppress(LibraryRefused):
            return opened(first)
        first = name
    return opened(first)
