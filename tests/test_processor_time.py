"""The processor time that a run of tests tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import subprocess, sys, time

SPIN = "import time\\nwhile time.process_time() < 0.6: pass"

def test_here():
    end = time.process_time() + 0.4
    while time.process_time() < end: pass

def test_in_a_child():
    subprocess.run([sys.executable, "-c", SPIN], check=True)

def test_in_a_child_that_goes_on():
    code = SPIN + "\\nprint(flush=True)\\ntime.sleep(3)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()

def test_waits():
    time.sleep(0.5)
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "some").mkdir(exist_ok=True)
    (folder / "conftest.py").write_text('pytest_plugins = ("processor_time",)')
    (folder / "some" / "test_some.py").write_text(SUITE)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parent)},
        capture_output=True,
        text=True,
    )


@pytest.mark.turns(16)
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_own_time_and_that_of_children_counts_and_waiting_does_not(
    workers: tuple[str, ...], tmp_path: Path
) -> None:
    times = tmp_path / "times.json"
    done = run(tmp_path, f"--processor-times={times}", "--processor-bound=600", *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    took = {test.rpartition("::")[2]: s for test, s in json.loads(times.read_text()).items()}
    assert 0.35 < took["test_here"] < 3 and took["test_waits"] < 0.3
    assert took["test_in_a_child"] > 0.5 and took["test_in_a_child_that_goes_on"] > 0.5
    assert "in all" in done.stdout and "  some\n" in done.stdout


@pytest.mark.turns(8)
def test_a_run_above_the_bound_fails_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "--processor-bound=0.5")
    assert done.returncode == 1 and "4 passed" in done.stdout
    assert "FAILED: more than 0.5 s" in done.stdout
