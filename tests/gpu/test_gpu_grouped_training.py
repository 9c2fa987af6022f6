"""Grouped GEMM's forms of gradients on a real GPU: every kind of kernel, and gradients against
float64 of the rounded operands."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from grouped_cases import config, other_axes  # noqa: E402
from grouped_products import exact, used  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem  # noqa: E402
from tilewright.ops.grouped_gemm.pipelines import PIPELINES  # noqa: E402

pytestmark = pytest.mark.gpu

CASES = other_axes(ARCH)
OF_WEIGHTS = [p for p in FAMILY.pipelines(arch(ARCH)) if "weights" in PIPELINES[p].forms]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_kernel_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("groups", [1, 3, 130, 1024])
def test_any_number_of_groups(dispatcher, groups):
    problem = GroupedGemmProblem("weights", groups, m=136, n=200, k=5000, layout="crr")
    for pipeline in OF_WEIGHTS:
        kernel = config(ARCH, form="weights", layout="crr", pipeline=pipeline)
        result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
        assert result.ok, f"{kernel.name}: {result}"


@pytest.mark.parametrize("pipeline", OF_WEIGHTS)
def test_wrong_offsets_and_other_groups_touch_nothing(dispatcher, pipeline):
    """Whatever the offsets say, nothing outside of a group is read into its sum."""
    kernel = config(ARCH, form="weights", layout="crr", pipeline=pipeline)
    x = torch.randn(900, 128, device="cuda").bfloat16()
    dy = torch.randn(900, 192, device="cuda").bfloat16()
    x[:300], x[600:], dy[:300], dy[600:] = (torch.nan,) * 4
    wild = 2**31 - 1
    for ends in ([wild] * 4, [-wild] * 4, [-5, 400, -7, wild], [200, 100, 300, 299], [0] * 4):
        where = torch.tensor(ends, device="cuda", dtype=torch.int32)
        out = dispatcher.run_named(kernel.name, x[300:600].T, dy[300:600], where)
        clamped = [min(max(end, 0), 300) for end in (0, *ends)]
        for got, begin, end in zip(out, clamped[:-1], clamped[1:], strict=True):
            wanted = x[300 + begin : 300 + max(begin, end)].double().T
            wanted = wanted @ dy[300 + begin : 300 + max(begin, end)].double()
            torch.testing.assert_close(got.double(), wanted, rtol=2e-2, atol=0.5)


def test_groups_may_change_under_a_captured_graph(dispatcher):
    x = torch.randn(512, 128, device="cuda").bfloat16()
    dy = torch.randn(512, 256, device="cuda").bfloat16()
    where = torch.arange(64, 513, 64, device="cuda", dtype=torch.int32)
    out = torch.empty(8, 128, 256, device="cuda", dtype=torch.bfloat16)
    dispatcher.run("grouped_gemm", x.T, dy, where, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dispatcher.run("grouped_gemm", x.T, dy, where, out=out)
    where.copy_(torch.tensor([0, 500, 500, 501, 501, 510, 511, 512], dtype=torch.int32))
    graph.replay()
    wanted = exact(x.double().T, dy.double(), where)
    torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=0.5)


SHAPES = {
    "rows": ((1000, 256), (16, 256, 384)),
    "sum": ((256, 1000), (1000, 384)),
    "columns": ((16, 256, 128), (128, 1000)),
    "batch": ((4, 256, 128), (4, 128, 384)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_the_rounded_operands(name, columns, dtype):
    """Twice: the second call is repeated without its Python code."""
    ends = torch.tensor([0, 100, 100, 357, *range(400, 1000, 50)], dtype=torch.int32).cuda()
    offs = None if name == "batch" else ends
    for seed in range(2):
        torch.manual_seed(seed)
        a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in SHAPES[name])
        a, b = (
            (x.mT.contiguous().mT if turned else x).requires_grad_()
            for x, turned in zip((a, b), columns, strict=True)
        )
        x, y = (t.detach().double().requires_grad_() for t in (a, b))
        result, wanted = tt.grouped_mm(a, b, offs=offs), exact(x, y, offs)
        there = used(wanted, name, ends)
        assert far(result[there], wanted[there]) < 4e-3
        arriving = torch.randn(wanted.shape, device="cuda").to(dtype)
        found = torch.autograd.grad(result, (a, b), arriving.where(there, torch.nan))
        theirs = torch.autograd.grad(wanted, (x, y), arriving.double().where(there, 0))
        for one, other in zip(found, theirs, strict=True):
            assert far(one, other) < 4e-3


def test_a_bias_and_an_activation_have_gradients():
    x = torch.randn(1000, 256, device="cuda").bfloat16().requires_grad_()
    w = torch.randn(4, 256, 384, device="cuda").div(16).bfloat16().requires_grad_()
    bias = torch.randn(4, 384, device="cuda").bfloat16().requires_grad_()
    ends = torch.tensor([100, 100, 700, 1000], dtype=torch.int32).cuda()
    result = tw.grouped_gemm(x, w, ends, bias=bias, epilogue="bias+silu")
    exactly = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    wanted = torch.nn.functional.silu(
        exact(*exactly[:2], ends)
        + torch.cat([exactly[2][g].expand(n, -1) for g, n in enumerate((100, 0, 600, 300))])
    )
    arriving = torch.randn(1000, 384, device="cuda").bfloat16()
    found = torch.autograd.grad(result, (x, w, bias), arriving)
    for one, other in zip(
        found, torch.autograd.grad(wanted, exactly, arriving.double()), strict=True
    ):
        assert far(one, other) < 1e-2


def far(ours, wanted):
    """How far, as a share of the norm."""
    return float((ours.detach().double() - wanted.detach()).norm() / wanted.norm())
