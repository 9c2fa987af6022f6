"""Gradients of ``tilewright.gemm`` on CPU tensors, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import BATCH, CASES, ROOMS, Case, K, M, N, far  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.ops.backward import Backward  # noqa: E402
from tilewright.ops.nouns import Operand, View  # noqa: E402
from tilewright.torch.backward_pass import as_input  # noqa: E402


@pytest.fixture
def calls(monkeypatch):
    """The operations that the dispatcher runs, in order, with their operands."""
    found, run = [], Dispatcher.run_given

    def noted(self, op, operands, *rest):
        found.append((op, tuple(operands)))
        return run(self, op, operands, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    return found


@pytest.mark.turns(24)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_those_of_float64(case: Case):
    ours = case.operands()
    theirs = case.by_torch(ours)
    result, exact = case.run(ours), case.exact(theirs)
    assert far(result, exact.detach()) < ROOMS[case.dtype]
    incoming = torch.randn(exact.shape, generator=torch.Generator().manual_seed(8))
    result.backward(incoming.to(case.dtype))
    exact.backward(incoming.to(case.dtype).double())
    for name, x in ours.items():
        if name in case.constant:
            assert x.grad is None
            continue
        assert x.grad.shape == x.shape and x.grad.dtype == x.dtype
        assert far(x.grad, theirs[name].grad) < ROOMS[case.dtype], name


def test_a_tf32_gemm_has_tf32_gradients():
    """The precision of the call is that of its backward pass."""
    family = ops.family("gemm")
    problem = tw.GemmProblem(M, N, K, dtype="fp32", precision="tf32")
    backward = family.gradients(problem, ("A", "B"))
    gemms = [step for step in backward.computations if step.op == "gemm"]
    assert len(gemms) == 2
    assert all(step.options == {"precision": "tf32"} for step in gemms)


@pytest.mark.parametrize("wanted", ["A", "B", "bias"])
def test_only_what_is_asked_for_is_computed(calls, wanted):
    case = Case("", epilogue="bias", extra={"bias": (N,)})
    operands = case.operands()
    for name, x in operands.items():
        x.requires_grad_(name == wanted)
    case.run(operands).sum().backward()
    backward = calls[1:]
    expected = {"A": [((M, N), (N, K))], "B": [((K, M), (M, N))], "bias": []}
    shapes = [tuple(tuple(x.shape) for x in operands) for _, operands in backward]
    assert shapes == expected[wanted]
    assert [name for name, x in operands.items() if x.grad is not None] == [wanted]


def test_the_backward_pass_of_calls_that_look_alike_is_planned_once(monkeypatch):
    family, planned = ops.family("gemm"), []
    gradients = family.gradients

    def noted(problem, wanted):
        planned.append((problem.m, wanted))
        return gradients(problem, wanted)

    monkeypatch.setattr(family, "gradients", noted)

    def call(m: int, a_wants: bool, **options: str) -> None:
        a, b = torch.randn(m, 24, requires_grad=a_wants), torch.randn(24, 40, requires_grad=True)
        tw.gemm(a, b, **options).sum().backward()

    for _ in range(2):
        call(8, True)
    assert planned == [(8, ("A", "B"))]
    call(8, False)
    call(16, True)
    call(8, True, epilogue="relu")
    assert planned[1:] == [(8, ("B",)), (16, ("A", "B")), (8, ("A", "B"))]


def test_transposed_operands_are_views(calls):
    a, b = torch.randn(M, K, requires_grad=True), torch.randn(K, N, requires_grad=True)
    incoming = torch.randn(M, N)
    tw.gemm(a, b).backward(incoming)
    of_a, of_b = (operands for _, operands in calls[1:])
    assert [x.data_ptr() for x in of_a] == [incoming.data_ptr(), b.data_ptr()]
    assert [x.data_ptr() for x in of_b] == [a.data_ptr(), incoming.data_ptr()]


@pytest.mark.parametrize("n", [K, N])
def test_the_gradient_of_a_weight_lies_as_the_weight_does(n):
    """So torch need not copy it into `.grad`."""
    a, w = torch.randn(M, K), torch.randn(n, K, requires_grad=True)
    for result in (tw.gemm(a, w.t()), tw.gemm(a, w, equation="mk,nk->mn")):
        incoming = torch.randn(M, n)
        (found,) = torch.autograd.grad(result, w, incoming)
        assert found.is_contiguous() and far(found, incoming.double().t() @ a.double()) < 1e-5


def test_only_what_the_backward_pass_reads_is_saved():
    a, b = torch.randn(M, K, requires_grad=True), torch.randn(K, N)
    (saved,) = tw.gemm(a, b).grad_fn.saved_tensors
    assert saved is b
    result = tw.gemm(a, b, epilogue="relu")
    assert [tuple(x.shape) for x in result.grad_fn.saved_tensors] == [(K, N), (M, N)]


def test_without_gradients_autograd_is_not_entered(calls):
    a, b = torch.randn(M, K), torch.nn.Parameter(torch.randn(K, N))
    with torch.no_grad():
        assert tw.gemm(a, b).grad_fn is None
    assert tw.gemm(a, b.detach()).grad_fn is None
    assert tw.gemm(a, b).grad_fn is not None
    assert len(calls) == 3


def test_a_module_trains():
    """`nn.Parameter`s outside of `no_grad`, in a model with torch's own operations."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(K, N) * 0.1)
            self.bias = torch.nn.Parameter(torch.zeros(N))

        def forward(self, x):
            return tw.gemm(x, self.weight, bias=self.bias, epilogue="bias")

    torch.manual_seed(0)
    model, x, y = Model(), torch.randn(M, K), torch.randn(M, N)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_elements_that_share_memory_have_a_gradient_each():
    a = torch.randn(M, K).expand(BATCH, M, K).requires_grad_()
    b = torch.randn(BATCH, K, N)
    tw.gemm(a, b).sum().backward()
    assert far(a.grad, b.double().sum(-1)[:, None, :].expand(BATCH, M, K)) < 1e-5


