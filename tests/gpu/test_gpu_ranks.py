"""Products of operands of any ranks, and of 8-bit floats of two dtypes, on a GPU."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from tilewright import GemmProblem, verify
from tilewright.dispatch import Dispatcher

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [((64,), (64, 48)), ((32, 64), (64,)), ((2, 3, 32, 64), (3, 64, 48)), ((64,), (2, 3, 64, 48))],
)
def test_matmul_of_any_ranks(of_a, of_b):
    a, b = torch.randn(of_a, device="cuda").bfloat16(), torch.randn(of_b, device="cuda").bfloat16()
    wanted = torch.matmul(a.double(), b.double())
    torch.testing.assert_close(tw.gemm(a, b).double(), wanted, atol=0.15, rtol=0.02)


@pytest.mark.parametrize("m", [3, 200])
@pytest.mark.parametrize(("a", "b"), [("e4m3fn", "e5m2"), ("e5m2", "e4m3fn")])
def test_two_dtypes_of_8_bits(a, b, m):
    problem = GemmProblem(m, 256, 512, dtype_a=a, dtype_b=b, dtype_c="bf16")
    result = verify.verify(Dispatcher(), problem, seed=m)
    assert result.ok, result
