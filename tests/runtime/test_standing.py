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

import tilewright  # noqa: E402
from tilewright import (  # noqa: E402
    Constraints,
    Store,
    calls,
    child,
    default,
    loader,
    operation,
    ops,
    standing,
    torch_answer,
)
from tilewright.arch import arch, device  # noqa: E402
from tilewright.capturing import load  # noqa: E402
from tilewright.compile import BuildReport, BuildResult, UntrustedEntry  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, StoreError  # noqa: E402
from tilewright.loader import Loader  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.plan import Planner  # noqa: E402
from tilewright.registry import Registry  # noqa: E402
from tilewright.torch import backward_pass, eager, gradients, operators  # noqa: E402

CHOSEN = config(layout="rrr")
OTHER = config(layout="rrr", scheduler="split_k", split_k=2, reduction="linear")
PROBLEM = GemmProblem(16, 32, 256, layout="rrr")


class Compiler:
    """Builds nothing, when the test says so.

    there: the kernels that are built. asked: those that were to be built behind the calls.
    error: what a build raises. broken: whether it fails.
    """

    def __init__(self):
        self.there, self.asked = {OTHER}, []
        self.go, self.broken, self.error = threading.Event(), False, None

    def has(self, this, config, target, index, look_up=True):
        return config in self.there if look_up else (config.name, index) in this._functions

    def was_asked(self):
        """Wait until the thread behind the calls has asked for something: it may start late."""
        until(lambda: self.asked)
        return self.asked

    def build(self, this, configs, target, progress):
        self.asked += configs
        assert self.go.wait(LIMIT_SECONDS)
        if self.error:
            raise self.error
        status = "failed" if self.broken else "built"
        if not self.broken:
            self.there.update(configs)
        results = [BuildResult(c, c.name, arch(target.arch), status) for c in configs]
        for number, result in enumerate(results, 1):
            progress(result, number, len(results))
        return BuildReport(tuple(results), 0.0)


@pytest.fixture
def driver(monkeypatch):
    return stand_in_gpu.install(monkeypatch, torch)


@pytest.fixture
def compiler(monkeypatch, driver, store):
    build_once([(CHOSEN, "sm_90"), (OTHER, "sm_90")], store).raise_if_failed()
    made = Compiler()
    monkeypatch.setattr(Loader, "has", lambda *given, **how: made.has(*given, **how))
    monkeypatch.setattr(Loader, "build", lambda *given, **how: made.build(*given, **how))
    yield made
    made.go.set()


@pytest.fixture
def over(compiler, store):
    """Dispatchers that prefer `CHOSEN`."""

    def made(**options):
        registry = Registry("both").register_all([CHOSEN, OTHER])
        options = {"waits": False, "selector": "first_fit", "store": store} | options
        return Dispatcher(registry, **options)

    return made


A, B = (torch.ones(size, dtype=torch.bfloat16) for size in ((16, 256), (256, 32)))


def call(dispatcher, **options):
    dispatcher.run("gemm", A, B, out=torch.zeros(16, 32, dtype=torch.bfloat16), **options)


def loaded(dispatcher) -> list[str]:
    """The kernels that were loaded, in order."""
    return [name for name, _ in dispatcher.loader._functions]


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


@pytest.fixture
def answering(over, monkeypatch):
    """A dispatcher for which torch may answer."""
    monkeypatch.setattr(Planner, "torch_may_answer", True)
    return over()


def test_torch_answers_until_the_kernel_is_built(answering, compiler, caplog):
    compiler.there.clear()  # no kernel of ours could stand in
    out = torch.zeros(16, 32, dtype=torch.bfloat16)
    for _ in range(2):
        answering.run("gemm", A, B, out=out)
        assert torch.equal(out, A @ B) and not loaded(answering)
    assert torch.equal(answering.run("gemm", A, B), A @ B), "an output that is made"
    (standing,) = answering.standing()
    assert standing.config == CHOSEN and standing.selector == "stand-in"
    assert standing.reason == "is being built, and torch.mm answers meanwhile"
    notes = answering.explain(PROBLEM).notes
    assert f"{CHOSEN.name} is being built, and torch.mm answers meanwhile" in notes
    assert caplog.text.count("torch answers calls meanwhile") == 1, "once"
    compiler.go.set()
    until(lambda: not answering.standing())
    call(answering)
    assert loaded(answering) == [CHOSEN.name] and compiler.asked == [CHOSEN]


