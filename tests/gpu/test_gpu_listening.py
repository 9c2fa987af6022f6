"""Listening on a real GPU: the backward pass has a thread of its own there, and calls are timed by
events."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch  # noqa: E402
from tilewright import capture_file  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu

STEPS = 20


def model(width: int) -> Any:
    layers = (torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    return torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)


def train(run: Any, rows: int, width: int, steps: int) -> None:
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    for _ in range(steps):
        run(x).float().square().mean().backward()


def by_hand(rows: int, width: int, steps: int) -> dict[Any, int]:
    """Two layers forward, the gradients of two weights, and of the second layer's input."""
    forward = GemmProblem(rows, width, width, epilogue="bias")
    of_weights = GemmProblem(width, width, rows, layout="crr")
    return {
        forward: 2 * steps,
        of_weights: 2 * steps,
        GemmProblem(rows, width, width, layout="rrr"): steps,
    }


def without_bias(counts: Counter[Any]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for problem, count in counts.items():
        found[replace(problem, epilogue="")] += count
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_counts_as_by_hand_and_is_timed(tmp_path: Path, compiled: bool) -> None:
    rows, width = 512, 1024
    run = torch.compile(model(width)) if compiled else model(width)
    with tilewright.torch.listen(tmp_path / "a.jsonl"):
        train(run, rows, width, STEPS)
    recorded = capture_file.read(tmp_path / "a.jsonl")
    wanted: Counter[Any] = Counter(by_hand(rows, width, STEPS))
    found: Counter[Any] = Counter(recorded.counts)
    if compiled:  # Inductor may add a bias in a kernel of its own
        wanted, found = map(without_bias, (wanted, found))
    assert found == wanted
    (process,) = recorded.processes
    assert process.device == torch.cuda.get_device_name() and process.unstated == ()
    for facts in recorded.heard.values():
        assert facts.timed + facts.early >= 10
        assert 1e-6 < facts.each < 1e-2
    if not compiled:
        (forward,) = (h for p, h in recorded.heard.items() if p.epilogue == "bias")
        assert forward.seen == {"relu": 8} and forward.followed == 16


def test_attention_and_convolutions_are_heard_with_their_gradients(tmp_path: Path) -> None:
    q = torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    x = torch.randn(4, 32, 28, 28, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    conv = torch.nn.Conv2d(32, 64, 3, padding=1, bias=False).to("cuda", torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    with tilewright.torch.listen(tmp_path / "a.jsonl"):
        attend(q, q, q, is_causal=True).sum().backward()
        conv(x).sum().backward()
    counts = capture_file.load(tmp_path / "a.jsonl")
    assert {p.family: n for p, n in counts.items() if p.family != "conv"} == {
        "attention": 1,
        "attention_backward": 1,
    }
    directions = {p.direction: n for p, n in counts.items() if p.family == "conv"}
    assert directions == {"forward": 1, "data": 1, "weights": 1}


def test_a_graph_counts_once(tmp_path: Path) -> None:
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    a @ b
    graph = torch.cuda.CUDAGraph()
    with tilewright.torch.listen(tmp_path / "a.jsonl"):
        with torch.cuda.graph(graph):
            a @ b
        for _ in range(5):
            graph.replay()
    recorded = capture_file.read(tmp_path / "a.jsonl")
    assert [*recorded.counts.values()] == [1]
    assert [facts.each for facts in recorded.heard.values()] == [None]


@pytest.mark.parametrize("number", [2, 0.5])
def test_a_sum_with_a_number_is_torch_s_own(tmp_path: Path, number: float) -> None:
    x = torch.randn(64, 48, device="cuda", dtype=torch.bfloat16).T
    wanted = x + number
    with tilewright.torch.listen(tmp_path / "a.jsonl"):
        found, changed = x + number, x.clone().add_(number)
    for one in (found, changed):
        assert one.stride() == wanted.stride() and torch.equal(one, wanted)


@pytest.mark.alone
def test_a_model_that_keeps_the_gpu_busy_loses_under_5_percent(tmp_path: Path) -> None:
    rows, width = 4096, 4096
    run = model(width)
    best = {False: float("inf"), True: float("inf")}
    for number in range(6):
        for heard in best:
            file = tmp_path / f"{number}.jsonl"
            with tilewright.torch.listen(file) if heard else nullcontext():
                train(run, rows, width, 1)  # what is heard first is written at once
                torch.cuda.synchronize()
                begun = time.perf_counter()
                train(run, rows, width, STEPS)
                torch.cuda.synchronize()
                best[heard] = min(best[heard], time.perf_counter() - begun)
    print(f"{STEPS} steps took {1e3 * best[False]:.2f} ms, heard {1e3 * best[True]:.2f} ms")
    assert best[True] < 1.05 * best[False]
