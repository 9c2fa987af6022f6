"""The documents keep their word: their Python runs and prints what they show, their links lead
somewhere.

A block that opens with ``python runnable`` after its three backticks is run; the blocks of a page
are one session. If a block of ``text output`` follows, it is what was printed. A plain ``text``
block is what was printed once, on a GPU say. A block that opens with ``python file=NAME`` or ``json
file=NAME`` is a file beside the session.

The commands of a block that opens with ``console checked`` are run, those of a page in one folder.
What stands behind a command is its standard output.

In outputs ``…`` is any text within a line (a time, what a compiler made of a kernel), and a line
``...`` any lines.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from navigation import NOTES, navigation, notes
from navigation import PAGES as SITE_PAGES
from patience import LIMIT_SECONDS
from public_interface import interface, undocumented

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for folder in (".", "docs", "docs/notes", "examples", "benchmarks")
    for page in (ROOT / folder).glob("*.md")
)
BLOCK = re.compile(
    r"^```python runnable\n(.*?)^```\n(?:\n```text output\n(.*?)^```\n)?", re.M | re.S
)
FILE = re.compile(r"^```(?:python|json) file=(\S+)\n(.*?)^```\n", re.M | re.S)
CHECKED = re.compile(r"^```console checked\n(.*?)^```\n", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BETWEEN = "--- next block ---"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUNNABLE = [page for page in PAGES if BLOCK.search(page.read_text())]


def test_the_first_pages_are_runnable():
    assert {"README.md", "docs/tutorial.md"} <= {name(page) for page in RUNNABLE}


def pattern(shown: str) -> str:
    lines = (
        r"(?:.*\n)*?" if line == "...\n" else re.escape(line).replace("…", ".*")
        for line in shown.splitlines(keepends=True)
    )
    return "".join(lines)


def test_an_output_may_leave_out_parts_of_lines_and_lines():
    assert re.fullmatch(pattern("a … c\n...\nz\n"), "a b c\nd\ne\nz\n")
    assert not re.fullmatch(pattern("a … c\nz\n"), "a b c\nd\nz\n")
    assert not re.fullmatch(pattern("a.c\n"), "abc\n")


def session(page: Path, folder: Path, script: str) -> str:
    """What a script prints in a folder with the page's files."""
    for file, code in FILE.findall(page.read_text()):
        (folder / file).write_text(code)
    (folder / "session.py").write_text(script)
    own = {
        "TILEWRIGHT_HOME": str(folder / "home"),
        "TILEWRIGHT_STORE": str(folder / "store"),
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "session.py"],
        env={**os.environ, **own},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMANDS = """
import json, shlex
from typer.testing import CliRunner
from tilewright.cli.app import app
results = []
for command in {commands}:
    result = CliRunner().invoke(app, command)
    results.append([result.exit_code, result.stdout, result.stderr])
print(json.dumps(results))
"""


def commands(page: Path) -> list[tuple[str, str]]:
    """The checked commands of a page, each with the output that it shows."""
    blocks = "".join(CHECKED.findall(page.read_text()))
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks, re.M)


CONSOLES = [page for page in PAGES if CHECKED.search(page.read_text())]


@pytest.mark.turns(48)
@pytest.mark.parametrize("page", CONSOLES, ids=name)
def test_its_commands_print_what_it_shows(page, tmp_path):
    asked = commands(page)
    words = [shlex.split(command) for command, _ in asked]
    assert all(first == "tilewright" for first, *_ in words)
    script = COMMANDS.format(commands=json.dumps([rest for _, *rest in words]))
    results = json.loads(session(page, tmp_path, script))
    for (command, shown), (code, printed, errors) in zip(asked, results, strict=True):
        assert code == 0, f"{command}: {errors}"
        assert re.fullmatch(pattern(shown), printed), f"{command} prints\n{printed}"


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.edge] * (name(p) == "README.md")) for p in RUNNABLE],
    ids=name,
)
def test_its_python_runs_and_prints_what_it_shows(page, tmp_path):
    blocks = BLOCK.findall(page.read_text())
    if any("from transformers import" in code for code, _ in blocks):
        pytest.importorskip("transformers")  # not there under Python 3.10
    script = "".join(f"{code}\nprint({BETWEEN!r})\n" for code, _ in blocks)
    printed = session(page, tmp_path, script).split(f"{BETWEEN}\n")[:-1]
    assert len(printed) == len(blocks)
    for (code, shown), got in zip(blocks, printed, strict=True):
        assert not shown or re.fullmatch(pattern(shown), got), f"{code}\nprints\n{got}"


def headings(page: Path) -> set[str]:
    """A page's anchors, as GitHub makes them."""
    lines = FENCED.sub("", page.read_text()).splitlines()
    titles = (line.lstrip("#").strip().lower() for line in lines if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_its_links_lead_somewhere(page):
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in headings(there), target


def test_the_navigation_lists_every_page_once():
    listed = [
        page for pages in navigation((ROOT / "README.md").read_text()).values() for page in pages
    ]
    listed += [f"docs/notes/{page}" for page in notes((ROOT / f"{NOTES}.md").read_text())]
    assert sorted(f"{page}.md" for page in listed) == sorted(
        str(page.relative_to(ROOT))
        for pattern in SITE_PAGES
        for page in ROOT.glob(pattern)
        if page != ROOT / "README.md"
    )


OPS = ROOT / "src" / "tilewright" / "ops"
KERNELS = sorted([*OPS.glob("*/kernels/*.py"), *(OPS / "device").glob("*.py")])


def test_a_kernel_opens_with_a_short_text():
    """What was measured and tried stands in the notes."""
    assert KERNELS
    long = [name(file) for file in KERNELS if lines_of_opening(file) > 40]
    assert not long, "move what was measured and tried to docs/notes"


def lines_of_opening(file: Path) -> int:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return len(text.splitlines())


def test_notes_that_the_source_names_exist():
    named = {
        page
        for file in (ROOT / "src").rglob("*.py")
        for page in re.findall(r"docs/notes/[\w-]+\.md", file.read_text())
    }
    assert len(named) > 1
    assert not [page for page in named if not (ROOT / page).exists()]


def test_every_public_name_has_a_docstring():
    assert undocumented() == []


def test_documents_import_public_names_only():
    public = [sys.modules[f.module] for f in interface()]
    public += [getattr(sys.modules[f.module], name) for f in interface() for name in f.names]
    blocks = "\n".join("\n".join(FENCED.findall(page.read_text())) for page in PAGES)
    for module, names in re.findall(r"^from (tilewright[\w.]*) import (.+)$", blocks, re.M):
        for imported in names.split(", "):
            value = getattr(importlib.import_module(module), imported)
            known = any(value is one for one in public)
            assert known, f"{module}.{imported} is missing in docs/site/public_interface.py"