@pytest.fixture
def long_ways(monkeypatch):
    """How often a call is read, planned and looked up, instead of found among those before it."""
    real, taken = calls.read, []
    monkeypatch.setattr(calls, "read", lambda *given: taken.append(given) or real(*given))
    return taken


@pytest.mark.parametrize("who", ["torch", "another kernel"])
@pytest.mark.parametrize("made", [True, False])
def test_a_kind_of_call_is_read_once_while_its_kernel_is_built(
    answering, compiler, driver, long_ways, who, made
):
    """However often it is made, with whatever tensors that look alike. The first call after the
    kernel was built takes it."""
    out = None if made else torch.zeros(16, 32, dtype=torch.bfloat16)
    if who == "torch":
        compiler.there.clear()
    else:
        answering.planner.torch_may_answer = False
    for seed in range(4):
        a, b = torch.full_like(A, seed), torch.randn(256, 32).bfloat16()
        found = answering.run("gemm", a, b, out=out)
        assert who != "torch" or torch.equal(found, a @ b)
        assert len(answering.standing()) == 1
    assert len(long_ways) == 1
    assert len(driver.launches) == (0 if who == "torch" else 4)
    answering.run("gemm", A[:8], B)
    assert len(long_ways) == 2, "another shape is another call"
    compiler.go.set()
    until(lambda: not answering.standing())
    for _ in range(2):
        answering.run("gemm", A, B, out=out)
    assert len(long_ways) == 3 and CHOSEN.name in loaded(answering)
    assert not any(one.chosen.problem == PROBLEM for one in meanwhile(answering).values())


def test_a_step_with_gradients_is_read_once_while_its_kernels_are_built(
    compiler, store, long_ways, monkeypatch
):
    compiler.there.clear()
    dispatcher = Dispatcher(store=store, waits=False)
    operation._look_for_torch()
    for module in (operation, eager, gradients, operators, backward_pass):
        monkeypatch.setattr(module, "default_dispatcher", lambda: dispatcher)
    a, b = torch.randn(16, 256).bfloat16(), torch.randn(256, 32).bfloat16()
    dy = torch.randn(16, 32).bfloat16()
    for _ in range(3):
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        y = tilewright.gemm(*leaves)
        y.backward(dy)
        assert torch.equal(y, a @ b)
        for leaf, wanted in zip(leaves, (dy @ b.T, a.T @ dy), strict=True):
            torch.testing.assert_close(leaf.grad, wanted)
    assert len(long_ways) == len(dispatcher.standing()) == 3, "the product, and two gradients"


def meanwhile(dispatcher):
    return dispatcher._launches.meanwhile


def test_what_is_refused_is_refused_of_later_calls_too(answering, compiler, long_ways):
    compiler.there.clear()
    space = torch.zeros(16 * 256 + 16 * 32, dtype=torch.bfloat16)
    a = space[: 16 * 256].view(16, 256)
    apart, over = space[16 * 256 :].view(16, 32), space[16 * 255 : 16 * 255 + 512].view(16, 32)
    answering.run("gemm", a, B, out=apart)
    with pytest.raises(BadArgument, match="shares memory"):
        answering.run("gemm", a, B, out=over)
    wanting = A.clone().requires_grad_()
    answering.run("gemm", A, B)
    with pytest.raises(BadArgument, match="requires a gradient"):
        answering.run("gemm", wanting, B)


def test_a_graph_takes_no_answer_of_an_earlier_call(answering, compiler, driver, monkeypatch):
    compiler.there.clear()
    call(answering)
    monkeypatch.setattr(answering._launches.fast, "is_capturing", lambda: True)
    monkeypatch.setattr(type(driver), "capture", lambda self, stream: 1)
    call(answering)
    assert loaded(answering) == [CHOSEN.name]


def test_a_call_that_torch_refuses_later_waits_for_its_kernel(answering, compiler, monkeypatch):
    compiler.there.clear()
    turns = []

    def sometimes():
        turns.append(1)
        if len(turns) > 1:
            raise RuntimeError("no execution plan")
        return torch.full((16, 32), 3.0, dtype=torch.bfloat16)

    bind = {"torch.called": lambda inputs, outputs: sometimes}
    monkeypatch.setattr(type(ops.family("gemm")), "stand_in", lambda self, problem: bind)
    call(answering)
    assert not loaded(answering)
    call(answering)
    assert loaded(answering) == [CHOSEN.name]


def test_answers_of_a_forgotten_choice_are_forgotten(answering, compiler, long_ways):
    compiler.there.clear()
    call(answering)
    answering.forget_launches()
    call(answering)
    call(answering)
    assert len(long_ways) == 2


