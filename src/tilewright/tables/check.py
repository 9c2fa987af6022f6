"""Faults of table files, and how their times compare with estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.arch import archs
from tilewright.arch.model import Device
from tilewright.errors import BadFile
from tilewright.tables import file
from tilewright.tables.merge import Duplicate, Placed, sort_out
from tilewright.tables.row import Row, still_serves

Kind = Literal["file", "duplicate", "kernel", "unsupported", "device"]
"""file: the file is no readable table. duplicate: different rows of one problem on one device.
kernel: no kernel has the row's name. unsupported: the kernel is not legal on the device's
architecture, or does not serve the problem. device: the device's architecture is not known."""

Estimate = Callable[[Any, Device], tuple[str, float]]
"""The kernel that would be chosen for a problem on a device without measurements, and its estimated
microseconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: its kind, its place (a file, or a row of one), and a sentence about it."""

    kind: Kind
    where: str
    says: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """A row's median over the estimated time of the kernel that would be chosen without it."""

    where: str
    row: Row
    estimated: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check of `rows` rows."""

    rows: int
    findings: tuple[Finding, ...]
    ratios: tuple[Ratio, ...]


def check(paths: Sequence[file.PathLike], estimate: Estimate | None = None) -> Checked:
    """Look for all faults of `Kind` in the files `paths`, in each file and in all together. With
    `estimate`, compare the sound rows with it. The files are only read."""
    placed: list[Placed] = []
    findings: list[Finding] = []
    for path in paths:
        findings += _read(path, placed)
    sound: list[Placed] = []
    for place, row in placed:
        wrong = _wrong(row, place)
        findings += wrong
        if not wrong and not row.device.interpreted:  # whose times no estimate is of
            sound.append((place, row))
    findings += [_of(duplicate) for duplicate in sort_out(placed)[2]]
    ratios = []
    for place, row in sound if estimate is not None else ():
        assert estimate is not None
        name, us = estimate(row.problem, row.device)
        ratios.append(Ratio(place, row, name, row.median_us / us))
    return Checked(len(placed), tuple(findings), tuple(ratios))


def _read(path: file.PathLike, into: list[Placed]) -> list[Finding]:
    """Add the rows of a file to `into`, up to the first row that cannot be read."""
    try:
        into += file.rows(path)
    except BadFile as error:
        where, _, says = str(error).partition(": ")
        return [Finding("file", where, says)]
    return []


def _wrong(row: Row, place: str) -> list[Finding]:
    if row.device.arch not in archs():
        return [Finding("device", place, f"no architecture {row.device.arch} is known here")]
    verdicts = {name: still_serves(name, row) for name in row.kernels}
    return [
        Finding("kernel", place, f"{row.problem}: {verdict.reason}")
        if verdict.rule == "no_such_kernel"
        else Finding("unsupported", place, f"{row.problem}: {name}: {verdict}")
        for name, verdict in verdicts.items()
        if not verdict
    ]


def _of(duplicate: Duplicate) -> Finding:
    return Finding("duplicate", ", ".join(place for place, _ in duplicate.rows), str(duplicate))
