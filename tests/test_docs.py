"""The documents keep their word: their Python runs and prints what they show, their links lead
somewhere.

A block that opens with ``python runnable`` after its three backticks is run; the blocks of a page
are one session. If a block of ``text output`` follows, it is exactly what was printed. A plain
``text`` block is what was printed once (times, estimates, what a compiler made of a kernel). A
block that opens with ``python file=NAME`` is a file beside the session.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from navigation import PAGES as SITE_PAGES
from navigation import navigation
from patience import LIMIT_SECONDS
from public_interface import interface, undocumented

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for folder in (".", "docs", "examples", "benchmarks")
    for page in (ROOT / folder).glob("*.md")
)
BLOCK = re.compile(
    r"^```python runnable\n(.*?)^```\n(?:\n```text output\n(.*?)^```\n)?", re.M | re.S
)
FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```\n", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BETWEEN = "--- next block ---"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUNNABLE = [page for page in PAGES if BLOCK.search(page.read_text())]


def test_the_first_pages_are_runnable():
    assert {"README.md", "docs/tutorial.md"} <= {name(page) for page in RUNNABLE}


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.edge] * (name(p) == "README.md")) for p in RUNNABLE],
    ids=name,
)
def test_its_python_runs_and_prints_what_it_shows(page, tmp_path):
    blocks = BLOCK.findall(page.read_text())
    for file, code in FILE.findall(page.read_text()):
        (tmp_path / file).write_text(code)
    script = tmp_path / "session.py"
    script.write_text("".join(f"{code}\nprint({BETWEEN!r})\n" for code, _ in blocks))
    own = {
        "TILEWRIGHT_HOME": str(tmp_path / "home"),
        "TILEWRIGHT_STORE": str(tmp_path / "store"),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **own},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{BETWEEN}\n")[:-1]
    assert len(printed) == len(blocks)
    for (code, shown), got in zip(blocks, printed, strict=True):
        assert not shown or got == shown, code


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
    assert sorted(f"{page}.md" for page in listed) == sorted(
        str(page.relative_to(ROOT))
        for pattern in SITE_PAGES
        for page in ROOT.glob(pattern)
        if page != ROOT / "README.md"
    )


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
