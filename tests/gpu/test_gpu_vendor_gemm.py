"""Algorithms of the vendor's library on a GPU: each is right, repeats where it says so, can be
captured, is the same in another process, and is chosen by a tuned table."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from tilewright import Constraints, GemmProblem, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.arch.detect import live_device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.measure.algorithms import offered  # noqa: E402
from tilewright.measure.contenders import kernel_bind, results  # noqa: E402
from tilewright.measure.devices import gpus  # noqa: E402
from tilewright.measure.sweep import Group  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402
from tilewright.ops.gemm import FAMILY  # noqa: E402
from tilewright.ops.library import Found  # noqa: E402
from tilewright.runtime import blaslt, libraries  # noqa: E402
from tilewright.runtime.drivers import driver  # noqa: E402
from tilewright.tables.row import Row  # noqa: E402
from tilewright.tables.table import Table  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ARCH.startswith("sm_"), reason="cuBLASLt is NVIDIA's"),
]

FP8 = {"dtype_a": "e4m3fn", "dtype_c": "bf16"}
PROBLEMS = [
    GemmProblem(1, 4096, 4096),
    GemmProblem(64, 4096, 14336),
    GemmProblem(512, 512, 8192),  # few tiles and a long sum: split
    GemmProblem(2048, 7168, 4096),
    GemmProblem(300, 520, 264, "fp16", layout="crr"),
    GemmProblem(300, 520, 264, "fp16", layout="rrc"),
    GemmProblem(128, 384, 1024, layout="ccc"),
    GemmProblem(333, 256, 128, lda=136, ldb=192, ldc=264),
    GemmProblem(333, 250, 130, lda=131, alignment=2),
    GemmProblem(256, 256, 512, dtype_c="fp32"),
    GemmProblem(256, 256, 512, "fp32"),
    GemmProblem(256, 256, 512, "fp32", precision="tf32"),
    GemmProblem(64, 96, 128, batch=3, batching="strided"),
    GemmProblem(64, 96, 128, batch=3, batching="strided", stride_b=0),
    GemmProblem(128, 1024, 512, epilogue="bias"),
    GemmProblem(128, 1024, 512, "fp16", epilogue="bias"),
    GemmProblem(128, 1024, 64, epilogue="bias"),
    GemmProblem(64, 2112, 7168, "int8"),
    GemmProblem(2048, 4096, 4096, "int8"),
    GemmProblem(64, 2112, 7168, **FP8),
    GemmProblem(64, 2112, 7168, **FP8, epilogue="scale"),
    GemmProblem(64, 2112, 7168, **FP8, epilogue="row_scale+col_scale"),
    GemmProblem(1000, 4096, 4096, **FP8, epilogue="row_scale+col_scale"),
    *(
        GemmProblem(
            m,
            n,
            k,
            **FP8,
            scale_a="1x128",
            scale_b="128x128",
            strides_sa=(1, m),
            strides_sb=(1, column),
        )
        for m, n, k, column in ((64, 2112, 7168, 56), (1000, 4096, 4096, 32), (128, 512, 640, 8))
    ),
]
FP8_FROM = ("sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
SCALES_ON = ("sm_90",)
"""Where the library has a scale for each row and column, or for blocks."""


@pytest.fixture(scope="module")
def offers():
    """What the library offers for each problem, asked as a tuning asks."""
    place = gpus()[0]
    listed = [p for p in PROBLEMS if p.dtype_a != "e4m3fn" or ARCH in FP8_FROM]
    listed = [
        p for p in listed if ARCH in SCALES_ON or not (p.scale_a or "row_scale" in p.epilogue)
    ]
    return offered(Group(place.device, place.environment, place=place), listed)


def of(offers, problem):
    """The problem's algorithms."""
    if problem not in offers:
        pytest.skip(f"the library has no such 8-bit products on {ARCH}")
    assert offers[problem].configs, offers[problem].reason
    return offers[problem].configs


def computed(dispatcher, config, problem, operands):
    """The outputs of one call, in poisoned memory."""
    verify.reset(operands, {})
    call = kernel_bind(dispatcher, config.name, problem)(operands.inputs, operands.outputs)
    written = results(problem, operands, call())
    torch.cuda.synchronize()
    return written


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_algorithm_offered_is_right_and_repeats_where_it_says_so(offers, problem):
    dispatcher = Dispatcher()
    operands = verify.operands_of(problem, 0, "cuda:0")
    wanted = verify.reference(problem, operands.inputs)
    for config in of(offers, problem):
        written = computed(dispatcher, config, problem, operands)
        check = verify.compare_all(problem, config, written, wanted)
        assert check.ok, f"{config.name}: {check}"
        if FAMILY.repeats(config):
            first = {name: x.clone() for name, x in written.items()}
            dispatcher.workspaces.release()
            again = computed(dispatcher, config, problem, operands)
            assert all(torch.equal(first[name], again[name]) for name in first), config.name


