"""Serving where there is nothing but Python and a driver, and wheels of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from bundle_cases import NAMES, binary, bundle, content
from table_cases import WIDE, gemm, row

from tilewright.bundle import Bundle, write_wheel
from tilewright.bundle import bundle as bundle_module
from tilewright.errors import BadArgument
from tilewright.tables.table import Table

SCRIPT = Path(__file__).with_name("serve_script.py")


def test_it_serves_without_triton_torch_and_a_compiler(tmp_path: Path) -> None:
    path = tmp_path / "some.bundle"
    bundle(path, table=Table.of([row(gemm(64), WIDE)]))
    bare = {
        "TILEWRIGHT_HOME": str(tmp_path / "nothing"),
        "HOME": "/nonexistent",
        "PATH": "/nonexistent",
        "CC": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, path], env=bare, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [WIDE, str(len(binary(WIDE)))]
    assert "/nonexistent' does not start" in done.stderr and "10 µs more" in done.stderr


@pytest.mark.turns(8)
def test_a_wheel_is_the_same_bytes_and_what_pip_wants(tmp_path: Path) -> None:
    paths = [
        write_wheel(content(names), "tilewright-kernels-sm90", tmp_path / str(number))
        for number, names in enumerate((NAMES, NAMES[::-1]))
    ]
    assert paths[0].name == "tilewright_kernels_sm90-0.1.0-py3-none-any.whl"
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(BadArgument, match="no name of a wheel"):
        write_wheel(content(), "kernels", tmp_path)
    target = tmp_path / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--target", target, paths[0]], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr  # pip checks every file against RECORD
    with zipfile.ZipFile(paths[0]) as file:
        names = [n for n in file.namelist() if "dist-info" not in n]
    assert names == [f"{bundle_module.PACKAGE}/sm90.bundle"]
    assert not [*target.rglob("*.py")], "data alone"


def test_a_wheel_states_its_name_and_how_many_kernels_it_has(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_wheel(content(), "tilewright-kernels-sm90", tmp_path)) as file:
        (stated,) = (n for n in file.namelist() if n.endswith("/METADATA"))
        said = message_from_bytes(file.read(stated))
    assert said["Name"] == "tilewright-kernels-sm90" and said["Summary"].startswith("3 prebuilt")


def test_a_wheels_bundle_is_found_and_trusted(tmp_path: Path) -> None:
    wheel = write_wheel(content(), "tilewright-kernels-sm90", tmp_path)
    target = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(target)
    script = "from tilewright.bundle import installed; print(*installed().names('sm_90'))"
    path = os.pathsep.join([*filter(None, sys.path), str(target)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, "TILEWRIGHT_HOME": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} >= {*NAMES}
    assert Bundle(target / bundle_module.PACKAGE / "sm90.bundle", trusted=True).verify() == []
