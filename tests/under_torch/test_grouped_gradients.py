"""Grouped products with torch's arguments, and their gradients, against float64."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import ROOMS, clamped, far  # noqa: E402
from grouped_products import exact, used  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
import tilewright.torch.flops  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.ops.grouped_gemm import GroupedGemmProblem  # noqa: E402

TOKENS, M, N, K = 40, 16, 24, 8
ENDS = torch.tensor([7, 7, 9, 37], dtype=torch.int32)
"""A group without rows, and rows of no group."""
COLUMNS = [(False, False), (False, True), (True, False), (True, True)]
"""Whether A and B are column-major."""
SHAPES = {
    "rows": ((TOKENS, K), (4, K, N)),
    "sum": ((M, TOKENS), (TOKENS, N)),
    "columns": ((4, M, K), (K, TOKENS)),
    "batch": ((4, M, K), (4, K, N)),
}


def made(shape, by_columns=False, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    x = x.mT.contiguous().mT if by_columns else x
    return x.to(dtype).requires_grad_()


def doubled(*tensors):
    return tuple(x.detach().double().requires_grad_() for x in tensors)


def offs_of(name):
    return None if name == "batch" else ENDS


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_gradients_are_those_of_float64(name, columns):
    """Whatever arrives for rows and columns of no group: of these torch says nothing."""
    a, b = (made(s, c) for s, c in zip(SHAPES[name], columns, strict=True))
    x, y = doubled(a, b)
    result, wanted = tt.grouped_mm(a, b, offs=offs_of(name)), exact(x, y, offs_of(name))
    there = used(wanted, name, ENDS)
    assert far(result[there], wanted[there].detach()) < 1e-5
    arriving = torch.randn(wanted.shape)
    found = torch.autograd.grad(result, (a, b), arriving.where(there, torch.nan))
    theirs = torch.autograd.grad(wanted, (x, y), arriving.double().where(there, 0))
    for one, other, given in zip(found, theirs, (a, b), strict=True):
        assert one.shape == given.shape and far(one, other) < 1e-5


@pytest.mark.turns(12)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_16_bits_are_those_of_the_rounded_operands(dtype):
    for name, (first, second) in SHAPES.items():
        a, b = made(first, dtype=dtype), made(second, dtype=dtype)
        x, y = doubled(a, b)
        result, wanted = tt.grouped_mm(a, b, offs=offs_of(name)), exact(x, y, offs_of(name))
        there = used(wanted, name, ENDS)
        arriving = torch.randn(wanted.shape).to(dtype)
        found = torch.autograd.grad(result, (a, b), arriving)
        theirs = torch.autograd.grad(wanted, (x, y), arriving.double().where(there, 0))
        for one, other in zip(found, theirs, strict=True):
            assert one.dtype == dtype and far(one, other) < ROOMS[dtype]


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_second_derivatives_are_those_of_float64(name, columns):
    given = tuple(made(s, c) for s, c in zip(SHAPES[name], columns, strict=True))
    theirs = doubled(*given)

    def penalised(product, inputs):
        result = product(*inputs, offs_of(name))
        weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
        kept = weights.to(result.dtype).where(used(result, name, ENDS), 0)
        slopes = torch.autograd.grad(result, inputs, kept, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in slopes), inputs)

    found = penalised(lambda a, b, offs: tt.grouped_mm(a, b, offs=offs), given)
    for one, other in zip(found, penalised(exact, theirs), strict=True):
        assert far(one, other) < 1e-4


@pytest.mark.turns(12)
def test_offsets_that_begin_with_a_start_and_a_bias_with_an_activation():
    a, b, bias = made((TOKENS, K)), made((4, K, N)), made((4, N))
    bounds = torch.tensor([3, 7, 7, 9, 37], dtype=torch.int32)
    out = tw.grouped_gemm(a, b, bounds, bias=bias, epilogue="bias+silu", zero_rest=True)
    x, y, z = doubled(a, b, bias)
    parts = [x[i:j] @ y[g] + z[g] for g, (i, j) in enumerate(itertools.pairwise(bounds.tolist()))]
    wanted = torch.nn.functional.silu(torch.cat(parts))
    assert far(out[3:37], wanted.detach()) < 1e-5
    arriving = torch.randn(TOKENS, N)
    found = torch.autograd.grad(out, (a, b, bias), arriving)
    theirs = torch.autograd.grad(wanted, (x, y, z), arriving[3:37].double())
    for one, other in zip(found, theirs, strict=True):
        assert one.shape == other.shape and far(one, other) < 1e-5


@pytest.mark.turns(8)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("gate", ["swiglu", "geglu", "clamped_swiglu_plus"])
def test_a_gate_of_groups_has_a_gradient(gate, apart):
    """Of gates and ups that take turns, and of gates before ups."""
    a, b = made((TOKENS, K)), made((4, K, N), by_columns=True)
    numbers = {"limit": 2.0, "alpha": 1.7} if "clamped" in gate else {}
    out = tw.grouped_gemm(a, b, ENDS, epilogue=gate, gates_apart=apart, **numbers)
    x, y = doubled(a, b)
    sums = exact(x, y, ENDS)
    gates, ups = sums.chunk(2, -1) if apart else (sums[:, 0::2], sums[:, 1::2])
    wanted = {
        "swiglu": lambda: torch.nn.functional.silu(gates) * ups,
        "geglu": lambda: torch.nn.functional.gelu(gates) * ups,
        "clamped_swiglu_plus": lambda: clamped(gates, ups, 2.0, 1.7, 1),
    }[gate]()
    there = used(wanted, "rows", ENDS)
    assert far(out[there], wanted[there].detach()) < 1e-5
    arriving = torch.randn(wanted.shape)
    found = torch.autograd.grad(out, (a, b), arriving)
    theirs = torch.autograd.grad(wanted, (x, y), arriving.double().where(there, 0))
    for one, other in zip(found, theirs, strict=True):
        assert far(one, other) < 1e-5


@pytest.mark.turns(8)
@pytest.mark.parametrize("per_row", [1, 3])
def test_gathered_rows_add_up_their_gradients(per_row):
    """A row that is named several times, one that never is, and numbers that name none."""
    rows = torch.tensor([*range(0, 36, 2), 5, 5, -1, 36, -9, 100, *range(16)], dtype=torch.int32)
    tokens = 36 // per_row
    a, b = made((tokens, K)), made((4, K, N))
    result = tw.grouped_gemm(a, b, ENDS, rows=rows, per_row=per_row, epilogue="silu")
    x, y = doubled(a, b)
    picked = torch.zeros(len(rows), K, dtype=torch.float64)
    there = (rows >= 0) & (rows < 36)
    picked[there] = x[rows[there].long() // per_row]
    wanted = torch.nn.functional.silu(exact(picked, y, ENDS))
    mine = used(wanted, "rows", ENDS)
    arriving = torch.randn(wanted.shape)
    found = torch.autograd.grad(result, (a, b), arriving)
    theirs = torch.autograd.grad(wanted, (x, y), arriving.double().where(mine, 0))
    for one, other in zip(found, theirs, strict=True):
        assert one.shape == other.shape and far(one, other) < 1e-5


@pytest.mark.turns(8)
@pytest.mark.parametrize("columns", [False, True])
def test_a_capacity_has_gradients_of_the_rows_that_are_used(columns):
    """Whatever lies in the others, and arrives for them."""
    a, b, bias = made((4, 9, K)), made((4, K, N), columns), made((4, N))
    counts = torch.tensor([9, 0, 4, 7], dtype=torch.int32)
    unused = (torch.arange(9) >= counts[:, None])[..., None]
    a = a.detach().masked_fill(unused, torch.nan).requires_grad_()
    out = tw.grouped_gemm(a, b, counts, bias=bias, epilogue="bias+relu")
    x, y, z = doubled(a, b, bias)
    wanted = torch.relu(x.masked_fill(unused, 0) @ y + z[:, None]).masked_fill(unused, 0)
    arriving = torch.randn(4, 9, N)
    found = torch.autograd.grad(out, (a, b, bias), arriving.masked_fill(unused, torch.nan))
    theirs = torch.autograd.grad(wanted, (x, y, z), arriving.double())
    for one, other in zip(found, theirs, strict=True):
        assert one.shape == other.shape and far(one, other) < 1e-5


def test_a_weight_that_a_layer_keeps_has_its_gradient_as_it_lies():
    """So torch need not copy it into `.grad`; and no operand is transposed by a copy."""
    x, w = made((TOKENS, K)).detach(), torch.randn(4, N, K, requires_grad=True)
    tt.grouped_mm(x, w.transpose(1, 2), offs=ENDS).sum().backward()
    assert w.grad.is_contiguous()


def test_transposed_operands_are_views(monkeypatch):
    calls, run = [], Dispatcher.run_given

    def noted(self, op, operands, *rest):
        calls.append(tuple(operands))
        return run(self, op, operands, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    x, w = made((TOKENS, K)), made((4, N, K))
    arriving = torch.randn(TOKENS, N)
    tt.grouped_mm(x, w.transpose(1, 2), offs=ENDS).backward(arriving)
    _, of_x, of_w = calls
    assert [t.data_ptr() for t in of_x[:2]] == [arriving.data_ptr(), w.data_ptr()]
    assert [t.data_ptr() for t in of_w[:2]] == [arriving.data_ptr(), x.data_ptr()]


def test_a_mixture_trains():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, K, N) * 0.1)
    x, y = torch.randn(37, K), torch.randn(37, N)
    optimiser, losses = torch.optim.SGD([weight], lr=1.0), []
    for _ in range(5):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(tt.grouped_mm(x, weight, offs=ENDS), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_operations_are_counted_forward_and_backward():
    a, b = made((TOKENS, K)), made((4, K, N))
    with FlopCounterMode(display=False) as counter:
        tt.grouped_mm(a, b, offs=ENDS).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * TOKENS * K * N


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["rows", "sum", "columns"])
def test_compiled_gradients_are_the_same(name):
    given = tuple(map(made, SHAPES[name]))
    compiled = torch.compile(
        lambda a, b: tt.grouped_mm(a, b, offs=ENDS), fullgraph=True, backend="aot_eager"
    )
    result, wanted = compiled(*given), tt.grouped_mm(*given, offs=ENDS)
    there = used(wanted, name, ENDS)
    arriving = torch.randn(wanted.shape)
    assert torch.equal(result[there], wanted[there])
    found = torch.autograd.grad(result, given, arriving)
    for one, other in zip(found, torch.autograd.grad(wanted, given, arriving), strict=True):
        assert torch.equal(one, other)


A, B = made((TOKENS, K)), made((4, K, N))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tt.grouped_mm(A, B), "offs must say where the groups end"),
        (lambda: tt.grouped_mm(A, B, offs=ENDS[:3]), r"must be int32 \[4\]"),
        (lambda: tt.grouped_mm(A, B, offs=ENDS.long()), r"offs is torch.int64 \[4\]"),
        (lambda: tt.grouped_mm(B, B, offs=ENDS), "groups in two dimensions"),
        (lambda: tt.grouped_mm(A, B, offs=ENDS, bias=A), "bias and out_dtype are not"),
        (lambda: tt.grouped_mm(A[0], B, offs=ENDS), "mat_a is .* must have 2 or 3 dimensions"),
        (
            lambda: tw.grouped_gemm(A, B, ENDS, col_scale=torch.ones(4, N), epilogue="col_scale"),
            "col_scale of groups has no gradient",
        ),
        (
            lambda: tw.grouped_gemm(
                A, B, ENDS, add=torch.ones(TOKENS, N, requires_grad=True), epilogue="add"
            ),
            "no gradient for add, only for A, B and a bias",
        ),
    ],
)
def test_what_has_no_gradient_says_so(call, said):
    with pytest.raises(BadArgument, match=said):
        call()


def test_other_dtypes_and_scales_are_refused_by_name():
    family = ops.family("grouped_gemm")
    sizes = {"groups": 4, "m": 128, "n": 128, "k": 128}
    for said, rule in (
        ({"dtype_a": "int8"}, "dtype"),
        ({"dtype_c": "fp32"}, "dtype"),
        ({"scale_b": "128x128"}, "scales"),
    ):
        refused = family.gradients(GroupedGemmProblem("contiguous", **sizes, **said), ("A",))
        assert not refused and refused.rule == f"gradients_{rule}"
