"""Split-K and stream-K on a real GPU: sums that workgroups put together, and their workspace."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")
from gemm_cases import config, sharing  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import UnsupportedProblem  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.ops.gemm.spaces import default_space  # noqa: E402

pytestmark = pytest.mark.gpu

CASES = sharing(ARCH)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_kernel_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("reduction", ["atomic", "linear", "tree", "two_stage", "cluster"])
@pytest.mark.parametrize("how", [{"scheduler": "split_k", "split_k": 8}, {"scheduler": "stream_k"}])
@pytest.mark.parametrize("pipeline", ["basic", "tma", "gluon_ws"])
def test_shared_tiles_on_the_whole_gpu(dispatcher, reduction, how, pipeline):
    """Right every time of many, at sizes that use every multiprocessor, and repeatable bit for
    bit where that is promised."""
    if reduction in ("two_stage", "cluster") and how["scheduler"] == "stream_k":
        return  # not a kernel
    if reduction == "cluster" and pipeline != "gluon_ws":
        return  # nor this
    big = {"tile_m": 128, "tile_n": 128, "num_warps": 8, "num_stages": 3}
    kernel = config(ARCH, pipeline=pipeline, reduction=reduction, **big, **how)
    for size in ((1024, 1024, 8192), (200, 4096, 4096), (2048, 2112, 1024)):
        problem = GemmProblem(*size)
        inputs, out = verify.make_operands(problem, seed=size[0], device="cuda:0")
        first = None
        for _ in range(20):
            verify.arrays.poison(out)
            dispatcher.run_named(kernel.name, *inputs, out=out)
            result = verify.check(problem, kernel, inputs, out)
            assert result.ok, result
            if reduction != "atomic":
                first = out.clone() if first is None else first
                assert torch.equal(out, first)


@pytest.mark.parametrize("reduction", ["atomic", "linear", "tree"])
def test_stream_k_is_right_however_often_it_is_replayed(dispatcher, reduction):
    """Whole tiles and shared ones in one launch, from a graph, while another stream runs the same
    kernel."""
    how = {"scheduler": "stream_k", "reduction": reduction, "pipeline": "gluon_ws"}
    kernel = config(ARCH, tile_m=128, tile_n=256, num_warps=8, num_stages=3, **how)
    problem = GemmProblem(2240, 2240, 1024)
    inputs, out = verify.make_operands(problem, seed=1, device="cuda:0")
    others = torch.empty_like(out)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        dispatcher.run_named(kernel.name, *inputs, out=out)
    stream.wait_stream(torch.cuda.current_stream())
    first = None
    for _ in range(100):
        verify.arrays.poison(out)
        graph.replay()
        dispatcher.run_named(kernel.name, *inputs, out=others, stream=stream)
        if reduction == "atomic":
            assert verify.check(problem, kernel, inputs, out).ok
        first = out.clone() if first is None else first
        assert reduction == "atomic" or torch.equal(out, first)
    stream.synchronize()
    for result in (out, others):
        assert verify.check(problem, kernel, inputs, result).ok
        assert reduction == "atomic" or torch.equal(result, first)


@pytest.mark.parametrize("sizes", [(384, 1000, 8192), (200, 4096, 4096), (72, 264, 16384)])
@pytest.mark.parametrize("layout", ["rrr", "crr"])
def test_equal_shares_where_rows_of_b_lie_along_n(dispatcher, layout, sizes):
    """Stream-K as the default space has it for such products, as gradients of layers are."""
    problem = GemmProblem(*sizes, layout=layout)
    kernels = default_space(problem, arch(ARCH)).expand(arch(ARCH)).configs
    shared = [kernel for kernel in kernels if kernel.scheduler == "stream_k"]
    assert shared
    for kernel in shared:
        result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
        assert result.ok, f"{kernel.name} on {problem}: {result}"


def nodes(graph: torch.cuda.CUDAGraph) -> list[str]:
    """The kinds of a captured graph's nodes. The graph was made with ``keep_graph=True``."""
    kinds = {0: "kernel", 1: "memcpy", 2: "memset"}
    lib, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t()
    assert lib.cuGraphGetNodes(handle, None, ctypes.byref(count)) == 0
    found = (ctypes.c_void_p * count.value)()
    assert lib.cuGraphGetNodes(handle, found, ctypes.byref(count)) == 0
    listed = []
    for node in found:
        kind = ctypes.c_int()
        assert lib.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        listed.append(kinds.get(kind.value, str(kind.value)))
    return listed


