"""pytest's side of the mutants, in a woven tree.

    pytest -p mutants.plugin --reach-to FILE --share 0/2
    pytest -p mutants.plugin --mutants FILE --outcomes-to FILE --budget 60

The first runs the tests of one share of the files, and notes of each test its seconds, whether it
passed, and the mutants that it reached, its child processes included. A fixture that several tests
share counts for the first of them. It notes the same of each file of tests that is imported.

The second collects once. For each mutant it forks, turns the mutant on, empties the package's
caches, and runs the mutant's tests until one fails or the budget of processor seconds is spent. A
test that fails is run without the mutant too: only if it passes then is the mutant killed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import tilewright_probe as probe

HANG = 3
"""A fork may use so many times its budget, and ten times as much wall time: then it hangs."""
KEPT = (("tilewright.ops.gemm.legality", "_judged"), ("tilewright.ops.gemm.spaces", "_made"))
"""Caches that are plain dictionaries."""
NOTHING_FAILED = "none"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach-to", help="where to add what each test reaches")
    parser.addoption("--share", default="0/1", help="which share of the files to run")
    parser.addoption("--mutants", help="the mutants and their tests: one JSON document a line")
    parser.addoption("--outcomes-to", help="where to add the outcomes")
    parser.addoption("--budget", type=float, default=60, help="processor seconds for a mutant")


def pytest_configure(config: pytest.Config) -> None:
    if to := config.getoption("--reach-to"):
        config.pluginmanager.register(_Reach(Path(to), config.getoption("--share")))


class _Reach:
    def __init__(self, to: Path, share: str) -> None:
        self._share, self._of = map(int, share.split("/"))
        known = to.read_text().splitlines() if to.exists() else []
        self._known = {json.loads(line)["test"] for line in known}
        self._to = to.open("a")
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [one for one in items if self._mine(one) and one.nodeid not in self._known]

    def _mine(self, item: pytest.Item) -> bool:
        return zlib.crc32(os.fspath(item.path.name).encode()) % self._of == self._share

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        probe.forget()
        result = yield
        if isinstance(collector, pytest.Module) and probe.reached():
            self._note(collector.nodeid, 0.0, True)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        probe.forget()
        start = time.monotonic()
        result = yield
        self._note(item.nodeid, time.monotonic() - start, item.nodeid not in self._failed)
        return result

    def _note(self, test: str, seconds: float, passed: bool) -> None:
        told = {"test": test, "seconds": round(seconds, 3), "passed": passed}
        self._to.write(json.dumps({**told, "reached": probe.reached()}) + "\n")
        self._to.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # skipped tests judge nothing either
            self._failed.add(report.nodeid)


# --- mutants ----------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not (wanted := session.config.getoption("--mutants")):
        return None
    items = {item.nodeid: item for item in session.items}
    in_file: dict[str, list[str]] = defaultdict(list)
    for test in items:
        in_file[test.partition("::")[0]].append(test)
    session.config._tmp_path_factory.getbasetemp()  # one for all forks
    judge = _Judge(items, session.config.getoption("--budget"))
    with Path(session.config.getoption("--outcomes-to")).open("a") as outcomes:
        for line in Path(wanted).read_text().splitlines():
            told = json.loads(line)
            tests = [test for asked in told["tests"] for test in in_file.get(asked, [asked])]
            but = told.get("but", ())
            tests = [test for test in dict.fromkeys(tests) if test in items and test not in but]
            outcome, test = judge.outcome(told["number"], tests, told["at_import"])
            outcomes.write(
                json.dumps({"key": told["key"], "outcome": outcome, "test": test}) + "\n"
            )
            outcomes.flush()
    return True


class _Judge:
    """Runs tests on mutants."""

    def __init__(self, items: dict[str, pytest.Item], budget: float) -> None:
        self._items, self._budget = items, budget
        caches = (o for o in gc.get_objects() if type(o) is functools._lru_cache_wrapper)
        self._caches = [o for o in caches if (o.__module__ or "").startswith("tilewright")]
        self._sound: set[str] = set()
        self._broken: set[str] = set()
        """Tests known to pass, or to fail, without a mutant."""

    def outcome(self, number: int, tests: list[str], at_import: bool) -> tuple[str, str]:
        """What becomes of a mutant, and the test that failed. at_import: the mutant is on already,
        and who turned it on looks whether the test fails without it too."""
        while tests := [test for test in tests if test not in self._broken]:
            failed = self._forked(tests, None if at_import else number)
            if failed == NOTHING_FAILED:
                return "survived", ""
            if failed in self._items and not at_import and failed not in self._sound:
                if self._forked([failed], 0) != NOTHING_FAILED:
                    self._broken.add(failed)
                    continue
                self._sound.add(failed)
            return "killed", failed
        return "not run", ""

    def _forked(self, tests: list[str], number: int | None) -> str:
        """The first test that fails, in a process of its own; `NOTHING_FAILED`; or how the process
        ended."""
        if number is not None:
            probe.switch(number)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            self._child(tests, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            ready, _, _ = select.select([pipe], [], [], self._budget * HANG * 10)
            said = pipe.read() if ready else "it hung"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it started
        os.waitpid(pid, 0)
        if number is not None:
            probe.switch(0)
        return said or "it ended"

    def _child(self, tests: list[str], writing: int) -> None:
        os.setsid()
        limit = int(self._budget * HANG)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        failed = ""
        try:
            for one in self._caches:
                one.cache_clear()
            for module, name in KEPT:
                if module in sys.modules:
                    getattr(sys.modules[module], name).clear()
            failed = self._first_failure(tests)
        finally:
            os.write(writing, failed.encode())
            os._exit(0)

    def _first_failure(self, tests: list[str]) -> str:
        before = _spent()
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            watch = _Failed()
            item.config.pluginmanager.register(watch)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item.config.pluginmanager.unregister(watch)
            if watch.failed:
                return item.nodeid
            if _spent() - before > self._budget:
                break
        return NOTHING_FAILED


class _Failed:
    """Whether a report says that a test failed."""

    failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def _spent() -> float:
    """The processor seconds of this process and of those that it started."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system
    return total
