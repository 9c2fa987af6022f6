"""What several processes of a test run want is built once, by all of them."""

from __future__ import annotations

import os
import threading
from collections import Counter
from types import SimpleNamespace

from patience import LIMIT_SECONDS
from shared_builds import PIECE, build_once, piece_of
from tilewright.compile import BuildReport, Store

REQUESTS = [(SimpleNamespace(name=f"kernel_{number}"), "sm_90") for number in range(7)]


class Compiler:
    """Takes the place of `build`, and knows what it built. Each of three that build waits once for
    the others: none builds it all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.built: Counter[str] = Counter()
        self.builders: set[int] = set()
        self.together = threading.Barrier(3, timeout=LIMIT_SECONDS)

    def __call__(self, requests, *, store, workers):
        with self.lock:
            missing = [config.name for config, _ in requests if not self.built[config.name]]
            here = threading.get_ident()
            new = bool(missing) and here not in self.builders
            if missing:
                self.builders.add(here)
        if new:
            self.together.wait()
        with self.lock:
            self.built.update(missing)
        names = (config.name for config, _ in requests if self.built[config.name])
        return BuildReport(tuple(names), 0.0)


def test_processes_that_want_the_same_share_the_work_and_all_get_it_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    compiler, got = Compiler(), []

    def want() -> None:
        store = Store(tmp_path / "store")
        got.append(build_once(REQUESTS, store, piece=2, compile_all=compiler))

    threads = [threading.Thread(target=want) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [config.name for config, _ in REQUESTS]
    assert [report.results for report in got] == [tuple(names)] * 3, (
        "nobody goes on before everything is there"
    )
    assert compiler.built == Counter(names), "nothing is built twice"
    assert len(compiler.builders) == 3


def test_one_process_alone_builds_all_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    calls = []

    def compile_all(requests, *, store, workers):
        calls.append((len(requests), workers))
        return BuildReport((), 0.0)

    build_once(REQUESTS, Store(tmp_path / "store"), piece=2, compile_all=compile_all)
    assert calls == [(len(REQUESTS), len(os.sched_getaffinity(0)))]


def test_a_case_is_built_with_its_neighbours(monkeypatch):
    """Every case is in one piece, which is the same for all cases of it."""
    cases = range(3 * PIECE + 5)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    assert piece_of(cases, 7) == cases, "a run of one process builds all together"
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    pieces = [piece_of(cases, number) for number in cases]
    for number, piece in enumerate(pieces):
        assert number in piece and len(piece) <= PIECE
        assert all(pieces[other] == piece for other in piece)
