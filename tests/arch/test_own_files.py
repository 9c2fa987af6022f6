"""Architectures and devices of a user's own: files outside of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.arch import (
    arch,
    device,
    device_to_json,
    devices,
    files,
    known,
    load,
    resolve,
    words,
)
from tilewright.errors import BadFile, TilewrightError

SM_89 = json.loads(files.architectures()["sm_89"].read_text())
MINE = {**SM_89, "name": "sm_88", "target": "88", "products": ["Edge 88"]}
BOARD = {**json.loads(device_to_json(devices()["l40s"])), "name": "Maker Edge", "arch": "sm_88"}


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Writes files, and names them in the environment as a new process would find them."""
    caches = (
        files.architectures, files.devices, files._own, load.find, load._load, known._known,
        known._by_word, resolve._without_looking, words._products, words._archs,
    )  # fmt: skip

    def write(**contents: object) -> Path:
        for name, content in contents.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        monkeypatch.setenv(files.VARIABLE, str(tmp_path))
        for one in caches:
            one.cache_clear()
        return tmp_path

    yield write
    monkeypatch.delenv(files.VARIABLE, raising=False)
    for one in caches:
        one.cache_clear()


def test_a_file_outside_of_the_package_adds_an_architecture_and_a_device(named):
    named(sm_88=MINE, edge=BOARD)
    assert arch("sm88a").shared_memory == SM_89["shared_memory"]
    assert device("edge").arch == "sm_88" and device("maker edge") == device("edge")


@pytest.mark.turns(24)
def test_another_process_builds_and_plans_for_it(tmp_path):
    """The children that compile know it too."""
    for name, content in {"sm_88": {**MINE, "target": "89"}, "edge": BOARD}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    code = (
        "import tilewright, tilewright.ops.gemm as g;"
        "from tilewright import Dispatcher, GemmProblem;"
        "from tilewright.compile import build, Store;"
        "c = Dispatcher(device='edge').select(GemmProblem(64, 64, 64, dtype_a='fp16')).config;"
        f"r = build([(c, 'sm_88')], store=Store({str(tmp_path / 'store')!r}), workers=1);"
        "assert r.results[0].ok, r.results[0]; print(r.results[0].kernel.arch)"
    )
    environment = {
        **os.environ,
        files.VARIABLE: str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "sm_88"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"sm_90": {**MINE, "name": "sm_90"}}, r"sm_90.json already describes 'sm_90'"),
        ({"sm_88": {**MINE, "name": "sm_87"}}, "it names the architecture 'sm_87'"),
        ({"sm_88": [1]}, "not a JSON object"),
        ({"sm_88": {**MINE, "warp_size": 0}}, "warp_size = 0 is not a whole number from 1"),
        ({"sm_88": {**MINE, "dtypes": {}}}, "does not say how operand dtype 'bf16'"),
        ({"sm_88": {**MINE, "wrap_size": 1}}, "unknown field 'wrap_size'"),
        ({"edge": BOARD}, "unknown architecture 'sm_88'"),
    ],
)
def test_a_bad_file_says_what_is_wrong(named, contents, message):
    named(**contents)
    with pytest.raises(TilewrightError, match=message):
        for one in contents:
            arch("sm_88") if one.startswith("sm_") else device(one)


def test_a_file_that_is_not_there_is_an_error_and_not_silence(monkeypatch, named, tmp_path):
    named(edge={})
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(BadFile, match=r"none\.json: cannot be read"):
        arch("sm_90")
