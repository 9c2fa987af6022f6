"""Workers that interpret, and what is planted among their kernels: no fault costs more than the
measurement it happened to, and nothing is left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import planted
import pytest
from gemm_cases import config

import tilewright
from patience import LIMIT_SECONDS, runs, until
from tilewright.compile import Store
from tilewright.measure.crew import Crew, Task
from tilewright.measure.measurement import Settings
from tilewright.measure.places import parse
from tilewright.measure.station import Station
from tilewright.ops.gemm import GemmProblem

QUICK = Settings(warm_up_seconds=0, min_samples=2, max_samples=3, budget_seconds=0.01, interleave=4)
SIZES = ((64, 64, 64), (50, 70, 30))


def task(tile: tuple[int, int], sizes: tuple[int, int, int] = SIZES[0], **fields: object) -> Task:
    problem = GemmProblem(*sizes, epilogue="moody")
    size = {"tile_m": tile[0], "tile_n": tile[1], "alignment": 1, **fields}
    return Task(config("sm_90", epilogue=problem.epilogue, **size).name, problem, "sm_90")


def descendants(of: int) -> set[int]:
    """Processes below this one, and those below them."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found, more = set(), {of}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


def until_gone(pids: set[int]) -> None:
    """Wait until they have ended, all."""
    until(lambda: not any(map(runs, pids)))


def hurry(monkeypatch) -> None:
    """Crews give up soon on the kernel that never ends, whether or not it has begun; a busy machine
    may take its time for the others."""
    ask, endless = Station.ask, task((16, 32)).kernel

    def hurried(self, message, seconds):
        return ask(self, message, 1.0 if message.get("kernel") == endless else seconds)

    monkeypatch.setattr(Station, "ask", hurried)


@pytest.mark.turns(64)
def test_each_planted_kernel_gets_its_status_and_nothing_else_is_lost(tmp_path, monkeypatch):
    hurry(monkeypatch)
    tiles = {task(tile).kernel: status for tile, status in planted.INTERPRETED.items()}
    tasks = [task(tile) for tile in planted.INTERPRETED]
    # On the second problem only what answers at once, and good ones in the same batches.
    tasks += [task(t, SIZES[1]) for t, s in planted.INTERPRETED.items() if s in ("ok", "nan")]
    refused = Task(tasks[-1].kernel, GemmProblem(8, 8, 8), "sm_90")
    before = descendants(os.getpid())
    seen: set[int] = set()
    measured = []
    enough = {"timeout": LIMIT_SECONDS, "memory_bytes": 1500 << 20}
    with Crew(parse("cpu"), Store(tmp_path), QUICK, **enough) as crew:
        for m in crew.run([*tasks, refused, tasks[0]]):
            measured.append(m)
            seen |= descendants(os.getpid()) - before
    assert len(measured) == len(tasks) + 1
    assert {(m.kernel, m.problem) for m in measured} == {
        (t.kernel, t.problem) for t in (*tasks, refused)
    }
    for m in measured:
        if m.problem == refused.problem:
            assert m.status == "unsupported" and "epilogue" in m.reason
            continue
        assert m.status == tiles[m.kernel], (m.kernel, m.status, m.reason)
        assert m.settings.timer == "wall" and m.device.name.startswith("interpreter")
        assert m.build and m.measured_at
        if m.status == "ok":
            assert 2 <= len(m.samples_us) <= 3 and m.attempts == 1
            assert m.check is not None and m.check.ok and m.check.seed >= 0
        elif m.status in ("mismatch", "nan"):
            assert m.attempts == 1 and m.check is not None and not m.check.ok
        else:
            assert m.attempts == 2 and m.check is None and not m.samples_us
    reasons = {m.status: m.reason for m in measured if m.problem == tasks[0].problem}
    assert "did not end within 1 s" in reasons["timeout"]
    assert "NaN" in reasons["nan"] and "tolerance" in reasons["mismatch"]
    crashes = " ".join(m.reason for m in measured if m.status == "crashed")
    assert "SIGABRT" in crashes and "ValueError: planted" in crashes
    assert len(seen) >= 2
    until_gone(seen)


@pytest.mark.turns(64)
def test_killing_workers_loses_nothing_and_measures_nothing_twice(tmp_path):
    tasks = [
        task(tile, sizes, num_stages=stages)
        for sizes in SIZES
        for tile in ((64, 64), (64, 128), (128, 64), (128, 128))
        for stages in (2, 3, 4)
    ]
    rng = random.Random(4)
    with Crew(parse("cpu,cpu"), Store(tmp_path), QUICK, timeout=LIMIT_SECONDS) as crew:
        ended, kills = threading.Event(), 0

        def killer() -> None:
            nonlocal kills
            while kills < 6 and not ended.wait(rng.uniform(0.1, 1.2)):
                if crew.pids:
                    os.kill(rng.choice(crew.pids), signal.SIGKILL)
                    kills += 1

        thread = threading.Thread(target=killer)
        thread.start()
        try:
            measured = []
            while kills < 6:  # as many runs as it takes to be hit so often
                measured = list(crew.run(tasks))
                assert sorted((m.kernel, str(m.problem)) for m in measured) == sorted(
                    (t.kernel, str(t.problem)) for t in tasks
                )
                assert {m.status for m in measured} == {"ok"}, [m.reason for m in measured]
        finally:
            ended.set()
            thread.join()
        known = {m.key for m in measured}
        assert list(crew.run(tasks, known)) == []
        assert {key for t in tasks for key in crew.keys(t)} == known


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
import planted_operations
from test_tune_workers import QUICK, task
from tilewright.compile import Store
from tilewright.measure.crew import Crew
from tilewright.measure.places import parse
crew = Crew(parse("cpu"), Store("store"), QUICK, timeout=900)
for m in crew.run([task((64, 64)), task((16, 32), num_stages=3)][::-1]):
    pass
"""


@pytest.mark.turns(48)
def test_workers_die_with_their_parent(tmp_path):
    here = Path(__file__).parent
    package = Path(tilewright.__file__).parents[1]
    arguments = [*map(str, (here, here.parent, here.parent / "gemm", package))]
    script = [sys.executable, "-c", SCRIPT, *arguments]
    hangs = tmp_path / "hangs"
    variables = {**os.environ, planted.HANGS_VARIABLE: str(hangs)}
    with subprocess.Popen(script, cwd=tmp_path, env=variables) as parent:
        until(lambda: hangs.exists() or parent.poll() is not None)
        assert parent.poll() is None
        below = descendants(parent.pid)
        assert len(below) >= 2, "a worker and its interpreter"
        parent.kill()
    until_gone(below)


@pytest.mark.turns(64)
def test_wanting_no_more_ends_the_workers_and_another_run_starts_new_ones(tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    monkeypatch.setenv(planted.HANGS_VARIABLE, str(hangs))
    with Crew(parse("cpu"), Store(tmp_path), QUICK, timeout=LIMIT_SECONDS) as crew:
        run = crew.run([task((64, 64)), task((16, 32), SIZES[1])])
        assert next(run).status == "ok"
        (pid,) = crew.pids
        until(hangs.exists)
        run.close()
        until_gone({pid})
        assert [m.status for m in crew.run([task((64, 64))])] == ["ok"]
