"""Lists of problems: the user's files, and the sets that families ship.

A file is JSON (a list of objects) or CSV (a column for each word). It states a problem in the words
of `Family.parse_problem`. A JSON object with a list or null among its values states a problem field
by field instead, as results keep problems. Lines of a CSV that begin with ``#`` are comments. A
file of `tilewright.capture` (.jsonl) gives problems by falling count. aiter's CSV files, tuned or
not, are read too (see `tilewright.tables.aiter`), and CK Tile Engine's lists in Python, which are
not executed (`problems_python`), and files (.txt, or without an ending) of command lines of
MIOpenDriver, benchdnn, ckProfiler and CK Tile's examples (`problems_lines`).

A profile is a list too: of one problem for each kind of call that a framework makes
(`tilewright.ops.profiles`). It is named ``<family>:<profile>``.

A set is a folder ``sweeps/<set>`` of a family, with ``space.json`` and ``problems.csv``. Its name
is ``<family>:<set>``.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import capturing, ops
from tilewright.arch.model import Arch
from tilewright.cells import plain
from tilewright.errors import BadArgument, BadFile, UnknownName, nearest, shown
from tilewright.jsonfile import convert, parse_json
from tilewright.measure.problems_lines import Line, is_lines, read_lines
from tilewright.measure.problems_python import python_rows
from tilewright.ops.profiles import DECLARED, Profile
from tilewright.reading import csv_rows, located
from tilewright.reading import text as read_text
from tilewright.tables import aiter

_ROOT = Path(ops.__path__[0])


@dataclass(frozen=True, slots=True)
class Problems:
    """Problems without repeats, in the order stated. `repeated`: number of repeats dropped."""

    problems: tuple[Any, ...]
    repeated: int = 0


def sets() -> dict[str, Path]:
    """The folders of all sets, by name."""
    found = (path.parent for path in sorted(_ROOT.glob("*/sweeps/*/space.json")))
    return {f"{path.parents[1].name}:{path.name}": path for path in found}


def profiles() -> dict[str, Profile]:
    """All families' profiles, by name."""
    return {
        f"{family}:{name}": profile
        for family in ops.families()
        for name, profile in ops.family(family).profiles.items()
    }


def declared(family: str) -> str | None:
    """The list of the problems that an operation was declared with; None if it has none."""
    word = f"{family}:{DECLARED}"
    return word if word in profiles() else None


def profile(word: str) -> Profile | None:
    """The profile called `word`; None if there is none."""
    return profiles().get(word) if ":" in word else None


def shipped(word: str, file: str) -> Path | None:
    """`file` of the set called `word`; None if `word` names no set (but a file or a profile).

    Raises `UnknownName` for a set that does not exist.
    """
    family, colon, name = word.partition(":")
    if not colon or not family.isidentifier() or not name.isidentifier():
        return None
    known = sets()
    if word not in known:
        if profile(word) is not None:
            return None
        every = [*known, *profiles()]
        its = [one for one in every if one.startswith(f"{family}:")]
        raise UnknownName(
            f"there is no set or profile '{word}'{nearest(word, its or every)}; there are "
            f"{', '.join(its or every)}"
        )
    return known[word] / file


def modules(words: str) -> list[str]:
    """The sets that a list names, without repeats, in order. The list holds sets, families (their
    smallest set) or ``all`` (the smallest set of every family), separated by commas or blanks.

    Raises `BadArgument` for an empty list. A name of no set stays as it is.
    """
    usual: dict[str, str] = {}
    for name in sets():
        family = name.partition(":")[0]
        usual[family] = min(usual.get(family, name), name, key=_size)
    found: dict[str, None] = {}
    for word in words.replace(",", " ").split():
        chosen = [*usual.values()] if word.lower() == "all" else [usual.get(word, word)]
        found.update(dict.fromkeys(chosen))
    if not found:
        raise BadArgument(
            f"'{words}' names no set of problems; there are {', '.join(sets())}, and all"
        )
    return [*found]


def _size(name: str) -> int:
    return (sets()[name] / "problems.csv").stat().st_size


def load_problems(
    sources: Iterable[str | os.PathLike[str]],
    arch: Arch,
    family: str | None = None,
    words: Mapping[str, str] | None = None,
) -> Problems:
    """The problems that files, sets and profiles state.

    arch: the architecture, which decides the meaning of ``fp8``.
    family: the family of rows that do not give a ``family`` and are not of a set; by default, the
    family that reads sweeps without one.
    words: added to every row that leaves them out.

    Raises `BadFile`, with file and line, for a row that states no problem and for a file without
    any, and `UnknownName` for a family or a set that does not exist.
    """
    found: dict[Any, None] = {}
    count = 0
    for given in sources:
        source = located(given)
        file = shipped(source, "problems.csv")
        of = family if file is None else source.partition(":")[0]
        before = count
        calls = profile(source)
        if calls is not None:
            stated: Iterable[Any] = calls.problems(arch)
        else:
            stated = _stated(os.fspath(file or source), arch, _usual(of), words or {})
        for problem in stated:
            found[problem] = None
            count += 1
        if count == before:
            raise BadFile(f"{source}: no problem in it{_for(calls, arch)}")
    return Problems(tuple(found), count - len(found))


