"""Which rows of a table answer for a problem on a device, the nearest answer first.

1. *exact*: the row of this problem on this device, or on a twin of it.
2. *nearby*: the row of a problem that the family calls nearby (`Family.nearby`): for GEMM, the same
   problem with M rounded up.
3. *borrowed*: the rows that 1 and 2 find on another device of the same architecture, nearest device
   first (see `tilewright.tables.neighbours`).

Behind the row of each problem, that of the same problem in fp16 or bf16 answers, whichever it is
not in, with its kernels in the problem's type (see `tilewright.ops.counterpart`).

A row's kernels are tried in the row's order: the winner, then its ties, then, where these are
algorithms of a library, the best kernel that is built here. A kernel that no longer
exists or no longer serves the row's own problem is skipped with a warning. A kernel that serves the
row's problem but not the problem asked about (which may be less aligned) is skipped silently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, get_args

from tilewright import ops, version
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.counterpart import counterpart, other_type, renamed
from tilewright.ops.library import library_of
from tilewright.tables.merge import Several
from tilewright.tables.neighbours import TWIN, lenders
from tilewright.tables.row import Row, still_serves
from tilewright.tables.table import Table
from tilewright.verdict import YES, Verdict, no
from tilewright.version import __version__

log = logging.getLogger("tilewright")

Versions = Literal["any", "same"]
"""Which rows are used, by what their kernels were compiled with. any: all; of other versions with a
warning. same: those of the installed versions; the others are skipped with a warning."""

COMPILERS = ("tilewright", "triton")
"""Packages whose versions make a kernel's binary: its source and its compiler."""

Origin = Literal["exact", "nearby", "borrowed"]


