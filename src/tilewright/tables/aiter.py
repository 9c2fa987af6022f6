"""aiter's tuning files, both ways: CSV with the problem, the GPU and the kernel that was best.

Families read the lines (`Words.foreign`) and write them: a file of GEMMs has an entry for each
line, a table of fused mixture-of-experts layers two, its grouped products. Here are the file, its
lines, its GPUs and its results.

Most kernels that aiter names are its own (CK, assembly, hipBLASLt) and do not exist here. Such a
line is a problem to tune, and a time to compare with: `rows` gives it, if asked, as a row whose
kernel is called ``aiter.<library>.<name>``, which no table serves. A line that names a kernel of
Tilewright's (``libtype`` tilewright, where there is one) is a row like others.

aiter keeps no interval, no ties and no versions, and its ``errRatio`` is the share of elements that
were off, not how far: a row that was written there and read again has lost them. What aiter reads
comes back equal.
"""

from __future__ import annotations

import csv
import io
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import arch, archs
from tilewright.arch.model import Arch, Device
from tilewright.arch.targets import Target
from tilewright.errors import BadArgument, BadFile, UnknownArch, UnknownName
from tilewright.ops.foreign import Form, Reader, whole
from tilewright.ops.library import library_of
from tilewright.ops.protocols import Family
from tilewright.reading import csv_rows
from tilewright.reading import text as read_text
from tilewright.tables.merge import Placed
from tilewright.tables.row import Row

log = logging.getLogger("tilewright")

LIBRARY = "tilewright"
"""What ``libtype`` says of our kernels."""

BEFORE_GFX = {80: "gfx942", 304: "gfx942", 256: "gfx950"}
"""The architecture that a count of compute units meant in files without a column ``gfx``: aiter
tuned on no others then (its aiter/jit/utils/chip_info.py)."""

GPU = ("gfx", "cu_num")
"""The columns that say the GPU."""

_NOT_BY_NUMBER = "-1"
_DELTA_RULES = "it tunes gated delta rules, a linear attention, which are no GEMM"
_OTHERS = (
    ({"knl_name", "co_name"}, "it lists aiter's assembly kernels, and no problems"),
    ({"H", "Hg"}, _DELTA_RULES),
    ({"num_k_heads", "num_v_heads"}, _DELTA_RULES),
)
"""Columns of aiter's tables of something else, and what that is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem of a line, in words, and the rest that the line says.

    where: file and line.
    family: which reads the line.
    words: of the problem.
    target: the GPU that it was tuned on, if the line says so.
    library, kernel: whose kernel was best, and which.
    us: its time in microseconds; None in untuned files, and where aiter failed.
    otherwise: words that hold where neither the line nor the caller says anything.
    """

    where: str
    family: str
    words: tuple[tuple[str, str], ...]
    target: Target | None = None
    library: str = ""
    kernel: str = ""
    us: float | None = None
    otherwise: tuple[tuple[str, str], ...] = ()

    @property
    def _family(self) -> Family:
        return ops.family(self.family)

    def problem(self, this: Arch, words: Mapping[str, str] | None = None) -> Any:
        """The problem, on an architecture, which says what ``fp8`` is. `words` count where neither
        the line nor aiter's operator says anything. Raises `BadFile`."""
        said = {**dict(self.otherwise), **(words or {}), **dict(self.words)}
        try:
            return self._family.parse_problem(said, this)
        except BadArgument as error:
            raise BadFile(f"{self.where}: {error}") from None

    @property
    def ours(self) -> bool:
        """Whether the kernel is one of Tilewright's."""
        if self.library:
            return self.library == LIBRARY
        try:
            self._family.parse_name(self.kernel)
        except UnknownName:
            return False
        return True


def is_aiter(titles: Iterable[str]) -> bool:
    """Whether a CSV with these titles is aiter's."""
    try:
        return _reader([title.strip() for title in titles]) is not None
    except BadArgument:  # it is, though its columns do not say of which form
        return True


def forms() -> dict[str, tuple[str, Form]]:
    """The kinds of aiter's files that have names, each with the family that reads and writes it."""
    return {
        name: (family, form)
        for family in ops.families()
        for name, form in ops.family(family).foreign_forms.items()
    }


def _form_called(name: str) -> tuple[str, Form]:
    known = forms()
    if name not in known:
        raise BadArgument(f"'{name}' is no form of aiter's files; there are {', '.join(known)}")
    return known[name]


