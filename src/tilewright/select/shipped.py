"""`Shipped`: kernels by the tables that come with this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.select import Choice, Skipped
from tilewright.select.tuned import Tuned
from tilewright.tables import file, named


class Shipped:
    """Chooses as `Tuned` does, by the shipped table of the device's architecture that the family
    names for the problem (`Family.table`); nothing where there is none. Raises `BadFile` for a
    damaged table."""

    name = "shipped"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        tuned = _tuned(problem, device)
        if tuned is not None:
            yield from tuned.order(problem, candidates, device)

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        tuned = _tuned(problem, device)
        if tuned is not None:
            yield from tuned.recall(problem, device)


def _tuned(problem: Any, device: Device) -> Tuned | None:
    name = ops.family(problem.family).table(problem)
    return _read(named.FOLDER, f"{device.arch}/{name}.json")


@cache
def _read(folder: Path, name: str) -> Tuned | None:
    if not (folder / name).is_file():
        return None
    table = file.load(folder / name)
    table.where = f"shipped {name}"
    return Tuned(table, name=Shipped.name)
