"""Has the moments family found in each test, and in the processes that it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    from moments_family import FAMILY

    from tilewright import ops

    monkeypatch.setitem(ops._registered, "moments", FAMILY)
    monkeypatch.setenv(ops.MODULES_VARIABLE, "moments_plugin:moments_kernels")
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
