"""Tables by name: ``shipped:gemm_bf16`` is one of those that come with the package."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.errors import UnknownName, nearest

FOLDER = Path(__file__).with_name("shipped")
"""A folder for each architecture, with tables that are called as families say (`Family.table`):
``gemm_bf16.twt``. A table is read when a problem first asks for it."""

PREFIX = "shipped:"


def shipped_tables(word: str) -> tuple[Path, ...]:
    """The files that ``shipped:`` and a name mean: a table's (``gemm_bf16``, of every architecture,
    ``sm_90/gemm_bf16``, of one), or an architecture's (``sm_90``: all of its tables). Raises
    `UnknownName`, with those there are."""
    wanted = word.removeprefix(PREFIX)
    known = {name_of(file).removeprefix(PREFIX): file for file in sorted(FOLDER.glob("*/*.twt"))}
    found = tuple(file for name, file in known.items() if wanted in (name, *name.split("/")))
    if not found:
        names = {part for name in known for part in (name, *name.split("/"))}
        raise UnknownName(
            f"no table '{word}' comes with Tilewright{nearest(wanted, sorted(names))}; there are "
            f"{', '.join(PREFIX + name for name in known) or 'none'}"
        )
    return found


def file_of(path: str | os.PathLike[str]) -> Path:
    """The file that a table's path, or its shipped name, means. Raises `UnknownName` for a name of
    none, or of several."""
    text = os.fspath(path)
    if not text.startswith(PREFIX):
        return Path(path)
    found = shipped_tables(text)
    if len(found) > 1:
        raise UnknownName(
            f"'{text}' means several tables: say one of {', '.join(map(name_of, found))}"
        )
    return found[0]


def name_of(file: Path) -> str:
    """The name of a shipped table's file, in full."""
    return f"{PREFIX}{file.parent.name}/{file.stem}"
