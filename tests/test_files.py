"""Files appear whole or not at all."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest

import tilewright
from tilewright.errors import StoreError
from tilewright.files import replacing, write_whole


def test_a_file_is_replaced_when_its_successor_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with replacing(path, mode=0o600) as written:
        written.write_text("aft")
        assert path.read_text() == "before"
        written.unlink()  # as a linker does with its output file
        written.write_text("after")
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failed_writer_leaves_the_file_of_before(tmp_path: Path, failure: type) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(failure), replacing(path) as written:
        written.write_text("half")
        raise failure
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_writer_that_wrote_nothing_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(FileNotFoundError), replacing(path) as written:
        written.unlink()
    assert path.read_text() == "before"


def test_a_path_that_cannot_be_is_one_error(tmp_path: Path) -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(StoreError, match="cannot write"):
            write_whole(tmp_path / name, b"")
    assert [*tmp_path.iterdir()] == []


def test_one_module_replaces_files() -> None:
    """`scratch` makes lock files in folders of its own, which nobody replaces."""
    root = Path(tilewright.__file__).parent
    users = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("mkstemp", "NamedTemporaryFile"):
                users.add(path.relative_to(root).as_posix())
    read_by_a_tool = {"compile/compiler.py", "compile/inspection.py"}  # never become another file
    assert users - read_by_a_tool == {"files.py", "scratch.py"}
