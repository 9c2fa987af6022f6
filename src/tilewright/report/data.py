"""The data of the page, as one compact JSON document.

Measurements with one device, environment and settings are a *setup*. The page shows one setup at a
time and never compares across setups. Within a setup, measurements form a table of problems by
kernels, in the order of the setup's lists: a letter for each status and, in the same order, the
times of timed measurements.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, get_args

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import INTERPRETED, Device
from tilewright.errors import BadArgument, BadFile
from tilewright.jsonfile import convert, parse_json
from tilewright.measure.measurement import STATUSES, Environment, Flag, Settings, Status, Telemetry
from tilewright.measure.results import Results, Seconds, Us, read_problem
from tilewright.measure.roofline import floor, main_unit
from tilewright.measure.statistics import indistinguishable
from tilewright.measure.vendor import is_vendor
from tilewright.version import __version__

FLAGS: tuple[Flag, ...] = get_args(Flag)

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""The first letter means the first of `STATUSES`, and so on."""

_NOT_MEASURED = "."

_ROWS = """
SELECT device, environment, settings, problem, kernel, status, reason, median_us, low_us, high_us,
    flags, telemetry, measured_at, seconds
FROM measurement ORDER BY device, environment, settings
"""

_Kind = tuple[
    int, int, int, int, int, Status, str, Us | None, Us | None, Us | None, str, str, str, Seconds
]

_NOUNS: Mapping[str, type[Any]] = {
    "device": Device,
    "environment": Environment,
    "settings": Settings,
}

Row = Sequence[Any]


def gather(results: Results) -> dict[str, Any]:
    """The document that the page draws. Raises `BadFile` if there are no measurements, or one
    cannot be read."""
    where = os.fspath(results.path)
    found: dict[tuple[int, int, int], _Setup] = {}
    for row in results.rows(_ROWS, _Kind):
        found.setdefault(tuple(row[:3]), _Setup()).add(row)
    if not found:
        raise BadFile(f"{where} holds no measurements yet: sweep something first")
    problems = _problems(results, where)
    nouns = {
        table: {
            number: asdict(convert(parse_json(said, where), kind, where))
            for number, said in results.rows(f"SELECT id, text FROM {table}", tuple[int, str])
        }
        for table, kind in _NOUNS.items()
    }
    described = [
        {
            table: results.numbered_in(table, nouns[table].items())[number]
            for table, number in zip(nouns, key, strict=True)
        }
        for key in found
    ]
    names = results.rows(
        "SELECT id, name, build FROM kernel ORDER BY name, id", tuple[int, str, str]
    )
    kernels = {number: (name, build) for number, name, build in names}
    labels = _labels(described)
    return {
        "version": __version__,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "folder": results.folder.resolve().name,
        "statuses": STATUSES,
        "flags": FLAGS,
        "setups": [
            {"label": label, **said, **setup.document(problems, kernels, said, where)}
            for label, said, setup in zip(labels, described, found.values(), strict=True)
        ],
    }


@dataclass(slots=True)
class _Setup:
    """The rows of one device, environment and settings, by problem and kernel."""

    rows: dict[tuple[int, int], Row] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.rows[row[3], row[4]] = row

    def document(
        self,
        problems: Mapping[int, Any],
        kernels: Mapping[int, tuple[str, str]],
        said: Mapping[str, Any],
        where: str,
    ) -> dict[str, Any]:
        measured = {problem for problem, _ in self.rows}
        if not (
            measured <= problems.keys() and {kernel for _, kernel in self.rows} <= kernels.keys()
        ):
            raise BadFile(f"{where}: is damaged: a measured problem or kernel is not there")
        of = [number for number in problems if number in measured]
        ran = {kernel for _, kernel in self.rows}
        by = [number for number in kernels if number in ran]
        vendors = {k for k in by if is_vendor(kernels[k][0])}
        statuses: list[str] = []
        times: list[list[float]] = [[], [], []]
        reasons: dict[str, int] = {}
        why: list[tuple[int, int]] = []
        flags: list[tuple[int, int]] = []
        ties = []
        for problem in of:
            medians, intervals = {}, {}
            for place, kernel in enumerate(by):
                row = self.rows.get((problem, kernel))
                if row is None:
                    statuses.append(_NOT_MEASURED)
                    continue
                status, reason, median, low, high, flagged = row[5:11]
                cell = len(statuses)
                statuses.append(_LETTERS[STATUSES.index(status)])
                if status == "ok":
                    if None in (median, low, high):
                        raise BadFile(f"{where}: is damaged: a measurement has no times")
                    for column, value in zip(times, (median, low, high), strict=True):
                        column.append(float(f"{value:.5g}"))
                    if kernel not in vendors:
                        medians[place], intervals[place] = median, (low, high)
                else:
                    why.append((cell, reasons.setdefault(reason, len(reasons))))
                bits = sum(1 << i for i, flag in enumerate(FLAGS) if flag in flagged.split())
                if bits:
                    flags.append((cell, bits))
            ties.append(indistinguishable(medians, intervals))
        device = convert(said["device"], Device, where)
        roof = _roof(device, [problems[p][1] for p in of], said["settings"]["timer"])
        return {
            "problems": [
                {
                    "name": problems[p][0],
                    "flops": problems[p][1].flops,
                    "bytes": problems[p][1].min_bytes,
                    "dtype": main_unit(problems[p][1]),
                    "floor_us": _floor_us(problems[p][1], device) if roof["gbs"] else None,
                }
                for p in of
            ],
            "kernels": _named([kernels[k] for k in by]),
            "vendors": [place for place, k in enumerate(by) if k in vendors],
            "cells": "".join(statuses),
            "times": times,
            "why": list(zip(*why, strict=True)) or [[], []],
            "reasons": list(reasons),
            "flagged": list(zip(*flags, strict=True)) or [[], []],
            "ties": ties,
            "roof": roof,
            "seen": self._seen(where),
        }

    def _seen(self, where: str) -> dict[str, Any]:
        """When the setup was measured, how long that took, and the readings of the device."""
        dates = sorted(row[12] for row in self.rows.values() if row[12])
        told = Counter(row[11] for row in self.rows.values())
        said = [asdict(convert(parse_json(text, where), Telemetry, where)) for text in told]
        clocks = [t["clock_mhz"] for t in said if t["clock_mhz"]]

        def highest(name: str) -> float | None:
            return max((t[name] for t in said if t[name] is not None), default=None)

        return {
            "first": dates[0] if dates else "",
            "last": dates[-1] if dates else "",
            "seconds": sum(row[13] for row in self.rows.values()),
            "clock_mhz": [min(low for low, _ in clocks), max(mid for _, mid in clocks)]
            if clocks
            else None,
            "temperature_c": highest("temperature_c"),
            "power_w": highest("power_w"),
            "throttle": sorted({reason for t in said for reason in t["throttle"]}),
        }


