"""A pytest plugin: the processor time that a run takes, by folder of tests, and a bound on it.

    python -m pytest --processor-times=FILE --processor-bound=SECONDS

A test's time is that of its process and of its child processes, from the set-up of its fixtures
to their end. What a process takes besides, for imports and collection, is told apart. Wall time
depends on what else the machine does. Processor time hardly does, so a bound on it holds on a busy
machine.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TIME = "processor seconds"
TICKS = os.sysconf("SC_CLK_TCK")
REST = "(imports, collection)"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("processor time")
    group.addoption("--processor-times", metavar="FILE", help="write each test's seconds, as JSON")
    group.addoption(
        "--processor-bound", metavar="SECONDS", type=float, help="fail if all take more"
    )


def pytest_configure(config: pytest.Config) -> None:
    worker = hasattr(config, "workerinput")
    config.pluginmanager.register(_Measure(config) if worker else _Total(config))
    if not worker and not config.getoption("numprocesses", 0):
        config.pluginmanager.register(_Measure(config))


def processor_seconds() -> float:
    """What this process and its children have taken, those that still run included."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(_living(child) for child in _children(os.getpid()))


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:  # it has ended meanwhile
        pass
    return found


def _living(process: int) -> float:
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, words[11:15])) / TICKS  # user, system, and its ended children's
    return own + sum(map(_living, _children(process)))


class _Measure:
    """In each process that runs tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._start = processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            took = processor_seconds() - self._start
            self._tests += took
            report.user_properties.append((TIME, took))
        return report

    def pytest_sessionfinish(self) -> None:
        rest = processor_seconds() - self._tests
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[TIME] = rest


class _Total:
    """In the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests: dict[str, float] = {}
        self._rest = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == TIME and isinstance(value, float):
                self._tests[report.nodeid] = value

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._rest += getattr(node, "workeroutput", {}).get(TIME, 0.0)

    def _by_folder(self) -> Counter[str]:
        folders: Counter[str] = Counter()
        for test, seconds in self._tests.items():
            path = Path(test.partition("::")[0])
            folders["/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]] += seconds
        folders[REST] = self._rest or max(0.0, processor_seconds() - sum(folders.values()))
        return folders

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders = self._by_folder()
        terminalreporter.section("processor time")
        for folder, seconds in folders.most_common():
            terminalreporter.write_line(f"{seconds:8.1f} s  {folder}")
        terminalreporter.write_line(f"{sum(folders.values()):8.1f} s  in all")
        if self._over_bound():
            bound = self._config.getoption("--processor-bound")
            terminalreporter.write_line(
                f"FAILED: more than {bound:g} s; mark what is costly (CONTRIBUTING.md, Test)",
                red=True,
            )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if file := self._config.getoption("--processor-times"):
            Path(file).write_text(json.dumps(self._tests, indent=0))
        if self._over_bound() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _over_bound(self) -> bool:
        bound = self._config.getoption("--processor-bound")
        return bool(bound) and sum(self._by_folder().values()) > bound
