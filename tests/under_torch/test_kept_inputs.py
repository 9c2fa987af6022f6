"""A call whose gradients are recorded keeps the input of an activation, as torch's own does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import BATCH, ROOMS, Case, K, M, N, far  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.torch.activations import ACTIVATIONS  # noqa: E402

_BIAS = {"bias": (N,)}
ALONE = ("gelu", "gelu_tanh", "silu")


@pytest.fixture
def calls(monkeypatch):
    """The epilogues of the calls that the dispatcher runs, in order."""
    found, run = [], Dispatcher.run_given

    def noted(self, op, operands, out, stream, keywords, *rest, **more):
        found.append(keywords.get("epilogue", ""))
        return run(self, op, operands, out, stream, keywords, *rest, **more)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    return found


def _gradients_are_right(case: Case) -> None:
    ours = case.operands()
    theirs = case.by_torch(ours)
    result, exact = case.run(ours), case.exact(theirs)
    incoming = torch.randn(exact.shape, generator=torch.Generator().manual_seed(8)).to(case.dtype)
    result.backward(incoming)
    exact.backward(incoming.double())
    assert result.dtype == case.dtype and far(result, exact) < ROOMS[case.dtype]
    for name, x in ours.items():
        assert far(x.grad, theirs[name].grad) < ROOMS[case.dtype], name


def _gradients_are_near(found, tensors, exact, wide) -> None:
    incoming = torch.randn(exact.shape)
    for one, other in zip(
        torch.autograd.grad(found, tensors, incoming),
        torch.autograd.grad(exact, wide, incoming.double()),
        strict=True,
    ):
        assert far(one, other) < 1e-5


@pytest.mark.grid(1)
@pytest.mark.parametrize("dtype", ROOMS, ids=str)
@pytest.mark.parametrize("chain", [f"bias+{name}" for name in ALONE])
def test_the_backward_pass_makes_two_products(calls, chain, dtype):
    _gradients_are_right(Case("", epilogue=chain, extra=_BIAS, dtype=dtype))
    assert calls == ["bias", "", ""]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case("", epilogue="silu"), ["", "", ""]),
        (Case("", epilogue="bias+relu", extra=_BIAS), ["bias+relu", "", ""]),
        (Case("", epilogue="bias+gelu+relu", extra=_BIAS), ["bias", "", ""]),
        (Case("", epilogue="bias+silu", extra=_BIAS, a=(BATCH, M, K)), ["bias", "", ""]),
        (Case("", epilogue="bias+gelu", extra=_BIAS, order_a="c", order_b="c"), ["bias", "", ""]),
        (
            Case("", epilogue="bias+gelu+add", extra=_BIAS | {"add": (M, N)}),
            ["bias+gelu+add", "bias", "", ""],
        ),
        (Case("", epilogue="bias+swiglu", extra=_BIAS), ["bias+swiglu", "bias", "", ""]),
    ],
    ids=lambda x: x.epilogue if isinstance(x, Case) else "",
)
def test_which_inputs_are_kept(calls, case, expected):
    _gradients_are_right(case)
    assert calls == expected


def test_without_gradients_the_activation_stays_within_the_product(calls):
    case = Case("", epilogue="bias+gelu", extra=_BIAS)
    operands = case.operands()
    with torch.no_grad():
        case.run(operands)
    case.run({name: x.detach() for name, x in operands.items()})
    assert calls == ["bias+gelu", "bias+gelu"]


def test_what_is_kept_has_the_dtype_of_the_result():
    case = Case("", epilogue="bias+gelu", extra=_BIAS, dtype=torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        case.run(case.operands())
    shapes = {(tuple(x.shape), x.dtype) for x in kept}
    assert shapes == {(size, torch.bfloat16) for size in ((M, K), (K, N), (M, N))}
    assert len(kept) == 3


def test_checkpoint_keeps_nothing_and_makes_the_product_again(calls):
    from torch.utils.checkpoint import checkpoint

    case = Case("", epilogue="bias+gelu", extra=_BIAS)
    operands = case.operands()
    checkpoint(case.run, operands, use_reentrant=False).sum().backward()
    assert calls == ["bias", "bias", "", ""]


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ALONE)
def test_linear(calls, name):
    x, bias = torch.randn(2, M, K, requires_grad=True), torch.randn(N, requires_grad=True)
    w = torch.randn(N, K, requires_grad=True)
    found = tt.linear(x, w, bias, activation=name)
    wide = [one.detach().double().requires_grad_() for one in (x, w, bias)]
    exact = ACTIVATIONS[name](torch.nn.functional.linear(*wide))
    _gradients_are_near(found, (x, w, bias), exact, wide)
    assert calls == ["bias", "", ""]


def test_a_convolution(calls):
    x = torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last).requires_grad_()
    w, bias = torch.randn(4, 3, 3, 3, requires_grad=True), torch.randn(4, requires_grad=True)
    found = tw.conv(x, w, bias=bias, epilogue="bias+silu")
    wide = [one.detach().double().requires_grad_() for one in (x, w, bias)]
    exact = torch.nn.functional.silu(torch.nn.functional.conv2d(*wide))
    _gradients_are_near(found, (x, w, bias), exact, wide)
    assert calls == ["bias", "", ""]


def test_second_derivatives():
    case = Case("", epilogue="bias+gelu", extra=_BIAS)
    ours = case.operands()
    theirs = case.by_torch(ours)
    for operands, run in ((ours, case.run), (theirs, case.exact)):
        given = tuple(operands.values())
        once = torch.autograd.grad(run(operands).sin().sum(), given, create_graph=True)
        sum((x**2).sum() for x in once).backward()
    for name, x in ours.items():
        assert far(x.grad, theirs[name].grad) < 1e-4


@pytest.mark.turns(8)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(calls, dynamic):
    w, bias = torch.randn(K, N, requires_grad=True), torch.randn(N, requires_grad=True)
    call = torch.compile(
        lambda x: tw.gemm(x, w, bias=bias, epilogue="bias+gelu"),
        backend="aot_eager", fullgraph=True, dynamic=dynamic,
    )  # fmt: skip
    x = torch.randn(M, K, requires_grad=True)
    found = call(x)
    exact = torch.nn.functional.gelu(x.double() @ w.double() + bias.double())
    incoming = torch.randn(M, N)
    for one, other in zip(
        torch.autograd.grad(found, (x, w, bias), incoming),
        torch.autograd.grad(exact, (x, w, bias), incoming.double()),
        strict=True,
    ):
        assert far(one, other) < 1e-5
    assert calls == ["bias", "", ""]


@pytest.mark.turns(8)
def test_under_autocast_the_result_has_its_dtype(calls):
    x, w = torch.randn(M, K, requires_grad=True), torch.randn(K, N, requires_grad=True)
    bias = torch.randn(N, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = tw.gemm(x, w, bias=bias, epilogue="bias+gelu")
    assert found.dtype == torch.bfloat16
    found.sum().backward()
    assert x.grad.dtype == w.grad.dtype == bias.grad.dtype == torch.float32
    assert calls == ["bias", "", ""]


def test_prepare_builds_the_product_that_is_kept(monkeypatch):
    from types import SimpleNamespace

    from tilewright import default
    from tilewright.arch import device
    from tilewright.compile import BuildReport
    from tilewright.preparing import Preparation

    asked = []

    def prepared(problems, **how):
        asked.extend(problems)
        plans = tuple(SimpleNamespace(problem=problem, config=problem) for problem in problems)
        return Preparation(device("h200_sxm"), plans, (), BuildReport((), 0.0))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.bias = (torch.nn.Parameter(torch.randn(*s)) for s in ((K, N), (N,)))

        def forward(self, x):
            return tw.gemm(x, self.w, bias=self.bias, epilogue="bias+gelu")

    monkeypatch.setattr(default, "prepare", prepared)
    assert not tt.prepare(Layer(), torch.randn(M, K, requires_grad=True)).stopped
    products = [p.epilogue for p in asked if p.family == "gemm"]
    assert products == ["bias", "", ""]
    asked.clear()
    with torch.no_grad():
        tt.prepare(Layer(), torch.randn(M, K))
    assert [p.epilogue for p in asked] == ["bias+gelu"]
