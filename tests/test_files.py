"""Files appear whole or not at all."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest

import tilewright
from tilewright.errors import StoreError
from tilewright.files import replacing, write_whole

MAKERS = ("mkstemp", "NamedTemporaryFile", "O_EXCL")


def test_a_file_is_replaced_when_its_successor_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with replacing(path, mode=0o600) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failed_writer_leaves_the_file_of_before(tmp_path: Path, failure: type) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(failure), replacing(path) as file:
        file.write(b"half")
        raise failure
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_put_in_the_place_of_a_file_being_written_is_not_followed(tmp_path: Path) -> None:
    folder, path = tmp_path / "folder", tmp_path / "folder" / "file"
    folder.mkdir()
    (mine := tmp_path / "mine").write_text("mine")
    mine.chmod(0o600)
    with replacing(path) as file:
        (made,) = folder.iterdir()
        made.unlink()
        made.symlink_to(mine)
        file.write(b"content")
    assert mine.read_text() == "mine" and stat.S_IMODE(mine.stat().st_mode) == 0o600


def test_a_folder_that_is_replaced_while_a_file_is_written_is_not_written_to(
    tmp_path: Path,
) -> None:
    folder, mine = tmp_path / "folder", tmp_path / "mine"
    folder.mkdir()
    mine.mkdir()
    with replacing(folder / "file") as file:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(mine)
        file.write(b"content")
    assert [*mine.iterdir()] == [] and (tmp_path / "moved" / "file").read_bytes() == b"content"


def test_a_file_that_was_removed_while_it_was_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_text("before")
    with pytest.raises(FileNotFoundError), replacing(path):
        for made in path.parent.glob("tilewright-*"):
            made.unlink()
    assert path.read_text() == "before"


def test_a_path_that_cannot_be_is_one_error(tmp_path: Path) -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(StoreError, match="cannot write"):
            write_whole(tmp_path / name, b"")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.turns(32)
def test_one_module_replaces_files() -> None:
    """`scratch` makes lock files in folders of its own, which nobody replaces. No other module
    makes
    a file under a name of its own and lets it become another."""
    root = Path(tilewright.__file__).parent
    users = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in MAKERS:
                users.add(path.relative_to(root).as_posix())
    writes_one_secret = {"compile/signing.py"}  # in a folder that is this user's alone
    read_by_a_tool = {"compile/compiler.py", "compile/inspection.py"}  # never become another file
    assert users - read_by_a_tool - writes_one_secret == {"files.py", "scratch.py"}
