"""Calls that an installation passes on to torch: once a kind is known to be torch's, no Python of
ours runs for it."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from install_cases import CONV, layer, on, operands, served, table  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.errors import BadArgument, BuildFailed, NoCompiler  # noqa: E402
from tilewright.runtime.launcher import compiled  # noqa: E402
from tilewright.torch.installing import decisions, overrides  # noqa: E402


def lines_of_ours(run) -> Counter:
    """How often functions of ours are entered while `run` runs, by name."""
    found = Counter()

    def enters(frame, event, _):
        if event == "call" and "tilewright/" in frame.f_code.co_filename.replace("\\", "/"):
            found[frame.f_code.co_name] += 1

    sys.setprofile(enters)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture(params=("C++", "C"))
def in_c(request, monkeypatch):
    """With calls that are passed on in C++, and by the launcher: without a compiler, all of this is
    Python."""
    try:
        compiled()
    except NoCompiler:
        pytest.skip("the launcher is not compiled here")
    if request.param == "C":
        monkeypatch.setattr(overrides, "in_cpp", lambda: None)
    elif overrides.in_cpp() is None:
        pytest.skip("nothing is compiled with torch's headers here")


@pytest.mark.usefixtures("in_c")
def test_calls_that_are_passed_on_run_no_python(computing):
    """Products and convolutions with their gradients: once a kind is known to be torch's."""
    computing(tw.Table.of([*table(), *table(problem=CONV, kernel="a kernel")]))
    x, w, bias = torch.randn(2, 8, 7, 7), torch.randn(16, 8, 3, 3), torch.randn(16)
    x, w, bias = x.bfloat16(), w.bfloat16(), bias.bfloat16()
    a, b = operands(n=32)

    def step():
        layer(x, w, bias, stride=2, padding=1)
        layer(x, w, bias)
        a @ b.t()
        torch.addmm(a[:, :32], a, b.t())

    def unlike():
        layer(x, w, bias, stride=1, padding=1)
        a.t() @ a

    with on() as found:
        assert {"decide"} < lines_of_ours(step).keys()
        assert not lines_of_ours(step)
        assert lines_of_ours(unlike)["decide"] >= 4
        assert not lines_of_ours(unlike) and not served(found)
        kinds = Counter(one["operator"] for one in found.report()["torch"])
    parts = "convolution", "convolution_backward: data", "convolution_backward: weights"
    assert [kinds[part] for part in parts] == [3, 3, 3]


@pytest.mark.usefixtures("in_c")
def test_calls_that_failed_are_passed_on(computing):
    dispatcher = computing()
    dispatcher.fails = BuildFailed("no compiler")
    a, b = operands()
    with on():
        a @ b.t()
        assert lines_of_ours(lambda: a @ b.t()) == Counter()
    assert len(dispatcher.seen) == 1


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_calls_that_are_passed_on_make_no_objects_of_python(computing, monkeypatch, dtype):
    if overrides.in_cpp() is None:
        pytest.skip("nothing is compiled with torch's headers here")
    asked = []
    real = decisions.Decisions.learn
    monkeypatch.setattr(
        decisions.Decisions,
        "learn",
        staticmethod(lambda passed: asked.append(real(passed)) or asked[-1]),
    )
    computing()
    (a, b), (c, d) = operands(n=32, dtype=dtype), operands(n=48, dtype=dtype)
    with on():
        for x, y in ((a, b), (c, d), (a, b), (c, d)):
            assert torch.equal(x @ y.t(), torch.mm(x.double(), y.t().double()).to(dtype))
        torch.use_deterministic_algorithms(True)
        a @ b.t()
        torch.use_deterministic_algorithms(False)
    assert asked == ([] if dtype is torch.float32 else [True] * 3)


@pytest.mark.usefixtures("in_c")
def test_calls_in_inference_mode_are_passed_on_as_those_before_were(computing, monkeypatch):
    computing()
    asked = []
    real = decisions.Decisions.forget_last
    monkeypatch.setattr(
        decisions.Decisions, "forget_last", staticmethod(lambda: asked.append(real()))
    )
    a, b = operands(n=32)
    with on():
        a @ b.t()
        known = len(asked)
        with torch.inference_mode():
            c = a.clone()
            assert c.is_inference()
            for _ in range(3):
                assert torch.equal(c @ b.t(), a @ b.t())
        assert len(asked) == known


def test_a_convolution_is_not_passed_on_to_an_override_that_was_removed(computing):
    """What stood below us, of another library."""
    computing(tw.Table.of(table(problem=CONV, kernel="a kernel")))
    x, w = torch.randn(2, 8, 7, 7).bfloat16(), torch.randn(16, 8, 3, 3).bfloat16()
    wanted, below = torch.conv2d(x, w), torch.library.get_kernel("aten::convolution", "CPU")
    other, asked = torch.library.Library("aten", "IMPL"), []

    def theirs(keys, *given):
        asked.append(given)
        return below.call_boxed(keys, *given)

    other.impl("convolution", theirs, "CPU", with_keyset=True, allow_override=True)
    with on():
        for _ in range(3):
            assert torch.equal(torch.conv2d(x, w), wanted)
        assert len(asked) == 3
        other._destroy()
        with pytest.raises(RuntimeError, match="was removed"):
            torch.conv2d(x, w)
    assert torch.equal(torch.conv2d(x, w), wanted)


def test_what_is_passed_on_is_bounded(computing, monkeypatch):
    computing()
    monkeypatch.setattr(decisions, "KEPT", 3)
    with on() as found:
        for k in range(16, 16 + 5 * 8, 8):
            x, w = operands(n=32, k=k)
            x @ w.t()
        assert 0 < len(found._decisions.passed("mm")) <= 3


def test_a_gradient_that_is_ours_is_not_passed_on(every):
    """Whichever gradients were asked for before."""
    x, w, dy = (
        torch.randn(shape).bfloat16() for shape in ((2, 8, 7, 7), (16, 8, 3, 3), (2, 16, 5, 5))
    )
    geometry = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    run = torch.ops.aten.convolution_backward
    with on("all") as found:
        for mask in ([False, False, True], [True, False, True], [False, True, False]) * 2:
            run(dy, x, w, [16], *geometry, mask)
    parts = "convolution_backward: data", "convolution_backward: weights"
    assert served(found) == dict.fromkeys(parts, 2)


def test_a_call_of_which_one_gradient_is_ours_is_not_passed_on(every, monkeypatch):
    plan = every.planner.plan

    def of_data(problem, *more):
        if problem.direction == "weights":
            raise BadArgument("no kernel")
        return plan(problem, *more)

    monkeypatch.setattr(every.planner, "plan", of_data)
    x, w = torch.randn(2, 8, 7, 7).bfloat16(), torch.randn(16, 8, 3, 3).bfloat16()
    with on("all") as found:
        for _ in range(3):
            layer(x, w, torch.ones(16).bfloat16())
    assert served(found) == {"convolution": 3, "convolution_backward: data": 3}
