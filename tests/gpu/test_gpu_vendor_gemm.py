"""Algorithms of the vendor's library on a GPU: each is right, repeats where it says so, can be
captured, is the same in another process, and is chosen by a tuned table."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from vendor_cases import (  # noqa: E402
    Case,
    asked,
    check_in_a_graph,
    check_in_fresh_processes,
    check_in_threads,
    check_that_it_is_passed_over,
    check_that_it_repeats,
    dispatchers,
)

from tilewright import GemmProblem  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402
from tilewright.ops.gemm import FAMILY  # noqa: E402
from tilewright.ops.library import Found  # noqa: E402
from tilewright.runtime import blaslt, libraries  # noqa: E402
from tilewright.runtime.drivers import driver  # noqa: E402

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
    listed = [p for p in PROBLEMS if p.dtype_a != "e4m3fn" or ARCH in FP8_FROM]
    listed = [
        p for p in listed if ARCH in SCALES_ON or not (p.scale_a or "row_scale" in p.epilogue)
    ]
    return asked(listed)


def of(offers, problem):
    """The problem's algorithms."""
    if problem not in offers:
        pytest.skip(f"the library has no such 8-bit products on {ARCH}")
    assert offers[problem].configs, offers[problem].reason
    return offers[problem].configs


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_algorithm_offered_is_right_and_repeats_where_it_says_so(offers, problem):
    case, dispatcher = Case(problem), Dispatcher()
    for config in of(offers, problem):
        check = case.check(config, dispatcher)
        assert check.ok, f"{config.name}: {check}"
        if FAMILY.repeats(config):
            check_that_it_repeats(case, config, dispatcher)


CONVOLUTIONS = [
    ConvProblem(4, 216, 264, (14, 14), (1, 1), direction=direction)
    for direction in ("forward", "data", "weights")
] + [
    ConvProblem(2, 64, 96, (8, 8), (1, 1), stride=(2, 2)),
    ConvProblem(4, 8, 32, (64,), (4,), stride=(4,)),
]


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
def test_convolutions_that_are_products_are_right_by_it(problem):
    offer, case, dispatcher = asked([problem], 4)[problem], Case(problem), Dispatcher()
    assert offer.configs, offer.reason
    for config in offer.configs:
        check = case.check(config, dispatcher)
        assert check.ok, f"{config.name}: {check}"


def test_splits_are_among_what_is_offered(offers):
    """Otherwise the tests here say nothing of workspaces."""
    configs = [config for offer in offers.values() for config in offer.configs]
    print(*(config.name for config in configs), sep="\n")
    assert any(config.algorithm.parts > 1 and config.workspace for config in configs)


@pytest.mark.parametrize("epilogue", ["", "bias"])
def test_nan_and_infinity_stay(epilogue):
    problem = GemmProblem(64, 256, 128, epilogue=epilogue)
    a = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 128, device="cuda", dtype=torch.bfloat16).T
    bias = [torch.randn(256, device="cuda", dtype=torch.bfloat16)] if "bias" in epilogue else []
    a[3, 5], a[7, 9] = float("nan"), float("inf")
    product = a.float() @ b.float() + (bias[0].float() if bias else 0)
    for config in asked([problem])[problem].configs:
        out = torch.zeros(64, 256, device="cuda", dtype=torch.bfloat16)
        named = {"epilogue": epilogue} if epilogue else {}
        Dispatcher().run_named(config.name, a, b, *bias, out=out, **named)
        assert out[3].isnan().all(), config.name
        assert torch.equal(out.isposinf(), product.isposinf()), config.name


@pytest.mark.parametrize("problem", [PROBLEMS[2], PROBLEMS[16]], ids=str)
@pytest.mark.parametrize("warm", [False, True])
def test_a_graph_takes_each_algorithm_even_at_its_first_call(offers, problem, warm):
    for config in of(offers, problem):
        check_in_a_graph(Case(problem), config, warm)


@pytest.mark.parametrize("problem", [PROBLEMS[1], PROBLEMS[2], PROBLEMS[3]], ids=str)
def test_its_attributes_fix_an_algorithm(problem):
    """An algorithm made of its attributes runs the kernels of the one that the library offered, and
    gives its bits."""
    library = libraries.present("cublaslt")
    asked = FAMILY.library_query(problem, arch(ARCH), library.name)
    raw = library._results(driver("cuda"), 0, asked, libraries.ALGORITHMS)
    assert raw
    case = Case(problem)
    for one in raw:
        found = Found(library._read(0, one), one.workspace)
        config = FAMILY.library_config(problem, library.name, found)
        dispatcher = Dispatcher()
        call = case.bound(config, dispatcher)
        ours = run(call, case.operands)
        (ready,) = dispatcher._launches.ready.values()
        context = blaslt.Context.from_address(ready.bound._products[0].address)
        same = bytes(context.algorithm) == bytes(one.algorithm)
        context.algorithm = one.algorithm
        theirs = run(call, case.operands)
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


def test_a_name_is_the_same_algorithm_in_a_fresh_process(offers):
    problem = PROBLEMS[2]
    check_in_fresh_processes(problem, [config.name for config in of(offers, problem)])


def test_a_tuned_table_dispatches_to_an_algorithm_and_only_ours_leaves_it_out(offers):
    problem = PROBLEMS[3]
    case = Case(problem)
    a, b = case.operands.inputs.values()
    for dispatcher in dispatchers(problem, of(offers, problem)[0]):
        case.reset()
        dispatcher.run("gemm", a, b, out=case.operands.outputs["C"])
        assert case.compared(dispatcher.select(problem).config).ok
        # Rows padded to this one take it too, where the library allows.
        short = dispatcher.run("gemm", a[:2000], b)
        assert short.shape == (2000, problem.n) and not short.isnan().any()


def test_an_algorithm_that_the_library_refuses_is_passed_over(offers, caplog):
    problem = PROBLEMS[3]
    config, operands = of(offers, problem)[0], Case(problem).operands
    broken = replace(config, algorithm=replace(config.algorithm, number=999_999))
    check_that_it_is_passed_over(
        broken, problem,
        lambda by: by.run("gemm", *operands.inputs.values(), out=operands.outputs["C"]),
        lambda: caplog.text,
    )  # fmt: skip


def test_threads_that_never_used_the_gpu_may_call(offers):
    problem = PROBLEMS[14]
    config, dispatcher, operands = of(offers, problem)[0], Dispatcher(), Case(problem).operands
    a, b, bias = operands.inputs.values()

    def call():
        out = torch.empty_like(operands.outputs["C"])
        return dispatcher.run_named(config.name, a, b, bias, out=out, epilogue="bias")

    check_in_threads(call)


def test_the_library_is_the_one_of_this_process():
    library = libraries.present("cublaslt")
    assert library.version // 10000 in library.majors
    print(f"{library.name} {library.version}; torch {torch.__version__} with {torch.version.cuda}")
    assert arch(ARCH).backend == "cuda"
