"""``problems``: what files of problems state, and what of them has no counterpart here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.canonical import canonical
from tilewright.cli import output
from tilewright.cli.errors import WRONG_REQUEST
from tilewright.cli.options import FamilyName, Json, command
from tilewright.errors import BadArgument, BadFile
from tilewright.files import write_whole
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch import Arch

_MOST_REASONS = 20


app = typer.Typer()


@dataclass(slots=True)
class _Read:
    """What a file states. lines: those with a problem, or with something that states none."""

    file: str
    lines: int = 0
    read: int = 0
    partly: int = 0
    problems: dict[Any, None] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)


@command(
    app,
    "Read files of problems, also of other libraries, and count what they state.",
    "tilewright problems MIOpen/test/perf_models --arch gfx942",
    "tilewright problems oneDNN/tests/benchdnn/inputs/matmul --json",
    "tilewright problems resnet.txt --arch gfx942 --out resnet.json",
)
def problems(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Files of problems, or folders with files of command lines (.txt, or no ending).",
            metavar="FILE | DIR…",
        ),
    ],
    arch_name: Annotated[
        str,
        typer.Option("--arch", help="Architecture that says which type fp8 is.", metavar="ARCH"),
    ] = "sm_90",
    family: FamilyName = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write a list of the problems there.", metavar="FILE.json"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read files of problems, count their lines and problems, and say why other lines state none.

    Besides lists of problems, these are command lines of MIOpenDriver, benchdnn and ckProfiler, one
    to a line; a line may state several problems. --out writes those that were read, for every
    command that takes a list.
    """
    from tilewright.arch import arch

    if out is not None and out.suffix != ".json":
        raise BadArgument(f"--out {out}: a list of problems is a .json file")
    this = arch(arch_name)
    files = [*dict.fromkeys(file for path in inputs for file in _files(path))]
    with output.busy(f"reading {many(len(files), 'file')}"):
        found = [_read(file, this, family) for file in files]
    every = {problem: None for one in found for problem in one.problems}
    if out is not None:
        write_list(out, [*every])
    output.answer(_document(found, len(every), this.name), as_json, _show)
    if not every:
        output.say(f"error: no problem in {', '.join(map(str, inputs))}", err=True)
        raise typer.Exit(WRONG_REQUEST)


def _files(path: Path) -> Iterator[Path]:
    """A file, or the files of command lines in a folder and in its folders, in order."""
    from tilewright.measure.problems_lines import is_lines

    if not path.is_dir():
        yield path
        return
    found = [one for one in sorted(path.rglob("*")) if is_lines(str(one))]
    if not found:
        raise BadFile(f"{path}: no file of command lines in it (.txt, or without an ending)")
    yield from found


def _read(file: Path, this: Arch, family: str | None) -> _Read:
    from tilewright.measure.problems import lines, load_problems
    from tilewright.measure.problems_lines import is_lines

    found = _Read(str(file))
    if not is_lines(str(file)):
        listed = load_problems([file], this, family)
        found.problems = dict.fromkeys(listed.problems)
        found.lines = found.read = len(listed.problems) + listed.repeated
        return found
    try:
        stated = lines(str(file), this, {})
    except BadFile as error:  # no text, or too long: the other files of a folder still count
        found.refused.append({"line": 0, "text": "", "reason": str(error)})
        return found
    for line in stated:
        found.lines += 1
        found.read += not line.reasons
        found.partly += bool(line.reasons and line.problems)
        found.problems.update(dict.fromkeys(line.problems))
        found.refused += [
            {"line": line.number, "text": line.text, "reason": reason} for reason in line.reasons
        ]
    return found


def write_list(out: Path, found: Sequence[Any]) -> None:
    """Write problems as a list that every command takes."""
    stated = ({"family": problem.family, **asdict(problem)} for problem in found)
    rows = [canonical(one).rstrip() for one in stated]
    write_whole(out, b"[\n" + b",\n".join(rows) + b"\n]\n")


def _document(found: Sequence[_Read], problems: int, arch_name: str) -> dict[str, Any]:
    reasons = Counter(refused["reason"] for one in found for refused in one.refused)
    return {
        "arch": arch_name,
        "lines": sum(one.lines for one in found),
        "read": sum(one.read for one in found),
        "partly": sum(one.partly for one in found),
        "problems": problems,
        "reasons": [{"reason": why, "count": n} for why, n in reasons.most_common()],
        "files": [
            {
                "file": one.file, "lines": one.lines, "read": one.read, "partly": one.partly,
                "problems": len(one.problems), "refused": one.refused,
            }
            for one in found
        ],
    }  # fmt: skip


def _show(document: dict[str, Any]) -> None:
    files, reasons = document["files"], document["reasons"]
    partly = f", {document['partly']} in part" if document["partly"] else ""
    output.heading(
        f"{document['read']} of {document['lines']} lines read{partly}: "
        f"{document['problems']} different problems"
    )
    if len(files) > 1:
        columns = ("lines", "read", "problems", "file")
        output.table(columns, [tuple(one[c] for c in columns) for one in files])
    if reasons:
        refused = [
            (f"{one['file']}:{r['line']}", r["reason"]) for one in files for r in one["refused"]
        ]
        first = {why: place for place, why in reversed(refused)}
        output.line()
        output.table(
            ("count", "first at", "not read because"),
            [(r["count"], first[r["reason"]], r["reason"]) for r in reasons[:_MOST_REASONS]],
        )
    if len(reasons) > _MOST_REASONS:
        output.line(f"and {len(reasons) - _MOST_REASONS} other reasons; --json has all")