def _reader(titles: Sequence[str], file: str = "") -> tuple[str, Reader] | None:
    """The family whose problems a table of this name with these titles states, and what reads its
    lines. Raises `BadArgument` where neither says how it is to be read."""
    for name in ops.families():
        if reader := ops.family(name).foreign(titles, file):
            return name, reader
    return None


def _other(titles: Iterable[str]) -> str | None:
    """What a table of aiter's with these titles is, if no family reads it."""
    has = set(titles)
    return next((what for together, what in _OTHERS if together <= has), None)


def read_aiter(
    path: str | os.PathLike[str], *, form: str | None = None, gfx: str | None = None
) -> tuple[Entry, ...]:
    """The lines of one of aiter's files, tuned or not; the file is only read.

    form: which kind it is (`forms`), if neither its columns nor its name say so.
    gfx: the architecture of a tuned file without that column; by default what `BEFORE_GFX` says,
        with one warning.

    Raises `BadFile`, naming the line, for what cannot be meant or cannot be known.
    """
    where = os.fspath(path)
    given = arch(gfx).name if gfx is not None else None
    titles, lines = _table(where)
    try:
        found = _form_called(form) if form is not None else _reader(titles, Path(path).name)
    except BadArgument as error:
        if form is not None:
            raise
        raise BadFile(f"{where}: {error}") from None
    if found is None:
        what = _other(titles)
        raise BadFile(
            f"{where}: {what}: there is nothing to read in it"
            if what
            else f"{where}: neither its columns nor its name say which of aiter's files it is: say "
            f"the form, one of {', '.join(forms())}"
        )
    family, reader = found
    try:
        strange = reader.strange([title for title in titles if title not in GPU])
    except BadArgument as error:
        raise BadFile(f"{where}: {error}") from None
    if strange:
        log.warning("%s: not understood and left out: %s", where, ", ".join(strange))
    inferred: dict[Target, None] = {}
    entries: list[Entry] = []
    said: Counter[str] = Counter()
    for number, cells in lines:
        place = f"{where}: line {number}"
        try:
            target = _target(cells, given, inferred)
            entries += _stated(place, family, reader, cells, target, said)
        except BadArgument as error:
            raise BadFile(f"{place}: {error}") from None
    for what, count in said.items():
        log.warning("%s: %d lines: %s", where, count, what)
    unknown = Counter(e.target.arch for e in entries if e.target and e.target.arch not in archs())
    if unknown:
        log.warning(
            "%s: no GPU known here has the architecture of %s; they are problems, and no rows",
            where,
            ", ".join(f"{count} lines ({name})" for name, count in unknown.items()),
        )
    if reader.differs and entries:
        log.warning("%s: %s", where, reader.differs)
    if inferred:
        log.warning(
            "%s has no column gfx; by its counts of compute units it was taken for %s",
            where,
            ", ".join(map(str, inferred)),
        )
    return tuple(entries)


def rows(entries: Iterable[Entry], device: Device, *, foreign: bool = False) -> list[Placed]:
    """Rows, and where they stand, of the entries that were timed on such a GPU as `device`: those
    of our kernels; with `foreign`, those of aiter's too. Raises `BadFile`."""
    found = []
    for entry in entries:
        if entry.us is None or entry.target is None or not entry.target.covers(device):
            continue
        if not entry.ours and not foreign:
            continue
        name = entry.kernel
        if not entry.ours:
            name = ".".join(filter(None, ("aiter", entry.library, entry.kernel)))
        problem = entry.problem(arch(device.arch))
        row = Row(device, problem, name, (), entry.us, (entry.us, entry.us), timed="aiter")
        found.append((entry.where, row))
    return found


@dataclass(frozen=True, slots=True)
class Written:
    """A file's text, how many rows it has, and those that its form cannot say, with why."""

    text: str
    count: int
    left: tuple[tuple[Row, str], ...]


def write_aiter(given: Iterable[Row], form: str) -> Written:
    """Rows as a tuned file of this form, in their order. Raises `BadArgument` for an unknown form.

    Our kernels have no number there: ``kernelId`` and ``solidx`` are -1. ``splitK`` counts the
    parts of K. ``errRatio`` is 0 for a row that was verified, and empty for others.
    """
    family, this = _form_called(form)
    out, left, count = io.StringIO(), [], 0
    table = csv.DictWriter(out, (*GPU, *this.columns), lineterminator="\n")
    table.writeheader()
    for row in given:
        cells = _cells(row, family, this)
        if isinstance(cells, str):
            left.append((row, cells))
        else:
            table.writerow(cells)
            count += 1
    return Written(out.getvalue(), count, tuple(left))


