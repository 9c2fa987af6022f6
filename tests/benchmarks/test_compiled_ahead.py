"""What is compiled before anything is measured, and how workers share the GPU."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe

import pytest

import ahead
import cases
import rivals_declared
from cases import Case, HostTimes, InGraphs
from turn import Turn

NEVER = math.inf


def case(name, problems, **more):
    return Case(name, "toys", "others", lambda: list(problems), **more)


def nothing(problem, operands, turn):
    pass


def test_cases_compile_in_their_order_what_is_not_known(monkeypatch):
    def compiles(names):
        return [*names, "blocks"]

    every = {
        "graphs": InGraphs("graphs", "toys", "others", ("p", "q"), None, None, compiles, ""),
        "a": case("a", "xyz", ahead=nothing),
        "b": case("b", "uv", ahead=nothing),
        "none": case("none", "xy"),
        "host": HostTimes("host", "a call", dict),
        "other": case("other", "xy", ahead=nothing),
    }
    known = {"b": {}, "graphs": {"p": {}}, "a": {"y": {}}, "none": {}, "host": {}}
    found = ahead.tasks_of(every, known)
    assert [(name, task.func, task.args) for name, task in found] == [
        ("b", ahead.compile_one, ("b", 0)),
        ("b", ahead.compile_one, ("b", 1)),
        ("graphs", ahead.run_one, ("graphs", "q")),
        ("graphs", ahead.run_one, ("graphs", "blocks")),
        ("a", ahead.compile_one, ("a", 0)),
        ("a", ahead.compile_one, ("a", 2)),
    ]
    assert ahead.tasks_of(every, {"graphs": {"p": {}, "q": {}}}) == []
    monkeypatch.setattr(cases, "every", lambda: every)
    told = []
    monkeypatch.setattr(ahead, "_by_workers", lambda tasks, count, until: told.extend(tasks) or [])
    ahead.compile_ahead(known, NEVER)
    assert (told[0].func, told[0].args[0]) == (ahead.build_ours, ("b", "graphs", "a"))
    assert [(task.func, task.args) for task in told[1:]] == [(t.func, t.args) for _, t in found]


def test_declared_cases_compile_ahead_and_others_start_no_process(monkeypatch, capsys):
    assert cases.every()["declared-softmax"].ahead is rivals_declared.compile_ahead
    monkeypatch.setattr(ahead, "_by_workers", None)
    ahead.compile_ahead({"gemm-int8": {}, "conv-fresh": {}}, NEVER)
    assert capsys.readouterr().out == ""


def worker(answer):
    """The parent's end of a worker that answers tasks by a function, until it gives None."""
    here, there = Pipe()

    def run():
        with suppress(EOFError), there:
            while (said := answer(there.recv())) is not None:
                there.send(said)

    threading.Thread(target=run, daemon=True).start()
    return here


def test_a_worker_that_dies_costs_its_task_alone():
    workers = [worker(lambda task: None if task == "bad" else task) for _ in range(2)]
    said = [*ahead.answers(workers, ["bad", "a", "b", "c"], NEVER)]
    assert sorted(said) == ["a", "a worker died", "b", "c"]
    alone = [*ahead.answers([worker(lambda task: None)], ["a", "b"], NEVER)]
    assert alone == ["a worker died"]


@pytest.mark.parametrize("patience", [0.05, 60])
def test_nobody_waits_for_ever(patience, monkeypatch):
    monkeypatch.setattr(ahead, "PATIENCE_SECONDS", patience)
    hangs = worker(lambda task: time.sleep(60))
    until = NEVER if patience < 1 else time.time() + 0.05
    assert [*ahead.answers([hangs], ["a"], until)] == []


def test_workers_are_processes_that_end_with_the_last_answer():
    fails = partial(int, "no number")
    said = [*ahead._by_workers([str, fails, str], 2, NEVER)]
    assert sorted(text.startswith("<turn.Turn") for text in said) == [False, True, True]
    assert "a worker died" in said


def test_one_process_at_a_time_has_the_gpu(tmp_path):
    one, other = (Turn(tmp_path / "gpu") for _ in range(2))
    told = []

    def wants():
        other.alone(told.append)("other")

    with one:
        thread = threading.Thread(target=wants)
        thread.start()
        time.sleep(0.05)
        told.append("one")
    thread.join()
    assert told == ["one", "other"]


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return torch


def test_a_problem_that_fails_says_why(monkeypatch, tmp_path, torch):
    compiled = []

    def compiles(problem, operands, turn):
        compiled.append((problem, operands))
        if problem == "y":
            raise ValueError("no\nconfig")

    made = case("a", "xy", ahead=compiles, operands=lambda *given: given[1:])
    monkeypatch.setattr(ahead, "_every", lambda: {"a": made})
    turn = Turn(tmp_path / "gpu")
    assert [ahead.compile_one("a", i, turn) for i in range(2)] == [
        "",
        "a, y: ValueError: no config",
    ]
    assert compiled == [("x", (1, "cuda:0")), ("y", (2, "cuda:0"))]


def test_inductor_times_in_turns(monkeypatch, tmp_path, torch):
    from torch._inductor.runtime.benchmarking import benchmarker

    told, turn = [], Turn(tmp_path / "gpu")
    monkeypatch.setattr(Turn, "__enter__", lambda self: told.append("turn"))
    monkeypatch.setattr(benchmarker, "benchmark_gpu", lambda us: us, raising=False)
    monkeypatch.setattr(
        rivals_declared, "compiled",
        lambda problem, bench: {
            rivals_declared.COMPILED: lambda inputs, outputs: lambda: told.append(
                benchmarker.benchmark_gpu(3.0)
            )
        },
    )  # fmt: skip
    operands = type("Operands", (), {"inputs": {}, "outputs": {}})
    for _ in range(2):
        rivals_declared.compile_ahead("problem", operands, turn)
    assert told == ["turn", 3.0] * 2
