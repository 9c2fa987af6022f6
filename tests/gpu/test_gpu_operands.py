"""Operations on A and B, and shuffled weights, on a real GPU: against float64, and torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from operand_cases import PRE, combined, shuffled  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import verify  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = [*combined(ARCH), *shuffled(ARCH)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_case_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize(
    ("chain", "dtype"), [*zip(PRE, ("bf16", "fp16", "e4m3fn") * 2, strict=True)]
)
def test_real_sizes_are_right(dispatcher, chain, dtype):
    problem = GemmProblem(1024, 1040, 4096, dtype_a=dtype, pre_a=chain, pre_b="add+row_scale")
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


@pytest.mark.parametrize("dtype", ["bf16", "e4m3fn", "int8"])
@pytest.mark.parametrize("m", [1, 200])
def test_real_weights_are_right(dispatcher, dtype, m):
    problem = GemmProblem(m, 4096, 7168, dtype_a=dtype, layout="rsr")
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


def test_weights_are_shuffled_where_they_are(dispatcher):
    weight = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    made = tw.shuffle(weight.T)
    assert made.device == weight.device and torch.equal(tw.unshuffle(made), weight.T)
    out = torch.empty(8, 512, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):  # the first call plans, the others find the plan
        a = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
        assert dispatcher.run("gemm", a, made, out=out) is out
        torch.testing.assert_close(out, a @ weight.T, rtol=2e-2, atol=0.5)
        plain = dispatcher.run("gemm", a, weight.T)
        torch.testing.assert_close(plain, out, rtol=2e-2, atol=0.5)


def test_a_cached_plan_follows_new_operands_and_other_chains(dispatcher):
    b = torch.randn(384, 512, device="cuda", dtype=torch.bfloat16).T
    out = torch.empty(256, 384, device="cuda", dtype=torch.bfloat16)
    functions = {"add": torch.add, "mul": torch.mul}
    for _ in range(3):
        for chain, function in functions.items():
            a, other = (torch.randn(256, 512, device="cuda").bfloat16() for _ in "ab")
            dispatcher.run("gemm", a, b, other, out=out, pre_a=chain)
            expected = function(a, other) @ b
            torch.testing.assert_close(out, expected, rtol=2e-2, atol=0.5)
