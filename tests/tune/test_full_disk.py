"""A sweep on a full disk: an error that says so, nothing lost, and it goes on when there is room.

The disk is a file system of a megabyte where this process may mount one (as root), and in any case
one that refuses files beyond a size, which SQLite takes for a full disk too.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fake_crew import GROUP, SETTINGS, FakeCrew
from tune_cases import CONFIGS, PROBLEMS

from tilewright.compile import Store
from tilewright.errors import TilewrightError
from tilewright.measure.results import Results
from tilewright.measure.sweep import plan, sweep

ALL = [replace(PROBLEMS[0], m=m) for m in range(1, 201)]
TOTAL = len(ALL) * len(CONFIGS)


def run(folder):
    """A sweep whose measurements have much to say: a few megabytes of them."""
    crew = FakeCrew(change=lambda m: replace(m, reason="x" * 4000))
    with Results(folder, write=True) as results:
        this = plan((GROUP,), {"sm_90": CONFIGS}, {"sm_90": ALL}, SETTINGS, results.keys())
        sweep(this, results, Store(folder.parent / "store"), crew)


@contextmanager
def _mounted(folder):
    """A small disk, and what makes room on it."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield lambda: subprocess.run(
            ["mount", "-o", "remount,size=64m", str(folder)], check=True, capture_output=True
        )
    finally:
        # Lazily: a test that failed may still hold a file open, and no mount is to outlive it.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


LIMITED = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_full_disk import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
run(Path({folder!r}))
"""


def check(folder):
    """What is there is whole, and some of all."""
    with Results(folder) as results:
        assert results._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = [m.key for m in results.measurements()]
    assert 10 < len(kept) == len(set(kept)) < TOTAL
    return set(kept)


def finish(folder, kept, tmp_path):
    run(folder)
    run(tmp_path / "whole")
    ends = []
    for one in (folder, tmp_path / "whole"):
        with Results(one) as results:
            ends.append(Counter(m.key for m in results.measurements()))
    assert ends[0] == ends[1] and len(ends[0]) == ends[0].total() == TOTAL
    assert kept < set(ends[0])


@pytest.mark.turns(24)
def test_a_disk_that_is_full(tmp_path):
    with _mounted(tmp_path / "disk") as make_room:
        folder = tmp_path / "disk" / "sweep"
        for _ in range(2):  # again, with no room made: the same, and no worse
            with pytest.raises(TilewrightError, match=r"cannot be written.*full.*make room"):
                run(folder)
            kept = check(folder)
        make_room()
        finish(folder, kept, tmp_path)


def test_a_disk_that_is_full_before_it_begins(tmp_path):
    with _mounted(tmp_path / "disk") as make_room:
        folder = tmp_path / "disk" / "sweep"
        folder.mkdir()
        somebodys = (tmp_path / "disk" / "somebodys").open("wb", buffering=0)
        with somebodys as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(TilewrightError, match=r"cannot be written.*full.*make room"):
            run(folder)
        make_room()
        run(folder)


@pytest.mark.turns(48)
def test_files_that_may_not_grow(tmp_path):
    folder = tmp_path / "sweep"
    code = LIMITED.format(paths=sys.path, folder=str(folder))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode and "cannot be written" in ran.stderr and "make room" in ran.stderr
    finish(folder, check(folder), tmp_path)
