"""A store of its own for each test, and a way to call the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import SPACE, Cli


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "space.json"
    file.write_text(json.dumps(SPACE))
    return file


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TILEWRIGHT_STORE", str(tmp_path / "store"))
    return tmp_path / "store"
