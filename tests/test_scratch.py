"""Folders for temporary files are removed, also those of a process that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.scratch import clear, scratch

PREFIX = "tilewright-build-"
HOLD = """
from tilewright.scratch import scratch
with scratch("tilewright-build-") as folder:
    open(folder + "/file", "w").close()
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that has such a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def test_it_is_there_while_it_is_used(folder: Path) -> None:
    with scratch(PREFIX) as made:
        clear(PREFIX)
        assert Path(made).parent == folder and Path(made).is_dir()
    assert not Path(made).exists()


def test_a_fork_that_drops_its_copy_removes_nothing() -> None:
    """As a process does that forks while a compiler waits for its next build."""
    held = [scratch(PREFIX)]
    made = Path(held[0].__enter__())
    child = os.fork()
    if not child:
        held.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    clear(PREFIX)
    assert made.is_dir()
    held[0].__exit__(None, None, None)
    assert not made.exists()


def test_what_a_killed_process_left_is_cleared_and_a_living_ones_is_not(
    other: subprocess.Popen[str],
) -> None:
    assert other.stdout is not None
    made = Path(other.stdout.readline().strip())
    clear(PREFIX)
    assert (made / "file").exists()
    other.send_signal(signal.SIGKILL)
    other.wait()
    clear("tilewright-ncu-")
    assert (made / "file").exists()
    clear(PREFIX)
    assert not made.exists()


def test_what_is_not_ours_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's folder, one of another make, a file, a link to a folder, one in a folder."""
    left, strange, linked, away = (folder / f"{PREFIX}{x}" for x in ("a", "b", "c", "d"))
    for made in (left, strange, folder / "away"):
        made.mkdir()
        (made / "file").write_text("mine")
    (left / "lock").write_text("")
    (folder / "away" / "lock").write_text("")
    linked.symlink_to(folder / "away")
    away.write_text("mine")
    (folder / f"{PREFIX}e").mkdir()
    (folder / f"{PREFIX}e" / "lock").symlink_to(away)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        clear(PREFIX)
    assert (left / "file").exists()
    clear(PREFIX)
    assert not left.exists()
    assert (strange / "file").exists() and (folder / "away" / "file").exists()
    assert away.read_text() == "mine" and (folder / f"{PREFIX}e").is_dir()
