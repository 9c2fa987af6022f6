"""A build's progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tilewright.compile.report import BuildResult, Progress
from tilewright.printable import printable

WIDE = 140
"""Columns of a terminal that has room for a kernel's name beside the bar."""


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A `Progress` for `build` that writes on `stream` (standard error by default).

    Failures and rejections are printed as they come. Without a terminal, a line is printed at
    each tenth of the work, so that logs stay short.
    """
    out = stream or sys.stderr
    if not out.isatty():
        yield _lines(out)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bar

    columns: tuple[ProgressColumn, ...] = (
        TextColumn("building"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(file=out)
    if console.width >= WIDE:  # a kernel's name would squeeze the bar out of a narrower one
        columns = (*columns, TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def update(result: BuildResult, done: int, total: int) -> None:
            if not result.ok:
                bar.console.print(printable(str(result)), markup=False, highlight=False)
            bar.update(task, completed=done, total=total, description=printable(result.name))

        yield update


def _lines(out: TextIO) -> Progress:
    def update(result: BuildResult, done: int, total: int) -> None:
        if not result.ok:
            print(printable(str(result)), file=out)
        if done * 10 // total != (done - 1) * 10 // total:
            print(f"kernels done: {done} of {total}", file=out, flush=True)

    return update
