"""Calls that do not wait for the compiler: who answers meanwhile, and what takes over."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gemm_cases import config
from library_cases import vendors

from patience import LIMIT_SECONDS, until
from shared_builds import build_once

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from standing_bench import CHOSEN, OTHER, PROBLEM, A, B, call, loaded  # noqa: E402

import tilewright  # noqa: E402
from tilewright import (  # noqa: E402
    Constraints,
    Store,
    child,
    default,
    loader,
    standing,
)
from tilewright.arch import arch, device  # noqa: E402
from tilewright.capturing import load  # noqa: E402
from tilewright.compile import BuildReport, BuildResult, UntrustedEntry  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, StoreError  # noqa: E402
from tilewright.loader import Loader  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.registry import Registry  # noqa: E402


@pytest.fixture
def driver(monkeypatch):
    return stand_in_gpu.install(monkeypatch, torch)


def test_another_kernel_answers_until_the_chosen_one_is_built(over, compiler, driver):
    dispatcher = over()
    real, searches = dispatcher.planner.stand_ins, []
    dispatcher.planner.stand_ins = lambda plan: searches.append(plan) or real(plan)
    load, loads = dispatcher.loader.loaded, []
    dispatcher.loader.loaded = lambda *given: loads.append(given) or load(*given)
    for _ in range(3):
        call(dispatcher)
        dispatcher.run("gemm", A, B)
    assert loaded(dispatcher) == [OTHER.name] and len(driver.launches) == 6
    assert len(searches) == len(loads) == 1, "it is looked for, and made ready, once"
    assert not dispatcher._launches.known, "a stand-in is not kept"
    assert compiler.was_asked() == [CHOSEN]
    compiler.go.set()
    until(lambda: not dispatcher.standing())
    for _ in range(2):
        call(dispatcher)
        dispatcher.run("gemm", A, B)
    assert loaded(dispatcher) == [OTHER.name, CHOSEN.name] and compiler.asked == [CHOSEN]
    assert len(dispatcher._launches.known) == 1 and len(driver.launches) == 10


def test_what_stands_in_is_said(over, compiler):
    dispatcher = over()
    assert dispatcher.standing() == ()
    call(dispatcher)
    (plan,) = dispatcher.standing()
    assert (plan.config, plan.problem, plan.selector) == (OTHER, PROBLEM, "stand-in")
    assert plan.reason.startswith(f"stands in for {CHOSEN.name}, which is being built: ")
    story = dispatcher.explain(PROBLEM)
    assert story.chosen == CHOSEN.name == dispatcher.select(PROBLEM).config.name
    assert story.notes == (f"{OTHER.name} {plan.reason}",)
    assert dispatcher.explain(replace(PROBLEM, m=64)).notes == ()
    compiler.go.set()
    until(lambda: not dispatcher.standing())
    assert dispatcher.explain(PROBLEM).notes == ()


def test_a_capture_of_problems_counts_the_chosen_plan(over, compiler, tmp_path):
    dispatcher = over()
    with tilewright.capture(tmp_path / "a.jsonl"):
        call(dispatcher)
        compiler.go.set()
        until(lambda: not dispatcher.standing())
        for _ in range(4):
            call(dispatcher)
    assert load(tmp_path / "a.jsonl") == {PROBLEM: 5}


def test_what_a_table_will_answer_is_no_miss(over, monkeypatch, tmp_path):
    dispatcher = over()
    tuned = replace(dispatcher.select(PROBLEM), selector="tuned")
    monkeypatch.setattr(dispatcher.planner, "plan", lambda *_: tuned)
    with tilewright.capture(tmp_path / "a.jsonl", only="misses"):
        call(dispatcher)
    assert dispatcher.standing() and load(tmp_path / "a.jsonl") == {}


@pytest.mark.parametrize(
    "options",
    [{"waits": True}, {"waits": None}, {"constraints": Constraints(deterministic=True)},
     {"build_missing": False}],
)  # fmt: skip
def test_calls_wait_by_default_and_where_bits_must_not_change(over, compiler, options):
    dispatcher = over(**options)
    call(dispatcher)
    assert loaded(dispatcher) == [CHOSEN.name] and compiler.asked == []


def test_who_asks_for_the_same_bits_asks_for_one_kernel():
    assert not Constraints().one_kernel and not PROBLEM.one_kernel
    assert Constraints(batch_invariant=True).one_kernel
    attention = tilewright.AttentionProblem(1, 2, 64, 64, 64)
    assert not attention.one_kernel
    assert replace(attention, deterministic=True).one_kernel
    assert replace(attention, batch_invariant=True).one_kernel


def test_a_call_that_asks_for_the_same_bits_waits(over, compiler, monkeypatch):
    monkeypatch.setattr(GemmProblem, "one_kernel", True)
    dispatcher = over()
    call(dispatcher)
    assert loaded(dispatcher) == [CHOSEN.name] and compiler.asked == []


def test_a_graph_keeps_only_the_chosen_kernel(over, compiler, driver, monkeypatch):
    dispatcher = over()
    call(dispatcher)
    captured = {7}
    monkeypatch.setattr(driver, "capture", lambda stream: int(stream in captured))
    call(dispatcher, stream=7)
    assert loaded(dispatcher) == [OTHER.name, CHOSEN.name]
    assert compiler.was_asked() == [CHOSEN], "the graph's call built it itself"


def test_a_stand_in_keeps_to_the_constraints(over, compiler):
    dispatcher = over(constraints=Constraints(blocked=(OTHER.name,)))
    call(dispatcher)
    assert loaded(dispatcher) == [CHOSEN.name]


def test_where_no_other_kernel_is_there_calls_wait(over, compiler):
    compiler.there.clear()
    dispatcher = over()
    call(dispatcher)
    assert loaded(dispatcher) == [CHOSEN.name] and compiler.asked == []


def test_of_candidates_far_behind_only_loaded_ones_stand_in(over, monkeypatch):
    monkeypatch.setattr(standing, "LOOKED_UP", 0)
    dispatcher = over()
    call(dispatcher)
    assert loaded(dispatcher) == [CHOSEN.name]
    dispatcher = over()
    dispatcher.run_named(OTHER.name, A, B)
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name] and dispatcher.standing()


def test_a_kernel_that_cannot_be_built_is_reported_once_and_its_stand_in_stays(
    over, compiler, caplog
):
    compiler.broken = True
    dispatcher = over()
    call(dispatcher)
    compiler.go.set()
    until(lambda: not dispatcher.standing())
    for _ in range(3):
        call(dispatcher)
    assert caplog.text.count(f"failed {CHOSEN.name}") == 1
    assert dispatcher.select(PROBLEM).config == OTHER and compiler.asked == [CHOSEN]
    assert len(dispatcher._launches.known) == 1, "it is the choice now"


def test_after_an_error_of_the_store_calls_wait(over, compiler, caplog):
    compiler.error = StoreError("the disk is full")
    dispatcher = over()
    call(dispatcher)
    compiler.go.set()
    until(lambda: not dispatcher.standing())
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name, CHOSEN.name]
    assert caplog.text.count("the disk is full") == 1


@pytest.mark.parametrize("value, waits", [("", False), ("0", False), ("1", True)])
def test_the_default_dispatcher_does_not_wait(monkeypatch, value, waits):
    monkeypatch.setenv(standing.WAITS, value) if value else monkeypatch.delenv(
        standing.WAITS, raising=False
    )
    assert default._default.__wrapped__().waits == waits


def test_a_process_may_end_while_kernels_are_built(over, compiler, monkeypatch, caplog):
    """No child can be started then: nobody is told of it."""
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(child, "_spawner", lambda: ended)
    with pytest.raises(child.Ending) as ending:
        child.Child("tilewright.compile.worker")
    uncaught = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    compiler.error = ending.value
    dispatcher = over()
    call(dispatcher)
    compiler.go.set()
    until(lambda: not dispatcher._launchable._standing._behind._thread.is_alive())
    assert not uncaught and not caplog.text


def test_a_stand_in_that_fails_is_tried_no_more(over, compiler, monkeypatch, caplog):
    real = loader.build

    def build(requests, **how):
        [(wanted, on)] = requests
        if wanted == OTHER:
            return BuildReport((BuildResult(wanted, wanted.name, arch(on), "failed"),), 0.0)
        return real(requests, **how)

    monkeypatch.setattr(loader, "build", build)
    dispatcher = over()
    for _ in range(2):
        call(dispatcher)
    assert loaded(dispatcher) == [CHOSEN.name]
    assert caplog.text.count(f"failed {OTHER.name}") == 1


def test_a_kernel_of_which_a_part_is_left_is_built_on(over, compiler):
    """A part that is built is no kernel yet."""
    part_is_built = threading.Event()

    def build(this, configs, target, progress):
        [wanted] = configs
        progress(BuildResult(wanted, wanted.name, arch(target.arch), "built", part="one"), 1, 2)
        part_is_built.set()
        assert compiler.go.wait(LIMIT_SECONDS)
        compiler.there.add(wanted)
        return BuildReport((), 0.0)

    compiler.build = build
    dispatcher = over()
    call(dispatcher)
    assert part_is_built.wait(LIMIT_SECONDS)
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name] and dispatcher.standing()
    compiler.go.set()
    until(lambda: not dispatcher.standing())
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name, CHOSEN.name]


def test_a_kernel_takes_over_before_others_are_built(over, compiler):
    first, second = (replace(over().select(PROBLEM), config=one) for one in (OTHER, CHOSEN))

    def build(this, configs, target, progress):
        progress(BuildResult(OTHER, OTHER.name, arch(target.arch), "built"), 1, 2)
        assert compiler.go.wait(LIMIT_SECONDS)
        return BuildReport((), 0.0)

    compiler.build = build
    behind = standing.Background(over().loader.build, lambda plan, error: None)
    assert behind.start(first) and behind.start(second)
    until(lambda: not behind.under_way(first))
    assert behind.under_way(second)


def test_threads_share_a_stand_in_and_one_build(over, compiler, driver):
    dispatcher = over()
    threads = [
        threading.Thread(target=lambda: [call(dispatcher) for _ in range(5)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 20 and compiler.was_asked() == [CHOSEN]
    compiler.go.set()
    until(lambda: not dispatcher.standing())
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name, CHOSEN.name]


def test_kernels_asked_for_meanwhile_are_built_together(over, compiler):
    behind = standing.Background(over().loader.build, lambda plan, error: None)
    plans = [
        replace(over().select(PROBLEM), config=config(layout="rrr", num_stages=stages))
        for stages in (2, 3, 4)
    ]
    assert behind.start(plans[0])
    until(lambda: compiler.asked)
    for plan in plans:
        assert behind.start(plan) and behind.under_way(plan)
    assert compiler.asked == [plans[0].config]
    compiler.go.set()
    until(lambda: not any(map(behind.under_way, plans)))
    assert compiler.asked == [plan.config for plan in plans]


def test_which_kernels_are_there(monkeypatch, store):
    """Without a GPU, and without the stand-in for the compiler."""
    build_once([(CHOSEN, "sm_90")], store).raise_if_failed()
    h200 = device("h200_sxm")
    shelf = SimpleNamespace(
        find=lambda name, on: SimpleNamespace(where="k.bundle") if name == OTHER.name else None
    )
    kernels = Loader(shelf, False, store, True, None)
    assert kernels.has(CHOSEN, h200, 0) and kernels.has(OTHER, h200, 0)
    assert not kernels.has(CHOSEN, h200, 0, look_up=False)
    assert not kernels.has(config(layout="rrr", num_stages=7), h200, 0)
    assert kernels.has(vendors(PROBLEM), h200, 0, look_up=False)
    report = kernels.build([OTHER, CHOSEN], h200)
    assert [(r.status, r.reason) for r in report.results] == [
        ("not needed", "is in k.bundle"),
        ("cached", ""),
    ]

    def strangers(*_):
        raise UntrustedEntry("somebody else made it")

    monkeypatch.setattr(loader, "find", strangers)
    assert not kernels.has(CHOSEN, h200, 0)


def test_the_environment_says_whether_calls_wait(monkeypatch):
    for word, waits in (("", True), ("1", True), ("0", False)):
        monkeypatch.setenv("TILEWRIGHT_WAITS", word)
        assert Dispatcher(device="h200_sxm").waits == waits
        assert Dispatcher(device="h200_sxm", waits=True).waits
    monkeypatch.setenv("TILEWRIGHT_WAITS", "no")
    with pytest.raises(BadArgument, match="TILEWRIGHT_WAITS: 'no' is neither 1 nor 0"):
        Dispatcher(device="h200_sxm")


@pytest.mark.turns(48)
def test_a_kernel_is_really_built_behind_the_calls(driver, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    store = Store(tmp_path)
    tilewright.build([(OTHER, "sm_90")], store=store).raise_if_failed()
    registry = Registry("both").register_all([CHOSEN, OTHER])
    dispatcher = Dispatcher(registry, selector="first_fit", store=store, waits=False)
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name]
    until(lambda: not dispatcher.standing())
    call(dispatcher)
    assert loaded(dispatcher) == [OTHER.name, CHOSEN.name] and not caplog.text
