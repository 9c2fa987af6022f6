"""Derivatives of backward passes against float64: create_graph, hvp, gradgradcheck."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import BATCHED, EPILOGUES, LAYOUTS, ROOMS, Case, K, M, N, far  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import flash_attn_func  # noqa: E402


def penalised(result, inputs, directions):
    """Gradients of the result and of its gradients, each weighed at random: a derivative of the
    second order, whose parts of the first cannot stand for it."""
    slopes = torch.autograd.grad(result, inputs, directions[0].to(result), create_graph=True)
    weighed = (g * v.to(g) for g, v in zip(slopes, directions[1:], strict=True))
    whole = sum(one.sum() for one in weighed) + result.square().sum()
    return torch.autograd.grad(whole, inputs, allow_unused=True)


@pytest.mark.turns(96)
@pytest.mark.parametrize("case", [LAYOUTS[-1], *BATCHED, *EPILOGUES], ids=lambda case: case.name)
def test_second_derivatives_are_those_of_float64(case: Case):
    ours = case.operands()
    theirs = case.by_torch(ours)
    torch.manual_seed(3)
    wanted = [name for name, x in ours.items() if x.requires_grad]
    result, exact = case.run(ours), case.exact(theirs)
    directions = [torch.randn(exact.shape), *(torch.randn(ours[name].shape) for name in wanted)]
    found = penalised(result, [ours[name] for name in wanted], directions)
    expected = penalised(exact, [theirs[name] for name in wanted], directions)
    for name, one, other in zip(wanted, found, expected, strict=True):
        assert one.shape == ours[name].shape and one.dtype == ours[name].dtype
        assert far(one, other) < 2 * ROOMS[case.dtype], name


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("a", "b"), [((M, K), (K, N)), ((K,), (K,)), ((K,), (3, K, 5)), ((2, 3, 4, K), (2, 3, K, 5))]
)
def test_a_gradient_penalty_trains_as_torchs(a, b):
    """The penalty alone moves the loss."""
    a, b = torch.randn(a, requires_grad=True), torch.randn(b, requires_grad=True)

    def loss(product):
        (slope,) = torch.autograd.grad(product(a, b).square().sum(), a, create_graph=True)
        return product(a, b).sum() + slope.square().sum()

    ours, theirs = (torch.autograd.grad(loss(one), (a, b)) for one in (tw.gemm, torch.matmul))
    for one, other in zip(ours, theirs, strict=True):
        assert far(one, other) < 1e-5


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_any_number_of_inputs_may_want_a_graph(wanted):
    given = [torch.randn(M, K), torch.randn(K, N), torch.randn(N)]
    for x in given[:wanted]:
        x.requires_grad_()
    tw.gemm(*given, epilogue="bias").square().sum().backward(create_graph=True)
    a, b, bias = (x.detach().clone().requires_grad_() for x in given)
    (a @ b + bias).square().sum().backward()
    for x, exact in zip(given[:wanted], (a, b, bias), strict=False):
        assert far(x.grad.detach(), exact.grad) < 1e-5 and x.grad.requires_grad
        x.grad = None  # it refers to x: neither would ever be freed


def test_third_derivatives():
    a, b = torch.randn(M, K, requires_grad=True), torch.randn(K, N)
    (first,) = torch.autograd.grad(tw.gemm(a, b).pow(3).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), a)
    rows = b.double().sum(0).square().expand(M, N)
    assert far(third, 6 * rows @ b.double().T) < 1e-4


def test_other_operations_refuse_a_graph_when_it_is_made():
    q, k, v = (torch.randn(1, 4, 2, 16) for _ in range(3))
    for wanted in ([q], [q, k, v]):
        for x in wanted:
            x.requires_grad_()
        result = flash_attn_func(q, k, v)
        with pytest.raises(BadArgument, match=r"attention has no second derivative.*create_graph"):
            result.sum().backward(create_graph=True, inputs=[q])
        with pytest.raises(BadArgument, match="attention has no second derivative"):
            torch.autograd.grad(result.sum(), wanted, create_graph=True)
    x, w = torch.randn(1, 8, 6, requires_grad=True), torch.randn(8, 3)
    with pytest.raises(BadArgument, match="causal_conv has no second derivative"):
        torch.autograd.grad(tw.causal_conv1d(x, w).sum(), x, create_graph=True)
    with pytest.raises(BadArgument, match="attention has no second derivative"):
        torch.autograd.functional.hvp(lambda q: tw.attention(q, k, v).sum(), q, q)


def test_hvp():
    x, v, w = torch.randn(M, K), torch.randn(M, K), torch.randn(K, N)
    _, ours = torch.autograd.functional.hvp(lambda x: tw.gemm(x, w, epilogue="gelu").sum(), x, v)
    exact = [one.double() for one in (x, v, w)]
    _, theirs = torch.autograd.functional.hvp(
        lambda x: functional.gelu(x @ exact[2]).sum(), exact[0], exact[1]
    )
    assert far(ours, theirs) < 1e-5


@pytest.mark.turns(24)
def test_gradgradcheck():
    """A product is bilinear: differences in fp32 are as exact as its sums."""
    x, w = torch.randn(3, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    bias = torch.randn(2, requires_grad=True)

    def linear(x, w, bias):
        return tw.gemm(x, w.T, bias, epilogue="bias")

    room = {"eps": 0.5, "atol": 1e-4, "rtol": 1e-4}
    assert torch.autograd.gradcheck(linear, (x, w, bias), **room)
    assert torch.autograd.gradgradcheck(linear, (x, w, bias), **room)