@dataclass(frozen=True, slots=True)
class Found:
    """A row that answers, and why this row.

    table: the name of the table that the row is in.
    configs: the row's kernels that serve the problem, in the row's order and the problem's type.
    in_other_type: whether the row is in bf16 and the problem in fp16, or the other way round.
    how: how the row's problem comes from the problem asked about, in words (``padded to M = 64, in
        bf16``); ``""`` for the problem itself.
    other_size: whether the row is of a problem that the family calls nearby, on any device.
    distance: of the device that the row is borrowed from; 0, or less than `TWIN`, otherwise.
    skipped: names of the row's other kernels, each with the reason.
    """

    row: Row
    table: str
    configs: tuple[Any, ...]
    origin: Origin
    in_other_type: bool = False
    how: str = ""
    other_size: bool = False
    distance: float = 0.0
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def where(self) -> str:
        """Where the answer comes from, in words."""
        said = [self.how] if self.how else []
        if self.origin == "borrowed":
            said.insert(0, f"borrowed from {self.row.device.name} (distance {self.distance:.2f})")
        return ", ".join(said) or "exact row"

    @property
    def ahead(self) -> bool:
        """Whether the row's winner and its ties are kernels that are built here. Where algorithms
        of the vendor's library were measured beside them, they took longer."""
        family = ops.family(self.row.problem.family)
        names = (self.row.kernel, *self.row.ties)
        try:
            return not any(library_of(family.parse_name(name)) for name in names)
        except UnknownName:  # nothing is known of a kernel that is no more
            return False

    def won(self, config: Any) -> bool:
        """Whether a config of `configs` is the row's winner."""
        return self._called(config, self.row.kernel)

    def is_ours(self, config: Any) -> bool:
        """Whether a config of `configs` is the best that is built here, behind a library's."""
        return self._called(config, self.row.ours)

    def _called(self, config: Any, kernel: str) -> bool:
        return bool(config.name == (renamed(kernel) if self.in_other_type else kernel))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A problem whose row may answer; the other fields as in `Found`."""

    problem: Any
    how: str = ""
    other_size: bool = False
    in_other_type: bool = False

    def both(self, dtype: str) -> tuple[_Asked, ...]:
        """This, and the same in the other type; alone for ``""``."""
        if not dtype:
            return (self,)
        how = f"{self.how}, in {dtype}" if self.how else f"in {dtype}"
        return self, _Asked(counterpart(self.problem), how, self.other_size, in_other_type=True)


_Placed = tuple[float, _Asked, tuple[str, Row]]
_lenders = lru_cache(maxsize=256)(lenders)


@lru_cache(maxsize=64)  # a plan asks several times
def _stated(problem: Any) -> tuple[_Asked, ...]:
    """The problems whose rows may answer for one, the nearest first."""
    near = ops.family(problem.family).nearby(problem)
    return (_Asked(problem), *(_Asked(one.problem, one.how, other_size=True) for one in near))


class Lookup:
    """Finds rows in `table`; warns once of each row that cannot be used. Thread-safe. Raises
    `BadArgument` for an unknown policy of versions."""

    def __init__(self, table: Table | Several, versions: Versions = "any") -> None:
        if versions not in get_args(Versions):
            raise BadArgument(
                f"versions '{versions}' is not one of {', '.join(get_args(Versions))}"
            )
        self.table = table
        self.versions = versions
        self._told: set[Any] = set()
        self._last: tuple[Any, Sequence[_Placed]] = None, ()

    def knows(self, family: str, device: Device) -> bool:
        """Whether a row of the family is of this device, or of a twin of it."""
        twins = (one for apart, one in _lenders(device, self.table.devices) if apart < TWIN)
        return any(self.table.types(family, one) is not None for one in (device, *twins))

    def find(self, problem: Any, device: Device) -> Iterator[Found]:
        """Rows that answer for `problem` on `device`, nearest first; each has at least one kernel
        that serves it."""
        return (found for found in self.all(problem, device) if found.configs)

    def all(self, problem: Any, device: Device) -> Iterator[Found]:
        """All rows that `find` looks at, also rows without a kernel that can be used."""
        for apart, one, (table, row) in self._placed(problem, device):
            own: Origin = "nearby" if one.how else "exact"
            origin: Origin = own if apart < TWIN else "borrowed"
            other = one.in_other_type
            configs, skipped = self._serving(row, problem, other)
            yield Found(row, table, configs, origin, other, one.how, one.other_size, apart, skipped)

    def _placed(self, problem: Any, device: Device) -> Sequence[_Placed]:
        """The rows for a problem and those near it, nearest first, each with its distance."""
        last, known = self._last
        if last == (problem, device):  # a plan asks several times
            return known
        other = other_type(problem)
        found = [
            (apart, one, placed)
            for apart, owner in [(0.0, device), *_lenders(device, self.table.devices)]
            if (types := self.table.types(problem.family, owner)) is not None
            for own in _stated(problem)
            for one in own.both(other if other in types else "")
            if (placed := self.table.placed(one.problem, owner)) is not None
        ]
        self._last = (problem, device), found
        return found

    def missed(self, problem: Any, device: Device) -> None:
        """Log, once for each problem and device, that no row answers."""
        self._tell(
            logging.INFO,
            ("miss", problem, device),
            "%s has no row for %s on %s",
            self.table.where, problem, device.name,
        )  # fmt: skip

    def _serving(
        self, row: Row, problem: Any, in_other_type: bool
    ) -> tuple[tuple[Any, ...], tuple[tuple[str, str], ...]]:
        """The row's kernels that serve the problem; and the names of its other kernels, each with
        the reason."""
        made = self._made_elsewhere(row)
        if made and self.versions == "same":
            return (), tuple(
                (name, f"versions: made with {made}; installed: {_listed(installed())}")
                for name in row.kernels
            )
        configs, skipped = [], []
        for name in row.kernels:
            verdict = still_serves(name, row)
            if verdict:
                config, verdict = _for(problem, name, row, in_other_type)
                if verdict:
                    configs.append(config)
            else:
                self._skip(row, name, verdict.reason)
            if not verdict:
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
        """The versions that the row was made with, where other versions are installed; warns of
        them. Where no Triton is installed nothing is compiled, so its version does not count."""
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


def _for(problem: Any, name: str, row: Row, in_other_type: bool) -> tuple[Any, Verdict]:
    """The row's kernel `name`, in the problem's type, and whether it serves the problem."""
    family, this = ops.family(problem.family), arch(row.device.arch)
    if in_other_type:
        try:
            config = family.parse_name(renamed(name))
        except UnknownName as error:
            return None, no("no_such_kernel", str(error))
        verdict = family.judge(config, this)
        return config, verdict and family.supports(config, problem, this)
    config = family.parse_name(name)
    return config, YES if problem == row.problem else family.supports(config, problem, this)


@cache
def installed() -> tuple[tuple[str, str], ...]:
    """The versions of `COMPILERS` here."""
    found = [("tilewright", __version__)]
    if triton := version.installed("triton"):  # a machine that only plans has none
        found.append(("triton", triton))
    return tuple(found)


def _listed(versions: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions)
