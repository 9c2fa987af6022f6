"""How commands print: plain tables for people and pipes, JSON for programs.

On a terminal, headings are bold and long text wraps to the window; a table too wide for it
becomes a list, so that a kernel's name always stands whole on a line of its own. Elsewhere every
row is one line, whatever its length. Rich would cut or fold the names, so tables are made here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

_JSON_KEY = "tilewright.json"
_GAP = "  "
_LEAST_PROSE = 24
"""Narrowest column that text is still wrapped into."""


def remember_json(ctx: typer.Context, wanted: bool) -> bool:
    """Callback of ``--json``: errors are JSON too where it was given."""
    ctx.meta[_JSON_KEY] = wanted
    return wanted


def wants_json(ctx: Any) -> bool:
    """Whether ``--json`` was given to the command of this context."""
    return bool(ctx.meta.get(_JSON_KEY))


def emit(document: Any) -> None:
    """Print a JSON document."""
    typer.echo(json.dumps(document, indent=1))


def line(text: str = "") -> None:
    """Print a line of text, wrapped on a terminal."""
    width = _width()
    typer.echo(_wrap(text, width) if width else text)


def counts(of: Mapping[Any, int]) -> str:
    """``3 ok, 1 timeout``."""
    return ", ".join(f"{count} {what}" for what, count in of.items())


def heading(text: str) -> None:
    """Print a heading."""
    typer.echo(_bold(text))


def fields(pairs: Mapping[str, Any]) -> None:
    """Print names and their values, one a line."""
    if not pairs:
        return
    indent = max(map(len, pairs)) + len(_GAP)
    width = _width()
    for name, value in pairs.items():
        text = str(value)
        if width >= indent + _LEAST_PROSE:
            text = _wrap(text, width - indent).replace("\n", "\n" + " " * indent)
        typer.echo(f"{name:<{indent}}{text}".rstrip())


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under titles; numbers to the right. The last column may be long text."""
    numeric = [
        all(isinstance(row[i], int | float) for row in rows) and bool(rows)
        for i in range(len(titles))
    ]
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(titles), *cells]) for i in range(len(titles))]
    before = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    room = _width() - before if _width() else 0
    longest_word = max((len(w) for row in cells for w in row[-1].split()), default=0)
    if _width() and room < widths[-1] and (room < _LEAST_PROSE or room < longest_word):
        _records(titles, cells)
        return

    def text(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(w) if right else cell.ljust(w)
            for cell, w, right in zip(row, widths, numeric, strict=True)
        ]
        if room and len(row[-1]) > room:
            parts[-1] = _wrap(row[-1], room).replace("\n", "\n" + " " * before)
        return _GAP.join(parts).rstrip()

    typer.echo(_bold(text(titles)))
    for row in cells:
        typer.echo(text(row))


def _records(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Each row as a list: its first cell, then the others with their titles."""
    for row in cells:
        typer.echo(_bold(row[0]))
        width = _width() - len(_GAP)
        items = [_item(t, c, width) for t, c in zip(titles[1:], row[1:], strict=True) if c]
        typer.echo(textwrap.indent(_pack(items, width), _GAP))


def _item(title: str, cell: str, width: int) -> str:
    """A cell with its title; without, where it is one word too long for both on a line."""
    item = f"{title}: {cell}" if title else cell
    return cell if " " not in cell and len(item) > width else item


def _pack(items: Sequence[str], width: int) -> str:
    """Items side by side while they fit; one too long for a line wraps on lines of its own."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= width:
            lines[-1] += f" · {item}"
        else:
            lines += _wrap(item, width, indent=_GAP).split("\n")
    return "\n".join(lines)


def _wrap(text: str, width: int, indent: str = "") -> str:
    """Break between words only: a name is never cut."""
    return "\n".join(
        textwrap.fill(
            part, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for part in text.split("\n")
    )


def _width() -> int:
    """Columns of the terminal; 0 when standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _bold(text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else typer.style(text, bold=True)


@contextmanager
def busy(what: str, first: float = 2.0, every: float = 10.0) -> Iterator[None]:
    """While the body runs, say on stderr what is being done: after `first` seconds, then
    `every` so many."""
    done = threading.Event()
    start = time.monotonic()

    def say() -> None:
        wait = first
        while not done.wait(wait):
            typer.echo(f"{what} … {time.monotonic() - start:.0f} s", err=True)
            wait = every

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def size(count: int) -> str:
    """A size in bytes, for people."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.4g} {unit}"
    return f"{count} B"


def short(value: float, digits: int = 4) -> float:
    """A number with so many significant digits."""
    return float(f"{value:.{digits}g}")
