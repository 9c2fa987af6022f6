"""How calls of a dispatcher behave on a real GPU: streams, graphs, threads, arrays, registries."""

from __future__ import annotations

import ctypes
import threading

import pytest

torch = pytest.importorskip("torch")
from gemm_cases import cases  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, LaunchFailed, WrongDevice  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.registry import Registry  # noqa: E402

pytestmark = pytest.mark.gpu

CASES = ()  # what is not built is built when it is asked for


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


@pytest.mark.skipif(not ARCH.startswith("sm_"), reason="HIP keeps no log of errors")
def test_an_ended_capture_names_the_call_that_ended_it(dispatcher):
    """By the driver alone, so that torch does not take part in a capture that fails."""
    lib, stream, graph, memory = (
        ctypes.CDLL("libcuda.so.1"), torch.cuda.Stream(), ctypes.c_void_p(), ctypes.c_void_p()
    )  # fmt: skip
    if not hasattr(lib, "cuLogsDumpToMemory"):
        pytest.skip("the driver is older than CUDA 12.9")
    a, out = torch.randn(2, 104, 104, device="cuda", dtype=torch.float16)
    handle = ctypes.c_void_p(stream.cuda_stream)
    assert lib.cuStreamBeginCapture_v2(handle, 0) == 0  # torch's mode: global
    try:
        assert lib.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 900
        with torch.cuda.stream(stream), pytest.raises(LaunchFailed, match="called cuMemAlloc_v2"):
            dispatcher.run("gemm", a, a, out=out)
    finally:
        lib.cuStreamEndCapture(handle, ctypes.byref(graph))


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


def test_a_third_operand_without_an_epilogue_is_refused_and_left_alone(dispatcher):
    a = torch.randn(64, 128, device="cuda").bfloat16()
    b = torch.randn(64, 128, device="cuda").bfloat16().T
    residual = torch.randn(64, 64, device="cuda").bfloat16()
    before, out = residual.clone(), torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        with pytest.raises(BadArgument, match="pass the output as out="):
            dispatcher.run("gemm", a, b, residual)
        with pytest.raises(BadArgument, match="was given 3"):
            dispatcher.run("gemm", a, b, residual, out=out)
        dispatcher.run("gemm", a, b, out=out)  # the right call in between, cached the second time
    assert torch.equal(residual, before)


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
    kernels = [k for k, p in cases(ARCH) if p.layout == "rcr" and p.dtype_a == "bf16"]
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
