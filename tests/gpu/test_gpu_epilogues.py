"""Epilogues on a real GPU: every operation and several chains against float64, and torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from epilogue_cases import CHAINS, cases  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = cases(ARCH)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_operation_and_chain_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", ["bf16", "e4m3fn", "int8"])
def test_real_sizes_are_right(dispatcher, dtype, chain):
    problem = GemmProblem(2048, 2176, 4096, dtype_a=dtype, epilogue=chain)
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


def test_int8_is_requantised(dispatcher):
    """Exactly: powers of two as scales give ties too, which go to the even neighbour."""
    a = torch.randint(-9, 10, (512, 256), device="cuda", dtype=torch.int8)
    b = torch.randint(-9, 10, (384, 256), device="cuda", dtype=torch.int8).T
    rows, columns = (2.0 ** torch.randint(-3, 1, (n,), device="cuda") for n in (512, 384))
    exact = (a.double() @ b.double()) * rows[:, None].double() * columns.double()
    assert (exact % 1 == 0.5).double().mean() > 0.05
    for _ in range(2):
        out = torch.full((512, 384), 77, device="cuda", dtype=torch.int8)
        dispatcher.run("gemm", a, b, rows, columns, out=out, epilogue="row_scale+col_scale")
        assert torch.equal(out.double(), exact.round().clamp(-128, 127))


def test_a_cached_plan_follows_new_tensors_and_other_epilogues(dispatcher, monkeypatch):
    b = torch.randn(384, 512, device="cuda", dtype=torch.bfloat16).T
    out = torch.empty(256, 384, device="cuda", dtype=torch.bfloat16)
    functions = {
        "bias": lambda x: x,
        "bias+relu": torch.relu,
        "bias+silu": torch.nn.functional.silu,
    }
    for number in range(3):
        with monkeypatch.context() as patch:
            if number:  # each chain is ready, and told from the others
                patch.setattr(dispatcher, "_first_run", lambda *_: pytest.fail("planned anew"))
            for chain, function in functions.items():
                a = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
                bias = torch.randn(384, device="cuda", dtype=torch.bfloat16)
                assert dispatcher.run("gemm", a, b, bias, out=out, epilogue=chain) is out
                expected = function((a @ b).float() + bias.float())
                torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=0.5)
    with pytest.raises(BadArgument, match="words joined"):
        dispatcher.run("gemm", a, b, bias, out=out, epilogue=["bias"])


def test_a_0_dimensional_scale_and_columns_of_scales(dispatcher):
    a = torch.randn(128, 256, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(192, 256, device="cuda").to(torch.float8_e4m3fn).T
    rows, columns = torch.rand(128, 1, device="cuda"), torch.rand(1, 192, device="cuda")
    scale = torch.tensor(0.25, device="cuda")
    out = dispatcher.run("gemm", a, b, rows, columns, scale, epilogue="row_scale+col_scale+scale")
    expected = (a.double() @ b.double() * rows * columns * scale).float()
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=0.05)
