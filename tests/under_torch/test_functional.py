"""Torch's functions of this package: the results and gradients of torch's own, without copies."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import far  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import tilewright.torch as tt  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.torch.functional import convolutions, precision, products  # noqa: E402

F = torch.nn.functional
NEAR = 1e-5
"""Of a result's norm, in fp32."""


@pytest.fixture
def calls(monkeypatch):
    """The operations that the dispatcher runs, in order, with their operands."""
    found, run = [], Dispatcher.run_given

    def noted(self, op, operands, *rest):
        found.append((op, tuple(operands)))
        return run(self, op, operands, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    return found


def randn(*shape: int, grad: bool = True) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.requires_grad_(grad)


@dataclass(frozen=True)
class Case:
    """A call of ours, and of torch's, with tensors of these shapes."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    said: dict[str, Any] = field(default_factory=dict)

    def given(self) -> tuple[Any, ...]:
        return tuple(randn(*shape) for shape in self.shapes)


def _behind_linear(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given, activation: function(F.linear(*given))


def _sdpa(*shapes: tuple[int, ...], **said: Any) -> Case:
    ours, theirs = tt.scaled_dot_product_attention, F.scaled_dot_product_attention
    return Case(ours, theirs, shapes, said)


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}

CASES = {
    "mm": Case(tt.mm, torch.mm, ((8, 16), (16, 24))),
    "bmm": Case(tt.bmm, torch.bmm, ((2, 8, 16), (2, 16, 24))),
    "matmul of vectors": Case(tt.matmul, torch.matmul, ((16,), (16,))),
    "matmul broadcast": Case(tt.matmul, torch.matmul, ((3, 1, 8, 16), (2, 16, 24))),
    "matmul of five": Case(tt.matmul, torch.matmul, ((2, 3, 1, 8, 16), (4, 16, 24))),
    "matmul by one": Case(tt.matmul, torch.matmul, ((2, 1, 3, 8, 16), (16, 24))),
    "addmm": Case(tt.addmm, torch.addmm, ((24,), (8, 16), (16, 24)), {"beta": 0.5, "alpha": 2}),
    "addmm of rows": Case(tt.addmm, torch.addmm, ((8, 1), (8, 16), (16, 24))),
    "baddbmm": Case(tt.baddbmm, torch.baddbmm, ((8, 24), (2, 8, 16), (2, 16, 24))),
    "linear": Case(tt.linear, F.linear, ((2, 8, 16), (16, 16), (16,))),
    "linear of four": Case(tt.linear, F.linear, ((2, 1, 8, 16), (16, 16), (16,))),
    "linear of five": Case(tt.linear, F.linear, ((2, 1, 3, 8, 16), (16, 16), (16,))),
    "linear of six": Case(tt.linear, F.linear, ((2, 1, 1, 3, 8, 16), (16, 16))),
    "linear of one": Case(tt.linear, F.linear, ((16,), (24, 16))),
    **{
        f"linear {name}": Case(
            tt.linear, _behind_linear(function), ((8, 16), (16, 16), (16,)), {"activation": name}
        )
        for name, function in ACTIVATIONS.items()
    },
    "attention": _sdpa((2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 8), is_causal=True, scale=0.3),
    "attention of three": _sdpa((4, 5, 16), (4, 9, 16), (4, 9, 16)),
    "attention of two": _sdpa((5, 16), (9, 16), (9, 16)),
    "attention of five": _sdpa((2, 3, 4, 5, 16), (1, 4, 9, 16), (3, 4, 9, 16)),
    "attention shared": _sdpa((2, 4, 5, 16), (1, 1, 9, 16), (2, 1, 9, 16)),
    "attention grouped": _sdpa((1, 4, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16), enable_gqa=True),
    "attention masked": _sdpa(
        (2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16),
        attn_mask=torch.arange(45).reshape(5, 9) % 4 > 0,
    ),
    "attention by keys": _sdpa(
        (2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 16), attn_mask=torch.ones(2, 1, 5, 1)
    ),
    "conv2d": Case(tt.conv2d, F.conv2d, ((1, 4, 6, 6), (8, 4, 3, 3), (8,)), {"padding": 1}),
    "conv_transpose1d": Case(tt.conv_transpose1d, F.conv_transpose1d, ((1, 4, 6), (4, 8, 3))),
}  # fmt: skip


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_torch_s(name):
    case = CASES[name]
    given = case.given()
    found, wanted = (call(*given, **case.said) for call in (case.ours, case.theirs))
    assert found.shape == wanted.shape
    assert far(found, wanted.double().detach()) < NEAR
    incoming = randn(*wanted.shape, grad=False)
    grads = (torch.autograd.grad(x, given, incoming) for x in (found, wanted))
    for one, other in zip(*grads, strict=True):
        assert one.shape == other.shape and far(one, other.double()) < NEAR


def test_attention_lies_as_its_queries_do():
    rows_first = randn(2, 5, 4, 16, grad=False).transpose(1, 2)
    found = tt.scaled_dot_product_attention(rows_first, rows_first, rows_first)
    assert found.transpose(1, 2).is_contiguous()
    heads_first = rows_first.contiguous()
    again = tt.scaled_dot_product_attention(heads_first, heads_first, heads_first)
    assert again.is_contiguous() and far(again, found.double()) < NEAR


def test_linear_is_one_launch_on_the_weight_as_it_lies(calls):
    x, weight, bias = randn(2, 3, 16), randn(24, 16), randn(24)
    with torch.no_grad():
        tt.linear(x, weight, bias, "gelu")
        tt.linear(x.transpose(0, 1), weight.t().contiguous().t())
        pixels = x.reshape(2, 3, 1, 16)
        tt.linear(pixels, weight)
        tt.linear(pixels.permute(2, 0, 1, 3)[::2, :, ::2], weight)
    (op, operands), (_, turned), (_, whole), (_, copied) = calls
    assert op == "gemm" and operands[0] is x and operands[1] is weight
    assert turned[0].data_ptr() == x.data_ptr()
    assert whole[0] is pixels and copied[0].shape == (4, 16)


def test_strides_that_no_kernel_reads_are_copied_as_torch_copies_them():
    row = randn(1, 16, grad=False).expand(8, 16)
    apart = randn(16, 48, grad=False)[:, ::2]
    assert far(tt.mm(row, apart), (row @ apart).double()) < NEAR


EXPANDED = {
    "bmm": (tt.bmm, torch.bmm, ((8, 16), (3, 8, 16)), ((16, 8), (3, 16, 8))),
    "matmul": (tt.matmul, torch.matmul, ((8, 16), (3, 8, 16)), ((16, 8), (16, 8))),
    "matmul of four": (
        tt.matmul, torch.matmul, ((2, 1, 8, 16), (2, 3, 8, 16)), ((16, 8), (3, 16, 8)),
    ),
    "matmul of five": (
        tt.matmul, torch.matmul, ((8, 16), (8, 16)), ((16, 8), (2, 2, 2, 16, 8)),
    ),
    "linear": (tt.linear, F.linear, ((8, 16), (3, 8, 16)), ((8, 16), (8, 16))),
}  # fmt: skip


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", EXPANDED)
def test_a_batch_of_one_expanded_matrix_is_multiplied_as_torch_multiplies_it(name):
    ours, theirs, *shapes = EXPANDED[name]
    given = [randn(*shape) for shape, _ in shapes]
    operands = [x.expand(size) for x, (_, size) in zip(given, shapes, strict=True)]
    found, wanted = ours(*operands), theirs(*operands)
    assert found.shape == wanted.shape and far(found, wanted.double().detach()) < NEAR
    grads = (torch.autograd.grad(x.square().sum(), given) for x in (found, wanted))
    assert all(far(x, y.double()) < NEAR for x, y in zip(*grads, strict=True))


def test_a_matrix_is_added_to_products_of_expanded_ones():
    a, b, added = randn(8, 16).expand(3, 8, 16), randn(16, 8).expand(3, 16, 8), randn(3, 8, 8)
    assert far(tt.baddbmm(added, a, b), torch.baddbmm(added, a, b).double().detach()) < NEAR


@pytest.mark.turns(32)
def test_compiled_it_is_one_node():
    seen = []

    def backend(module, _):
        seen.extend(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return module.forward

    given = [x.detach() for x in (randn(2, 3, 16), randn(24, 16), randn(24))]
    compiled = torch.compile(tt.linear, fullgraph=True, backend=backend)
    assert torch.equal(compiled(*given, "relu"), tt.linear(*given, "relu"))
    assert [name for name in seen if "tilewright" in name] == ["tilewright.gemm.default"]


@pytest.mark.parametrize(
    ("call", "shapes", "symbolic"),
    [
        (lambda a, x, w: tt.addmm(a, x, w.t()), ((12,), (8, 16), (12, 16)), (2, 0)),
        (lambda a, x, w: tt.addmm(a, x, w.t()), ((8, 12), (8, 16), (12, 16)), (1, 0)),
        (
            lambda q, k, mask: tt.scaled_dot_product_attention(q, k, k, attn_mask=mask),
            ((2, 4, 8, 16), (2, 4, 9, 16), (8, 9)),
            (1, 2),
        ),
        (
            lambda a, b, n: tt.grouped_mm(a, b, offs=(n * 0 + 4).cumsum(0).to(torch.int32)),
            ((8, 16), (2, 16, 12), (2,)),
            (2, 0),
        ),
    ],
    ids=["bias", "matrix", "mask", "groups"],
)
def test_a_size_may_be_a_symbol_where_another_is_a_number(call, shapes, symbolic):
    given = [randn(*shape, grad=False) for shape in shapes]
    operand, dimension = symbolic
    torch._dynamo.maybe_mark_dynamic(given[operand], dimension)
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*given), call(*given))


def test_fake_tensors_have_the_shape_of_the_result():
    with FakeTensorMode() as mode:
        x, q = (mode.from_tensor(randn(*s, grad=False)) for s in ((2, 3, 16), (2, 4, 5, 16)))
        weight = mode.from_tensor(randn(24, 16, grad=False))
        assert tt.linear(x, weight).shape == (2, 3, 24)
        assert tt.scaled_dot_product_attention(q, q, q).shape == q.shape
        with pytest.raises(BadArgument):
            tt.mm(weight, weight)


def test_autocast_and_results_of_another_dtype():
    a, b = randn(8, 16, grad=False), randn(16, 24, grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert tt.mm(a, b.bfloat16()).dtype is torch.bfloat16
        assert tt.linear(a, b.t()).dtype is torch.bfloat16
    made = tt.mm(a.bfloat16(), b.bfloat16(), torch.float32)
    assert made.dtype is torch.float32 and far(made, (a @ b).double()) < 1e-2


class OnAGpu:
    """What is asked of a tensor."""

    dtype, is_cuda = torch.float32, True

    def get_device(self) -> int:
        return 0


def test_fp32_is_multiplied_as_torch_s_settings_say(monkeypatch):
    monkeypatch.setattr(precision, "_has_tf32", lambda index: True)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        for of_products, of_convolutions in ((True, False), (False, True)):
            matmul.allow_tf32, cudnn.allow_tf32 = of_products, of_convolutions
            assert precision.tf32(OnAGpu()) is of_products
            assert precision.tf32(OnAGpu(), "conv") is of_convolutions
        assert not precision.tf32(torch.zeros(1), "conv")
        with torch.autocast("cpu", torch.bfloat16):
            assert not precision.tf32(OnAGpu(), "conv")
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@pytest.mark.turns(8)
def test_what_is_multiplied_as_tf32(monkeypatch):
    found, run = [], Dispatcher.run_given

    def noted(self, op, operands, out, stream, options, *rest):
        found.append((op, options.get("precision")))
        return run(self, op, operands, out, stream, options, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    for module in (products, convolutions):
        monkeypatch.setattr(module, "tf32", lambda x, operation="matmul": True)
    a, image = randn(16, 16, grad=False), randn(1, 4, 5, 5, grad=False)
    for call in (tt.mm, tt.matmul, tt.linear, partial(tt.addmm, a[0])):
        call(a, a)
    tt.matmul(a.expand(2, 1, 2, 16, 16), a)
    tt.conv2d(image, randn(8, 4, 3, 3, grad=False))
    assert found == [("gemm", "tf32")] * 5 + [("conv", "tf32")]


@pytest.mark.parametrize(
    ("ours", "theirs", "shapes"),
    [
        (tt.mm, torch.mm, ((8, 16), (16, 24))),
        (tt.matmul, torch.matmul, ((2, 8, 16), (16, 24))),
        (tt.addmm, torch.addmm, ((24,), (8, 16), (16, 24))),
    ],
)
def test_out_is_written_and_returned(ours, theirs, shapes):
    given = [randn(*shape, grad=False) for shape in shapes]
    out = torch.empty(0)
    assert ours(*given, out=out) is out
    assert far(out, theirs(*given).double()) < NEAR
    with pytest.raises(BadArgument):
        ours(*(x.clone().requires_grad_() for x in given), out=out)


SCALED = {
    "TensorWise": ("TensorWise", (1, 1), "TensorWise", (1, 1)),
    "RowWise": ("RowWise", (4, 1), "RowWise", (1, 32)),
    "rows": ("BlockWise1x128", (4, 2), "BlockWise1x128", (32, 2)),
    "squares of B": ("BlockWise1x128", (4, 2), "BlockWise128x128", (4, 1)),
    "squares of A": ("BlockWise128x128", (2, 1), "BlockWise1x128", (32, 2)),
}
"""Recipes, and shapes of scales as torch's shape function has them. Along K, squares are padded to
a multiple of 4, or not."""


def _scaled(x: Any, scales: Any, recipe: str) -> Any:
    """A matrix by its scales: one, one for each row, or one for each 128 elements of a row or of
    128 rows."""
    scales = scales.double()
    if recipe == "BlockWise128x128":
        scales = scales[:2].t().repeat_interleave(128, 0)[: len(x)]
    elif recipe != "BlockWise1x128":
        scales = scales.reshape(-1, 1)
    return x.double() * scales.repeat_interleave(x.shape[1] // scales.shape[1], 1)


@pytest.mark.turns(16)
@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("by_columns", [False, True])
def test_scaled_products(kind, by_columns):
    recipe_a, shape_a, recipe_b, shape_b = SCALED[kind]
    a, b = (randn(*s, grad=False).to(torch.float8_e4m3fn) for s in ((4, 256), (32, 256)))
    of_a, of_b = (torch.rand(shape) + 0.5 for shape in (shape_a, shape_b))
    if by_columns:  # as torch's kernels of blocks want them
        of_a, of_b = (x.t().contiguous().t() for x in (of_a, of_b))
    bias = randn(32, grad=False).bfloat16()
    kinds = [getattr(F.ScalingType, one) for one in (recipe_a, recipe_b)]
    found = tt.scaled_mm(a, b.t(), of_a, kinds[0], of_b, kinds[1], bias=bias)
    exact = _scaled(a, of_a, recipe_a) @ _scaled(b, of_b, recipe_b).t() + bias.double()
    assert found.dtype is torch.bfloat16
    assert far(found, exact) < 1e-2


@pytest.mark.parametrize("shape", [(2, 32), (32, 1), (32, 3)])
def test_scales_of_blocks_in_other_shapes_are_refused(shape):
    a, b = (torch.zeros(n, 256).to(torch.float8_e4m3fn) for n in (4, 32))
    kind = F.ScalingType.BlockWise1x128
    with pytest.raises(BadArgument, match=r"scale_b is .*, but must be \[32, 2\]"):
        tt.scaled_mm(a, b.t(), torch.ones(4, 2), kind, torch.ones(shape), kind)


@pytest.mark.turns(8)
def test_grouped_products():
    a, b = randn(6, 16, grad=False), randn(3, 16, 8, grad=False)
    found = tt.grouped_mm(a, b, offs=torch.tensor([4, 4, 6], dtype=torch.int32))
    wanted = torch.cat([a[:4] @ b[0], a[4:] @ b[2]])
    assert far(found, wanted.double()) < NEAR
    with pytest.raises(BadArgument, match=r"use torch\.nn\.functional\.grouped_mm"):
        tt.grouped_mm(a, b, offs=torch.tensor([4, 4, 6], dtype=torch.int32), bias=b)


Q = torch.zeros(1, 4, 5, 16)
REFUSED = {
    "integers": (lambda: tt.mm(torch.ones(2, 2, dtype=torch.int64), Q), r"use torch\.mm$"),
    "double": (lambda: tt.linear(Q.double(), Q), r"use torch\.nn\.functional\.linear$"),
    "complex": (lambda: tt.matmul(Q.cfloat(), Q.cfloat()), r"use torch\.matmul$"),
    "sparse": (lambda: tt.mm(torch.eye(2).to_sparse(), torch.eye(2)), r"use torch\.mm$"),
    "mixed": (lambda: tt.mm(torch.eye(2), torch.eye(2).half()), "takes tensors of one dtype"),
    "ranks": (lambda: tt.mm(Q, Q), "input is .*, but must have 2 dimensions"),
    "batches": (lambda: tt.bmm(Q[0, :1], Q[0]), "both must have one batch"),
    "added": (lambda: tt.addmm(Q[0, 0, 0], Q[0, 0], Q[0, 0].t()), "which is not broadcast to"),
    "activation": (lambda: tt.linear(Q, Q[0, 0], None, "swiglu"), "is not one of gelu"),
    "heads": (lambda: tt.scaled_dot_product_attention(Q, Q[:, :2], Q[:, :2]), "enable_gqa=True"),
    "both masks": (
        lambda: tt.scaled_dot_product_attention(Q, Q, Q, torch.ones(5, 5).bool(), is_causal=True),
        "pass one of them",
    ),
    "mask": (
        lambda: tt.scaled_dot_product_attention(Q, Q, Q, torch.ones(4, 5).bool()),
        "attn_mask is .*, which is not broadcast to",
    ),
    "conv2d": (lambda: tt.conv2d(Q.double(), Q.double()), r"use torch\.nn\.functional\.conv2d$"),
    "columns": (
        lambda: tt.linear(torch.ones(3, 16), torch.ones(12, 8)),
        "input has 16 columns, and weight is for 8",
    ),
    "bias": (
        lambda: tt.linear(torch.ones(3, 16), torch.ones(12, 16), torch.ones(8)),
        "a vector for 12 columns has 8 elements",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_and_torch_s_function_named(name):
    call, why = REFUSED[name]
    with pytest.raises(BadArgument, match=why):
        call()


def test_functions_are_pickled_by_name():
    for name in ("mm", "linear", "scaled_dot_product_attention", "conv2d"):
        function = getattr(tt, name)
        assert pickle.loads(pickle.dumps(function)) is function