CONVOLUTIONS = [
    ConvProblem(4, 216, 264, (14, 14), (1, 1), direction=direction)
    for direction in ("forward", "data", "weights")
] + [
    ConvProblem(2, 64, 96, (8, 8), (1, 1), stride=(2, 2)),
    ConvProblem(4, 8, 32, (64,), (4,), stride=(4,)),
]


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
def test_convolutions_that_are_products_are_right_by_it(problem):
    place = gpus()[0]
    offer = offered(Group(place.device, place.environment, place=place), [problem], 4)[problem]
    assert offer.configs, offer.reason
    dispatcher = Dispatcher()
    operands = verify.operands_of(problem, 0, "cuda:0")
    wanted = verify.reference(problem, operands.inputs)
    for config in offer.configs:
        check = verify.compare_all(
            problem, config, computed(dispatcher, config, problem, operands), wanted
        )
        assert check.ok, f"{config.name}: {check}"


def test_splits_are_among_what_is_offered(offers):
    """Otherwise the tests here say nothing of workspaces."""
    configs = [config for offer in offers.values() for config in offer.configs]
    print(*(config.name for config in configs), sep="\n")
    assert any(config.algorithm.parts > 1 and config.workspace for config in configs)


@pytest.mark.parametrize("epilogue", ["", "bias"])
def test_nan_and_infinity_stay(epilogue):
    problem = GemmProblem(64, 256, 128, epilogue=epilogue)
    place = gpus()[0]
    group = Group(place.device, place.environment, place=place)
    a = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 128, device="cuda", dtype=torch.bfloat16).T
    bias = [torch.randn(256, device="cuda", dtype=torch.bfloat16)] if "bias" in epilogue else []
    a[3, 5], a[7, 9] = float("nan"), float("inf")
    product = a.float() @ b.float() + (bias[0].float() if bias else 0)
    for config in offered(group, [problem])[problem].configs:
        out = torch.zeros(64, 256, device="cuda", dtype=torch.bfloat16)
        named = {"epilogue": epilogue} if epilogue else {}
        Dispatcher().run_named(config.name, a, b, *bias, out=out, **named)
        assert out[3].isnan().all(), config.name
        assert torch.equal(out.isposinf(), product.isposinf()), config.name


@pytest.mark.parametrize("problem", [PROBLEMS[2], PROBLEMS[16]], ids=str)
@pytest.mark.parametrize("warm", [False, True])
def test_a_graph_takes_each_algorithm_even_at_its_first_call(offers, problem, warm):
    for config in of(offers, problem):
        dispatcher = Dispatcher()
        operands = verify.operands_of(problem, 0, "cuda:0")
        wanted = verify.reference(problem, operands.inputs)
        call = kernel_bind(dispatcher, config.name, problem)(operands.inputs, operands.outputs)
        if warm:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for _ in range(3):
            verify.reset(operands, {})
            graph.replay()
            torch.cuda.synchronize()
            written = operands.written(problem)
            check = verify.compare_all(problem, config, written, wanted)
            assert check.ok, f"{config.name}: {check}"


@pytest.mark.parametrize("problem", [PROBLEMS[1], PROBLEMS[2], PROBLEMS[3]], ids=str)
def test_its_attributes_fix_an_algorithm(problem):
    """An algorithm made of its attributes runs the kernels of the one that the library offered, and
    gives its bits."""
    library = libraries.present("cublaslt")
    asked = FAMILY.library_query(problem, arch(ARCH), library.name)
    raw = library._results(driver("cuda"), 0, asked, libraries.ALGORITHMS)
    assert raw
    operands = verify.operands_of(problem, 0, "cuda:0")
    for one in raw:
        found = Found(library._read(0, one), one.workspace)
        config = FAMILY.library_config(problem, library.name, found)
        dispatcher = Dispatcher()
        call = kernel_bind(dispatcher, config.name, problem)(operands.inputs, operands.outputs)
        ours = run(call, operands)
        (ready,) = dispatcher._launches.ready.values()
        context = blaslt.Context.from_address(ready.bound._products[0].address)
        same = bytes(context.algorithm) == bytes(one.algorithm)
        context.algorithm = one.algorithm
        theirs = run(call, operands)
        print(f"{config.name}: {ours[0]}; its bytes are {'the same' if same else 'others'}")
        assert ours[0] == theirs[0], config.name
        assert torch.equal(ours[1], theirs[1]), config.name


