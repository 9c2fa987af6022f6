"""Planted kernels: workers and their interpreters import them from here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import planted  # noqa: F401 - registers its operations in this process too


@pytest.fixture(autouse=True)
def _planted(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_KERNEL_MODULES", "planted")
