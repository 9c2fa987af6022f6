"""Captures: every problem once, every count, whoever else writes, and a file that tuning reads."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capture_script
import tilewright
from capture_script import SHARED, own, plan
from patience import LIMIT_SECONDS
from tilewright import Dispatcher, GemmProblem, capturing
from tilewright.arch import arch
from tilewright.capturing import Capture, load
from tilewright.errors import BadArgument, BadFile
from tilewright.measure.problems import load_problems

SCRIPT = capture_script.__file__
A, B, C = (GemmProblem(16 * size, 16, 16) for size in (1, 2, 3))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shapes.jsonl"


@pytest.fixture(autouse=True)
def _nothing_left_on() -> Any:
    assert capturing.active == ()
    capturing._of_environment.cache_clear()  # a test elsewhere may have made a dispatcher
    yield
    capturing._of_environment.cache_clear()
    assert capturing.active == ()


def lines(file: Path) -> list[tuple[int, int]]:
    """m and the count of each record, as written."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [(record["problem"]["m"], record["count"]) for record in records]


@pytest.mark.turns(8)
def test_what_is_dispatched_closes_the_loop_to_tuning(file: Path) -> None:
    dispatcher = Dispatcher(device="h200_sxm")
    rng = np.random.default_rng(0)
    with tilewright.capture(file):
        for m in (16, 32, 16, 16):
            a, b = (rng.standard_normal((r, c), dtype=np.float32) for r, c in ((m, 32), (32, 16)))
            dispatcher.run("gemm", a, b)
        dispatcher.select(GemmProblem(64, 64, 64))  # planned, not dispatched
    dispatcher.run("gemm", a, b)  # after the end
    found = load(file)
    assert [(p.m, p.n, p.k, p.dtype_a, n) for p, n in found.items()] == [
        (16, 16, 32, "fp32", 3),
        (32, 16, 32, "fp32", 1),
    ]
    read = load_problems([file], arch("sm_90"))
    assert read.problems == tuple(found) and read.repeated == 0


@pytest.mark.turns(4)
def test_calls_that_name_their_kernel_are_not_dispatched(file: Path) -> None:
    dispatcher = Dispatcher(device="h200_sxm")
    a, b = np.ones((16, 32), np.float32), np.ones((32, 16), np.float32)
    name = dispatcher.select(GemmProblem(16, 16, 32, dtype_a="fp32", layout="rrr")).config.name
    with tilewright.capture(file):
        dispatcher.run_named(name, a, b)
    assert load(file) == {}


