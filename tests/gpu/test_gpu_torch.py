"""`tilewright.gemm` under PyTorch on a real GPU: gradients, torch.compile, host time."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

torch = pytest.importorskip("torch")
from gradient_cases import ROOMS, Case, far  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import default_dispatcher  # noqa: E402

pytestmark = pytest.mark.gpu

M, N, K = 256, 384, 128
CASES = [
    *(Case(f"{d} {a}{b}", (M, K), (K, N), a, b, d)
      for d in ROOMS for a, b in ("rr", "rc", "cr", "cc")),
    Case("batched", (4, M, K), (4, K, N), dtype=torch.bfloat16),
    Case("folded", (4, M, K), (K, N), dtype=torch.bfloat16),
    Case("shared A", (M, K), (4, K, N), dtype=torch.bfloat16),
    Case("bias+gelu+add", (M, K), (K, N), dtype=torch.bfloat16, epilogue="bias+gelu+add",
         extra={"bias": (N,), "add": (M, N)}),
    Case("relu", (M, K), (K, N), dtype=torch.float16, epilogue="relu"),
    Case("row_scale", (M, K), (K, N), dtype=torch.bfloat16, epilogue="row_scale",
         extra={"row_scale": (M,)}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_those_of_float64(case: Case):
    ours = case.operands("cuda")
    theirs = case.by_torch(ours)
    exact = case.exact(theirs)
    incoming = torch.randn(exact.shape, generator=torch.Generator().manual_seed(8)).to(case.dtype)
    for _ in range(4):  # launches are prepared, then found, then repeated and recorded at once
        for x in ours.values():
            x.grad = None
        result = case.run(ours)
        result.backward(incoming.cuda())
    exact.backward(incoming.double())
    assert far(result, exact.detach()) < ROOMS[case.dtype]
    for name, x in ours.items():
        assert far(x.grad, theirs[name].grad) < ROOMS[case.dtype], name


def attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


LAYERS = {
    "3×3": (lambda x, w: tw.conv2d(x, w, None, 1, 1), lambda x, w: conv2d(x, w, None, 1, 1),
            ((4, 32, 12, 12), (48, 32, 3, 3))),
    "1×1": (tw.conv2d, lambda x, w: conv2d(x, w), ((4, 32, 12, 12), (48, 32, 1, 1))),
    "depthwise": (lambda x, w: tw.conv2d(x, w, None, 2, 1, groups=32),
                  lambda x, w: conv2d(x, w, None, 2, 1, groups=32),
                  ((4, 32, 12, 12), (32, 1, 3, 3))),
    "bias": (lambda x, w, b: tw.conv2d(x, w, b, 1, 1), lambda x, w, b: conv2d(x, w, b, 1, 1),
             ((4, 32, 12, 12), (48, 32, 3, 3), (48,))),
    "attention": (tw.attention, attention, ((2, 48, 4, 64),) * 3),
}  # fmt: skip


def conv2d(*given, **named):
    return torch.nn.functional.conv2d(*given, **named)


def drawn(shapes, order) -> list[torch.Tensor]:
    """Leaves in bf16, of which those of four dimensions lie in an order."""
    made = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
    lie = [x.to(memory_format=order) if x.dim() == 4 else x for x in made]
    return [x.detach().requires_grad_() for x in lie]


def held_to(theirs, leaves, arriving, made) -> None:
    """Fail unless an output and gradients are those of `theirs`, in float64."""
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out = theirs(*exact)
    wanted = (out, *torch.autograd.grad(out, exact, arriving.double()))
    for mine, its in zip(made, wanted, strict=True):
        assert far(mine, its.detach().cpu()) < ROOMS[torch.bfloat16]


@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("name", LAYERS)
def test_repeated_gradients_are_those_of_float64(name, order):
    """Of other tensors each time, so at other addresses."""
    ours, theirs, shapes = LAYERS[name]
    if name == "attention":
        order = "contiguous_format"
    kept = []
    for _ in range(6):
        leaves = drawn(shapes, getattr(torch, order))
        out = ours(*leaves)
        arriving = torch.randn_like(out)
        held_to(theirs, leaves, arriving, (out, *torch.autograd.grad(out, leaves, arriving)))
        kept.append((leaves, out))


@pytest.mark.parametrize("name", LAYERS)
def test_a_captured_training_step_is_replayed(name):
    ours, theirs, shapes = LAYERS[name]
    leaves = drawn(shapes, torch.contiguous_format)
    arriving = torch.randn_like(ours(*leaves))

    def step():
        out = ours(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, arriving)

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for _ in range(2):
        with torch.no_grad():
            for x in (*leaves, arriving):
                x.copy_(torch.randn_like(x))
        graph.replay()
        held_to(theirs, leaves, arriving, made)


def test_a_thread_of_its_own_goes_the_long_way_once(monkeypatch):
    """Nothing else gives it a context."""
    a = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    out, counts, run = torch.empty_like(a), [], type(default_dispatcher()).run_given

    def counted(*given, **named):
        counts[-1] += 1
        return run(*given, **named)

    for _ in range(3):
        tw.gemm(a, a, out=out)
    monkeypatch.setattr(type(default_dispatcher()), "run_given", counted)

    def work():
        for _ in range(3):
            counts.append(0)
            tw.gemm(a, a, out=out)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert counts[0] <= 1 and counts[1:] == [0, 0]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_forward_and_backward(backend):
    case = Case("", (M, K), (K, N), dtype=torch.bfloat16, epilogue="bias+gelu",
                extra={"bias": (N,)})  # fmt: skip
    ours, plain = case.operands("cuda"), case.operands("cuda")
    compiled = torch.compile(lambda x: case.run(x) * 2, fullgraph=True, backend=backend)
    result, exact = compiled(ours), case.run(plain) * 2
    assert far(result, exact.cpu().detach()) < ROOMS[case.dtype]
    incoming = torch.randn_like(exact)
    result.backward(incoming)
    exact.backward(incoming)
    for name, x in ours.items():
        assert far(x.grad, plain[name].grad.cpu()) < ROOMS[case.dtype], name


def test_compiled_in_a_cuda_graph():
    a = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(K, N, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(tw.gemm, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        tw.gemm(a, b)  # built and loaded before a graph is captured
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            result = compiled(a, b).clone()
    assert far(result, a.double().cpu() @ b.double().cpu()) < ROOMS[torch.bfloat16]


def test_parameters_train():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(K, N, device="cuda", dtype=torch.bfloat16) * 0.1)
    x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    target = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
    losses = []
    for _ in range(3):
        loss = torch.nn.functional.mse_loss(tw.gemm(x, weight).float(), target.float())
        loss.backward()
        with torch.no_grad():
            weight -= 60 * weight.grad
            weight.grad = None
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]


def test_outputs_are_made_alike_whatever_was_passed_before():
    """A call with out= of another dtype is no model for the outputs of calls without out=."""
    a = torch.randn(48, 80, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(80, 112, device="cuda", dtype=torch.bfloat16)
    wide = torch.empty(48, 112, device="cuda", dtype=torch.float32)
    for _ in range(2):
        tw.gemm(a, b, out=wide)
        made = tw.gemm(a, b)
        assert made.dtype == torch.bfloat16 and made.is_contiguous()
        assert far(made, a.double().cpu() @ b.double().cpu()) < ROOMS[torch.bfloat16]


@pytest.mark.alone
@pytest.mark.parametrize("passes_out", [True, False])
def test_the_operation_costs_what_the_dispatcher_costs(passes_out):
    """Host time of a cached call of `tilewright.gemm`, by that of `Dispatcher.run`."""
    a = torch.randn(16, 16, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(16, 16, device="cuda", dtype=torch.bfloat16)
    keywords = {"out": torch.empty(16, 16, device="cuda", dtype=torch.bfloat16)}
    if not passes_out:
        keywords = {}
    run, gemm = default_dispatcher().run, tw.gemm

    def batch(call) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            call()
        return time.perf_counter() - begin

    below, above = lambda: run("gemm", a, b, **keywords), lambda: gemm(a, b, **keywords)
    batch(below), batch(above)
    ratios = []
    for turn in range(200):
        first, second = (below, above) if turn % 2 else (above, below)
        times = {first: batch(first), second: batch(second)}
        ratios.append(times[above] / times[below])
    # Without out=, the operation asks torch of gradients, modes and tracers first: about 0.5 µs.
    assert statistics.median(ratios) < (1.05 if passes_out else 1.15)


def test_autocast_converts_a_weight_once():
    """torch keeps the converted weight until autocast ends, for its own operations and for ours."""
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    kept, on = [], torch.autocast("cuda", torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        with on:
            results = [tw.gemm(x, w), tw.gemm(x, w), x @ w]
        other = torch.autocast("cuda", torch.float16)
        with other:
            assert tw.gemm(x, w).dtype is torch.float16
    assert {one.dtype for one in results} == {torch.bfloat16}
    assert len({one.data_ptr() for one in kept if one.dtype is torch.bfloat16}) == 2
    sum(results).float().sum().backward()
    assert x.grad.dtype is w.grad.dtype is torch.float32
    exact = 3 * torch.ones(64, 64).double() @ w.detach().double().cpu().T
    assert (x.grad.double().cpu() - exact).norm() < 0.02 * exact.norm()


def test_a_launch_counts_its_writes():
    a, out = torch.ones(64, 64, device="cuda", requires_grad=True), torch.ones(64, 64).cuda()
    x, w = torch.randn(64, 64).cuda(), torch.randn(64, 64).cuda()
    for _ in range(3):  # planned, prepared, launched whole
        y = (a * out).sum()
        tw.gemm(x, w, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    assert (x._version, w._version) == (0, 0)


def test_lengths_of_a_compiled_training_step_share_a_graph():
    from torch._dynamo.testing import CompileCounterWithBackend

    from tilewright.flash_attn import flash_attn_varlen_func

    def model(q, k, v, cu):
        scale = (q.shape[0] + 1) ** -0.5
        most = q.shape[0]
        return flash_attn_varlen_func(q, k, v, cu, cu, most, most, softmax_scale=scale)

    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for n in (48, 80, 200):
        parts = torch.randn(3, n, 2, 64, device="cuda", dtype=torch.bfloat16)
        q, k, v = (x.detach().requires_grad_() for x in parts)
        cu = torch.tensor([0, 17, n], dtype=torch.int32, device="cuda")
        result, exact = compiled(q, k, v, cu), model(q, k, v, cu)
        assert far(result, exact.detach().cpu()) < 1e-2
        found = torch.autograd.grad(result.sum(), (q, k, v))
        for mine, its in zip(found, torch.autograd.grad(exact.sum(), (q, k, v)), strict=True):
            assert far(mine, its.cpu()) < 2e-2
    assert counter.frame_count <= 2
