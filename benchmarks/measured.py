"""Write the tables of measurements in README.md and `docs/` from the claims (`claims.py`).

    python benchmarks/measured.py            # writes them anew
    python benchmarks/measured.py --check    # fails if a page differs from what the claims say

A page says between comments which claims a table shows, a claim a line, with the words of its row:

    <!-- claims
    gemm-bf16-large: bf16, large products
    -->
    … the table …
    <!-- /claims -->

``claims short`` has no P10, graphs and commands; ``claims times`` is for host times. A row is
marked stale if its claim has no proof, or if its kernels have changed since (`claims.stale`).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import cases
import claims
from claims import Claim, Compared, Ratios
from tilewright.errors import BadFile

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"(<!-- claims ?(\w*)\n(.*?)-->\n)(.*?)(<!-- /claims -->)", re.S)
NOTHING = "–"


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that may have tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def written(page: Path, known: Mapping[str, Claim]) -> str:
    """The page's text with its tables as the claims `known` have them. Raises `BadFile` for a table
    that names no claim, or is of no kind."""

    def table(found: re.Match[str]) -> str:
        opening, kind, rows, _, closing = found.groups()
        if kind not in KINDS:
            raise BadFile(f"{page.name}: there are no tables 'claims {kind}'")
        shown = []
        for row in rows.splitlines():
            name, _, words = row.partition(":")
            if name not in known:
                raise BadFile(f"{page.name}: there is no claim {name!r}")
            shown.append((known[name], words.strip()))
        head, lines = KINDS[kind]
        body = [line for claim, words in shown for line in lines(claim, words, page)]
        text = "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *body))
        return f"{opening}\n{text}\n{closing}"

    return TABLE.sub(table, page.read_text())


def unlisted(known: Mapping[str, Claim], listing: Iterable[Path]) -> set[str]:
    """The claims that no table of the pages shows."""
    tables = (found[3] for page in listing for found in TABLE.finditer(page.read_text()))
    return set(known) - {row.partition(":")[0] for table in tables for row in table.splitlines()}


# --- rows --------------------------------------------------------------------------------------

Lines = Callable[[Claim, str, Path], Iterator[list[str]]]


def _full(claim: Claim, words: str, page: Path) -> Iterator[list[str]]:
    first = [words, claim.against or NOTHING, _problems(claim)]
    ratios = [*_both(claim.calls, _with_p10), *_both(claim.graphs, _with_p10)]
    yield [*first, *ratios, _when(claim, page)]


def _short(claim: Claim, words: str, page: Path) -> Iterator[list[str]]:
    first = [words, claim.against or NOTHING, _problems(claim)]
    yield [*first, *_both(claim.calls, _without), _when(claim, page, short=True)]


def _times(claim: Claim, words: str, page: Path) -> Iterator[list[str]]:
    for what, us in (claim.times_us or {}).items():
        yield [what, duration(us), _when(claim, page)]


def _both(compared: Compared | None, cell: Callable[[Ratios], str]) -> list[str]:
    both = (compared.ours, compared.with_library) if compared else (None, None)
    return [cell(one) if one else NOTHING for one in both]


def _problems(claim: Claim) -> str:
    return f"{claim.problems:,}" if claim.problems else NOTHING


def _without(ratios: Ratios) -> str:
    return _cell(ratios, ratios.least)


def _with_p10(ratios: Ratios) -> str:
    return _cell(ratios, ratios.p10, ratios.least)


def _cell(ratios: Ratios, *others: float) -> str:
    """The mean, bold where Tilewright is slower, and the others, unless there was one problem."""
    mean = f"{ratios.mean:.3f}"
    shown = f"**{mean}**" if ratios.mean < 1 else mean
    alone = ratios.mean == ratios.least
    return shown if alone else ", ".join((shown, *(f"{other:.3f}" for other in others)))


def duration(us: float) -> str:
    """Three digits of a time in microseconds, with its unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} µs"


def _when(claim: Claim, page: Path, short: bool = False) -> str:
    """When it was measured, with links to the samples; by which command; what is to be known.

    short: one link, and no command.
    """
    said = claim.environment
    date = (said.get("date") or "date unknown")[:10]
    links = [os.path.relpath(claims.RESULTS / name, page.parent) for name in claim.records]
    shown = [f"[{number}]({link})" for number, link in enumerate(links, 1)]
    shown[:1] = [f"[{date}]({links[0]})" if links else date]
    parts = [shown[0] if short else " ".join(shown)]
    if not short:
        parts += [said["gpu"]] if said.get("gpu") else []
        parts += [_command(said["command"], claim.claim)] if said.get("command") else []
    stale = claims.stale(claim)
    parts.append(f"stale: {stale}" if stale else f"commit {said['commit'][:8]}")
    return "; ".join([*parts, *([claim.note] if claim.note else [])])


def _command(line: str, claim: str) -> str:
    """The command without the file that it wrote. If its script is no more: what measures the claim
    now."""
    line = re.sub(r" --json \S+", "", line).removeprefix("benchmarks/")
    if (ROOT / "benchmarks" / line.split()[0]).exists():
        return f"`{line}`"
    case = _cases().get(claim)
    return "by a script that is no more" + (f", now `run.py {case}`" if case else "")


@cache
def _cases() -> dict[str, str]:
    """By claim, the case of the runner that writes it."""
    return {claim: name for name, case in cases.every().items() for claim in cases.claims_of(case)}


_WAYS = ("ours alone", "with the library")
KINDS: dict[str, tuple[list[str], Lines]] = {
    "": (
        [
            "what",
            "against",
            "problems",
            *(f"{way}: {which}" for way in ("calls", "graphs") for which in _WAYS),
            "measured",
        ],
        _full,
    ),
    "short": (["what", "against", "problems", *_WAYS, "measured"], _short),
    "times": (["what", "time", "measured"], _times),
}
"""Of each kind of table the head, and what makes a claim's lines."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if pages differ")
    options = parser.parse_args()
    known = claims.load_all()
    texts = {page: written(page, known) for page in pages()}
    stale = [page for page, text in texts.items() if text != page.read_text()]
    for name in sorted(unlisted(known, texts)):
        print(f"no table shows the claim {name}: add it to a page", file=sys.stderr)
    if options.check and stale:
        names = ", ".join(page.name for page in stale)
        sys.exit(f"run `python benchmarks/measured.py`: the claims say something else than {names}")
    for page in stale:
        page.write_text(texts[page])
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
