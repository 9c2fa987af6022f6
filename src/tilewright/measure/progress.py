"""Shows a sweep's progress: on a terminal a bar with the time left, elsewhere plain lines."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tilewright.measure.measurement import GOOD, Measurement
from tilewright.measure.sweep import Progress
from tilewright.printable import printable

SECONDS_BETWEEN_LINES = 60.0
"""Longest silence without a terminal, while measurements arrive."""


@contextmanager
def show_measuring(stream: TextIO | None = None) -> Iterator[Progress]:
    """A `Progress` for `sweep` that writes to `stream` (default: standard error).

    Each failed measurement is printed when it arrives. Without a terminal, a line is printed at
    each tenth of the work, and after each minute.
    """
    out = stream or sys.stderr
    if not out.isatty():
        yield _lines(out)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    counts: Counter[str] = Counter()
    console = Console(file=out)
    with Bar(
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
    ) as bar:
        task = bar.add_task("", total=None)

        def update(m: Measurement, done: int, total: int) -> None:
            counts[m.status] += 1
            if m.status not in GOOD:
                bar.console.print(_sentence(m), markup=False, highlight=False)
            bar.update(task, completed=done, total=total, description=_said(counts))

        yield update


def _lines(out: TextIO) -> Progress:
    counts: Counter[str] = Counter()
    start = said = time.monotonic()

    def update(m: Measurement, done: int, total: int) -> None:
        nonlocal said
        counts[m.status] += 1
        if m.status not in GOOD:
            print(_sentence(m), file=out)
        at = time.monotonic()
        if done * 10 // total != (done - 1) * 10 // total or at - said >= SECONDS_BETWEEN_LINES:
            left = duration((at - start) / done * (total - done))
            print(
                f"measured {done} of {total} ({_said(counts)}), {left} left", file=out, flush=True
            )
            said = at

    return update


def _sentence(m: Measurement) -> str:
    return printable(f"{m.status} {m.kernel} on {m.problem}: {m.reason}")


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def duration(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
