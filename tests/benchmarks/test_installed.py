"""Unchanged torch programs with ours installed, in small, on a CPU."""

from __future__ import annotations

from functools import partial

import pytest

from cases import installed
from tilewright.torch import uninstall
from tilewright.torch.installing import decisions


@pytest.mark.turns(16)
@pytest.mark.parametrize("way", installed.WAYS[:2])
def test_steps_are_timed_and_right(monkeypatch, way):
    monkeypatch.setattr(installed, "STEPS", 2)
    small = partial(installed.encoder, width=64, rows=4, layers=1)
    monkeypatch.setattr(installed, "MODELS", {"encoder": small})
    monkeypatch.setattr(decisions, "default_dispatcher", decisions.default_dispatcher)
    try:
        found = installed.run("encoder", way, "cpu", "CPU")
    finally:
        uninstall()
    assert len(found["us"]) == 2 and found["served"] == 0
    assert (found["passed on"] > 0) is (way == installed.OTHERS)


def test_a_wrong_result_is_refused(monkeypatch):
    import torch

    made = iter([torch.ones(4), torch.ones(4), torch.full((4,), 1.1)])
    monkeypatch.setattr(installed, "MODELS", {"encoder": lambda _: lambda: next(made)})
    monkeypatch.setattr(decisions, "default_dispatcher", decisions.default_dispatcher)
    try:
        with pytest.raises(ValueError, match=r"wrong: 0\.1 off"):
            installed.run("encoder", installed.OTHERS, "cpu", "CPU")
    finally:
        uninstall()
