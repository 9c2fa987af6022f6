"""Unchanged torch programs with ours installed, in small, on a CPU."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from cases import installed
from patience import runs, until
from tilewright.preparing import Measured
from tilewright.torch import installed as tw_installed
from tilewright.torch.installing import decisions
from tilewright.tune import ahead


@pytest.mark.turns(32)
def test_steps_of_every_way_are_timed_and_right(monkeypatch):
    monkeypatch.setattr(installed, "STEPS", 2)
    monkeypatch.setattr(installed, "ROUNDS", 2)
    small = partial(installed.encoder, width=64, rows=4, layers=1)
    monkeypatch.setattr(installed, "MODELS", {"encoder": small})
    before = decisions.default_dispatcher
    found = installed.run("encoder", "cpu", "CPU")
    assert decisions.default_dispatcher is before and tw_installed() is None
    assert {way: len(one["us"]) for way, one in found.items()} == dict.fromkeys(installed.WAYS, 4)
    assert all(one["served"] == 0 for one in found.values())
    assert found[installed.OTHERS]["passed on"] > 0
    assert found[installed.PLAIN]["passed on"] == found[installed.EMPTY]["passed on"] == 0


def test_a_wrong_result_is_refused(monkeypatch):
    monkeypatch.setattr(installed, "WARM", 1)
    made = iter([torch.ones(4)] * 3 + [torch.full((4,), 1.1)])
    monkeypatch.setattr(installed, "STEPS", 1)
    monkeypatch.setattr(installed, "MODELS", {"encoder": lambda _: lambda: next(made)})
    with pytest.raises(ValueError, match=r"wrong: 0\.1 off"):
        installed.run("encoder", "cpu", "CPU")
    assert tw_installed() is None


@pytest.mark.turns(8)
def test_a_forward_pass_is_taken_by_the_ways_that_are_asked_for(monkeypatch):
    monkeypatch.setattr(installed, "STEPS", 1)
    monkeypatch.setattr(installed, "ROUNDS", 2)
    layer = torch.nn.Conv2d(8, 8, 3)
    small = partial(installed.forward, made=lambda _: (layer, (torch.ones(1, 8, 5, 5),)), last=True)
    monkeypatch.setattr(installed, "MODELS", {"forward-one": small})
    ways = (installed.PLAIN, installed.OTHERS)
    found = installed.run("forward-one", "cpu", "CPU", ways)
    assert {way: len(one["us"]) for way, one in found.items()} == dict.fromkeys(ways, 2)
    assert found[installed.OTHERS]["passed on"] == 1


def test_a_model_that_fails_is_named_after_the_others_are_told(monkeypatch, capsys):
    def wrong(_):
        raise RuntimeError("no such layer")

    monkeypatch.setattr(installed, "STEPS", 1)
    monkeypatch.setattr(
        installed, "MODELS", {"bad": wrong, "good": lambda _: lambda: torch.ones(4)}
    )
    run = partial(installed.run, device="cpu", key="CPU")
    monkeypatch.setattr(installed, "run", run)
    installed.several(["bad", "good"], (installed.PLAIN, installed.OTHERS))
    bad, good = capsys.readouterr().out.splitlines()
    assert installed.built(["bad", "good"]).keys() == {"good"}
    with pytest.raises(ValueError, match=r"^bad: RuntimeError: no such layer$"):
        installed.told([bad, good])
    assert "good, as it is: " in capsys.readouterr().err
    assert installed.told([good])["good"].keys() == {installed.PLAIN, installed.OTHERS}


def test_a_process_ends_with_the_one_that_started_it():
    child = (
        "import time; from cases.installed import end_with_parent; "
        "end_with_parent(); print(1, flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys; "
        f"one = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "one.stdout.read(2); print(one.pid)"
    )
    folder = Path(installed.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", parent], cwd=folder, capture_output=True, text=True, check=True
    )
    until(lambda: not runs(int(done.stdout)))


@pytest.mark.turns(16)
def test_a_prepared_way_has_the_calls_of_a_step_measured(monkeypatch):
    asked = []

    def measured(dispatcher, problems, how, path):
        asked.extend(problems)
        return Measured(str(path))

    monkeypatch.setattr(ahead, "measured", measured)
    monkeypatch.setattr(installed, "STEPS", 1)
    monkeypatch.setattr(installed, "ROUNDS", 2)
    a, b = torch.randn(2, 32, 32, dtype=torch.bfloat16)
    monkeypatch.setattr(installed, "MODELS", {"one": lambda _: lambda: (a @ b).flatten()})
    ways = (installed.PLAIN, installed.PREPARED)
    found = installed.run("one", "cpu", "CPU", ways)
    assert {way: len(one["us"]) for way, one in found.items()} == dict.fromkeys(ways, 2)
    assert [(p.m, p.n, p.k, p.layout) for p in asked] == [(32, 32, 32, "rrr")]
