"""Epilogues of groups in the kernel in Gluon, simulated: every kind of operand, whole tiles and
pieces, quantised outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped_cases import config

from shared_builds import build_once
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig, GroupedGemmProblem

SM90 = arch("sm_90")
FP8 = {"dtype_a": "e4m3fn", "tile_k": 128}
CASES = (
    ((128, 128, 8), "swiglu", "direct", {}),
    ((128, 256, 8), "bias+swiglu", "split", {}),
    ((64, 128, 4), "row_scale+col_scale+swiglu", "split", FP8),
    ((128, 128, 8), "row_scale+col_scale+add", "direct", {}),  # piece by piece
    ((64, 64, 4), "bias+silu+scale", "direct", {**FP8, "dtype_c": "e4m3fn"}),
    ((128, 256, 8), "bias+gelu", "direct", {}),
    ((64, 32, 4), "scale+clamp", "direct", {"layout": "rrr"}),
    ((128, 128, 8), "bias+clamped_swiglu_plus", "direct", {}),
    ((64, 64, 4), "geglu", "direct", {}),
)


def case(number: int) -> tuple[GroupedGemmConfig, GroupedGemmProblem]:
    (tile_m, tile_n, warps), chain, store, more = CASES[number]
    form = ("contiguous", "masked")[number % 2]
    said = {"form": form, "epilogue": chain, **more}
    depth = said.pop("tile_k", 64)
    tile = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": depth, "num_warps": warps}
    kernel = config(pipeline="gluon_ws", num_stages=3, store=store, **tile, **said)
    m = 300 if form == "contiguous" else 150
    return kernel, GroupedGemmProblem(groups=4, m=m, n=336, k=208, zero_rest=True, **said)


@pytest.mark.grid(1)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right_in_the_simulation(number):
    """Groups that end in the first warp group's rows, in the second's, and with a tile."""
    kernel, problem = case(number)
    assert FAMILY.judge(kernel, SM90)
    inputs = dict(verify.operands_of(problem, 1).inputs)
    if problem.form == "masked":
        inputs["counts"][...] = [150, 0, 64, 130]
    else:
        inputs["offsets"][...] = [70, 70, 198, 290]
    assert worst_error(kernel, problem, device("h200"), 1, inputs) <= 1.0


def test_its_sibling_has_the_same_epilogue_for_cpu_arrays():
    kernel, problem = case(1)
    assert FAMILY.interpreted(kernel) == replace(kernel, pipeline="tma")
    result = verify.verify(Dispatcher(device="h200_sxm"), problem, kernel.name)
    assert result.ok, result


def test_gates_may_lie_apart_but_not_with_scales_of_their_own():
    kernel, problem = case(0)
    assert FAMILY.supports(kernel, replace(problem, gates_apart=True), SM90)
    scales = {"dtype_a": "e4m3fn", "scale_b": "128x128", "tile_k": 128}
    kernel = config(pipeline="tma", epilogue="swiglu", **scales)
    del scales["tile_k"]
    said = {"groups": 4, "m": 300, "n": 512, "k": 256, "epilogue": "swiglu", **scales}
    problem = GroupedGemmProblem("contiguous", **said)
    assert FAMILY.supports(kernel, problem, SM90)
    apart = FAMILY.supports(kernel, replace(problem, gates_apart=True), SM90)
    assert apart.rule == "gates_apart"


@pytest.mark.turns(16)
def test_it_compiles(store):
    report = build_once([(case(number)[0], "sm_90") for number in (0, 3, 4, 7)], store)
    assert not report.failures, "\n".join(map(str, report.failures))
