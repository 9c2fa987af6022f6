"""Count the lines of code of each declared operation: of its page and its kernels, without
comments, docstrings and blank lines.

    python benchmarks/declared_lines.py            # prints the table
    python benchmarks/declared_lines.py --write    # puts it into docs/operations.md

A file of kernels that several operations have counts with the first of them by name. What pages of
a group share (names that begin with ``_``) has a line of its own.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tilewright.declared
from tilewright import ops

ROOT = Path(tilewright.declared.__file__).parent
PAGE = Path(__file__).parent.parent / "docs/operations.md"
TABLE = re.compile(r"(<!-- lines -->\n).*?(<!-- /lines -->)", re.S)
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Lines with code in them: neither blank, nor comments, nor of a string that stands by itself,
    as docstrings do."""
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            said |= {*range(value.lineno, (value.end_lineno or value.lineno) + 1)}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            found |= {*range(token.start[0], token.end[0] + 1)}
    return len(found - said)


def of_file(path: Path) -> int:
    return code_lines(path.read_text())


def rows() -> Iterator[tuple[str, int, int]]:
    """For each operation its name, the lines of its page, and those of its kernels; then the same
    of what each group shares."""
    taken: set[Path] = set()
    for name in ops.declared():
        family: Any = ops.family(name)
        page = _file(family.declared.module)
        places = (part.function.partition(":")[0] for part in family.declared.parts)
        mine = {*map(_file, places)} - taken
        mine = {file for file in mine if not file.stem.startswith("_")}
        taken |= mine
        yield f"`{name}`", of_file(page), sum(map(of_file, mine))
    shared = sorted(
        path for path in ROOT.glob("*") if path.is_dir() and (path / "kernels").exists()
    )
    for group in shared:
        yield (
            f"shared by `{group.name}`",
            sum(map(of_file, group.glob("_[!_]*.py"))),
            sum(map(of_file, set((group / "kernels").glob("[!_]*.py")) - taken))
            + sum(map(of_file, (group / "kernels").glob("_[!_]*.py"))),
        )


def _file(module: str) -> Path:
    spec = find_spec(module)
    assert spec and spec.origin
    return Path(spec.origin)


def table() -> str:
    """The table in Markdown."""
    found = [*rows()]
    lines = ["| operation | page | kernels | together |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {page} | {kernels} | {page + kernels} |" for name, page, kernels in found
    ]
    pages, kernels = (sum(row[i] for row in found) for i in (1, 2))
    lines.append(f"| all | {pages} | {kernels} | {pages + kernels} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """The page's text with the table as it is now."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put it into docs/operations.md")
    if parser.parse_args().write:
        PAGE.write_text(written(PAGE.read_text()))
    else:
        print(table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
