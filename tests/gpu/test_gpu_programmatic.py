"""Kernels that may start before the kernel before them has ended, on a real GPU: right alone, and
in every order with other kernels, on several streams and in graphs.
`f1dfe4c6:benchmarks/gemm_chains.py --check` runs as many chains as it is told."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
from gemm_cases import config, dependent  # noqa: E402
from gpu_arch import ARCH  # noqa: E402
from test_gpu_gemm_sharing import nodes  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.arch.detect import live_device  # noqa: E402
from tilewright.compile import Store, build  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.measure.compare import compare  # noqa: E402
from tilewright.measure.contenders import contender, prepared  # noqa: E402
from tilewright.ops.gemm import FAMILY, GemmProblem  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not arch(ARCH).has("pdl"), reason="needs programmatic dependent launch"),
]

CASES = [case for case in dependent() if FAMILY.judge(case[0], arch(ARCH))]
PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_kernel_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("size", [128, 256, 512])
def test_chains_with_other_kernels_on_streams_and_in_graphs(dispatcher, kernels, size):
    import chains

    every = chains.kernels(ARCH)
    kernels.need(every)
    drawn = chains.Chains(dispatcher, every, size, seed=size)
    for done, wrong, chain in chains.check(drawn, 600):
        assert not wrong, f"of the {done} chains so far, {wrong} were wrong: {chain}"


@pytest.mark.alone
def test_a_kernel_that_does_not_wait_is_found_out(tmp_path):
    """In a graph: what the chains here rely on. An eager launch may come after the late kernel's
    end."""
    import chains

    kernel = walking("ahead")
    if kernel.dependent_launch != "ahead":
        pytest.skip(f"{ARCH} has no kernels that load ahead")
    follows = chains.Op("weights", 0, (1,), 2, 0, kernel.name, True)
    chain = [chains.Op("late", 0, (0,), 1), follows]
    found = []
    for broken in (False, True):
        store = Store(tmp_path / str(broken))
        with chains.without_waits() if broken else nullcontext():
            build([(kernel, ARCH)], store=store).raise_if_failed()
            drawn = chains.Chains(Dispatcher(store=store), [kernel], size=256)
            # The first run loads the kernels.
            found.append([int(drawn.wrong(chain, replays)) for replays in (0, 9)])
    right, (_, replayed) = found
    assert right == [0, 0]
    assert replayed > 5


def walking(word: str, **fields: object):
    how = {"tile_m": 64, "tile_n": 64, "num_warps": 4, "num_stages": 4, "scheduler": "persistent"}
    pipeline = "gluon_ws" if "gluon_ws" in FAMILY.pipelines(arch(ARCH)) else "tma"
    word = "wait" if word == "ahead" and pipeline == "tma" else word
    return config(ARCH, pipeline=pipeline, dependent_launch=word, **{**how, **fields})


def test_a_product_reads_what_a_long_one_before_it_wrote_last(dispatcher):
    """The long one lets it start behind its last loads, while its last tiles are multiplied."""
    long, short = walking("wait", num_stages=3), walking("ahead")
    n = 2048
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    w = torch.eye(n, device="cuda").bfloat16()
    x, y = (torch.empty(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    said = {"constant_b": True} if short.dependent_launch == "ahead" else {}
    torch.cuda.synchronize()

    def chain() -> None:
        dispatcher.run_named(long.name, a, b.T, out=x)
        dispatcher.run_named(short.name, x[-64:], w.T, out=y[-64:], **said)
        dispatcher.run_named(long.name, b, a.T, out=x)  # over what the short one reads

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for run in (chain, graph.replay):
        for _ in range(30):
            a.copy_(torch.randn_like(a))
            x.fill_(float("nan")), y.fill_(float("nan"))
            wanted = torch.empty_like(x)
            dispatcher.run_named(walking("none").name, a, b.T, out=wanted)
            run()
            assert torch.equal(y[-64:], wanted[-64:])


HOWS = (
    {"scheduler": "persistent"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "linear"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "tree"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "atomic"},
    {"scheduler": "stream_k", "reduction": "linear"},
    {"scheduler": "stream_k", "reduction": "atomic"},
)
GRAPHED = [
    walking(word, **how)
    for how in HOWS
    for word in ("none", "wait")
    if FAMILY.judge(walking(word, **how), arch(ARCH))
]


def edges(graph: torch.cuda.CUDAGraph) -> list[int]:
    """The types of a captured graph's edges. The graph was made with ``keep_graph=True``."""
    lib, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t()
    assert lib.cuGraphGetEdges_v2(handle, None, None, None, ctypes.byref(count)) == 0
    ends = [(ctypes.c_void_p * count.value)() for _ in range(2)]
    data = (ctypes.c_ubyte * 8 * count.value)()  # CUgraphEdgeData: two ports, the type, reserved
    assert lib.cuGraphGetEdges_v2(handle, *ends, data, ctypes.byref(count)) == 0
    return [one[2] for one in data]


@pytest.mark.parametrize("kernel", GRAPHED, ids=lambda kernel: kernel.name)
def test_a_graph_holds_one_kernel_for_each_call_and_nothing_else(kernels, kernel):
    """Also where the capture is the first to need a workspace. What lets the next kernel start is
    an edge of the graph."""
    kernels.need([kernel])
    dispatcher = Dispatcher(store=kernels.store)
    a = torch.randn(192, 1024, device="cuda").bfloat16()
    b = torch.randn(320, 1024, device="cuda").bfloat16().T
    out = torch.empty(192, 320, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(4):
            dispatcher.run_named(kernel.name, a, b, out=out)
    assert nodes(graph) == ["kernel"] * 4
    early = kernel.dependent_launch != "none"
    assert edges(graph) == [PROGRAMMATIC if early else 0] * 3
    graph.instantiate()
    for _ in range(20):
        a.copy_(torch.randn_like(a))
        out.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)


@pytest.mark.parametrize("method", ["single", "graph"])
def test_compared_in_both_ways_of_timing(kernels, method):
    """In graphs one call of a kernel that loads ahead follows another."""
    pair = [walking("ahead"), walking("none")]
    kernels.need(pair)
    problem = GemmProblem(64, 2048, 4096, constant_b=True)
    here = live_device(0)
    sides = [contender(one.name, problem, here, kernels.store) for one in pair]
    sides.append(contender("vendor", problem, here, kernels.store))
    calls, timer = prepared(sides, problem, 7, "cuda:0", here.l2_bytes, method)
    for call in calls[1:]:
        found = compare(calls[0], call, timer, rounds=20)
        print(f"{method}: {found}; {found.medians_us}")
        floor = problem.min_bytes / here.bandwidth_gbs / 1e3
        assert floor < min(found.medians_us) and max(found.medians_us) < 20 * floor
