"""Merges the results of several sweeps into one directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from tilewright.errors import BadArgument
from tilewright.measure.database import FILE
from tilewright.measure.results import Outline, Results

Policy = Literal["newest", "fastest", "fail"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
"""Which of several different measurements with one key is kept.

newest: the measurement made last.
fastest: the least median; a timed measurement beats one without a time.
fail: none; nothing is merged.
"""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Different measurements with one key, and the directory whose measurement was kept."""

    kernel: str
    problem: str
    kept: str
    dropped: str


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did.

    measurements: how many the merged directory has.
    repeated: how many were the same in several directories.
    conflicts: those that differed.
    """

    measurements: int
    repeated: int
    conflicts: tuple[Conflict, ...]


def merge(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    policy: Policy = "fail",
) -> Merged:
    """Combine the sweep directories `folders` into a new one, `out`.

    Two measurements have one key if kernel, binary, problem, device, environment and settings are
    the same. They conflict unless one is a copy of the other.

    Raises `BadArgument` for a conflict under ``fail``, naming the first few (`out` is not made
    then), and if `out` already has results. Also raises the errors of `Results`.
    """
    if policy not in POLICIES:
        raise BadArgument(f"policy '{policy}' is not one of {', '.join(POLICIES)}")
    if (Path(out) / FILE).exists():
        raise BadArgument(f"{os.fspath(out)} has results already; merge into a new directory")
    sources = [Results(folder) for folder in folders]
    try:
        kept, repeated, conflicts = _chosen(sources, policy)
        if conflicts and policy == "fail":
            raise BadArgument(
                f"{len(conflicts)} measurements are different in several directories; choose which "
                f"to keep with --policy newest or fastest: {_named(conflicts)}"
            )
        with Results(out, write=True) as target:
            for number, source in enumerate(sources):
                ids = {row.id for owner, row in kept.values() if owner == number}
                measurements = (m for i, m in source.numbered() if i in ids)
                while some := list(islice(measurements, 1000)):
                    target.add(some)
                target.add_builds(source.builds())
            return Merged(len(target), repeated, tuple(conflicts))
    finally:
        for source in sources:
            source.close()


Owned = tuple[int, Outline]
"""The number of the directory that has a measurement, and the measurement."""


def _chosen(
    sources: Sequence[Results], policy: Policy
) -> tuple[dict[tuple[str, ...], Owned], int, list[Conflict]]:
    kept: dict[tuple[str, ...], Owned] = {}
    repeated = 0
    conflicts: list[Conflict] = []
    for number, source in enumerate(sources):
        for row in source.outlines():
            old = kept.get(row.key)
            if old is None:
                kept[row.key] = (number, row)
            elif (old[1].measured_at, old[1].median_us) == (row.measured_at, row.median_us):
                repeated += 1
            else:
                better, worse = (
                    ((number, row), old) if _better(row, old[1], policy) else (old, (number, row))
                )
                kept[row.key] = better
                names = (os.fspath(sources[owner].folder) for owner, _ in (better, worse))
                conflicts.append(Conflict(row.key[0], row.key[2], *names))
    return kept, repeated, conflicts


def _better(new: Outline, old: Outline, policy: Policy) -> bool:
    if policy == "fastest":
        return _speed(new) < _speed(old)
    return new.measured_at > old.measured_at


def _speed(row: Outline) -> tuple[bool, float]:
    timed = row.status == "ok" and row.median_us is not None
    return not timed, row.median_us or 0.0


def _named(conflicts: Iterable[Conflict], most: int = 3) -> str:
    listed = list(conflicts)
    first = "; ".join(
        f"{c.kernel} on {c.problem} in {c.kept} and {c.dropped}" for c in listed[:most]
    )
    return first + ("; …" if len(listed) > most else "")