def _cells(row: Row, name: str, form: Form) -> dict[str, str] | str:
    """A line that reads back as `row`; or why there is none."""
    problem, family = row.problem, ops.family(name)
    if row.device.interpreted:
        return f"it was timed by the interpreter, not on a GPU: {row.device.name}"
    if problem.family != name:
        return f"aiter's files of form {form.name} have no {problem.family}"
    if "kernelName" not in form.columns:
        return f"a file of form {form.name} names no kernels"
    try:
        config = family.parse_name(row.kernel)
        if library := library_of(config):
            return f"its kernel is an algorithm of {library}, and aiter's files name kernels"
        cells = form.line(problem, config)
        entries = _stated(row.kernel, name, form, cells, None, Counter())
        same = [one.problem(arch(row.device.arch)) for one in entries] == [problem]
    except (BadArgument, BadFile) as error:
        return str(error)
    if not same:
        return f"a file of form {form.name} cannot say {problem}"
    index, off = ("solidx", "err_ratio") if "solidx" in form.columns else ("kernelId", "errRatio")
    results = {
        "gfx": row.device.arch,
        "cu_num": str(row.device.compute_units),
        "libtype": LIBRARY,
        index: _NOT_BY_NUMBER,
        "us": repr(float(row.median_us)),
        "kernelName": row.kernel,
        off: "0.0" if row.error is not None and row.error <= 1 else "",
        "tflops": f"{row.tflops:.2f}",
        "bw": f"{row.gb_per_s:.2f}",
    }
    every = {**results, **cells}
    return {column: every[column] for column in (*GPU, *form.columns)}


def _target(
    cells: Mapping[str, str], given: str | None, inferred: dict[Target, None]
) -> Target | None:
    """The GPU of a line; None in a file that has none."""
    units = whole(cells, "cu_num") if cells.get("cu_num") else None
    if cells.get("gfx"):
        return Target(_called(cells["gfx"]), units)
    if units is None:
        return None
    if given is not None:
        return Target(given, units)
    if units not in BEFORE_GFX:
        raise BadArgument(
            f"there is no gfx, and cu_num {units} does not tell which architecture it is: say gfx"
        )
    target = Target(BEFORE_GFX[units], units)
    inferred[target] = None
    return target


def _called(gfx: str) -> str:
    """The name of an architecture; of one that is not known here, as it stands there."""
    try:
        return arch(gfx).name
    except UnknownArch:
        return gfx


def _stated(
    place: str,
    family: str,
    reader: Reader,
    cells: Mapping[str, str],
    target: Target | None,
    said: Counter[str],
) -> list[Entry]:
    """The entries of a line; why there are none, and how they differ, is counted in `said`."""
    found = reader.read(cells)
    if isinstance(found, str):
        said[f"left out: {found}"] += 1
        return []
    said.update({differs for one in found for differs in one.differs})
    return [
        Entry(place, family, one.words, target, one.library, one.kernel, one.us, one.otherwise)
        for one in found
    ]


def _table(where: str) -> tuple[tuple[str, ...], Sequence[tuple[int, dict[str, str]]]]:
    """The titles and the lines with their numbers, cells stripped. As aiter does, empty lines and
    empty columns at the end are passed over, and titles that are repeated further down (of files
    put one behind the other)."""
    titles: tuple[str, ...] = ()
    lines: list[tuple[int, dict[str, str]]] = []
    for number, cells in csv_rows(read_text(where, marked=True), where):
        stripped = tuple(cells)
        if not any(stripped):
            continue
        while stripped[-1] == "" and len(stripped) > len(titles):
            stripped = stripped[:-1]
        if not titles:
            titles = stripped
            if "" in titles or len(set(titles)) < len(titles):
                raise BadFile(f"{where}: line {number}: every column needs a title")
        elif stripped != titles:
            missing = titles[len(stripped) :]
            if all(title.startswith("_") for title in missing):  # remarks; aiter adds them as empty
                stripped += ("",) * len(missing)
            if len(stripped) != len(titles):
                raise BadFile(
                    f"{where}: line {number}: {len(stripped)} cells under {len(titles)} titles"
                )
            lines.append((number, dict(zip(titles, stripped, strict=True))))
    if not titles:
        raise BadFile(f"{where}: is empty")
    return titles, lines