def _problems(results: Results, where: str) -> dict[int, tuple[str, Any]]:
    """Each problem by its number, with its label: its text, or its text and all its fields if two
    problems have the same text. Small problems first."""
    rows = results.rows("SELECT id, text FROM problem ORDER BY family, flops, id", tuple[int, str])
    read = [(number, said, read_problem(said, where)) for number, said in rows]
    times = Counter(str(problem) for _, _, problem in read)
    return {
        number: (str(p) if times[str(p)] == 1 else f"{p} {said}", p) for number, said, p in read
    }


def _named(kernels: Sequence[tuple[str, str]]) -> list[str]:
    """Labels of kernels: the name, plus the build if several have that name."""
    times = Counter(name for name, _ in kernels)
    return [name if times[name] == 1 else f"{name} (build {build[:12]})" for name, build in kernels]


def _roof(device: Device, problems: Sequence[Any], timer: str) -> dict[str, Any]:
    """The device's ceilings: memory in GB/s, and arithmetic in TFLOP/s by the unit that does the
    problems' FLOPs; or why there are none."""
    if timer == "wall":
        note = "Times are wall-clock times of the interpreter: they say nothing about a GPU."
        return {"gbs": 0, "tflops": {}, "note": note}
    if timer == "none":
        return {"gbs": 0, "tflops": {}, "note": "Nothing was timed: the GPU was an emulated one."}
    units = dict.fromkeys(unit for problem in problems for unit in problem.work)
    peaks = {unit: _peak(device, unit) for unit in units}
    missing = [
        f"No peak is known for {unit}: {peak}."
        for unit, peak in peaks.items()
        if isinstance(peak, str)
    ]
    ceilings = {unit: peaks[unit] for unit in dict.fromkeys(map(main_unit, problems)) if unit}
    return {
        "gbs": device.bandwidth_gbs,
        "tflops": {d: peak for d, peak in ceilings.items() if not isinstance(peak, str)},
        "note": " ".join(missing),
    }


def _floor_us(problem: Any, device: Device) -> float | None:
    """The least time that the problem can take, in microseconds; None where that is not known."""
    try:
        return float(f"{floor(problem, device).us:.6g}")
    except BadArgument:
        return None


def _peak(device: Device, unit: str) -> float | str:
    """TFLOP/s, or why the peak is not known."""
    try:
        return peak_tflops(arch(device.arch), device, unit)
    except BadArgument as error:
        return str(error)


def _labels(setups: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each setup: its device, and every property that differs between setups."""
    flat = [dict(_leaves(setup)) for setup in setups]
    names = dict.fromkeys(name for leaves in flat for name in leaves)
    differ = [n for n in names if len({leaves.get(n) for leaves in flat}) > 1 and n != "name"]
    return [
        ", ".join(
            [_ran_on(leaves), *(f"{n.replace('_', ' ')} {leaves.get(n) or 'none'}" for n in differ)]
        )
        for leaves in flat
    ]


def _ran_on(leaves: Mapping[str, str]) -> str:
    """The device's name, with a mark if the interpreter played it."""
    played = leaves["timer"] == "wall" and not leaves["name"].startswith(INTERPRETED)
    return f"{INTERPRETED}{leaves['name']}" if played else leaves["name"]


def _leaves(setup: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of all properties of a setup."""
    found: list[tuple[str, str]] = []
    for noun in setup.values():
        for name, value in noun.items():
            if name == "versions":
                found += [(package, version) for package, version in value]
            else:
                found.append((name, str(value)))
    return found
