"""GEMM on a real GPU: every kind of kernel that shares no tile, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from gemm_cases import awkward, by_turns, cases, few_rows, odd_tiles, swapped  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu

CASES = [*cases(ARCH), *few_rows(ARCH)]
if ARCH == "sm_90":
    CASES += [*odd_tiles(), *by_turns(), *swapped()]


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


def test_beyond_two_gibibytes(dispatcher):
    problem = GemmProblem(70000, 20000, 64)  # C spans 2.8 GB
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


@pytest.mark.skipif(ARCH != "sm_90", reason="kernels of sm_90")
@pytest.mark.parametrize(
    "how",
    [
        "64x128x64_w4_s4_gluon_ws_persistent",
        "128x64x64_w8_s4_gluon_ws_split_k2_linear",
        "128x128x64_w8_s4_gluon_pingpong_persistent",
        "64x64x64_w4_s4_tma_tile",
        "128x64x64_w4_s3_tma_persistent",
    ],
)
def test_what_a_tile_at_the_edge_computes_is_the_same_bits_where_it_begins_further_up(
    dispatcher, how
):
    name = f"gemm_rcr_bf16_bf16_bf16_fp32_{how}_g8_direct_padmnk_al16"
    a = torch.randn(333, 512, device="cuda").bfloat16()
    b = torch.randn(328, 512, device="cuda").bfloat16().T
    whole = dispatcher.run_named(name, a, b)
    for _ in range(20):
        assert torch.equal(dispatcher.run_named(name, a, b), whole)
    for m, n in ((150, 328), (333, 200), (257, 264), (129, 136)):
        assert torch.equal(dispatcher.run_named(name, a[:m], b[:, :n]), whole[:m, :n])


def test_nan_and_infinity_reach_the_output(dispatcher):
    a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    a[1, 2], a[3, 0] = float("nan"), float("inf")
    out = dispatcher.run("gemm", a, torch.ones_like(a))
    assert out[1].isnan().all() and out[3].isinf().all()
    assert out[4:].isfinite().all()


def test_interpreter_and_gpu_agree(dispatcher):
    a = torch.randn(96, 64).bfloat16()
    b = torch.randn(64, 80).bfloat16()
    on_cpu = dispatcher.run("gemm", a, b)
    on_gpu = dispatcher.run("gemm", a.cuda(), b.cuda())
    torch.testing.assert_close(on_cpu, on_gpu.cpu(), rtol=1e-2, atol=1e-2)
