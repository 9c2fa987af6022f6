"""Which rows of a table answer for a problem on a device, the nearest answer first.

1. *exact*: the row of this very problem on this very device.
2. *padded*: the row of the same problem with M rounded up, to a step of the ladder (multiples of 16
   up to 256, of 32 up to 1024, of 64 up to 4096, of 128 beyond), then to a power of two. Never
   one with a smaller M: its kernel may have no room for the rows. N and K are never padded.
3. *borrowed*: what 1 and 2 find on another device of the same architecture, the nearest first
   (see `tilewright.tables.neighbours`).

A row's kernels are tried in its order: the winner, then its ties. One that no longer exists or no
longer serves the row's own problem is skipped with a warning; one that serves the row's problem,
but not the one asked about (which may be less aligned), silently.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from tilewright import __version__, ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.errors import BadArgument
from tilewright.tables.merge import Several
from tilewright.tables.neighbours import lenders
from tilewright.tables.row import Row, still_serves
from tilewright.tables.table import Table

log = logging.getLogger("tilewright")

Versions = Literal["any", "same"]
"""Which rows are used, by what their kernels were compiled with. any: all; of other versions with a
warning. same: those of the installed versions; the others are skipped with a warning."""

COMPILERS = ("tilewright", "triton")
"""Packages whose versions make a kernel's binary: its source and its compiler."""

LADDER = ((256, 16), (1024, 32), (4096, 64))
"""Up to which M, and to multiples of what it is rounded up; beyond, of `LAST_STEP`."""
LAST_STEP = 128

Origin = Literal["exact", "padded", "borrowed"]


@dataclass(frozen=True, slots=True)
class Found:
    """A row that answers, and how it came to: `configs` are those of its kernels that serve the
    problem, in the row's order; `skipped`, the others, by name and with why they do not.
    `distance`: from the device it is borrowed from; 0 otherwise."""

    row: Row
    configs: tuple[Any, ...]
    origin: Origin
    padded_to: int | None = None
    distance: float = 0.0
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def where(self) -> str:
        """Where the answer comes from, in words."""
        said = [f"padded to M = {self.padded_to}"] if self.padded_to is not None else []
        if self.origin == "borrowed":
            said.insert(0, f"borrowed from {self.row.device.name} (distance {self.distance:.2f})")
        return ", ".join(said) or "exact row"


def padded(m: int) -> tuple[int, ...]:
    """The larger Ms whose rows answer for M = m, in order."""
    step = next((step for limit, step in LADDER if m <= limit), LAST_STEP)
    rounded = -(-m // step) * step
    power = 1 << max(m - 1, 0).bit_length()
    return tuple(dict.fromkeys(size for size in (rounded, power) if size > m))


class Lookup:
    """Finds rows in `table`, warns once of each that cannot be used. Thread-safe. Raises
    `BadArgument` for an unknown policy of versions."""

    def __init__(self, table: Table | Several, versions: Versions = "any") -> None:
        if versions not in get_args(Versions):
            raise BadArgument(
                f"versions '{versions}' is not one of {', '.join(get_args(Versions))}"
            )
        self.table = table
        self.versions = versions
        self._told: set[Any] = set()

    def find(self, problem: Any, device: Device) -> Iterator[Found]:
        """Rows that answer for `problem` on `device`, with at least one kernel each that serves it,
        the nearest first."""
        return (found for found in self.all(problem, device) if found.configs)

    def all(self, problem: Any, device: Device) -> Iterator[Found]:
        """The rows that `find` looks at: also those of which no kernel can be used."""
        stated = [(None, problem), *_padded(problem)]
        for apart, owner in [(0.0, device), *lenders(device, self.table.devices)]:
            for rows, asked in stated:
                row = self.table.get(asked, owner)
                if row is None:
                    continue
                own: Origin = "exact" if rows is None else "padded"
                origin: Origin = own if owner == device else "borrowed"
                configs, skipped = self._serving(row, problem)
                yield Found(row, configs, origin, rows, apart, skipped)

    def missed(self, problem: Any, device: Device) -> None:
        """Log, once for each problem and device, that no row answers."""
        self._tell(
            logging.INFO,
            ("miss", problem, device),
            "%s has no row for %s on %s",
            self.table.where, problem, device.name,
        )  # fmt: skip

    def _serving(
        self, row: Row, problem: Any
    ) -> tuple[tuple[Any, ...], tuple[tuple[str, str], ...]]:
        """Those of the row's kernels that serve the problem; the names of the others, and why."""
        made = self._made_elsewhere(row)
        if made and self.versions == "same":
            return (), tuple(
                (name, f"versions: made with {made}; installed: {_listed(installed())}")
                for name in row.kernels
            )
        family, this = ops.family(row.problem.family), arch(row.device.arch)
        configs, skipped = [], []
        for name in row.kernels:
            verdict = still_serves(name, row)
            if not verdict:
                self._skip(row, name, verdict.reason)
            elif problem != row.problem:
                verdict = family.supports(family.parse_name(name), problem, this)
            if verdict:
                configs.append(family.parse_name(name))
            else:
                skipped.append((name, str(verdict)))
        return tuple(configs), tuple(skipped)

    def _skip(self, row: Row, name: str, why: str) -> None:
        self._tell(
            logging.WARNING,
            ("skip", name, row.problem, row.device),
            "%s: %s on %s: kernel %s no longer serves it and is skipped: %s",
            self.table.where, row.problem, row.device.name, name, why,
        )  # fmt: skip

    def _made_elsewhere(self, row: Row) -> str:
        """The versions the row was made with, if they are not those here; warns of them. Where no
        Triton is installed none compiles, so its version does not count."""
        made = tuple((name, version) for name, version in row.versions if name in COMPILERS)
        here = dict(installed())
        if tuple((name, version) for name, version in made if name in here) == installed():
            return ""
        listed = _listed(made) or "unknown versions"
        self._tell(
            logging.WARNING,
            ("versions", made),
            "%s: its rows made with %s are %s; installed: %s",
            self.table.where,
            listed,
            "used all the same" if self.versions == "any" else "not used",
            _listed(installed()),
        )
        return listed

    def _tell(self, level: int, key: Any, message: str, *values: Any) -> None:
        if key not in self._told:
            self._told.add(key)
            log.log(level, message, *values)


@cache
def installed() -> tuple[tuple[str, str], ...]:
    """The versions of `COMPILERS` here."""
    found = [("tilewright", __version__)]
    with suppress(importlib.metadata.PackageNotFoundError):  # on a machine that only plans
        found.append(("triton", importlib.metadata.version("triton")))
    return tuple(found)


def _listed(versions: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions)


def _padded(problem: Any) -> Iterator[tuple[int, Any]]:
    """The problem with the Ms of `padded`, those that its strides have room for."""
    family = ops.family(problem.family)
    rows = family.rows(problem)
    with suppress(BadArgument):  # no room for so many rows, nor for more
        for size in padded(rows) if rows else ():
            yield size, family.with_rows(problem, size)
