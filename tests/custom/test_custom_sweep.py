"""`tilewright sweep NAME`: every kernel of an operation on the problems it was declared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def sweep(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "TILEWRIGHT_KERNEL_MODULES": "grown_kernels",
    }
    command = [sys.executable, "-m", "tilewright", "sweep", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.turns(48)
def test_a_name_alone_sweeps_its_kernels_on_its_problems(tmp_path):
    out = ("--out", str(tmp_path / "out"), "--devices", "cpu", "--json")
    done = sweep(
        "custom_pick", *out, "--where", "BLOCK == 32 and maxnreg == 0 and waves_per_eu == 0"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["statuses"] == {"ok": 2}  # of both alignments


@pytest.mark.turns(12)
def test_an_operation_without_problems_asks_for_them(tmp_path):
    done = sweep("custom_half", "--out", str(tmp_path / "out"), "--devices", "cpu")
    assert done.returncode != 0 and "which problems?" in done.stderr