def run(call, operands):
    """The kernels that a call runs, and its result."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sorted(event.name for event in seen.events()), operands.outputs["C"].clone()


_ANOTHER = """
import json, sys
import torch
from tilewright import GemmProblem, verify
from tilewright.dispatch import Dispatcher
from tilewright.measure.contenders import kernel_bind
from torch.profiler import ProfilerActivity, profile
problem, names = GemmProblem(512, 512, 8192), json.loads(sys.argv[1])
operands = verify.operands_of(problem, 0, "cuda:0")
found = {}
for name in names:
    call = kernel_bind(Dispatcher(), name, problem)(operands.inputs, operands.outputs)
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    ran = sorted({e.name for e in seen.events() if "emset" not in e.name})
    found[name] = [ran, operands.outputs["C"].float().sum().item()]
print(json.dumps(found))
"""


def test_a_name_is_the_same_algorithm_in_a_fresh_process(offers):
    """The same kernels of the library run, and give the same bits, and other names run others."""
    names = json.dumps([config.name for config in of(offers, PROBLEMS[2])])
    ran = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", _ANOTHER, names], check=True, capture_output=True, text=True
            ).stdout.splitlines()[-1]
        )
        for _ in range(2)
    ]
    print(json.dumps(ran[0], indent=1))
    assert ran[0] == ran[1]
    assert all(kernels for kernels, _ in ran[0].values())
    if len(ran[0]) > 1:
        assert len({tuple(kernels) for kernels, _ in ran[0].values()}) > 1


def test_a_tuned_table_dispatches_to_an_algorithm_and_only_ours_leaves_it_out(offers):
    problem = PROBLEMS[3]
    config = of(offers, problem)[0]
    row = Row(live_device(0), problem, config.name, (), 10.0, (9.9, 10.1), 0.5)
    table = Table.of([row], "mine.twt")
    operands = verify.operands_of(problem, 0, "cuda:0")
    wanted = verify.reference(problem, operands.inputs)
    a, b = operands.inputs.values()
    for constraints, chosen in ((Constraints(), True), (Constraints(only_ours=True), False)):
        dispatcher = Dispatcher(tables=table, constraints=constraints)
        plan = dispatcher.select(problem)
        assert (plan.config == config) == chosen
        verify.reset(operands, {})
        dispatcher.run("gemm", a, b, out=operands.outputs["C"])
        written = operands.written(problem)
        assert verify.compare_all(problem, plan.config, written, wanted).ok
        # Rows padded to this one take it too, where the library allows.
        short = dispatcher.run("gemm", a[:2000], b)
        assert short.shape == (2000, problem.n) and not short.isnan().any()


def test_an_algorithm_that_the_library_refuses_is_passed_over(offers, caplog):
    problem = PROBLEMS[3]
    config = of(offers, problem)[0]
    broken = replace(config, algorithm=replace(config.algorithm, number=999_999))
    row = Row(live_device(0), problem, broken.name, (), 10.0, (9.9, 10.1), 0.5)
    dispatcher = Dispatcher(tables=Table.of([row], "mine.twt"))
    operands = verify.operands_of(problem, 0, "cuda:0")
    dispatcher.run("gemm", *operands.inputs.values(), out=operands.outputs["C"])
    assert "refused to" in caplog.text
    fates = {f.name: f for f in dispatcher.explain(problem).fates}
    assert fates[broken.name].by in ("library", "tuned")


def test_threads_that_never_used_the_gpu_may_call(offers):
    from concurrent.futures import ThreadPoolExecutor

    problem = PROBLEMS[14]
    config, dispatcher = of(offers, problem)[0], Dispatcher()
    operands = verify.operands_of(problem, 0, "cuda:0")
    a, b, bias = operands.inputs.values()

    def call(_):
        out = torch.empty_like(operands.outputs["C"])
        dispatcher.run_named(config.name, a, b, bias, out=out, epilogue="bias")
        torch.cuda.synchronize()
        return out

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(call, range(16))
    assert all(torch.equal(first, other) for other in others)


def test_the_library_is_the_one_of_this_process():
    library = libraries.present("cublaslt")
    assert library.version // 10000 in library.majors
    print(f"{library.name} {library.version}; torch {torch.__version__} with {torch.version.cuda}")
    assert arch(ARCH).backend == "cuda"
