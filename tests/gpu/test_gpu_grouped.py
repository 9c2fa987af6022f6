"""Grouped GEMM on a real GPU: every kind of kernel, wrong offsets, lists of tensors, graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from grouped_cases import (  # noqa: E402
    cases,
    config,
    epilogues,
    gathered,
    of_any_number,
    turned_tiles,
)
from grouped_lowbit_cases import cases as of_few_bits  # noqa: E402
from grouped_lowbit_cases import zero_points  # noqa: E402
from grouped_scale_cases import cases as scaled  # noqa: E402
from grouped_scale_cases import gates, rounding  # noqa: E402
from widened_cases import cases as widened  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem, pack  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = [
    *cases(ARCH),
    *epilogues(ARCH),
    *gathered(ARCH),
    *scaled(ARCH),
    *of_few_bits(ARCH),
    *zero_points(ARCH),
    *widened(ARCH),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_kernel_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.skipif(ARCH != "sm_90", reason="low tiles are turned on sm_90")
@pytest.mark.parametrize("number", range(len(turned_tiles())))
def test_low_tiles_that_are_turned_are_right(dispatcher, number):
    kernel, problem = turned_tiles()[number]
    for seed in range(3):
        result = verify.verify(dispatcher, problem, kernel.name, seed=seed, device="cuda:0")
        assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("form", ["contiguous", "masked"])
@pytest.mark.parametrize("groups", [1, 3, 130, 256, 1024])
def test_any_number_of_groups(dispatcher, form, groups):
    for kernel, problem in of_any_number(ARCH, form, groups):
        result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
        assert result.ok, f"{kernel.name}: {result}"


def _data():
    from tilewright.arch import arch

    return arch(ARCH)


EIGHT = {"dtype_a": "e4m3fn", "dtype_b": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
LARGE = [
    ("gluon_ws", 64, {}),
    ("gluon_ws", 64, {"layout": "rrr"}),
    ("gluon_ws", 64, {"form": "masked"}),
    ("gluon_ws", 64, {"form": "gathered", "epilogue": "swiglu"}),
    ("gluon_scaled", 128, EIGHT),
    ("gluon_scaled", 128, {"form": "gathered", **EIGHT}),
    ("gluon_scaled", 128, {"form": "gathered", "epilogue": "swiglu", **EIGHT}),
]
"""Of largest tiles that store in small pieces: pipeline, K of a step, and fields of config and
problem."""


@pytest.mark.skipif(ARCH != "sm_90", reason="the kernels with warp roles are for sm_90")
@pytest.mark.parametrize("number", range(len(gates())))
def test_gates_that_lie_apart_beside_scales_of_blocks(dispatcher, number):
    kernel, problem = gates()[number]
    for seed in range(3):
        result = verify.verify(dispatcher, problem, kernel.name, seed=seed, device="cuda:0")
        assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.skipif(ARCH != "sm_90", reason="the kernels with warp roles are for sm_90")
@pytest.mark.parametrize("number", range(len(rounding())))
def test_results_rounded_by_blocks(dispatcher, number):
    kernel, problem = rounding()[number]
    for seed in range(3):
        result = verify.verify(dispatcher, problem, kernel.name, seed=seed, device="cuda:0")
        assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.skipif(ARCH != "sm_90", reason="the kernels with warp roles are for sm_90")
@pytest.mark.parametrize("groups", [1, 130, 512])
@pytest.mark.parametrize("number", range(len(LARGE)))
def test_largest_tiles_have_a_fourth_stage(dispatcher, number, groups):
    pipeline, depth, said = LARGE[number]
    tile = {"tile_m": 128, "tile_n": 256, "tile_k": depth, "num_warps": 8, "num_stages": 4}
    kernel = config(ARCH, pipeline=pipeline, store="split", **tile, **said)
    rows = {"rows_a": 900, "per_row": 2} if kernel.form == "gathered" else {}
    sizes = {"groups": groups, "m": 300 if kernel.form == "masked" else 1700, "n": 528, "k": 656}
    if pipeline == "gluon_scaled" and kernel.epilogue:
        sizes["n"], rows["gates_apart"] = 2 * 384, True
    fields = {"dtype_c": kernel.dtype_c, "form": "contiguous", **said}
    problem = GroupedGemmProblem(**fields, **sizes, **rows)
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("pipeline", ["basic", "tma", "gluon_ws"])
def test_wrong_offsets_touch_nothing_else(dispatcher, pipeline):
    """Whatever the offsets say, memory around A and C is neither read nor written."""
    if pipeline not in FAMILY.pipelines(_data()):
        pytest.skip(f"{ARCH} has no {pipeline}")
    kernel = config(ARCH, pipeline=pipeline)
    whole = torch.full((900, 128), 7.0, device="cuda", dtype=torch.bfloat16)
    a = torch.randn(300, 64, device="cuda").bfloat16()
    b = torch.randn(4, 128, 64, device="cuda").bfloat16().transpose(1, 2)
    wild = 2**31 - 1
    for offsets in ([wild] * 4, [-wild] * 4, [-5, 400, -7, wild], [200, 100, 300, 299], [0] * 4):
        out = whole[300:600]
        where = torch.tensor(offsets, device="cuda", dtype=torch.int32)
        dispatcher.run_named(kernel.name, a, b, where, out=out)
        torch.cuda.synchronize()
        assert (whole[:300] == 7).all() and (whole[600:] == 7).all()


def test_a_list_reads_tensors_where_they_are(dispatcher):
    sizes = [(300, 128, 256), (0, 64, 32), (17, 72, 64), (1, 8, 8)]
    a = [torch.randn(m, k, device="cuda").half() for m, _, k in sizes]
    b = [torch.randn(n, k, device="cuda").half().T for _, n, k in sizes]
    packed = pack(list(zip(a, b, strict=True)))
    outs = [torch.empty(m, n, device="cuda", dtype=torch.half) for m, n, _ in sizes]
    into = pack(list(zip(a, b, strict=True)), outs)
    for _ in range(2):  # what is written into the operands afterwards counts
        for x in a:
            x.copy_(torch.randn_like(x))
        dispatcher.run("grouped_gemm", *packed.inputs, out=packed.out, **packed.options)
        dispatcher.run("grouped_gemm", *into.inputs, out=into.out, **into.options)
        for x, y, c, d in zip(a, b, packed.outputs, outs, strict=True):
            expected = x.float() @ y.float()
            torch.testing.assert_close(c.float(), expected, rtol=1e-2, atol=0.1)
            assert torch.equal(c, d)
    with pytest.raises(BadArgument, match="shares memory"):
        pack([(a[0], b[0]), (a[0], b[0])], [outs[0], outs[0]])


def test_sizes_may_change_under_a_captured_graph(dispatcher):
    """No host synchronisation: a graph replayed with other offsets computes other groups."""
    a = torch.randn(512, 128, device="cuda").bfloat16()
    b = torch.randn(8, 256, 128, device="cuda").bfloat16().transpose(1, 2)
    where = torch.arange(64, 513, 64, device="cuda", dtype=torch.int32)
    out = torch.empty(512, 256, device="cuda", dtype=torch.bfloat16)
    dispatcher.run("grouped_gemm", a, b, where, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dispatcher.run("grouped_gemm", a, b, where, out=out)
    where.copy_(torch.tensor([0, 500, 500, 501, 501, 510, 511, 512], dtype=torch.int32))
    graph.replay()
    begin = 0
    for group, end in enumerate(where.tolist()):
        expected = a[begin:end].float() @ b[group].float()
        torch.testing.assert_close(out[begin:end].float(), expected, rtol=2e-2, atol=0.5)
        begin = end


def test_weights_beyond_two_gibibytes(dispatcher):
    problem = GroupedGemmProblem("contiguous", 64, m=700, n=4096, k=5120)  # B is 2.7 GB
    for pipeline in [p for p in ("basic", "tma", "gluon_ws") if p in FAMILY.pipelines(_data())]:
        kernel = config(ARCH, pipeline=pipeline)
        result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
        assert result.ok, f"{kernel.name}: {result}"
