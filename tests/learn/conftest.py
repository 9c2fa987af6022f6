"""A sweep, and what is learned from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import learned_cases
import pytest

from tilewright.learn import judge, matrix, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return learned_cases.sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def sheets(folder: Path) -> list[train.Sheet]:
    return [train.Sheet(block) for block in matrix.blocks(matrix.read([folder]))]


@pytest.fixture(scope="module")
def learned(sheets: list[train.Sheet]) -> tuple[Any, judge.Judged]:
    pytest.importorskip("lightgbm")
    return judge.learn(sheets, "gemm_bf16", 3, 20)
