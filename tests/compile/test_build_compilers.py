"""Compilers as processes: those that wait for the next build, and those that somebody killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from build_script import requests
from compiling import GOOD, our_children
from fake_family import FakeConfig

from patience import LIMIT_SECONDS, runs, until
from tilewright.compile import Store, build, compilers
from tilewright.compile.builder import Builder

SCRIPT = Path(__file__).parent / "build_script.py"


@pytest.fixture(autouse=True)
def no_idle_compilers():
    """So that a test starts those that it needs."""
    compilers.end_idle()


def run_script(store: Store, count: int, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(store.path), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        # A shell that runs the tests in its background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


# --- compilers that wait for the next build -------------------------------------------------


@pytest.mark.turns(12)
def test_the_next_build_takes_the_compiler_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Builder._leave

    def late(builder: Builder) -> None:  # as on a busy machine
        time.sleep(0.2)
        leave(builder)

    monkeypatch.setattr(Builder, "_leave", late)
    store = Store(tmp_path / "store")
    seen = []
    for block in (32, 64, 128):
        build([(FakeConfig(block=block), "sm_90")], store=store, workers=1).raise_if_failed()
        seen.append([one.pid for one in our_children()])
    assert len(seen[0]) == 1 and seen[0] == seen[1] == seen[2]


@pytest.mark.turns(64)
def test_few_wait_and_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "KEPT_SECONDS", 3600.0)
    store = Store(tmp_path / "store")
    build(requests(8), store=store, workers=4).raise_if_failed()
    assert len(our_children()) == compilers.KEPT
    monkeypatch.setattr(compilers, "KEPT_SECONDS", 0.01)
    build([(FakeConfig(block=4096), "sm_90")], store=store, workers=1).raise_if_failed()
    until(lambda: our_children() == [])


@pytest.mark.turns(24)
def test_one_that_ended_meanwhile_is_not_taken(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    build(GOOD[:1], store=store, workers=1).raise_if_failed()
    (idle,) = our_children()
    idle.kill()
    until(lambda: idle.status() == psutil.STATUS_ZOMBIE)
    build([(FakeConfig(block=32), "sm_90")], store=store, workers=1).raise_if_failed()
    assert idle.pid not in [one.pid for one in our_children()]


@pytest.mark.turns(32)
@pytest.mark.parametrize("what", ["the environment", "where modules are"])
def test_what_a_child_was_started_with_must_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = Store(tmp_path / "store")
    build(GOOD[:1], store=store, workers=1).raise_if_failed()
    (first,) = our_children()
    if what == "the environment":
        monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + str(tmp_path))
    else:
        monkeypatch.syspath_prepend(str(tmp_path))
    build([(FakeConfig(block=32), "sm_90")], store=store, workers=1).raise_if_failed()
    assert len(our_children()) == 2 and first in our_children()


def test_a_fork_leaves_its_parents_compilers_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    build(GOOD[:1], store=store, workers=1).raise_if_failed()
    (idle,) = our_children()
    child = os.fork()
    if not child:
        compilers.end_idle()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    build(GOOD[1:2], store=store, workers=1).raise_if_failed()
    assert our_children() == [idle], "the same compiler built both"


@pytest.mark.turns(24)
def test_a_compiler_that_somebody_killed_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system, for want of memory, say: the kernel may have had no part in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = [(FakeConfig(module=f"fake_{name}"), "sm_90") for name in ("killed_once", "killed")]
    once, always = build(asked, store=Store(tmp_path / "store"), workers=1).results
    assert once.status == "built"
    assert always.status == "failed"
    assert "killed by SIGKILL, twice: by somebody, or by the system for want" in always.reason
    compilers.end_idle()
    assert our_children() == []


# --- several builders, and killed ones ----------------------------------------------------


@pytest.mark.turns(96)
def test_two_builders_share_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    racing = [run_script(store, 6) for _ in range(2)]
    outputs = [one.communicate(timeout=LIMIT_SECONDS)[0] for one in racing]
    assert [one.returncode for one in racing] == [0, 0], outputs
    assert store.verify() == [] and len(list(store.entries())) == 6
    assert list((store.path / ".writing").iterdir()) == []
    again = run_script(store, 6)
    assert "6 cached" in (last := again.communicate(timeout=LIMIT_SECONDS)[0])
    assert last.endswith("False\n")  # Triton was not imported


@pytest.mark.turns(64)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_a_killed_build_finished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    store = Store(tmp_path / "store")
    killed = run_script(store, 16, TMPDIR=str(tmp_path), STOP_AT_THE_FIRST="yes")
    until(lambda: psutil.Process(killed.pid).status() == psutil.STATUS_STOPPED)
    children = our_children()
    assert children
    killed.send_signal(how)
    killed.send_signal(signal.SIGCONT)
    killed.communicate(timeout=LIMIT_SECONDS)
    assert killed.returncode in (-how, 1)
    until(lambda: not any(runs(c.pid) for c in children))
    assert store.verify() == [] and 1 <= len(list(store.entries())) < 16
    if how == signal.SIGINT:
        assert not list(tmp_path.glob("tilewright-build-*"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report = build(requests(16), store=store, workers=2)
    compilers.end_idle()
    assert not list(tmp_path.glob("tilewright-build-*")), "what was left was cleared"
    report.raise_if_failed()
    assert {"cached", "built"} == {r.status for r in report.results}
