"""Default dispatchers that compute with torch, which is imported only where a test asks for one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.fixture
def computing(monkeypatch):
    """Makes the default dispatcher compute with torch, by a table; returns it."""
    from install_cases import Computing, table

    from tilewright.torch import uninstall
    from tilewright.torch.installing import decisions

    def make(tables=None):
        made = Computing(table() if tables is None else tables)
        monkeypatch.setattr(decisions, "default_dispatcher", lambda: made)
        return made

    yield make
    uninstall()


@pytest.fixture
def every(computing, monkeypatch):
    """A default dispatcher that has a kernel for every problem, and computes with torch."""
    made = computing()
    kernel = SimpleNamespace(name="a kernel")
    plan = SimpleNamespace(config=kernel, selector="analytical", reason="estimated")
    monkeypatch.setattr(made.planner, "plan", lambda *_: plan)
    return made
