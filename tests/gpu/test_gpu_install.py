"""Kernels of ours under an unchanged torch program on a GPU: results, counts, graphs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.plan import live_device  # noqa: E402
from tilewright.tables import file, named  # noqa: E402
from tilewright.torch import install, register_flash_attention, uninstall  # noqa: E402
from tilewright.torch.installing import decisions  # noqa: E402

pytestmark = pytest.mark.gpu

F = torch.nn.functional
OPERATORS = ("mm", "addmm.out", "convolution", "_scaled_dot_product_flash_attention")


@pytest.fixture(autouse=True)
def waiting(kernels, monkeypatch):
    """Calls wait for their kernels, so that what is counted is ours."""
    made = Dispatcher(store=kernels.store, waits=True)
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: made)
    torch._dynamo.reset()
    yield made
    uninstall()


def randn(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def far(found, exact):
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def served(ours) -> Counter:
    found = Counter()
    for one in ours.report()["served"]:
        found[one["operator"]] += one["calls"]
    return found


def linear(x, w, bias):
    return F.linear(x, w, bias)


def conv2d(x, w, bias):
    return F.conv2d(x, w, bias, stride=2, padding=1)


def flash(q, k, v):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def exact_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


MODELS = {
    "linear": (linear, linear, ((4, 64, 128), (192, 128), (192,)), "addmm"),
    "matmul": (torch.matmul, torch.matmul, ((3, 64, 128), (3, 128, 96)), "bmm"),
    "conv2d": (conv2d, conv2d, ((2, 32, 16, 16), (64, 32, 3, 3), (64,)), "convolution"),
    "attention": (
        flash, exact_attention, ((2, 8, 128, 64),) * 3, "_scaled_dot_product_flash_attention"
    ),
}  # fmt: skip


def leaves_of(shapes):
    return [(randn(*shape) / shape[-1] ** 0.25).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients(name):
    run, by_torch, shapes, operator = MODELS[name]
    given = leaves_of(shapes)
    floats = [x.detach().double().requires_grad_() for x in given]
    exact = by_torch(*floats)
    incoming = torch.randn_like(exact)
    wanted = torch.autograd.grad(exact, floats, incoming)
    with install("all") as ours:
        for calls in range(1, 4):  # a launch is prepared, then found, then repeated
            made = run(*given)
            found = torch.autograd.grad(made, given, incoming.bfloat16())
            assert far(made, exact) < 2e-2
            assert all(far(one, other) < 3e-2 for one, other in zip(found, wanted, strict=True))
            assert served(ours)[operator] >= calls


@pytest.mark.parametrize("order", ["channels_last", "contiguous_format"])
def test_convolutions_lie_as_torch_s(order):
    x = randn(2, 32, 16, 16).to(memory_format=getattr(torch, order))
    w = randn(64, 32, 3, 3)
    theirs = conv2d(x, w, None).stride()
    with install("all"):
        assert conv2d(x, w, None).stride() == theirs


def test_attention_lies_as_torch_s():
    qkv = randn(2, 128, 8, 3 * 64).transpose(1, 2)
    q, k, v = qkv.split(64, -1)
    theirs = flash(q, k, v).stride()
    with install("all"):
        assert flash(q, k, v).stride() == theirs


def test_the_table_is_restored():
    names = [f"aten::{name}" for name in OPERATORS]
    before = [torch._C._dispatch_dump_table(name) for name in names]
    with install("all"):
        assert [torch._C._dispatch_dump_table(name) for name in names] != before
    assert [torch._C._dispatch_dump_table(name) for name in names] == before


def test_compiled_by_inductor():
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64, bias=False)
    )
    model = model.cuda().bfloat16()
    x = randn(64, 128)
    exact = model(x)
    compiled = torch.compile(model)
    with install("all") as ours:
        found = compiled(x)
        found.float().square().sum().backward()
    assert far(found, exact) < 2e-2
    assert served(ours)["mm.out"] and served(ours)["addmm.out"]


def test_a_graph_holds_what_it_captured():
    x, w = randn(64, 128), randn(256, 128)
    with install("all") as ours:
        for _ in range(3):
            F.linear(x, w)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = F.linear(x, w)
        before = served(ours)
        x.copy_(randn(64, 128))
        graph.replay()
        assert far(y, x.double() @ w.double().t()) < 2e-2
        assert served(ours) == before


@pytest.mark.parametrize("name", [name for name in MODELS if name != "attention"])
def test_repeated_calls_read_what_they_are_given(name):
    """Calls that C++ repeats: on other tensors, on another stream, and within a graph."""
    call, exact, shapes, aten = MODELS[name]
    every = [[randn(*shape) for shape in shapes] for _ in range(4)]
    right = [exact(*(x.double() for x in given)) for given in every]
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with install("all") as ours, torch.no_grad():
        for _ in range(2):
            call(*every[0])
        assert all(
            far(call(*given), wanted) < 0.01 for given, wanted in zip(every, right, strict=True)
        )
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = [call(*given) for given in every]
        torch.cuda.current_stream().wait_stream(side)
        assert all(far(one, wanted) < 0.01 for one, wanted in zip(found, right, strict=True))
        with torch.cuda.graph(graph):
            captured = call(*every[0])
        for given, wanted in zip(every, right, strict=True):
            for x, y in zip(every[0], given, strict=True):
                x.copy_(y)
            graph.replay()
            assert far(captured, wanted) < 0.01
    assert served(ours) == {aten: 11}


@pytest.fixture
def shipped(monkeypatch):
    """The folder of the tables that come with the package, which are hidden from other tests."""
    folder = Path(named.__file__).with_name("shipped")
    monkeypatch.setattr(named, "FOLDER", folder)
    return folder


def row_of(folder: Path, library: bool):
    """A plain product of the shipped table for this GPU whose winner, and no tie, is of that
    kind."""
    here = live_device(0)
    path = folder / here.arch / "gemm_bf16.twt"
    if not path.is_file():
        pytest.skip("no table is shipped for this GPU")
    for row in file.load(path):
        theirs = {"_vendor_" in name for name in (row.kernel, *row.ties)}
        p = row.problem
        plain = p == GemmProblem(p.m, p.n, p.k) and p.m <= 512
        if row.device.name == here.name and theirs == {library} and plain:
            return p
    pytest.skip("no such row")


@pytest.mark.parametrize("library", [False, True])
def test_a_shipped_row_decides(shipped, library):
    problem = row_of(shipped, library)
    x, w = randn(problem.m, problem.k), randn(problem.n, problem.k)
    with install() as ours:
        y = x @ w.t()
    assert far(y, x.double() @ w.double().t()) < 2e-2
    assert served(ours) == ({} if library else {"mm": 1})


def test_registered_flash_attention():
    q, k, v = leaves_of(((2, 8, 128, 64), (2, 8, 128, 64), (2, 8, 128, 64)))
    floats = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = exact_attention(*floats)
    incoming = torch.randn_like(exact)
    wanted = torch.autograd.grad(exact, floats, incoming)
    register_flash_attention()
    theirs = flash(q, k, v)
    torch.nn.attention.activate_flash_attention_impl("tilewright")
    try:
        ours = flash(q, k, v)
        mixed = torch.autograd.grad(theirs, (q, k, v), incoming.bfloat16())
        found = torch.autograd.grad(ours, (q, k, v), incoming.bfloat16())
        dropped = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.5)[0]
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert far(ours, exact) < 2e-2 and dropped.shape == q.shape
    for gradients in (found, mixed):  # a forward pass by torch's kernel, too
        assert all(far(one, other) < 3e-2 for one, other in zip(gradients, wanted, strict=True))


def test_the_backend_of_cudnn():
    q, k, v = leaves_of(((2, 8, 128, 64),) * 3)
    floats = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = exact_attention(*floats)
    incoming = torch.randn_like(exact)
    wanted = torch.autograd.grad(exact, floats, incoming)

    def run():
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    theirs = run()
    with install("all") as found:
        ours = run()
        own = torch.autograd.grad(ours, (q, k, v), incoming.bfloat16(), retain_graph=True)
        mixed = torch.autograd.grad(theirs, (q, k, v), incoming.bfloat16())
    other = torch.autograd.grad(ours, (q, k, v), incoming.bfloat16())  # by cuDNN, from our LSE
    assert served(found)["_scaled_dot_product_cudnn_attention"] == 1
    assert served(found)["_scaled_dot_product_cudnn_attention_backward"] == 2
    assert far(ours, exact) < 2e-2 and ours.stride() == theirs.stride()
    for gradients in (own, mixed, other):
        assert all(far(one, its) < 3e-2 for one, its in zip(gradients, wanted, strict=True))


def test_several_lengths():
    """``torch.nn.attention.varlen`` comes down to the packed operator."""
    offsets = torch.tensor([0, 100, 100, 228], device="cuda", dtype=torch.int32)
    q, k, v = leaves_of(((228, 8, 64),) * 3)
    said = (offsets, offsets, 128, 128, 0.0, True, False)
    theirs, sums, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *said)
    incoming = randn(228, 8, 64)
    wanted = torch.autograd.grad(theirs, (q, k, v), incoming)
    with install("all") as ours:
        made, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *said)
        found = torch.autograd.grad(made, (q, k, v), incoming)
    assert served(ours)["_flash_attention_forward"] == 1
    assert served(ours)["_flash_attention_backward"] == 1
    assert far(made, theirs) < 2e-2 and lse.shape == sums.shape and far(lse, sums) < 1e-3
    assert all(far(one, other) < 3e-2 for one, other in zip(found, wanted, strict=True))


def test_the_default_dispatcher_serves_too(monkeypatch):
    """It does not wait: torch answers, by the call that is overridden, while a kernel is built."""
    monkeypatch.setattr(decisions, "default_dispatcher", tw.default_dispatcher)
    x, w = randn(48, 80), randn(112, 80)
    with install("all") as ours:
        for _ in range(3):
            assert far(F.linear(x, w), x.double() @ w.double().t()) < 2e-2
    assert served(ours) == {"mm": 3}