@pytest.mark.turns(32)
def test_a_transposed_incoming_gradient_is_read_as_it_lies():
    a, b = torch.randn(M, K, requires_grad=True), torch.randn(K, N)
    incoming = torch.randn(N, M).t()
    tw.gemm(a, b).backward(incoming)
    assert far(a.grad, incoming.double() @ b.double().t()) < 1e-5


@pytest.mark.parametrize("columns", [False, True])
def test_a_folded_operand_s_gradient_is_laid_out_as_the_input(columns):
    """A family may fold a batch into rows, or into columns, where a reshape would mix them up."""
    x = torch.randn(BATCH, K, N)
    folded = x.reshape(BATCH * K, N)
    if columns:
        x = torch.randn(BATCH, N, K).mT
        folded = x.permute(1, 0, 2).reshape(K, BATCH * N)
    one = Operand("B", tuple(folded.shape), (1, K) if columns else (N, 1), "fp32")
    view = View(tuple(x.shape), x.stride(), "fp32", 0, "cpu")
    assert torch.equal(as_input(folded.contiguous(), view, one), x)


EQUATIONS = ("mk,nk->mn", "km,kn->mn", "mk,kn->nm", "bmk,bnk->bmn", "mbk,bkn->bmn", "qhd,khd->hqk")


@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_gradients_of_a_contraction_of_equal_sizes_are_not_turned(equation):
    """Nothing in the shapes says which dimension is which."""
    terms = equation.partition("->")[0].split(",")
    a, b = (torch.randn((4,) * len(term), requires_grad=True) for term in terms)
    result, exact = tw.gemm(a, b, equation=equation), torch.einsum(equation, a, b)
    incoming = torch.randn(exact.shape).mT
    found = torch.autograd.grad(result, (a, b), incoming)
    wanted = torch.autograd.grad(exact, (a, b), incoming)
    assert all(far(one, other.double()) < 1e-5 for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("empty", ["m", "n", "k"])
def test_empty_operands(empty):
    m, n, k = (0 if size == empty else 16 for size in "mnk")
    a, b = torch.ones(m, k, requires_grad=True), torch.ones(k, n, requires_grad=True)
    tw.gemm(a, b).sum().backward()
    assert torch.equal(a.grad, torch.full((m, k), float(n)))
    assert torch.equal(b.grad, torch.full((k, n), float(m)))


REFUSED = {
    "pre": ({"pre_a": "relu"}, "pre_a has no gradients"),
    "equation": (
        {"equation": "abmk,abkn->abmn", "batching": "nested", "epilogue": "relu"},
        "a gemm of batches in batches has none with an epilogue",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    options, reason = REFUSED[name]
    shape = (2, 2) if name == "equation" else ()
    a = torch.randn(*shape, M, K, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(*shape, K, N, dtype=torch.bfloat16)
    if shape:  # dimensions that do not join
        a = a.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    with pytest.raises(BadArgument, match=rf"{reason}; pass x\.detach\(\).*torch\.no_grad\(\)"):
        tw.gemm(a, b, **options)


def test_refused_operands_by_name():
    case = Case("", epilogue="clamp", extra={"low": (1,), "high": (1,)})
    with pytest.raises(BadArgument, match="clamp has no gradient for low"):
        case.run(case.operands())


def test_refused_dtypes_by_name():
    family = ops.family("gemm")
    for said in ({"dtype": "int8"}, {"dtype": "e4m3fn"}, {"dtype": "bf16", "dtype_c": "fp32"}):
        refused = family.gradients(tw.GemmProblem(64, 64, 64, **said), ("A",))
        assert not refused and refused.rule == "gradients_dtype"
    scaled = tw.GemmProblem(128, 128, 128, dtype="e4m3fn", scale_a="1x128", scale_b="128x128")
    assert not isinstance(family.gradients(scaled, ("A",)), Backward)


def test_a_family_without_gradients_says_so():
    outputs = torch.randn(3, 2, 2, 16, requires_grad=True)
    with pytest.raises(BadArgument, match="merge_states states no gradients"):
        tw.merge_states(outputs, torch.randn(3, 2, 2))


@pytest.mark.parametrize("call", [tw.gemm, lambda a, b: torch.ops.tilewright.gemm([a, b])[0]])
def test_tangents_are_refused(call):
    a, b, tangent = torch.randn(M, K), torch.randn(K, N), torch.randn(M, K)
    with forward_ad.dual_level():
        assert torch.equal(call(a, b), tw.gemm(a, b))
        dual = forward_ad.make_dual(a, tangent)
        with pytest.raises(BadArgument, match="gemm has no forward-mode derivative; pass"):
            call(dual, b)
        assert torch.equal(call(forward_ad.unpack_dual(dual).primal, b), tw.gemm(a, b))


def test_a_dispatcher_records_no_gradients():
    a, b = torch.randn(M, K, requires_grad=True), torch.randn(K, N)
    with pytest.raises(BadArgument, match=r"call the operation itself \(tilewright\.<operation>\)"):
        Dispatcher().run("gemm", a, b)
    with pytest.raises(BadArgument, match="without out="):
        tw.gemm(a, b, out=torch.empty(M, N))
