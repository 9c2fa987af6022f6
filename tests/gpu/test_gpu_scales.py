"""Block scales on a real GPU: every form against float64, and the cached path."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from scale_cases import FORMS, cases, few, gluon  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.quantise import dequantise, quantise  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = [*cases(ARCH), *few(ARCH), *(gluon() if ARCH == "sm_90" else ())]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_form_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(4096, 2112, 7168), (1, 4096, 7168), (513, 1104, 2064)])
def test_real_sizes_are_right(dispatcher, form, size):
    problem = GemmProblem(*size, dtype_a="e4m3fn", scale_a=form[0], scale_b=form[1])
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


def test_many_tiles_and_rings_again_and_again(dispatcher):
    """The same result every time: no slot of the ring is read early or written late."""
    kernel, _ = gluon()[0]
    blocks = {"scale_a": "1x128", "scale_b": "128x128"}
    problem = GemmProblem(4096, 4224, 3072, dtype_a="e4m3fn", **blocks)
    inputs, out = verify.make_operands(problem, seed=1, device="cuda:0")
    first = None
    for _ in range(20):
        verify.arrays.poison(out)
        dispatcher.run_named(kernel.name, *inputs, out=out, **blocks)
        if first is None:
            first = out.clone()
            assert verify.check(problem, kernel, inputs, out).ok
        assert torch.equal(out, first)


SHARED = [case[0] for case in gluon() if case[0].scheduler == "split_k"]


@pytest.mark.skipif(ARCH != "sm_90", reason="gluon_scaled is for sm_90")
@pytest.mark.parametrize("number", range(len(SHARED)))
def test_shared_sums_are_right_again_and_again(dispatcher, number):
    """Sizes that divide nothing, and more parts than workgroups: the workspace is at rest after
    each call, nobody waits for who has not begun, and all but `atomic` repeat bit for bit."""
    kernel = SHARED[number]
    words = {"scale_a": kernel.scale_a, "scale_b": kernel.scale_b}
    words = {name: word for name, word in words.items() if word}
    fields = {"dtype_a": kernel.dtype_a, "layout": kernel.layout, **words}
    for size in ((64, 2112, 7168), (8, 16, 1152), (520, 1104, 2064), (2048, 4224, 3088)):
        problem = GemmProblem(*size, **fields)
        inputs, out = verify.make_operands(problem, seed=1, device="cuda:0")
        first = None
        for _ in range(10):
            verify.arrays.poison(out)
            dispatcher.run_named(kernel.name, *inputs, out=out, **words)
            if first is None or kernel.reduction == "atomic":
                result = verify.check(problem, kernel, inputs, out)
                assert result.ok, f"{kernel.name} on {problem}: {result}"
                first = out.clone()
            assert torch.equal(out, first)


def test_a_cached_plan_follows_new_tensors(dispatcher):
    out = torch.empty(256, 384, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        x = torch.randn(256, 512, device="cuda")
        w = torch.randn(384, 512, device="cuda")
        a, sa = quantise(x, "1x128")
        b, sb = quantise(w.T, "128x128")
        dispatcher.run("gemm", a, b, sa, sb, out=out, scale_a="1x128", scale_b="128x128")
        expected = dequantise(a, sa, "1x128").double() @ dequantise(b, sb, "128x128").double()
        torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=0.1)