def _for(calls: Profile | None, arch: Arch) -> str:
    return "; a sweep needs at least one" if calls is None else f" for {arch.name}"


def _usual(family: str | None) -> str:
    if family is not None:
        return ops.family(family).name
    return ops.usual().name


def _stated(path: str, arch: Arch, family: str, words: Mapping[str, str]) -> Iterable[Any]:
    if path.endswith(capturing.ENDING):
        return capturing.load(path)
    if is_aiters(path):
        return (entry.problem(arch, words) for entry in aiter.read_aiter(path))
    if is_lines(path):
        return _of_lines(path, arch, words)
    return _problems(path, arch, family, words)


def lines(path: str, arch: Arch, words: Mapping[str, str]) -> Iterator[Line]:
    """What the lines of a file of command lines state. Raises `BadFile` for one that is no text."""
    return read_lines(read_text(path, marked=True), path, arch, words)


def _of_lines(path: str, arch: Arch, words: Mapping[str, str]) -> Iterator[Any]:
    for line in lines(path, arch, words):
        if line.reasons:
            raise BadFile(
                f"{path}: line {line.number}: {line.reasons[0]}; `tilewright problems` writes a "
                "list of those that can be read"
            )
        yield from line.problems


def is_list(path: str) -> bool:
    """Whether a file is a list of problems, by its ending or, for JSON, by its beginning."""
    if path.endswith((".csv", ".py", capturing.ENDING)) or is_lines(path):
        return True
    with suppress(BadFile):
        return path.endswith(".json") and _read(path).lstrip()[:1] == "["
    return False


def is_aiters(path: str) -> bool:
    """Whether a file is a CSV of aiter's, tuned or not."""
    with suppress(BadFile):  # reading the file will report its fault
        return path.endswith(".csv") and aiter.is_aiter(_read(path).partition("\n")[0].split(","))
    return False


def _problems(path: str, arch: Arch, family: str, words: Mapping[str, str]) -> Iterator[Any]:
    text = _read(path)
    readers = {".json": _json_rows, ".py": python_rows}
    rows = readers.get(Path(path).suffix, _csv_rows)(text, path)
    for line, row in rows:
        where = f"{path}: line {line}"
        try:
            yield _problem(dict(row), arch, family, words, where)
        except BadArgument as error:
            raise BadFile(f"{where}: {error}{_of_another(row, arch, family, words)}") from error


def _of_another(row: dict[str, Any], arch: Arch, family: str, words: Mapping[str, str]) -> str:
    """A hint, if the row states a problem of another family."""
    for other in ops.families():
        with suppress(BadArgument, BadFile):
            if other != family:
                _problem(dict(row), arch, other, words, "")
                return f"; it states a problem of {other}: say --family {other}"
    return ""


def _problem(
    row: dict[str, Any], arch: Arch, family: str, words: Mapping[str, str], where: str
) -> Any:
    said = row.pop("family", family)
    of = ops.family(said if isinstance(said, str) else str(said))
    if any(value is None or isinstance(value, list) for value in row.values()):
        return convert(row, of.problem_type, where)
    return of.parse_problem(
        {**words, **{word: _word(value, word) for word, value in row.items()}}, arch
    )


def _word(value: Any, word: str) -> str:
    """A value as on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadArgument(f"{word} = {shown(value)} is neither a word nor a number")


def _read(path: str) -> str:
    if not path.endswith((".json", ".csv", ".py")):
        raise BadFile(
            f"{path}: problems are in a .json, .csv, .jsonl, .py or .txt file, or in one of the "
            f"sets {', '.join(sets())}"
        )
    return read_text(path, marked=True)


def _json_rows(text: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    document = parse_json(text, path)
    if not isinstance(document, list):
        raise BadFile(f"{path}: problems are a list of objects")
    # Parse again, object by object, to find the lines where they begin.
    decoder, place, line, counted = json.JSONDecoder(), text.index("[") + 1, 1, 0
    for row in document:
        while text[place] in " \t\r\n,":
            place += 1
        line += text.count("\n", counted, place)
        counted = place
        place = decoder.raw_decode(text, place)[1]
        if not isinstance(row, dict):
            raise BadFile(f"{path}: line {line}: a problem is an object, not {shown(row)}")
        yield line, row


def _csv_rows(text: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # A comment becomes an empty line, so that lines keep their numbers.
    lines = ("" if s.lstrip().startswith("#") else s for s in io.StringIO(text, newline=""))
    titles: list[str] = []
    for line, stated in csv_rows(lines, path, strict=True):
        cells = [plain(cell).strip() for cell in stated]
        if not any(cells):
            continue
        if not titles:
            titles = cells
            if not all(titles) or len(set(titles)) < len(titles):
                raise BadFile(f"{path}: line {line}: every column needs a title of its own")
        elif len(cells) != len(titles):
            raise BadFile(f"{path}: line {line}: {len(cells)} cells under {len(titles)} titles")
        else:
            # An empty cell leaves its word out.
            yield line, {t: c for t, c in zip(titles, cells, strict=True) if c}
