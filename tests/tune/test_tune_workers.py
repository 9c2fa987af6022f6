"""Workers that interpret, and what is planted among their kernels: no fault costs more than the
measurement it happened to, and nothing is left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import planted
from gemm_cases import config

import tilewright
from tilewright.build import Store
from tilewright.ops.gemm import GemmProblem
from tilewright.tune.crew import Crew, Task
from tilewright.tune.devices import parse
from tilewright.tune.measurement import Settings

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


def alive(pids: set[int]) -> set[int]:
    """Those of them that run."""

    def runs(pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    return {pid for pid in pids if runs(pid)}


def gone(pids: set[int], seconds: float = 10.0) -> bool:
    """Whether they all end in time."""
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pids)


def test_each_planted_kernel_gets_its_status_and_nothing_else_is_lost(tmp_path):
    tiles = {task(tile).kernel: status for tile, status in planted.INTERPRETED.items()}
    tasks = [task(tile) for tile in planted.INTERPRETED]
    # On the second problem only what answers at once, and good ones in the same batches.
    tasks += [task(t, SIZES[1]) for t, s in planted.INTERPRETED.items() if s in ("ok", "nan")]
    refused = Task(tasks[-1].kernel, GemmProblem(8, 8, 8), "sm_90")
    before = descendants(os.getpid())
    seen: set[int] = set()
    measured = []
    with Crew(parse("cpu"), Store(tmp_path), QUICK, timeout=6, memory_bytes=1500 << 20) as crew:
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
    assert "did not end within 6 s" in reasons["timeout"]
    assert "NaN" in reasons["nan"] and "tolerance" in reasons["mismatch"]
    crashes = " ".join(m.reason for m in measured if m.status == "crashed")
    assert "SIGABRT" in crashes and "ValueError: planted" in crashes
    assert len(seen) >= 2 and gone(seen)


def test_killing_workers_loses_nothing_and_measures_nothing_twice(tmp_path):
    tasks = [
        task(tile, sizes, num_stages=stages)
        for sizes in SIZES
        for tile in ((64, 64), (64, 128), (128, 64), (128, 128))
        for stages in (2, 3, 4)
    ]
    rng = random.Random(4)
    with Crew(parse("cpu,cpu"), Store(tmp_path), QUICK, timeout=60) as crew:
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
from tilewright.build import Store
from tilewright.tune.crew import Crew
from tilewright.tune.devices import parse
crew = Crew(parse("cpu"), Store("store"), QUICK, timeout=60)
for m in crew.run([task((64, 64)), task((16, 32), num_stages=3)][::-1]):
    pass
"""


def test_workers_die_with_their_parent(tmp_path):
    here = Path(__file__).parent
    arguments = [str(here), str(here.parent / "gemm"), str(Path(tilewright.__file__).parents[1])]
    script = [sys.executable, "-c", SCRIPT, *arguments]
    with subprocess.Popen(script, cwd=tmp_path) as parent:
        below: set[int] = set()
        deadline = time.monotonic() + 30
        while len(below) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            below = descendants(parent.pid)
        time.sleep(0.5)  # into the endless kernel
        below |= descendants(parent.pid)
        assert len(below) >= 2, "a worker and its interpreter"
        parent.kill()
    assert gone(below)


def test_wanting_no_more_ends_the_workers_and_another_run_starts_new_ones(tmp_path):
    with Crew(parse("cpu"), Store(tmp_path), QUICK, timeout=60) as crew:
        run = crew.run([task((64, 64)), task((16, 32), SIZES[1])])
        assert next(run).status == "ok"
        (pid,) = crew.pids
        run.close()  # in the endless kernel, most likely
        assert gone({pid})
        assert [m.status for m in crew.run([task((64, 64))])] == ["ok"]
