"""What a vendor's library computes, made ready; and how such a library is found on this machine."""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tilewright.runtime.driver import Driver

STATUS = 1 << 20
"""Added to a status of a library, which is then no status of the driver; as in launcher.c."""

NOT_POSITIVE = 1 << 16
"""A status of the launcher's in place of a library's: a number is not above 0, as its plan wants
it; as in graph.h."""


class Library(Protocol):
    """A vendor's library, opened. Thread-safe."""

    name: str
    """With the major version, as ``cublaslt13``."""
    step: ClassVar[str]
    """The launcher's function that hands a step to the library."""

    def offered(self, driver: Driver, device: int, asked: Any, count: int, /) -> Sequence[Any]:
        """The first algorithms that the library offers for what is asked, best guess first, at
        most `count`. Raises `LibraryRefused` if there is none."""

    def prepared(self, driver: Driver, device: int, asked: Any, /) -> Prepared:
        """What is asked, by its algorithm, made ready on a device. Raises `LibraryRefused` if the
        library does not take the algorithm there."""

    def error(self, status: int) -> str:
        """The library's name for a status."""


class Prepared:
    """A step that a library computes, ready on one device. What it describes to the library lives
    as long as it does.

    name: what messages call it.
    driver: of the device. What is described may be destroyed while a graph is captured.
    context: what the launcher's function finds at `address`.
    serve: sees to it that the library has what it needs for a stream of the device, which is
        current; raises `LibraryRefused`. By default one that is ready serves every stream.
    """

    def __init__(
        self,
        name: str,
        library: Library,
        driver: Driver,
        context: ctypes.Structure,
        descriptions: ExitStack,
        serve: Callable[[int], None] = lambda stream: None,
    ) -> None:
        self.name, self._library, self._context, self.serve = name, library, context, serve
        weakref.finalize(self, _destroy, driver, descriptions).atexit = False

    @property
    def step(self) -> str:
        """See `Library.step`."""
        return self._library.step

    @property
    def address(self) -> int:
        """The address of the context."""
        return ctypes.addressof(self._context)

    def error(self, status: int) -> str:
        """The library's name for a status."""
        return self._library.error(status)


def _destroy(driver: Driver, descriptions: ExitStack) -> None:
    with driver.capture_allowed():
        descriptions.close()


def loaded(files: Sequence[str], folders: Sequence[str]) -> Iterator[ctypes.CDLL]:
    """A library that is one of `files`, as it can be loaded: the one that this process has loaded,
    as torch does; else those of packages; else the system's.

    folders: of packages, below those that pip installs into, as patterns.
    """
    here = ctypes.DEFAULT_MODE | os.RTLD_NOLOAD
    places = [(file, here) for file in files]
    places += [(path, ctypes.DEFAULT_MODE) for path in _packaged(files, folders)]
    places += [(file, ctypes.DEFAULT_MODE) for file in files]
    for place, mode in places:
        try:
            found = ctypes.CDLL(place, mode)
        except OSError:
            continue
        yield found


def _packaged(files: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Where packages have one of `files`."""
    kinds = ("site-packages", "dist-packages")
    for root in (Path(p).absolute() for p in sys.path if Path(p).name in kinds):
        for folder in folders:
            for file in files:
                yield from map(str, sorted(root.glob(f"{folder}/{file}")))
