"""`Shipped`: kernels by the tables that come with this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.ops.counterpart import renamed
from tilewright.select import Choice, Offers, Skipped
from tilewright.select.tuned import Tuned
from tilewright.tables import file, named
from tilewright.tables.merge import Several
from tilewright.tables.table import Table


class Shipped:
    """Chooses as `Tuned` does, by the shipped tables of the device's architecture that the family
    names for the problem (`Family.table`), and for the problem in fp16 or bf16 where it is in the
    other; nothing where there is none. Raises `BadFile` for a damaged table.

    offers: as `Tuned` has it.
    """

    name = "shipped"

    def __init__(self, offers: Offers | None = None) -> None:
        self._asking = cache(partial(Tuned.asking, offers=offers))

    def knows(self, family: str, device: Device) -> bool:
        """See `tilewright.select.Knows`."""
        paths = (named.FOLDER / device.arch).glob("*.twt")
        return any(Tuned(_table(path)).knows(family, device) for path in paths)

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        tuned = _tuned(problem, device)
        if tuned is not None:
            yield from self._asking(tuned).order(problem, candidates, device)

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        tuned = _tuned(problem, device)
        if tuned is not None:
            yield from self._asking(tuned).recall(problem, device)


def _tuned(problem: Any, device: Device) -> Tuned | None:
    return _read(named.FOLDER, device.arch, ops.family(problem.family).table(problem))


@cache
def _read(folder: Path, arch_name: str, table: str) -> Tuned | None:
    """table: of a problem's own type; that of the other type, if it has one, is called alike."""
    paths = [folder / arch_name / f"{name}.twt" for name in sorted({table, renamed(table)})]
    found = [_table(path) for path in paths if path.is_file()]
    if not found:
        return None
    return Tuned(found[0] if len(found) == 1 else Several(found), name=Shipped.name)


@cache
def _table(path: Path) -> Table:
    return file.load(named.name_of(path))
