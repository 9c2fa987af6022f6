"""`Table`: rows by (device, tuning key of the problem), immutable in use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile
from tilewright.tables.packed import Packed, pack
from tilewright.tables.row import Row

MOST_SEEN = 65536
"""Problems whose row is remembered; when more were asked for, all are forgotten."""


class Table:
    """Rows by (device, tuning key of the problem; see `Family.tuning_key`). Thread-safe.

    `Table.of` makes a table of rows, `tilewright.tables.file.load` reads one. `digest` is the
    SHA-256 of the rows' content, whatever their order and whichever files they came from: ranks
    whose tables have the same digest choose the same kernels. `where` names the table's origin in
    errors.

    Raises `BadFile` for `data` that is no table, or has another digest than `digest`.
    """

    def __init__(self, data: bytes, where: str = "table", digest: str | None = None) -> None:
        self.data = data
        self.where = where
        self.digest = hashlib.sha256(data).hexdigest()
        if digest not in (None, self.digest):
            raise BadFile(
                f"{where}: is damaged: its content is not what its digest says; copy it anew"
            )
        self._packed = Packed(data, where)
        self._seen: dict[tuple[Any, Device], Row | None] = {}

    @classmethod
    def of(cls, rows: Iterable[Row], where: str = "table") -> Table:
        """A table of `rows`. Raises `BadArgument` for two rows that say different things of one
        problem on one device."""
        kept: dict[tuple[Device, Any], Row] = {}
        for row in rows:
            other = kept.setdefault((row.device, row.problem), row)
            if other != row:
                raise BadArgument(f"{where}: two rows of one problem: {other}; {row}")
        return cls(pack([*kept.values()]), where)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that have rows here."""
        return self._packed.devices

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[Row]:
        """All rows, by device, family and problem; each is made when it is reached."""
        return iter(self._packed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def types(self, family: str, device: Device) -> frozenset[str] | None:
        """The types of `COUNTERPART` that a family's problems here have; None if none of them has a
        row on exactly this device."""
        return self._packed.types(family, device)

    def get(self, problem: Any, device: Device) -> Row | None:
        """The row of `problem` on `device`: of its tuning key and of exactly this device. None if
        there is no such row.

        Answers are remembered by tuning key; the first look-up of a key searches the table.
        """
        asked = ops.family(problem.family).tuning_key(problem), device
        try:
            return self._seen[asked]
        except KeyError:
            pass
        row = self._packed.find(*asked)
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen[asked] = row
        return row

    def placed(self, problem: Any, device: Device) -> tuple[str, Row] | None:
        """The row that `get` finds, behind the name of the table it is in."""
        row = self.get(problem, device)
        return None if row is None else (self.where, row)
