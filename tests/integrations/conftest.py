"""Fixtures of the packages' tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import frameworks


def _source(framework: str) -> Path | None:
    """The folder of a release whose base classes `check.py` tests with."""
    folder = os.environ.get(f"TILEWRIGHT_CHECK_{framework.upper()}")
    return None if folder is None else Path(folder)


@pytest.fixture(scope="module")
def vllm() -> Iterator[None]:
    """vLLM can be imported."""
    with frameworks.standing_in("vllm", _source("vllm")):
        yield


@pytest.fixture(scope="module")
def sglang() -> Iterator[None]:
    """SGLang can be imported."""
    with frameworks.standing_in("sglang", _source("sglang")):
        yield
