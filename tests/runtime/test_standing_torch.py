"""Calls that torch answers while their kernel is built, and kinds of call that are read once
meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patience import until

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from standing_bench import CHOSEN, PROBLEM, A, B, call, loaded  # noqa: E402

import tilewright  # noqa: E402
from tilewright import Constraints, calls, operation, ops, torch_answer  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.plan import Planner  # noqa: E402
from tilewright.registry import Registry  # noqa: E402
from tilewright.torch import backward_pass, eager, gradients, operators  # noqa: E402


@pytest.fixture
def driver(monkeypatch):
    return stand_in_gpu.install(monkeypatch, torch)


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