@pytest.mark.turns(64)
def test_sixteen_threads_of_four_processes_lose_and_tear_nothing(file: Path) -> None:
    processes, threads, calls = 4, 16, 40
    environment = {**os.environ, capturing.VARIABLE: str(file)}
    running = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(n), str(threads), str(calls)], env=environment
        )
        for n in range(processes)
    ]
    assert [process.wait(LIMIT_SECONDS) for process in running] == [0] * processes
    wanted = Counter(
        own(n, t, c) for n in range(processes) for t in range(threads) for c in range(calls)
    )
    wanted[SHARED] += processes * threads * calls
    assert load(file) == wanted
    written = file.read_bytes()
    assert written.endswith(b"}\n")
    assert all(type(json.loads(line)["count"]) is int for line in written.splitlines())
    assert len(written.splitlines()) <= len(wanted) + 2 * processes, "counts are deduplicated"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_of_multiprocessing_write_their_counts(
    file: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end without the interpreter's usual goodbye."""
    monkeypatch.setenv(capturing.VARIABLE, str(file))
    child = multiprocessing.get_context(method).Process(target=capture_script.main, args=(0, 2, 5))
    child.start()
    child.join(LIMIT_SECONDS)
    assert child.exitcode == 0 and load(file)[SHARED] == 10


def test_a_fork_leaves_its_parents_counts_to_the_parent(file: Path) -> None:
    with tilewright.capture(file):
        (capture,) = capturing.active
        one = plan(A)
        for _ in range(5):
            capture.saw(one)
        child = multiprocessing.get_context("fork").Process(target=capture.saw, args=(one,))
        child.start()
        child.join(LIMIT_SECONDS)
        assert lines(file) == [(16, 1), (16, 1)], "its own, and not its parent's"
    assert load(file) == {A: 6}


def test_a_problem_is_written_when_it_is_first_met_and_its_count_at_the_end(file: Path) -> None:
    capture = Capture(file)
    one, two = plan(A), plan(B)
    for _ in range(3):
        capture.saw(one)
    capture.saw(two)
    assert lines(file) == [(16, 1), (32, 1)]
    capture.saw(plan(A))  # another dispatcher's plan of it
    capture.flush()
    capture.flush()
    assert lines(file) == [(16, 1), (32, 1), (16, 3)]
    capture.saw(two)
    capture.close()
    assert lines(file)[3:] == [(32, 1)] and load(file) == {A: 4, B: 2}


def test_ready_launches_are_counted_by_their_launcher(file: Path) -> None:
    capture, launched = Capture(file), 7
    one = plan(A)
    capture.saw(one)
    capture.follow(one, lambda: launched)
    launched += 1000
    capture.close()
    assert load(file) == {A: 1001}


def test_only_misses(file: Path) -> None:
    capture = Capture(file, "misses")
    for _ in range(2):
        capture.saw(plan(A, "tuned"))
        capture.saw(plan(B, "analytical"))
        capture.saw(plan(C, "first fit"))
    capture.close()
    assert load(file) == {B: 2, C: 2}


def test_several_captures_at_once_and_ready_launches_are_met_again(
    file: Path, tmp_path: Path
) -> None:
    dispatcher = Dispatcher(device="h200_sxm")
    dispatcher._launches.ready["a launch"] = None  # type: ignore[assignment]
    with tilewright.capture(file):
        assert not dispatcher._launches.ready
        capturing.active[0].saw(plan(A))
        with tilewright.capture(tmp_path / "inner.jsonl", "misses"):
            for capture in capturing.active:
                capture.saw(plan(B))
    assert load(file) == {A: 1, B: 1} and load(tmp_path / "inner.jsonl") == {B: 1}


def test_the_environment_is_read_with_the_first_dispatcher(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(capturing.VARIABLE, str(file))
    monkeypatch.setenv(capturing.ONLY_VARIABLE, "mises")
    with pytest.raises(BadArgument, match=r"TILEWRIGHT_CAPTURE: capture 'mises' is not one of all"):
        Dispatcher()
    monkeypatch.setenv(capturing.ONLY_VARIABLE, "misses")
    Dispatcher(), Dispatcher()
    (capture,) = capturing.active
    assert (capture.path, capture.only) == (file, "misses")
    capturing._stop(capture)


def test_a_call_after_the_first_looks_its_plan_up_and_counts(file: Path) -> None:
    """In less than a microsecond on an idle machine: no lock is taken, no problem hashed."""
    capture, one, calls = Capture(file), plan(A), []
    capture.saw(one)
    sys.setprofile(lambda frame, event, what: calls.append(what or frame.f_code.co_name))
    capture.saw(one)
    sys.setprofile(None)
    called = [getattr(what, "__name__", what) for what in calls]
    assert called[0] == "saw" and {*called} <= {"saw", "id", "get", "next", "setprofile"}
    capture.close()


def test_what_a_killed_writer_left_spoils_nothing(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Capture(file)
    whole.saw(plan(A))
    with file.open("ab") as killed:
        killed.write(b'{"problem": {"fam')
    Capture(file).saw(plan(B))
    with caplog.at_level(logging.WARNING, "tilewright"):
        assert load(file) == {A: 1, B: 1}
    assert "line 2 is incomplete" in caplog.text


def test_a_full_disk_ends_the_capture_with_a_warning(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    capture, write = Capture(file), os.write
    capture.saw(plan(A))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    capture.saw(plan(B))
    monkeypatch.undo()
    capture.saw(plan(C))
    capture.close()
    assert load(file) == {A: 1}, "half a record was taken back"
    assert [r.message for r in caplog.records] == [
        f"capture into {file} stops: No space left on device"
    ]


def test_a_file_that_is_no_capture_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.jsonl"
    other.write_text('{"name": 1}\n')
    for name in ("other", "nowhere"):  # a folder may be one that others write
        (tmp_path / f"to_{name}.jsonl").symlink_to(tmp_path / name)
    (tmp_path / "other").write_text("")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path, why in (
        (other, "which is no capture"),
        (tmp_path / "to_other.jsonl", "it is a link"),
        (tmp_path / "to_nowhere.jsonl", "it is a link"),
        (tmp_path / "pipe.jsonl", "which is no capture"),
        (tmp_path / "shapes.json", r"ends in \.jsonl"),
        (tmp_path / "no" / "shapes.jsonl", "No such file"),
    ):
        with pytest.raises(BadArgument, match=why), tilewright.capture(path):
            pass
    assert other.read_text() == '{"name": 1}\n' and capturing.active == ()
    assert (tmp_path / "other").read_text() == "" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"problem": {"family": "gemm", "m": 8, "n": 8, "k": 8}}\n', "line 1: a record has"),
        ('\n{"problem": {"family": "gem"}, "count": 1}\n', "line 2: problem: no operation family"),
        ('{"problem": {"family": "gemm", "m": -1, "n": 8, "k": 8}, "count": 1}', "line 1: .*-1"),
        ('{"problem": {"m": 8}, "count": 1}', "says its family"),
        ('{"problem": , "count": 1}', "line 1"),
        ("m,n,k\n32,32,32\n", "line 1: is not JSON"),
    ],
)
def test_bad_records_are_said_with_their_line(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(BadFile, match=said):
        load_problems([file], arch("sm_90"))
    file.write_text("")
    with pytest.raises(BadFile, match="no problem in it"):
        load_problems([file], arch("sm_90"))


def test_groups_survive(file: Path) -> None:
    kind: Any = tilewright.ops.family("grouped_gemm").problem_type
    problem = kind("list", sizes=tuple((m, 64, 64) for m in range(1, 400)))
    capture = Capture(file)
    capture.saw(plan(problem))
    assert load(file) == {problem: 1}
