"""Compact copies of shipped tables: as good as the JSON that they are of, and never in its way."""

from __future__ import annotations

import pytest
from table_cases import PLAIN, WIDE, gemm, row

from tilewright.errors import BadFile
from tilewright.tables import copies, file
from tilewright.tables.table import Table


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder of copies."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "shipped"


@pytest.fixture
def shipped(tmp_path):
    """A table of two rows as JSON."""
    path = tmp_path / "sm_90" / "gemm_bf16.json"
    path.parent.mkdir()
    file.save(Table.of([row(gemm(64), WIDE), row(gemm(128), PLAIN)]), path)
    return path


@pytest.fixture
def unread(monkeypatch):
    """Called, it makes every further reading of JSON a failure."""

    def forbid() -> None:
        def read(*_: object) -> None:
            pytest.fail("the JSON was read")

        monkeypatch.setattr(file, "_json_rows", read)

    return forbid


def test_the_second_reading_takes_the_copy(shipped, kept, unread):
    first = copies.load(shipped)
    [copy] = kept.iterdir()
    assert copy.name.startswith("sm_90-gemm_bf16-") and copy.suffix == ".twt"
    unread()
    second = copies.load(shipped)
    assert [*second] == [*first] == [*Table.of([row(gemm(64), WIDE), row(gemm(128), PLAIN)])]


def test_a_changed_table_has_another_copy_which_replaces_the_first(shipped, kept):
    copies.load(shipped)
    [before] = kept.iterdir()
    other = kept / "sm_90-gemm_bf16_wide-0123456789abcdef.twt"
    other.write_bytes(b"another table's")
    file.save(Table.of([row(gemm(64), PLAIN)]), shipped)
    assert len(copies.load(shipped)) == 1
    after = {*kept.iterdir()}
    assert before not in after and other in after and len(after) == 2


def test_a_changed_source_of_problems_has_another_copy(shipped, kept, monkeypatch, tmp_path):
    copies.load(shipped)
    [before] = kept.iterdir()
    assert any(source.match("gemm/problem.py") for source in copies._sources())
    (tmp_path / "problem.py").write_text("another meaning")
    monkeypatch.setattr(copies, "_sources", lambda: [tmp_path / "problem.py"])
    copies.load(shipped)
    [after] = kept.iterdir()
    assert after != before


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "writable", "link", "folder"])
def test_a_copy_that_cannot_be_trusted_is_made_again_or_left_alone(shipped, kept, harm, tmp_path):
    rows = [*copies.load(shipped)]
    [copy] = kept.iterdir()
    whole = copy.read_bytes()
    if harm == "cut":
        copy.write_bytes(whole[:-1])
    elif harm == "changed":
        copy.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif harm == "empty":
        copy.write_bytes(b"")
    elif harm == "writable":
        file.save(Table.of([row(gemm(64), PLAIN)]), copy)
        copy.chmod(0o666)
    elif harm == "link":
        file.save(Table.of([row(gemm(64), PLAIN)]), tmp_path / "anybody.twt")
        copy.unlink()
        copy.symlink_to(tmp_path / "anybody.twt")
    else:
        copy.unlink()
        copy.mkdir()
    assert [*copies.load(shipped)] == rows
    assert harm == "folder" or (copy.read_bytes() == whole and not copy.is_symlink())


def test_without_a_folder_to_write_in_the_json_answers(shipped, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "file"))
    assert len(copies.load(shipped)) == 2


def test_damaged_json_is_an_error_and_leaves_no_copy(shipped, kept):
    shipped.write_text(shipped.read_text()[:-20])
    with pytest.raises(BadFile, match=r"gemm_bf16\.json"):
        copies.load(shipped)
    assert not kept.exists()
