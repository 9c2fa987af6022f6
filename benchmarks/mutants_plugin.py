"""A pytest plugin with the two runs that `mutants.py` needs.

    python -m pytest -p mutants_plugin --lines-of src/tilewright/plan.py --lines-to FOLDER
    python -m pytest -p mutants_plugin --mutants FILE --outcomes FILE

The first runs the tests. Each of its processes leaves `FOLDER/*.json`: by test the seconds that it
took, from its fixtures' set-up to their end, whether it passed, and by file the lines that it ran.
Lines of a fixture that several tests share count for the first of them. It needs `coverage`.

The second collects the tests once. For each mutant it forks, puts the changed code into the
functions there are, empties the package's caches, and runs the mutant's tests until one fails.
Processes that a test starts import the code as it is.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

PROCESSOR_SECONDS = 60
HANG_SECONDS = 600.0
KEPT = (("tilewright.ops.gemm.rules", "_judged"), ("tilewright.ops.gemm.spaces", "_made"))
"""Caches that are plain dictionaries."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines-of", action="append", default=[], help="a file to watch")
    parser.addoption("--lines-to", help="the folder for the results")
    parser.addoption("--mutants", help="the mutants and their tests: one JSON document a line")
    parser.addoption("--outcomes", help="where to add the outcomes, in the same form")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--lines-to"):
        files = [os.fspath(Path(file).resolve()) for file in config.getoption("--lines-of")]
        config.pluginmanager.register(_Watch(files, Path(config.getoption("--lines-to"))))


class _Watch:
    def __init__(self, files: list[str], folder: Path) -> None:
        import coverage

        self._folder = folder
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(data_file=None, include=files, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        start = time.monotonic()
        result = yield
        self._seconds[item.nodeid] = time.monotonic() - start
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    lines[test][os.path.relpath(file)].append(line)
        found = {
            test: {"seconds": seconds, "passed": test not in self._failed, "lines": lines[test]}
            for test, seconds in self._seconds.items()
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(found))


# --- mutants ----------------------------------------------------------------------------------


class _Package:
    """The package's functions, and its caches, as they are when all tests are collected."""

    def __init__(self) -> None:
        self.functions: dict[str, list[FunctionType]] = defaultdict(list)
        self.caches = []
        kinds = (FunctionType, functools._lru_cache_wrapper)
        found = [one for one in gc.get_objects() if isinstance(one, kinds)]
        for one in found:
            if (one.__module__ or "").startswith("tilewright"):
                if isinstance(one, FunctionType):
                    self.functions[one.__code__.co_filename].append(one)
                else:
                    self.caches.append(one)

    def forget(self) -> None:
        """Forget the values that were computed while tests were collected."""
        for one in self.caches:
            one.cache_clear()
        for module, name in KEPT:
            getattr(sys.modules[module], name).clear()

    def change(self, told: dict[str, Any]) -> None:
        """Give the functions of a file their code from the changed file."""
        path = Path(told["file"]).resolve()
        good = path.read_bytes()
        text = good[: told["start"]] + told["new"].encode() + good[told["end"] :]
        made = dict(_functions(compile(text, path, "exec"), ""))
        before = dict(_functions(compile(good, path, "exec"), ""))
        for one in self.functions[os.fspath(path)]:
            name = one.__qualname__
            if name in made and made[name] != before[name]:
                one.__code__ = made[name]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not (wanted := session.config.getoption("--mutants")):
        return None
    items = {item.nodeid: item for item in session.items}
    session.config._tmp_path_factory.getbasetemp()  # one for all forks
    package = _Package()
    sound: set[str] = set()
    broken: set[str] = set()
    with Path(session.config.getoption("--outcomes")).open("a") as outcomes:
        for line in Path(wanted).read_text().splitlines():
            told = json.loads(line)
            told["outcome"] = _outcome(told, items, package, sound, broken)
            outcomes.write(json.dumps({k: v for k, v in told.items() if k != "tests"}) + "\n")
            outcomes.flush()
    return True


def _outcome(
    told: dict[str, Any],
    items: dict[str, pytest.Item],
    package: _Package,
    sound: set[str],
    broken: set[str],
) -> str:
    """The outcome of a mutant. sound, broken: tests known to pass, or to fail, with the code
    unchanged."""
    while True:
        tests = [t for t in told["tests"] if t in items and t not in broken]
        if not tests:
            return "not run"
        failed = _forked([items[test] for test in tests], package, told)
        if failed is None:
            return "survived"
        if failed and failed not in sound:
            if _forked([items[failed]], package, None) is not None:
                broken.add(failed)
                continue
            sound.add(failed)
        return f"killed by {failed or 'its own end'}"


def _forked(items: list[pytest.Item], package: _Package, told: dict[str, Any] | None) -> str | None:
    """The first test that fails, in a process of its own; "" if the process ends otherwise."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
        signal.alarm(int(HANG_SECONDS))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        failed = ""
        try:
            package.forget()
            if told is not None:
                package.change(told)
            failed = _first_failure(items)
        finally:
            os.write(writing, failed.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it started
    os.waitpid(pid, 0)
    return None if said == "none" else said


def _first_failure(items: list[pytest.Item]) -> str:
    for item, following in zip(items, [*items[1:], None], strict=True):
        failed: list[str] = []

        class Watch:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    failed.append(report.nodeid)  # noqa: B023 - read in the same turn

        watch = Watch()
        item.config.pluginmanager.register(watch)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item.config.pluginmanager.unregister(watch)
        if failed:
            return item.nodeid
    return "none"


def _functions(code: CodeType, above: str) -> Iterator[tuple[str, CodeType]]:
    """Code by qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = f"{above}{constant.co_name}"
            yield name, constant
            yield from _functions(constant, f"{name}.")  # of a class
            yield from _functions(constant, f"{name}.<locals>.")
