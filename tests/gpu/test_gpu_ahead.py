"""A measured choice on a real GPU, and the process after it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.ops.attention import AttentionProblem  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

CONV = ConvProblem(8, 48, 80, (19, 23), (3, 3), pad=(1, 1))
PROBLEMS = (tw.GemmProblem(300, 520, 776), CONV, AttentionProblem(4, 8, 200, 200, 64))
LATER = """
import torch
import tilewright as tw
from tilewright.ops.conv import ConvProblem

problem = ConvProblem(8, 48, 80, (19, 23), (3, 3), pad=(1, 1))
plan = tw.default_dispatcher().select(problem)
print(plan.selector, plan.measured_us > 0, "exact row of" in plan.reason)
x, w = (torch.randn(s, device="cuda", dtype=torch.bfloat16).contiguous(
    memory_format=torch.channels_last) for s in ((8, 48, 19, 23), (80, 48, 3, 3)))
y = tw.conv2d(x, w, padding=1)
wanted = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
right = bool((y - wanted).abs().max() < 0.02 * wanted.abs().max())
print(right, tw.default_dispatcher().standing())
"""


def test_a_measured_choice_answers_in_this_process_and_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_TABLES", raising=False)
    dispatcher = tw.Dispatcher()
    monkeypatch.setattr("tilewright.default.default_dispatcher", lambda: dispatcher)
    few = tw.Measuring(candidates=2)
    found = tw.prepare(PROBLEMS, measure=few)
    assert found.ok and found.measured.wrong == found.measured.left == ()
    assert {plan.selector for plan in found.plans if not plan.measured_us} == set()
    assert tw.prepare(PROBLEMS, measure=few).measured.rows == 0
    ours = tw.Dispatcher(constraints=tw.Constraints(only_ours=True))
    assert "vendor" not in ours.select(CONV).config.name
    environment = {**os.environ, "TILEWRIGHT_WAITS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LATER], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["tuned True True", "True ()"], done.stderr
