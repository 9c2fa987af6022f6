"""Backward passes by nodes in C++: which run no Python code, and when they are decided anew."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
from recorded_calls import (  # noqa: E402
    compiled_nodes,  # noqa: F401
    known_call,  # noqa: F401
    recording_driver,  # noqa: F401
    zeros,
)

import tilewright as tw  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import NoCompiler, StoreError  # noqa: E402
from tilewright.runtime import with_torch  # noqa: E402
from tilewright.torch import gradients, nodes  # noqa: E402

of_nodes = pytest.mark.parametrize("driver", ("C++",), indirect=True)


@pytest.fixture
def by_node(known):
    *_, call = known
    call().backward(zeros(2, 8, 6, 6))
    return known


@of_nodes
def test_a_known_backward_pass_runs_no_python_code(by_node, monkeypatch, driver):
    x, w, call = by_node
    for name in ("_backward", "_learnt"):
        monkeypatch.setattr(gradients, name, None)
    out, begin = call(), len(driver.launches)
    made = torch.autograd.grad(out, [x, w], zeros(2, 8, 6, 6))
    assert [one.shape for one in made] == [x.shape, w.shape]
    assert len(driver.launches) == begin + 2


@of_nodes
def test_a_known_backward_pass_of_a_call_with_numbers_runs_no_python_code(driver, monkeypatch):
    """Which numbers it is launched with, is decided anew if they are others."""
    seen, real = [], gradients._backward
    monkeypatch.setattr(gradients, "_backward", lambda *of: seen.append(of[1]) or real(*of))
    leaves = [zeros(1, 8, 2, 16).requires_grad_() for _ in range(3)]

    def step(scale):
        begin = len(driver.launches)
        out = tw.attention(*leaves, scale=scale)
        torch.autograd.grad(out, leaves, torch.empty_like(out))
        return [one["values"] for one in driver.launches[begin:]]

    numbers = [
        {value for one in step(scale) for value in one if isinstance(value, float | bytes)}
        for scale in (0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5)
    ]
    assert numbers[0] == numbers[1] == numbers[2] == numbers[6]
    assert numbers[3] == numbers[4] == numbers[5] != numbers[0]
    asked = len(seen)
    for scale in (0.5, 0.5, 0.5):
        step(scale)
    assert len(seen) == asked


@of_nodes
@pytest.mark.parametrize("other", ("forgotten", "deterministic", "lies otherwise", "aligned"))
def test_a_backward_pass_that_is_not_like_the_last_is_decided_anew(
    by_node, monkeypatch, driver, other
):
    x, w, call = by_node
    out, arriving, seen = call(), zeros(2, 8, 6, 6), []
    real = gradients._backward
    monkeypatch.setattr(gradients, "_backward", lambda *of: seen.append(of) or real(*of))
    if other == "forgotten":
        driver.dispatcher.forget_launches()
    if other == "lies otherwise":
        arriving = zeros(2, 8, 6, 6, order=torch.channels_last)
    if other == "aligned":
        arriving = zeros(2 * 8 * 36 + 1)[1:].view(2, 8, 6, 6)
    if other == "deterministic":
        torch.use_deterministic_algorithms(True)
    try:
        made = torch.autograd.grad(out, [x, w], arriving)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [one.shape for one in made] == [x.shape, w.shape]
    assert len(seen) == 1


@of_nodes
def test_a_known_call_may_be_made_again_by_checkpoint_and_written_in_place(by_node):
    x, w, call = by_node
    for again in range(3):
        out = torch.utils.checkpoint.checkpoint(call, x, w, use_reentrant=False)
        out.relu_()
        made = torch.autograd.grad(out, [x, w], zeros(2, 8, 6, 6))
        assert [one.shape for one in made] == [x.shape, w.shape], again


@of_nodes
def test_what_is_raised_in_a_backward_pass_reaches_the_caller(by_node, monkeypatch, driver):
    x, w, call = by_node
    out = call()
    driver.dispatcher.forget_launches()
    monkeypatch.setattr(gradients, "_backward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        torch.autograd.grad(out, [x, w], zeros(2, 8, 6, 6))


@of_nodes
def test_calls_are_recorded_in_python_until_the_nodes_are_there(driver, monkeypatch, in_cpp):
    fresh, go = nodes._Nodes(), threading.Event()
    monkeypatch.setattr(nodes, "_nodes", fresh)
    monkeypatch.setattr(nodes, "compiled", lambda: go.wait(60) and in_cpp)
    thread = nodes.begun(driver.dispatcher)
    assert nodes.begun(driver.dispatcher) is thread
    x, w = zeros(2, 8, 6, 6).requires_grad_(), zeros(8, 8, 3, 3)

    def kind():
        out = [tw.conv2d(x, w, None, 1, 1) for _ in range(3)][-1]
        out.backward(zeros(2, 8, 6, 6))
        return isinstance(out.grad_fn, torch.autograd.function.BackwardCFunction)

    assert kind()
    go.set()
    thread.join()
    assert not kind()


@pytest.mark.parametrize("driver", ("Python",), indirect=True)
def test_calls_are_recorded_in_python_where_nodes_cannot_be_compiled(driver, monkeypatch, known):
    monkeypatch.setattr(nodes, "_nodes", nodes._Nodes())
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(with_torch, "_LIBRARIES", ("other",))
    nodes.begun(driver.dispatcher).join()
    assert nodes._nodes.module is None
    *_, call = known
    call().backward(zeros(2, 8, 6, 6))


@of_nodes
def test_a_backward_pass_whose_kernels_take_long_to_build_is_repeated_once_they_are(
    by_node, monkeypatch, driver
):
    x, w, call = by_node
    driver.dispatcher.forget_launches()
    seen, real = [], gradients._backward
    monkeypatch.setattr(gradients, "_backward", lambda *of: seen.append(of) or real(*of))

    def passes(count):
        seen.clear()
        for _ in range(count):
            torch.autograd.grad(call(), [x, w], zeros(2, 8, 6, 6))
        return len(seen)

    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "recipe_of", lambda *_: None)
        assert passes(40) == 40
    passes(1)
    assert passes(3) == 0


@of_nodes
def test_deterministic_kernels_with_a_warning_are_decided_apart(by_node, monkeypatch):
    x, w, call = by_node
    seen, real = [], gradients._backward
    monkeypatch.setattr(gradients, "_backward", lambda *of: seen.append(of) or real(*of))
    try:
        for warn_only in (False, True):
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            torch.autograd.grad(call(), [x, w], zeros(2, 8, 6, 6))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(seen) == 2


def test_a_folder_that_others_may_write_to_is_warned_of(monkeypatch, caplog):
    """Whoever does not look at what is only informed of would not hear of it."""
    caplog.set_level("INFO", "tilewright")
    for error in (NoCompiler("no compiler"), StoreError("others may write")):
        monkeypatch.setattr(nodes, "compiled", lambda error=error: (_ for _ in ()).throw(error))
        nodes._Nodes().begin(lambda: None).join()
    assert [one.levelname for one in caplog.records] == ["INFO", "WARNING"]
