"""A folder for Hugging Face's `kernels` on a GPU, with torch and Triton alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hub.export import export
from hub_problems import problems
from patience import LIMIT_SECONDS
from tilewright import live_device

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).parents[1] / "hub_script.py"


def test_it_runs_with_torch_and_triton_alone(tmp_path):
    exported = export(problems(), live_device(0), "my-kernels", 1, tmp_path / "hub")
    assert exported.count == len(problems())
    done = subprocess.run(
        [sys.executable, SCRIPT, exported.folder, "cuda"],
        env={
            **os.environ,
            "TRITON_CACHE_DIR": str(tmp_path / "cache"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
