from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fake_family
import pytest


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user of our own, and the fake family."""
    from tilewright import ops

    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ops, "family", lambda name: fake_family.FakeFamily())
    yield