def test_torch_answers_without_gradients_and_without_autocast(answering, compiler, monkeypatch):
    """As a kernel does: the caller records gradients, and has cast already."""
    compiler.there.clear()
    seen = []

    def stand_in(self, problem):
        def call():
            seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")))
            return torch.full((16, 32), 3.0, dtype=torch.bfloat16)

        return {"torch.called": lambda inputs, outputs: call}

    monkeypatch.setattr(type(ops.family("gemm")), "stand_in", stand_in)
    out = torch.zeros(16, 32, dtype=torch.bfloat16)
    answering.run("gemm", A, B, out=out)
    assert seen == [(False, False)] and (out == 3.0).all()


def test_a_call_that_torch_refuses_waits_for_its_kernel(answering, compiler, monkeypatch, caplog):
    compiler.there.clear()

    def refused():
        raise RuntimeError("no execution plan")

    bind = {"torch.called": lambda inputs, outputs: refused}
    monkeypatch.setattr(type(ops.family("gemm")), "stand_in", lambda self, problem: bind)
    call(answering)
    assert loaded(answering) == [CHOSEN.name]
    assert f"torch.called does not answer for {CHOSEN.name}: no execution plan" in caplog.text


def answered(q, k, v, changed=lambda given: given, **named):
    """What torch answers a call of attention with."""
    family, out = ops.family("attention"), torch.empty_like(q)
    said = calls.spoken("attention", {"scale": 0.25, **named}, 1)
    given = calls.read(family, None, (q, k, v), said, (out,))
    return torch_answer.answer(family, changed(given))


@pytest.mark.parametrize("n", [16, 32])
def test_torch_is_given_operands_as_the_kernel_reads_them(n):
    """Equal sizes do not say that an operand is not turned, and rows of a batch are rows."""
    x, w = torch.randn(2, 3, 16).bfloat16(), torch.randn(n, 16).bfloat16()
    family = ops.family("gemm")
    for equation, a, out in (
        ("mk,nk->mn", x[0], torch.zeros(3, n)),
        ("bmk,nk->bmn", x, torch.zeros(2, 3, n)),
    ):
        out = out.bfloat16()
        said = calls.spoken("gemm", {"equation": equation}, 1)
        given = calls.read(family, None, (a, w), said, (out,))
        found = torch_answer.answer(family, given)
        found(given.all, said.scalars)
        assert found.name == "torch.mm" and torch.equal(out, a @ w.T)


def test_torch_answers_no_call_whose_lengths_lie_on_the_device():
    """Kernels here keep to their operands whatever the lengths are; torch's do not."""
    x = torch.zeros(40, 2, 64, dtype=torch.bfloat16)
    offsets = torch.tensor([0, 10, 40], dtype=torch.int32)
    lengths = {"max_q": 40, "max_kv": 40}
    assert answered(*[x[None]] * 3).name == "aten._flash_attention_forward"
    assert answered(x, x, x, q_offsets=offsets, kv_offsets=offsets, **lengths) is None


def test_torch_answers_no_call_with_arrays_of_fewer_dimensions():
    q = torch.zeros(3, 8, 2, 64, dtype=torch.bfloat16)
    assert answered(q, q, q)
    assert answered(q, q, q, lambda given: replace(given, all=(q, q[0], q[0], q))) is None


@pytest.mark.parametrize(
    "options",
    [{"constraints": Constraints(deterministic=True)}, {"waits": True}],
    ids=str,
)
def test_torch_does_not_answer_where_calls_wait(over, compiler, monkeypatch, options):
    monkeypatch.setattr(Planner, "torch_may_answer", True)
    dispatcher = over(**options)
    call(dispatcher)
    assert len(loaded(dispatcher)) == 1 and not compiler.asked


def test_torch_does_not_answer_in_a_graph(answering, compiler, driver, monkeypatch):
    monkeypatch.setattr(type(driver), "capture", lambda self, stream: 1)
    call(answering)
    assert loaded(answering) == [CHOSEN.name]


def test_when_torch_may_answer():
    assert Dispatcher(device="h200").planner.torch_may_answer
    for limits in ({"only_ours": True}, {"max_workspace": 0}, {"pipelines": ("basic",)}):
        limited = Dispatcher(device="h200", constraints=Constraints(**limits))
        assert not limited.planner.torch_may_answer
    assert not Dispatcher(Registry("none"), device="h200").planner.torch_may_answer


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


@pytest.mark.turns(24)
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
