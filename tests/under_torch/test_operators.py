"""Operations as torch operators: under torch.compile, export, traces and fake tensors."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import BATCH, ROOMS, Case, K, M, N, far  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import blend_family  # noqa: E402
import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.errors import BadArgument, WrongDevice  # noqa: E402
from tilewright.operation import operation  # noqa: E402
from tilewright.ops.backward import Backward, Computation, incoming  # noqa: E402
from tilewright.torch.operators import operator  # noqa: E402
from tilewright.torch.said import Said, read  # noqa: E402

GEMM = torch.ops.tilewright.gemm


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


class Graphs:
    """A backend that keeps the graphs that it is given, forward and backward."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.Graph] = []

    def __call__(self, module, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(traced, inputs):
            self.seen.append(traced.graph)
            return make_boxed_func(traced.forward)

        return aot_autograd(fw_compiler=keep)(module, inputs)

    def nodes(self) -> list[list[str]]:
        """Of each graph, the operators of ours."""
        return [
            [str(node.target) for node in graph.nodes if "tilewright" in str(node.target)]
            for graph in self.seen
        ]


CASES = [
    Case("plain"),
    Case("bf16", dtype=torch.bfloat16),
    Case("batched", a=(BATCH, M, K), b=(BATCH, K, N)),
    Case("folded", a=(BATCH, M, K)),
    Case("bias+gelu", epilogue="bias+gelu", extra={"bias": (N,)}),
]


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled_calls_are_nodes_forward_and_backward(case: Case):
    graphs = Graphs()
    compiled = torch.compile(case.run, fullgraph=True, backend=graphs)
    ours, plain = case.operands(), case.operands()
    result, exact = compiled(ours), case.run(plain)
    assert torch.equal(result, exact)
    incoming = torch.randn_like(exact)
    result.backward(incoming)
    exact.backward(incoming)
    for name, x in ours.items():
        assert x.grad.stride() == x.stride() or x.grad.is_contiguous()
        assert far(x.grad, plain[name].grad) < ROOMS[case.dtype]
    forward, backward = graphs.nodes()
    assert forward == ["tilewright.gemm.default"]
    assert backward == ["tilewright.gemm.default"] * 2


def test_a_compiled_call_has_no_graph_breaks():
    def model(x, w, bias):
        return tw.gemm(torch.relu(x), w, bias=bias, epilogue="bias") * 2

    x, w, bias = torch.randn(M, K), torch.randn(K, N), torch.randn(N)
    explained = torch._dynamo.explain(model)(x, w, bias)
    assert explained.graph_break_count == 0 and explained.graph_count == 1


def test_compiled_with_out():
    def model(a, b, out):
        tw.gemm(a, b, out=out)
        return out + 1

    graphs, a, b, out = Graphs(), torch.randn(M, K), torch.randn(K, N), torch.empty(M, N)
    result = torch.compile(model, fullgraph=True, backend=graphs)(a, b, out)
    assert torch.equal(out, tw.gemm(a, b)) and torch.equal(result, out + 1)
    with pytest.raises(Exception, match="records no gradients with out="):
        torch.compile(model, fullgraph=True)(a.requires_grad_(), b, out)


@pytest.mark.turns(32)
def test_inductor_runs_it():
    case = Case("", epilogue="bias+relu", extra={"bias": (N,)})
    ours, plain = case.operands(), case.operands()
    result = torch.compile(case.run, fullgraph=True)(ours)
    assert torch.equal(result, case.run(plain))
    result.sum().backward()
    case.run(plain).sum().backward()
    for name, x in ours.items():
        assert far(x.grad, plain[name].grad) < 1e-5


def test_dynamic_sizes_stay_symbols_without_gradients():
    graphs = Graphs()
    compiled = torch.compile(tw.gemm, fullgraph=True, backend=graphs, dynamic=True)
    b = torch.randn(K, N)
    tw.gemm(
        b.t(), b
    )  # the first call outside of a graph looks for torch: a graph then is made anew
    for m in (32, 40, 56):
        a = torch.randn(m, K)
        assert torch.equal(compiled(a, b), tw.gemm(a, b))
    assert len(graphs.seen) == 1


@pytest.mark.turns(8)
def test_dynamic_sizes_with_gradients():
    compiled = torch.compile(tw.gemm, fullgraph=True, backend="aot_eager", dynamic=True)
    for m in (32, 40):
        a, b = torch.randn(m, K, requires_grad=True), torch.randn(K, N)
        compiled(a, b).sum().backward()
        assert far(a.grad, b.double().sum(1).expand(m, K)) < 1e-5


def test_compiled_refusals_are_said():
    def model(a, b):
        return tw.gemm(a, b, pre_a="relu")

    a, b = torch.randn(M, K, requires_grad=True), torch.randn(K, N)
    with pytest.raises(Exception, match="a gemm with pre_a has no gradients"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(a, b)
    with pytest.raises(Exception, match="A's columns must equal B's rows"):
        torch.compile(tw.gemm, fullgraph=True, backend="aot_eager")(a.detach(), b.t())
    with pytest.raises(Exception, match=r"no stream= under torch\.compile"):
        torch.compile(tw.gemm, fullgraph=True, backend="aot_eager")(a.detach(), b, stream=3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_an_operand_written_in_place_is_refused_by_the_plain_operators(dynamic, passed):
    """torch would not know that the operand changes."""

    said = Said(scalars=("scale",)).text

    def model(x, state):
        if not passed:
            return torch.ops.tilewright.blend([x, state], said, [2.0])[0]
        y, z = torch.empty_like(x), torch.empty_like(x, dtype=torch.bfloat16)
        torch.ops.tilewright.blend.out([x, state], said, [2.0], out=[y, z])
        return y

    with blend_family.known():
        operator("blend")
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        with pytest.raises(Exception, match="blend writes to state in place"):
            compiled(torch.ones(8), torch.ones(8))


class _Blends:
    """In place of a dispatcher: computes blends of tensors."""

    def repeat(self, what, given, scalars):
        return None

    def run_given(self, op, operands, out, stream, options):
        options = {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
        outs = [torch.empty(len(operands[0])), torch.empty(len(operands[0]), dtype=torch.bfloat16)]
        outs = outs if out is None else list(out)
        operands[1].add_(operands[0])
        outs[0].copy_(options["scale"] * operands[0] + options.get("shift", 1.0))
        outs[1].copy_(2 * operands[0])
        return tuple(outs)


@pytest.fixture
def blend(monkeypatch):
    """`operation("blend")`, computed by torch."""
    with blend_family.known():
        operator("blend")
        for module in ("operation", "torch.operators", "torch.eager"):
            monkeypatch.setattr(
                importlib.import_module(f"tilewright.{module}"), "default_dispatcher", _Blends
            )
        yield operation("blend")


def _twice(blend):
    def model(x, state):
        y, z = blend(x * 2, state, scale=3.0)
        again, _ = blend(y, state, scale=2.0, shift=0.0)
        return again + z, state.clone()

    return model


@pytest.mark.turns(8)
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_operand_written_in_place_is_in_the_graph(blend, dynamic):
    blend(torch.zeros(8), torch.zeros(8), scale=1.0)  # the first call outside looks for torch
    graphs, model = Graphs(), _twice(blend)
    compiled = torch.compile(model, fullgraph=True, backend=graphs, dynamic=dynamic)
    for n in (8, 24):
        x, ours, plain = torch.randn(n), torch.ones(n), torch.ones(n)
        for _ in range(2):
            got, want = compiled(x, ours), model(x, plain)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
            assert torch.equal(ours, plain)
    (graph,) = graphs.seen[:1]
    targets = [str(node.args[0]) for node in graph.nodes if "auto_functional" in str(node.target)]
    assert targets == ["tilewright.blend.update"] * 2
    assert len(graphs.seen) == (1 if dynamic else 2)


@pytest.mark.turns(24)
def test_in_place_with_outputs_given(blend):
    def model(x, state, y, z):
        blend(x, state, scale=3.0, out=(y, z))
        return y + 1

    x, state, y, z = torch.randn(8), torch.ones(8), torch.zeros(8), torch.zeros(8).bfloat16()
    result = torch.compile(model, fullgraph=True, backend="aot_eager")(x, state, y, z)
    assert torch.equal(y, 3 * x + 1) and torch.equal(result, y + 1)
    assert torch.equal(state, x + 1) and torch.equal(z, (2 * x).bfloat16())


@pytest.mark.turns(16)
@pytest.mark.parametrize("strict", [False, True])
def test_export_sees_an_operand_written_in_place(blend, strict):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(8))

        def forward(self, x):
            return blend(x, self.state, scale=2.0)[0]

    exported = torch.export.export(Model(), (torch.randn(8),), strict=strict)
    assert "state" in exported.run_decompositions().graph_signature.buffers_to_mutate.values()
    model = exported.module()
    model(torch.ones(8))
    assert torch.equal(model.state, torch.ones(8))


def test_gradients_of_an_operand_written_in_place_are_refused(blend):
    x, state = torch.randn(8, requires_grad=True), torch.ones(8)
    with pytest.raises(Exception, match="records no gradients where it writes an operand in place"):
        torch.compile(_twice(blend), fullgraph=True, backend="aot_eager")(x, state)


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_the_call(strict):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(K, N))

        def forward(self, x):
            return tw.gemm(x, self.weight)

    model, x = Model(), torch.randn(M, K)
    sizes = {"x": {0: torch.export.Dim.DYNAMIC}}
    exported = torch.export.export(model, (x,), strict=strict, dynamic_shapes=sizes)
    assert [n.target for n in exported.graph.nodes].count(GEMM.default) == 1
    other = torch.randn(40, K)
    assert torch.equal(exported.module()(other), model(other))


def test_fake_tensors_and_meta_tensors():
    mode = FakeTensorMode()
    a, b = torch.randn(BATCH, M, K, dtype=torch.bfloat16), torch.randn(K, N, dtype=torch.bfloat16)
    made = tw.gemm(mode.from_tensor(a), mode.from_tensor(b))
    real = tw.gemm(a, b)
    assert type(made).__name__ == "FakeTensor"
    assert (made.shape, made.stride(), made.dtype) == (real.shape, real.stride(), real.dtype)
    with pytest.raises(BadArgument, match="A's columns must equal B's rows"):
        tw.gemm(mode.from_tensor(a), mode.from_tensor(b.t()))
    (meta,) = GEMM([a.to("meta"), b.to("meta")])
    assert meta.is_meta and meta.shape == real.shape
    with pytest.raises(WrongDevice, match="move them together"):
        GEMM([a.to("meta"), b])
    with pytest.raises(BadArgument, match="meta tensor, which has no memory"):
        tw.gemm(a.to("meta"), b.to("meta"))


def test_traces_keep_the_call():
    a, b = torch.randn(M, K), torch.randn(K, N)
    traced = torch.jit.trace(lambda x, y: tw.gemm(x, y) + 1, (a, b))
    other = torch.randn(M, K)
    assert torch.equal(traced(other, b), tw.gemm(other, b) + 1)


def test_dispatch_modes_see_the_call():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list[object] = []
    a, b = torch.randn(M, K), torch.randn(K, N)
    with Seen():
        for call in (tw.gemm, lambda a, b: GEMM([a, b])):
            call(a, b)
            assert seen.pop(0) == GEMM.default
            seen.clear()


def test_function_transforms_are_refused():
    a, b = torch.randn(BATCH, M, K), torch.randn(K, N)
    with pytest.raises(BadArgument, match=r"vmap"):
        torch.vmap(lambda x: tw.gemm(x, b))(a)
    with pytest.raises(BadArgument, match=r"no rule for torch\.func"):
        torch.func.grad(lambda x: tw.gemm(x, b).sum())(a[0])
    with pytest.raises(BadArgument, match=r"no rule for torch\.func"):
        torch.func.grad(lambda x: GEMM([x, b])[0].sum())(a[0])


def test_what_a_call_says_comes_back():
    said = Said(("bias",), ("scale",), (("epilogue", "bias"), ("sizes", (1, (2, 3)))))
    assert read(said.text) == said
    assert read("") == Said() and Said().text == ""
    assert json.loads(said.text)["options"]["epilogue"] == "bias"
    for text in ("{", "[]", '{"others":[]}', '{"options":3}'):
        with pytest.raises(BadArgument, match="is not of an operator"):
            read(text)


@pytest.mark.turns(64)
def test_torch_may_be_imported_later():
    """`tilewright.gemm` taken before torch is imported compiles and differentiates all the same;
    nothing of ours imports torch."""
    script = (
        "import sys, numpy as np\n"
        "from tilewright import gemm\n"
        "x = np.ones((16, 16), np.float32)\n"
        "assert gemm(x, x)[0, 0] == 16 and 'torch' not in sys.modules\n"
        "import torch\n"
        "a = torch.ones(16, 16, requires_grad=True)\n"
        "compiled = torch.compile(gemm, fullgraph=True, backend='aot_eager')\n"
        "compiled(a, a.detach()).sum().backward()\n"
        "gemm(a, a.detach()).sum().backward()\n"
        "assert a.grad[0, 0] == 32\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.turns(64)
def test_the_first_call_may_be_compiled():
    script = (
        "from tilewright import gemm\n"
        "import torch\n"
        "a = torch.ones(16, 16)\n"
        "c = torch.compile(gemm, fullgraph=True, backend='aot_eager')(a, a)\n"
        "assert c[0, 0] == 16\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- a family with several outputs, an optional operand and a scalar given at the call ---------


@pytest.fixture
def moments(monkeypatch):
    """y = scale · mean over h, w of x (+ bias); z = mean of x². The gradient of x by way of y."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "moments"))
    monkeypatch.setenv(ops.MODULES_VARIABLE, "moments_family:moments_kernels")
    monkeypatch.setattr(ops, "_registered", dict(ops._registered))
    family = importlib.import_module("moments_family").FAMILY
    ops.register(family, "moments_family")

    def gradients(problem, wanted):
        def to_x(dy, scale):
            dx = dy.float() * (scale / (problem.h * problem.w))
            return dx[:, None, None, :].expand(problem.n, problem.h, problem.w, problem.c)

        steps = [Computation("dx", to_x, (incoming("y"), "scale"))]
        steps += [Computation("dbias", lambda dy: dy.sum(0), (incoming("y"),))]
        return Backward(tuple(steps), {"x": "dx", "bias": "dbias"})

    monkeypatch.setattr(family, "gradients", gradients)
    return operation("moments")


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_several_outputs_and_scalars(moments, how):
    def model(x, bias, scale):
        y, z = moments(x, bias=bias, scale=scale)
        return y, z

    run = model if how == "eager" else torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 8, 32, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(32, dtype=torch.bfloat16, requires_grad=True)
    for scale in (0.5, 2.0):
        x.grad = bias.grad = None
        y, z = run(x, bias, scale)
        wide = x.detach().double()
        assert far(y, wide.mean((1, 2)) * scale + bias.detach().double()) < 1e-2
        assert far(z, wide.square().mean((1, 2, 3))) < 1e-2
        assert z.dtype == torch.float32
        y.sum().backward()
        assert torch.allclose(x.grad.float(), torch.full(x.shape, scale / 32))
        assert torch.equal(bias.grad.float(), torch.full((32,), 2.0))


def test_an_operand_that_is_no_tensor_is_refused_where_calls_are_compiled():
    from tilewright.torch.compiled import compiled

    with pytest.raises(
        BadArgument, match=r"gemm takes only tensors as operands under torch\.compile"
    ):
        compiled("gemm", (torch.ones(2, 2), [[1.0, 2.0]]), None, None, {})


def test_a_view_whose_sizes_are_numbers_stays_as_it_is():
    from tilewright.torch.fake import concrete, view

    one = view(torch.empty(7, 4)[1:, ::2])
    assert concrete(one) == one and (one.shape, one.strides) == ((6, 2), (4, 2))
