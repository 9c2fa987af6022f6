"""Captures on a real GPU: nothing is missed, and ready launches cost what they cost without one."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.capturing import load  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402

pytestmark = pytest.mark.gpu

CALLS = 2000


def seconds(dispatcher, operands, out) -> float:
    """The least that a call took, of some rounds."""
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS // 10):
            dispatcher.run("gemm", *operands, out=out)
        best = min(best, (time.perf_counter() - begin) / (CALLS // 10))
    return best


def test_counts_are_exact_and_cost_under_a_microsecond(tmp_path):
    dispatcher = Dispatcher()
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(a)
    dispatcher.run("gemm", a, b, out=out)
    without = seconds(dispatcher, (a, b), out)
    with tilewright.capture(tmp_path / "a.jsonl"):
        during = seconds(dispatcher, (a, b), out)
    print(f"a call took {without * 1e6:.2f} µs, and under a capture {during * 1e6:.2f} µs")
    assert list(load(tmp_path / "a.jsonl").values()) == [CALLS]
    assert during - without < 1e-6