@pytest.mark.parametrize("reduction", ["linear", "tree", "atomic", "two_stage", "cluster"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_graph_holds_one_node_for_each_kernel_of_a_call(store, reduction, warm):
    """Also where the capture is the first to need a workspace, or to see the kernel."""
    pipeline = "gluon_ws" if reduction == "cluster" else "basic"
    kernel = config(ARCH, pipeline=pipeline, scheduler="split_k", split_k=4, reduction=reduction)
    dispatcher = Dispatcher(store=store)
    a = torch.randn(128, 1024, device="cuda").bfloat16()
    b = torch.randn(64, 1024, device="cuda").bfloat16().T
    out = torch.empty(128, 64, device="cuda", dtype=torch.bfloat16)
    if warm:
        dispatcher.run_named(kernel.name, a, b, out=out)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(3):
            dispatcher.run_named(kernel.name, a, b, out=out)
    assert nodes(graph) == ["kernel"] * (6 if kernel.two_stage else 3)
    graph.instantiate()
    for _ in range(20):
        a.copy_(torch.randn_like(a))
        out.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)


def test_a_graphs_workspace_is_apart_from_what_else_the_graph_allocates(store):
    """Temporaries of a graph reuse its pool: none may come to lie where the flags are."""
    kernel = config(ARCH, scheduler="split_k", split_k=4, reduction="linear")
    dispatcher = Dispatcher(store=store)
    a = torch.randn(128, 1024, device="cuda").bfloat16()
    b = torch.randn(64, 1024, device="cuda").bfloat16().T
    out = torch.empty(128, 64, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for size in (1 << 12, 1 << 17, 1 << 21):
            torch.full((size,), 255, dtype=torch.uint8, device="cuda")  # freed at once
            dispatcher.run_named(kernel.name, a, b, out=out)
            torch.full((size,), 255, dtype=torch.uint8, device="cuda")
    for _ in range(20):
        a.copy_(torch.randn_like(a))
        out.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("stream", [None, 0, "own"])
def test_a_new_workspace_is_zero_before_its_first_launch(store, stream):
    """Whatever lay in its memory, on the default stream too, by either way of naming it."""
    kernel = config(ARCH, scheduler="split_k", split_k=4, reduction="linear")
    a = torch.randn(128, 1024, device="cuda").bfloat16()
    b = torch.randn(64, 1024, device="cuda").bfloat16().T
    out = torch.empty(128, 64, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream() if stream == "own" else stream
    for _ in range(20):
        fresh = Dispatcher(store=store)
        for size in (1 << 16, 1 << 18, 1 << 20):
            torch.full((size,), 255, dtype=torch.uint8, device="cuda")  # freed at once
        verify.arrays.poison(out)
        torch.cuda.synchronize()
        fresh.run_named(kernel.name, a, b, out=out, stream=stream)
        torch.cuda.synchronize()
        torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)


def test_a_captured_launch_has_a_workspace_of_its_own(dispatcher):
    kernel = config(ARCH, scheduler="split_k", split_k=4, reduction="linear")
    a = torch.randn(128, 1024, device="cuda").bfloat16()
    b = torch.randn(64, 1024, device="cuda").bfloat16().T
    out = torch.empty(128, 64, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dispatcher.run_named(kernel.name, a, b, out=out)
    for _ in range(3):
        a.copy_(torch.randn_like(a))
        graph.replay()
        expected = a.float() @ b.float()
        torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=0.5)
        eager = torch.empty_like(out)
        dispatcher.run_named(kernel.name, a, b, out=eager)
        assert torch.equal(out, eager)


def test_a_limited_workspace_holds_while_a_graph_is_captured(store):
    problem = GemmProblem(512, 512, 8192)
    need = Dispatcher(store=store).select(problem).launch.workspace_bytes
    assert need > 0
    a = torch.randn(512, 8192, device="cuda").bfloat16()
    b = torch.randn(512, 8192, device="cuda").bfloat16().T
    out = torch.empty(512, 512, device="cuda", dtype=torch.bfloat16)
    for limit in (need, need - 1):
        limited = Dispatcher(store=store, max_workspace=limit)
        chosen = limited.select(problem).launch.workspace_bytes
        assert chosen <= limit and (chosen == need or limit < need)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            limited.run("gemm", a, b, out=out)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)
        assert limited.workspaces.bytes() == chosen


def test_a_kernel_over_the_limit_raises_and_leaves_the_capture_alone(store):
    kernel = config(ARCH, scheduler="split_k", split_k=4, reduction="linear")
    limited = Dispatcher(store=store, max_workspace=1000)
    a = torch.randn(128, 1024, device="cuda").bfloat16()
    b = torch.randn(64, 1024, device="cuda").bfloat16().T
    out = torch.empty(128, 64, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(UnsupportedProblem, match="max_workspace"):
            limited.run_named(kernel.name, a, b, out=out)
        limited.run("gemm", a, b, out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)
    assert limited.workspaces.bytes() == 0
