"""`Shipped`: what the tables in this package say, which were tuned where the package was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.arch.model import Device
from tilewright.select import Choice, Skipped
from tilewright.select.tuned import Tuned
from tilewright.tables import file, named


class Shipped:
    """Chooses as `Tuned` does, by the shipped table of the device's architecture, family and type
    of A; nothing where there is none. Raises `BadFile` for a damaged one."""

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
    return _read(named.FOLDER, f"{device.arch}/{problem.family}_{problem.dtype_a}.json")


@cache
def _read(folder: Path, name: str) -> Tuned | None:
    if not (folder / name).is_file():
        return None
    table = file.load(folder / name)
    table.where = f"shipped {name}"
    return Tuned(table, name=Shipped.name)
