"""Kernels as a folder for Hugging Face's `kernels`: it runs with torch and Triton alone."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hub.export import export
from hub_problems import problems
from patience import LIMIT_SECONDS
from tilewright import GemmProblem
from tilewright.arch import device
from tilewright.errors import BadArgument

GPU = device("a100_sxm_80gb")
SCRIPT = Path(__file__).with_name("hub_script.py")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(problems(), GPU, "my-kernels", 1, tmp_path_factory.mktemp("hub"))


def test_it_imports_only_the_library_torch_and_its_own(exported):
    allowed = {*sys.stdlib_module_names, "torch", "triton"}
    files = [*exported.folder.rglob("*.py")]
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").partition(".")[0] in allowed, file


def test_the_metadata_is_of_the_files(exported):
    about = json.loads((exported.folder / "metadata.json").read_text())
    assert (about["name"], about["version"], about["backend"]) == (
        "my-kernels", 1, {"type": "cuda", "archs": ["8.0"]}
    )  # fmt: skip
    assert about["id"].isidentifier() and exported.folder.name == "torch-cuda"
    files = {p.relative_to(exported.folder).as_posix(): p.read_bytes()
             for p in exported.folder.rglob("*") if p.is_file()}  # fmt: skip
    del files["metadata.json"]
    digests = {n: base64.b64encode(hashlib.sha256(b).digest()).decode() for n, b in files.items()}
    assert about["digest"] == {"algorithm": "sha256", "files": digests}


def test_what_cannot_be_exported_is_left_out(tmp_path):
    fp4 = GemmProblem(32, 32, 64, dtype_a="bf16", dtype_b="int4", scale_b="32x1")
    found = export([fp4, problems()[0]], GPU, "one", 0, tmp_path)
    assert (found.count, [problem for problem, _ in found.refused]) == (1, [fp4])
    with pytest.raises(BadArgument, match="small letters"):
        export(problems(), GPU, "My_Kernels", 0, tmp_path)


@pytest.mark.turns(16)
def test_it_runs_with_torch_and_triton_alone(exported, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, exported.folder, "cpu"],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(tmp_path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # Tilewright is installed here, and may not be
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "no kernel here is for gemm of [[[39, 64], [64, 1], 'float16']" in done.stdout
