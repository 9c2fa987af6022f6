"""`Registry`: kernels by name, with priorities. There can be many registries; JSON keeps all of
one."""

from __future__ import annotations

import fnmatch
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright import checks, ops
from tilewright.compile.kernel import Kernel, to_data
from tilewright.errors import BadArgument, BadFile, UnknownName, nearest, shown
from tilewright.files import write_whole
from tilewright.jsonfile import convert, load_json, parse_json
from tilewright.ops.nouns import MAIN

SCHEMA = 1
"""Version of the JSON form. A file of a newer version is refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered config.

    priority: among the configs that serve a problem, those of the highest priority are considered
    first, whatever their estimates.
    builds: the config's kernels, by `build_place`; empty until built, and never needed to plan.
    """

    config: Any
    priority: int = 0
    builds: dict[str, Kernel] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kernel's name."""
        name: str = self.config.name
        return name

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures of the entry's builds."""
        return tuple(dict.fromkeys(kernel.arch for kernel in self.builds.values()))


def build_place(kernel: Kernel) -> str:
    """The key of a kernel among the builds of its config: the architecture, ``sm_90``; for a config
    with several kernels, with the part, ``sm_90:reduce``."""
    return kernel.arch if kernel.part == MAIN else f"{kernel.arch}:{kernel.part}"


class Registry:
    """Kernels by name, in the order of registration. Thread-safe."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self.version = 0
        """Grows with every change, so that plans made before a change can be recognised."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return self.name == other.name and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def register(self, kernel: Any, priority: int = 0) -> Entry:
        """Add a config, given as such, by its kernel's name, or as a built `Kernel`.

        Registering a name again updates its priority and adds to its builds. Raises `UnknownName`
        for a name that does not parse.
        """
        builds: dict[str, Kernel] = {}
        if isinstance(kernel, Kernel):
            builds = {build_place(kernel): kernel}
            kernel = kernel.name
        config = ops.family_of(kernel).parse_name(kernel) if isinstance(kernel, str) else kernel
        if not isinstance(getattr(config, "name", None), str) or not hasattr(config, "family"):
            raise BadArgument(
                f"{shown(config)} is no kernel: give its name, its config or its build"
            )
        checks.whole("priority", priority, -checks.MOST_WHOLE)
        with self._lock:
            old = self._entries.get(config.name)
            entry = Entry(config, priority, {**(old.builds if old else {}), **builds})
            self._entries[config.name] = entry
            self.version += 1
        return entry

    def register_all(self, kernels: Iterable[Any], priority: int = 0) -> Registry:
        """`register` each; returns the registry."""
        for kernel in kernels:
            self.register(kernel, priority)
        return self

    def remove(self, name: str) -> None:
        """Remove a kernel. Raises `UnknownName`."""
        with self._lock:
            self._entry(name)
            del self._entries[name]
            self.version += 1

    def set_priority(self, name: str, priority: int) -> None:
        """Change a kernel's priority. Raises `UnknownName`."""
        with self._lock:
            self._entries[name] = replace(self._entry(name), priority=priority)
            self.version += 1

    def get(self, name: str) -> Entry:
        """The kernel called `name`. Raises `UnknownName`, with the nearest known name."""
        return self._entry(name)

    def _entry(self, name: str) -> Entry:
        if not isinstance(name, str) or name not in self._entries:
            hint = nearest(name, self._entries) if isinstance(name, str) else ""
            raise UnknownName(f"registry '{self.name}' has no kernel {shown(name)}{hint}")
        return self._entries[name]

    def filter(
        self, pattern: str = "*", where: Callable[[Any], bool] | None = None
    ) -> tuple[Entry, ...]:
        """The entries with a name that matches the shell pattern and a config that satisfies
        `where`."""
        return tuple(
            entry
            for entry in self
            if fnmatch.fnmatchcase(entry.name, pattern) and (where is None or where(entry.config))
        )

    def to_json(self) -> str:
        """The whole content of the registry, as JSON. `from_json` gives an equal registry."""
        kernels = [
            {
                "name": entry.name,
                "family": entry.config.family,
                "config": asdict(entry.config),
                "priority": entry.priority,
                "builds": {place: to_data(kernel) for place, kernel in entry.builds.items()},
            }
            for entry in self
        ]
        return json.dumps({"schema": SCHEMA, "registry": self.name, "kernels": kernels}, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "registry") -> Registry:
        """The registry from the JSON of `to_json`. Raises `BadFile`, with `where` and the place in
        it."""
        return cls._from_document(parse_json(text, where), where)

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all. Raises `StoreError`."""
        path = Path(path).absolute()
        write_whole(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Registry:
        """The registry in a file. Raises `BadFile`."""
        return cls._from_document(load_json(path), str(path))

    @classmethod
    def _from_document(cls, document: Any, where: str) -> Registry:
        file = convert(document, _File, where)
        if file.schema != SCHEMA:
            raise BadFile(f"{where}: schema {file.schema} is not {SCHEMA}, the one known here")
        registry = cls(file.registry)
        for number, row in enumerate(file.kernels):
            place = f"{where}: kernels[{number}]"
            try:
                family = ops.family(row.family)
                named = family.parse_name(row.name)
            except UnknownName as error:
                raise BadFile(f"{place}: {error}") from None
            config = convert(row.config, type(named), f"{place}.config")
            if config != named:
                raise BadFile(f"{place}: the name and the config's fields disagree: {row.name}")
            if row.name in registry:
                raise BadFile(f"{place}: {row.name} stands there twice")
            for said, kernel in row.builds.items():
                if (kernel.name, build_place(kernel)) != (row.name, said):
                    raise BadFile(f"{place}.builds.{said}: is {kernel.called} for {kernel.arch}")
            registry._entries[row.name] = Entry(config, row.priority, row.builds)
        registry.version = len(registry)
        return registry


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    family: str
    config: dict[str, Any]
    priority: int
    builds: dict[str, Kernel]


@dataclass(frozen=True, slots=True)
class _File:
    schema: int
    registry: str
    kernels: list[_Row]


_registries: dict[str, Registry] = {}
_registries_lock = threading.Lock()


def registry(name: str = "default") -> Registry:
    """The process's registry called `name`, made on first use."""
    if not name:
        raise BadArgument("a registry needs a name")
    with _registries_lock:
        return _registries.setdefault(name, Registry(name))


def registries() -> tuple[str, ...]:
    """Names of the process's registries."""
    return tuple(_registries)
