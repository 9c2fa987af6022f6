"""Operands of 4 bits and the MX formats on a real GPU: every kind of kernel against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from lowbit_cases import MX, cases  # noqa: E402

from tilewright import ops, verify  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.quantise import dequantise, quantise  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = cases(ARCH)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_kernel_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(1, 4096, 4096, dtype_b="int4", scale_b="128x1-bf16"),
        GemmProblem(64, 4096, 14336, dtype_b="e2m1", scale_b="32x1-e8m0"),
        GemmProblem(300, 2112, 7168, dtype_b="int4", scale_b="32x1-bf16"),
        GemmProblem(2048, 2176, 4096, dtype_a="e2m1", **MX),
        GemmProblem(2048, 2176, 4096, dtype_a="e4m3fn", **MX),
    ],
    ids=str,
)
def test_real_sizes_are_right_again_and_again(dispatcher, problem):
    """Most are shared, by more parts than the GPU has room for at once."""
    inputs, out = verify.make_operands(problem, seed=1, device="cuda:0")
    options = ops.family("gemm").options(problem)
    first = None
    for _ in range(50):
        verify.arrays.poison(out)
        dispatcher.run("gemm", *inputs, out=out, **options)
        if first is None:
            first = out.clone()
            result = verify.check(problem, dispatcher.select(problem).config, inputs, out)
            assert result.ok, result
        assert torch.equal(out, first)


def test_a_cached_plan_tells_what_is_packed_apart(dispatcher):
    a = torch.randn(16, 512, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(256, 512, device="cuda")
    out = torch.empty(16, 256, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        for kind in ("int4", "e2m1"):
            packed, scales = quantise(weights.T, "128x1-bf16", kind)
            said = {"dtype_b": kind, "scale_b": "128x1-bf16"}
            assert dispatcher.run("gemm", a, packed, scales, out=out, **said) is out
            b = dequantise(packed, scales, "128x1-bf16", packed=kind)
            torch.testing.assert_close(out.float(), a.float() @ b, rtol=2e-2, atol=0.5)
