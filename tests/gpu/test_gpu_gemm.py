"""GEMM on a real GPU: every kind of kernel against float64, and how dispatch behaves there."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
from gemm_cases import awkward, by_turns, cases, config, few_rows, odd_tiles, sharing  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, UnsupportedProblem, WrongDevice  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.registry import Registry  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = [*cases(ARCH), *few_rows(ARCH), *sharing(ARCH)]
if ARCH == "sm_90":
    CASES += [*odd_tiles(), *by_turns()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_kernel_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("problem", awkward(), ids=str)
def test_awkward_sizes_are_served(dispatcher, problem):
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


@pytest.mark.parametrize(
    "size", [(4096, 4096, 4096), (2048, 2112, 7168), (1, 4096, 14336), (513, 1025, 16384)]
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "e4m3fn", "e5m2", "int8"])
def test_real_sizes_are_right(dispatcher, dtype, size):
    problem = GemmProblem(*size, dtype_a=dtype)
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


@pytest.mark.parametrize("reduction", ["atomic", "linear", "tree"])
@pytest.mark.parametrize("how", [{"scheduler": "split_k", "split_k": 8}, {"scheduler": "stream_k"}])
@pytest.mark.parametrize("pipeline", ["basic", "tma", "gluon_ws"])
def test_shared_tiles_on_the_whole_gpu(dispatcher, reduction, how, pipeline):
    """Right every time of many, at sizes that use every multiprocessor, and repeatable bit for
    bit where that is promised."""
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


def test_beyond_two_gibibytes(dispatcher):
    problem = GemmProblem(70000, 20000, 64)  # C spans 2.8 GB
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


def test_a_cached_plan_follows_new_tensors(dispatcher):
    for seed in range(5):
        a = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16) * (seed + 1)
        b = torch.randn(384, 512, device="cuda", dtype=torch.bfloat16).T
        out = torch.empty(256, 384, device="cuda", dtype=torch.bfloat16)
        dispatcher.run("gemm", a, b, out=out)
        torch.testing.assert_close(out, a @ b, rtol=2e-2, atol=0.5)


def test_the_callers_stream_is_used(dispatcher):
    stream = torch.cuda.Stream()
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    dispatcher.run("gemm", a, a.T, out=out)  # builds
    torch.cuda.synchronize()
    x = torch.zeros_like(a)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.copy_(a)
        dispatcher.run("gemm", x, a.T, out=out)  # right only if queued behind the copy
    stream.synchronize()
    torch.testing.assert_close(out, a @ a.T, rtol=2e-2, atol=0.5)
    dispatcher.run("gemm", x, a.T, out=out, stream=stream)
    stream.synchronize()


def test_capture_in_a_graph_and_replay(dispatcher):
    a = torch.randn(256, 256, device="cuda", dtype=torch.float16)
    b = torch.randn(256, 256, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the first call of its kind: builds and loads while capturing
        out = dispatcher.run("gemm", a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, a @ b, rtol=1e-2, atol=0.1)


def test_threads_share_a_dispatcher(dispatcher):
    wrong = []

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                a = torch.randn(128, 256, device="cuda", generator=generator).bfloat16()
                b = torch.randn(192, 256, device="cuda", generator=generator).bfloat16().T
                out = torch.empty(128, 192, device="cuda", dtype=torch.bfloat16)
                dispatcher.run("gemm", a, b, out=out)
                if not torch.allclose(out.float(), (a @ b).float(), rtol=2e-2, atol=0.5):
                    wrong.append(seed)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_nan_and_infinity_reach_the_output(dispatcher):
    a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    a[1, 2], a[3, 0] = float("nan"), float("inf")
    out = dispatcher.run("gemm", a, torch.ones_like(a))
    assert out[1].isnan().all() and out[3].isinf().all()
    assert out[4:].isfinite().all()


def test_operands_in_two_places_are_refused(dispatcher):
    a = torch.ones(8, 8, device="cuda")
    with pytest.raises(WrongDevice, match="cpu, cuda:0"):
        dispatcher.run("gemm", a, torch.ones(8, 8))


def test_a_dispatcher_for_another_gpu_refuses_these_operands(store):
    other = Dispatcher(device="mi300x", store=store)
    a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(WrongDevice, match="gfx942"):
        other.run("gemm", a, a)


def test_gradients_are_refused_not_dropped(dispatcher):
    a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(BadArgument, match="gradient"):
        dispatcher.run("gemm", a, a, out=out)
    with torch.no_grad():
        dispatcher.run("gemm", a, a, out=out)
        dispatcher.run("gemm", a, a, out=out)
    with pytest.raises(BadArgument, match="gradient"):
        dispatcher.run("gemm", a, a, out=out)


def test_overlap_is_found_on_the_cached_path(dispatcher):
    memory = torch.zeros(64, 256, device="cuda", dtype=torch.bfloat16)
    other = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    dispatcher.run("gemm", memory[:, :64], other, out=memory[:, 64:128])
    with pytest.raises(BadArgument, match="shares memory"):
        dispatcher.run("gemm", memory[:, :64], other, out=memory[:, 32:96])


def test_dlpack_objects_are_accepted(dispatcher):
    class Foreign:
        def __init__(self, tensor):
            self._tensor = tensor

        def __dlpack__(self, **options):
            return self._tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._tensor.__dlpack_device__()

    a = torch.randn(64, 128, device="cuda")
    b = torch.randn(128, 32, device="cuda")
    out = dispatcher.run("gemm", Foreign(a), Foreign(b))
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)


def test_misaligned_tensors_are_served(dispatcher):
    memory = torch.randn(64 * 65 + 1, device="cuda").bfloat16()
    a = memory[1:].view(64, 65)
    out = dispatcher.run("gemm", a, a.T)
    torch.testing.assert_close(out.float(), a.float() @ a.float().T, rtol=2e-2, atol=0.5)


def test_a_registry_limits_the_choice_and_may_change(store):
    kernels = [k for k, p in CASES if p.layout == "rcr" and p.dtype_a == "bf16"]
    registry = Registry("narrow").register_all(kernels[:1])
    narrow = Dispatcher(registry, store=store)
    a = torch.randn(128, 128, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(128, 128, device="cuda", dtype=kernels_dtype(kernels[0].dtype_c))
    narrow.run("gemm", a, a.T, out=out)
    first = narrow.select(GemmProblem(128, 128, 128, dtype_c=kernels[0].dtype_c)).config
    assert first == kernels[0]
    twin = next(k for k in kernels[1:] if k.dtype_c == kernels[0].dtype_c and k.pipeline == "tma")
    registry.register(twin, priority=1)
    out.fill_(float("nan"))
    narrow.run("gemm", a, a.T, out=out)
    assert narrow.select(GemmProblem(128, 128, 128, dtype_c=kernels[0].dtype_c)).config == twin
    torch.testing.assert_close(out.float(), a.float() @ a.float().T, rtol=2e-2, atol=0.5)


def kernels_dtype(name: str):
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]


def test_interpreter_and_gpu_agree(dispatcher):
    a = torch.randn(96, 64).bfloat16()
    b = torch.randn(64, 80).bfloat16()
    on_cpu = dispatcher.run("gemm", a, b)
    on_gpu = dispatcher.run("gemm", a.cuda(), b.cuda())
    torch.testing.assert_close(on_cpu, on_gpu.cpu(), rtol=1e-2, atol=1e-2)
