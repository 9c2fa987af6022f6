"""Planted kernels: workers and their interpreters import them from here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import planted

from tilewright import ops
from tilewright.ops import epilogues


@pytest.fixture(autouse=True)
def _planted(monkeypatch):
    """Workers import the modules named here. This process does not, so that no other test sees what
    they register."""
    monkeypatch.setattr(ops, "_import_named", lambda modules: None)
    monkeypatch.setenv("TILEWRIGHT_KERNEL_MODULES", "planted:planted_operations")
    for operation in planted.OPERATIONS:
        monkeypatch.setitem(epilogues.OPERATIONS, operation.name, operation)
