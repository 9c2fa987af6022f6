"""How commands print: plain tables for people and pipes, JSON for programs.

On a terminal, headings are bold and long text wraps at the width of the window. A table too wide
for the window becomes a list, so that a kernel's name always stands whole on its own line.
Elsewhere every row is one line, however long. Rich would cut or fold names, so tables are made
here.

Everything that a command prints goes through `say`, which makes terminal escapes harmless.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from tilewright.printable import printable

_JSON_KEY = "tilewright.json"
_GAP = "  "
_LEAST_PROSE = 24
"""Narrowest last column of a table to wrap text into."""
_LEAST_WIDTH = 8
"""Least width to wrap at; a narrower terminal wraps the lines again."""


def remember_json(ctx: typer.Context, wanted: bool) -> bool:
    """Callback of ``--json``: with the option, errors are JSON too."""
    ctx.meta[_JSON_KEY] = wanted
    return wanted


def wants_json(ctx: Any) -> bool:
    """Whether ``--json`` was given to the command of this context."""
    return bool(ctx.meta.get(_JSON_KEY))


def say(text: str, err: bool = False, bold: bool = False) -> None:
    """Print lines as they are, on standard error if `err`."""
    shown = printable(text)
    typer.echo(typer.style(shown, bold=True) if bold and not _plain() else shown, err=err)


def clean_log() -> None:
    """Make log messages of modules, which go to standard error, as harmless as printed text."""
    handler = logging.lastResort
    if handler is not None:
        handler.setFormatter(_Printable())


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def emit(document: Any) -> None:
    """Print a JSON document. JSON has no infinity and no NaN: such numbers are null."""
    say(json.dumps(_finite(document), indent=1, allow_nan=False))


def answer(document: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """Print a document: as JSON, or for people as `show` does."""
    if as_json:
        emit(document)
    else:
        show(document)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def line(text: str = "") -> None:
    """Print a line of text, wrapped on a terminal."""
    width = _width()
    say(_wrap(text, width) if width else text)


def counts(of: Mapping[Any, int]) -> str:
    """``3 ok, 1 timeout``."""
    return ", ".join(f"{count} {what}" for what, count in of.items())


def notes(texts: Iterable[str]) -> None:
    """Print notes, each once."""
    for text in dict.fromkeys(texts):
        line(f"note: {text}")


def heading(text: str) -> None:
    """Print a heading."""
    width = _width()
    say(_wrap(text, width) if width else text, bold=True)


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
        elif width:  # too narrow for two columns
            say(_wrap(f"{name}: {text}", width, indent=_GAP))
            continue
        say(f"{name:<{indent}}{text}".rstrip())


def by_rule(said: Iterable[tuple[str, str]]) -> list[tuple[str, int, str]]:
    """Rules, how often each was said, most first, and the first reason that it gave."""
    found = [*said]
    first = dict(reversed(found))
    return [
        (rule, count, first[rule]) for rule, count in Counter(r for r, _ in found).most_common()
    ]


def records(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under their names, as `table` does; nothing if there is no row."""
    found = [*rows]
    if found:
        table([*found[0]], [[*row.values()] for row in found])


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under titles, with numbers to the right. The last column may be long text."""
    numeric = [
        all(isinstance(row[i], int | float) for row in rows) and bool(rows)
        for i in range(len(titles))
    ]
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(r[i]) for r in [list(titles), *cells]) for i in range(len(titles))]
    before = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    room = _width() - before if _width() else 0
    longest_word = max((len(w) for row in cells for w in row[-1].split()), default=0)
    if _width() and room < widths[-1] and (room < _LEAST_PROSE or room < longest_word):
        _as_lists(titles, cells)
        return

    def text(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(w) if right else cell.ljust(w)
            for cell, w, right in zip(row, widths, numeric, strict=True)
        ]
        if room and len(row[-1]) > room:
            parts[-1] = _wrap(row[-1], room).replace("\n", "\n" + " " * before)
        return _GAP.join(parts).rstrip()

    say(text(titles), bold=True)
    for row in cells:
        say(text(row))


def _as_lists(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print each row as a list: its first cell, then the others with their titles."""
    for row in cells:
        say(row[0], bold=True)
        width = _width() - len(_GAP)
        items = [_item(t, c, width) for t, c in zip(titles[1:], row[1:], strict=True) if c]
        say(textwrap.indent(_pack(items, width), _GAP))


def _item(title: str, cell: str, width: int) -> str:
    """A cell with its title; without the title if the cell is one word and both do not fit."""
    item = f"{title}: {cell}" if title else cell
    return cell if " " not in cell and len(item) > width else item


def _pack(items: Sequence[str], width: int) -> str:
    """Items side by side while they fit. An item too long for a line wraps on lines of its own."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= width:
            lines[-1] += f" · {item}"
        else:
            lines += _wrap(item, width, indent=_GAP).split("\n")
    return "\n".join(lines)


def _wrap(text: str, width: int, indent: str = "") -> str:
    """Break between words only: names are never cut."""
    return "\n".join(
        textwrap.fill(
            part, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for part in text.split("\n")
    )


def _width() -> int:
    """Columns to write in: about the terminal's width; 0 if standard output is not a terminal."""
    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if sys.stdout.isatty() else 0


def _plain() -> bool:
    dumb = os.environ.get("TERM") == "dumb"
    return not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or dumb


@contextmanager
def busy(what: str, first: float = 2.0, every: float = 10.0) -> Iterator[None]:
    """While the body runs, say on stderr what goes on: after `first` seconds, then again every
    `every` seconds."""
    done = threading.Event()
    start = time.monotonic()

    def tell() -> None:
        wait = first
        while not done.wait(wait):
            say(f"{what} … {time.monotonic() - start:.0f} s", err=True)
            wait = every

    thread = threading.Thread(target=tell, daemon=True)
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


def operations(tflops: float) -> float | str:
    """10¹² operations a second; a dash where a problem counts none."""
    return short(tflops) if tflops else "-"


def short(value: float, digits: int = 4) -> float:
    """A number with this many significant digits."""
    return float(f"{value:.{digits}g}")
