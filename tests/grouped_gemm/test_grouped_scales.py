"""Block scales of groups: every form against float64, where scales lie, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from grouped_cases import config
from grouped_scale_cases import BLOCKS, cases, gates, gluon, label

import selection
from shared_builds import build_once
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem

DEEPSEEK = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
SM90 = arch("sm_90")


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def stacked(form: str = "contiguous", **fields: object) -> GroupedGemmProblem:
    sizes = {"groups": 4, "m": 100, "n": 192, "k": 256}
    return GroupedGemmProblem(form, **{**sizes, **DEEPSEEK, **fields})


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_form_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("case", cases("gfx942")[::4], ids=label)
def test_amd_types_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(1)
@pytest.mark.parametrize("form", ["contiguous", "masked"])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_some_kernel_serves_awkward_sizes(hopper, form, blocks):
    sizes = {"groups": 3, "m": 33, "n": 65, "k": 300}
    problem = GroupedGemmProblem(
        form, **sizes, dtype_a="e4m3fn", scale_a=blocks[0], scale_b=blocks[1]
    )
    result = verify.verify(hopper, problem)
    assert result.ok, result


@pytest.mark.parametrize("form", ["contiguous", "masked"])
@pytest.mark.parametrize("pipeline", ["basic", "tma"])
def test_scales_may_lie_by_columns_and_with_room(hopper, form, pipeline):
    """Scales of A by columns, as kernels that copy them in vectors like; those of B apart."""
    kernel = config(form=form, pipeline=pipeline, tile_k=128, **DEEPSEEK)
    a = (1, 104) if form == "contiguous" else (3 * 104, 1, 104)
    problem = stacked(form, strides_sa=a, strides_sb=(40, 7, 2))
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_a_call_takes_scales_behind_the_sizes(hopper, form):
    """The product of the scaled operands, by hand."""
    rng = np.random.default_rng(7)
    rows, groups, n, k = (12,), 3, 32, 256
    if form == "masked":
        rows = (groups, 12)
    a = rng.integers(-4, 5, (*rows, k)).astype(np.float16)
    b = rng.integers(-4, 5, (groups, k, n)).astype(np.float16)
    of_a = rng.uniform(0.5, 2, (*rows, k // 128)).astype(np.float32)
    of_b = rng.uniform(0.5, 2, (groups, k // 64, n // 16)).astype(np.float32)
    bias = rng.standard_normal((groups, n)).astype(np.float32)
    sizes = np.array([5, 5, 12] if form == "contiguous" else [5, 0, 12], np.int32)
    said = {"scale_a": "1x128", "scale_b": "64x16", "epilogue": "bias"}
    out = hopper.run("grouped_gemm", a, b, sizes, of_a, of_b, bias.astype(np.float16), **said)
    assert out.dtype == np.float16
    x = a.astype(np.float64) * of_a.repeat(128, -1)
    w = b.astype(np.float64) * of_b.repeat(64, 1).repeat(16, 2)
    if form == "contiguous":
        right = [(out[:5], x[:5], 0), (out[5:12], x[5:12], 2)]
    else:
        right = [(out[0, :5], x[0, :5], 0), (out[2], x[2], 2)]
    for got, rows_of, group in right:
        wanted = rows_of @ w[group] + bias[group]
        assert np.allclose(got, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


def test_a_problem_and_a_kernel_have_words_for_scales():
    problem = stacked()
    assert problem.strides_sa == (2, 1) and problem.strides_sb == (2 * 2, 2, 1)
    assert stacked("masked").strides_sa == (200, 2, 1)
    assert "scale_a 1x128 scale_b 128x128" in str(problem)
    assert problem.dtype_c == "bf16"
    without = stacked(scale_a="", scale_b="")
    scales = 4 * (100 * 2 + 4 * 2 * 2)
    assert problem.min_bytes == without.min_bytes + scales
    kernel = config(tile_k=128, **DEEPSEEK)
    assert kernel.name.endswith("_sa1x128_sb128x128")
    assert FAMILY.parse_name(kernel.name) == kernel
    words = {"form": "contiguous", "groups": "4", "m": "100", "n": "192", "k": "256"}
    words |= {"dtype": "fp8", "scale_a": "1x128", "scale_b": "128x128"}
    assert FAMILY.parse_problem(words, SM90) == problem
    strides = {"strides_sa": "2,1", "strides_sb": "4,2,1"}
    assert FAMILY.parse_problem(words | strides, SM90) == problem


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_a_problem_with_more_rows_has_scales_for_them(form):
    """A table's row for more rows answers for fewer, whose scales are packed too."""
    packed = stacked(form, m=60)
    padded = next(iter(FAMILY.nearby(packed))).problem
    assert padded == stacked(form, m=padded.m) and padded.m == 64
    columns = {"contiguous": lambda m: (1, m), "masked": lambda m: (2 * m, 1, m)}[form]
    by_columns = next(iter(FAMILY.nearby(stacked(form, m=60, strides_sa=columns(60))))).problem
    assert by_columns.strides_sa == columns(64)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale_a": "128x128"}, "A's blocks are of one row, as in 1x128"),
        ({"scale_a": "1x100"}, "not a power of two"),
        ({"scale_a": "", "strides_sa": (2, 1)}, "there is no scale_a"),
        ({"strides_sa": (200, 2, 1)}, "is not 2 strides"),
        ({"strides_sb": (2, 1)}, "is not 3 strides"),
        ({"strides_sb": (4, 2, -1)}, "is not 3 strides, 0 or more"),
        ({"dtype_c": "e4m3fn"}, "give C as"),
    ],
)
def test_scales_that_cannot_be_meant_are_refused(fields, said):
    with pytest.raises(BadArgument, match=said):
        stacked(**fields)


def test_a_list_has_no_scales():
    with pytest.raises(BadArgument, match="scale_a: the forms with block scales"):
        GroupedGemmProblem("list", sizes=((4, 4, 4),), dtype_a="e4m3fn", scale_a="1x128")
    with pytest.raises(BadArgument, match="scale_b: the forms with block scales"):
        config(form="list", dtype_a="e4m3fn", scale_b="128x128", tile_k=128)


def test_scales_of_another_shape_or_dtype_are_refused(hopper):
    a, b = np.zeros((12, 256), np.float16), np.zeros((3, 256, 32), np.float16)
    ends = np.array([4, 8, 12], np.int32)
    for scale, said in (
        (np.ones((12, 3), np.float32), r"scale_a has shape \(12, 3\)"),
        (np.ones((12, 2), np.float16), "means fp32 scales"),
        (np.ones((12, 2), np.float32)[:, ::-1], "runs forward"),
    ):
        with pytest.raises(BadArgument, match=said):
            hopper.run("grouped_gemm", a, b, ends, scale, scale_a="1x128")
    with pytest.raises(BadArgument, match="takes 5 operands"):
        hopper.run("grouped_gemm", a, b, ends, scale_a="1x128", scale_b="128x1")
    flat = np.zeros(8, np.float16)
    with pytest.raises(BadArgument, match="a list grouped_gemm has no option 'scale_a'"):
        hopper.run("grouped_gemm", flat, flat, ends, ends, scale_a="1x128")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"pipeline": "gluon_ws"}, "scales"),
        ({"tile_k": 256}, "scales"),  # two blocks in a step
        ({"num_warps": 4, "tile_m": 128, "tile_n": 256}, "registers"),
    ],
)
def test_a_config_that_breaks_a_rule_is_dropped_by_it(fields, rule):
    assert FAMILY.judge(config(tile_k=128, **DEEPSEEK), SM90)
    assert FAMILY.judge(config(**{"tile_k": 128, **DEEPSEEK, **fields}), SM90).rule == rule


def test_a_kernel_serves_its_own_blocks_only():
    kernel = config(tile_k=128, **DEEPSEEK)
    assert FAMILY.supports(kernel, stacked(), SM90)
    other = FAMILY.supports(kernel, stacked(scale_b="128x1"), SM90)
    assert other.rule == "signature" and "scale_b" in other.reason


def test_scales_cost_time_and_the_default_space_has_kernels_for_them():
    problem, on = stacked(m=4096, n=4096, k=4096), device("h200_sxm")
    configs = FAMILY.default_space(problem, SM90).expand(SM90).configs
    assert 0 < len(configs) < 300
    best = FAMILY.rank(problem, configs, on)[0]
    plain = replace(best[0], scale_a="", scale_b="")
    without = stacked(m=4096, n=4096, k=4096, scale_a="", scale_b="")
    assert FAMILY.estimate(plain, without, on).total_us < best[1].total_us


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", gluon(), ids=label)
def test_the_kernel_in_gluon_is_right_in_the_simulation(case):
    """Groups that end in the first warp group's rows, in the second's, and with a tile."""
    kernel, problem = case
    inputs = dict(verify.operands_of(problem, 1).inputs)
    if problem.form == "masked":
        inputs["counts"][...] = [150, 0, 64, 130]
    else:
        inputs["offsets"][...] = [70, 70, 198, 290]
    assert worst_error(kernel, problem, device("h200"), 1, inputs) <= 1.0


@pytest.mark.parametrize("case", gates(), ids=label)
def test_gates_of_the_kernel_in_gluon_are_right_in_the_simulation(case):
    """Groups that end in either warp group's rows, and one without any."""
    kernel, problem = case
    inputs = dict(verify.operands_of(problem, 1).inputs)
    if problem.form == "masked":
        inputs["counts"][...] = [70, 0, 61]
    else:
        inputs["offsets"][...] = [40, 40, 185]
    assert worst_error(kernel, problem, device("h200"), 1, inputs) <= 1.0


def test_gates_of_the_kernel_in_gluon_lie_apart_in_whole_blocks():
    kernel, problem = gates()[0]
    assert FAMILY.supports(kernel, problem, SM90)
    assert FAMILY.interpreted(kernel) == replace(kernel, pipeline="basic")
    for fields, said in (
        ({"gates_apart": False}, "gates and ups by turns"),
        ({"n": 2 * 192, "strides_sb": ()}, "ups begin at column 192"),
    ):
        verdict = FAMILY.supports(kernel, replace(problem, stride_b=0, ldc=0, **fields), SM90)
        assert verdict.rule == "gates_apart" and said in verdict.reason, verdict


def test_on_hopper_gates_of_many_rows_are_in_the_kernel_in_gluon(hopper):
    gated = {"epilogue": "swiglu", "gates_apart": True, "rows_a": 4096, "per_row": 2}
    problem = stacked("gathered", m=8192, n=4096, k=4096, **gated)
    assert hopper.select(problem).config.pipeline == "gluon_scaled"


def test_the_kernel_in_gluon_has_a_sibling_for_cpu_arrays(hopper):
    kernel, _ = gluon()[0]
    assert FAMILY.interpreted(kernel) == replace(kernel, pipeline="tma")
    result = verify.verify(hopper, stacked(), kernel.name)
    assert result.ok, result


@pytest.mark.parametrize(
    ("fields", "rule", "said"),
    [
        ({"tile_k": 256, "num_stages": 2}, "scales", "is not the 128 of K"),
        ({"tile_n": 256, "tile_m": 256, "num_stages": 2}, "scales", "one or two parts of 64x128"),
        ({"layout": "rrr"}, "scales", "K contiguous"),
        ({"epilogue": "relu"}, "combination", "no epilogue relu"),
        ({"epilogue": "swiglu"}, "combination", "the tile is 128x256"),
        ({"epilogue": "swiglu+add", "tile_n": 256}, "combination", "without a matrix"),
        ({"scale_b": "128x64"}, "scales", "one scale of B"),
        ({"scale_a": "", "scale_b": ""}, "scales", "is for block scales"),
        ({"form": "weights"}, "form", "no form weights"),
        ({"num_warps": 16}, "warpgroups", "4 or 8 warps"),
    ],
)
def test_what_the_kernel_in_gluon_does_not_take(fields, rule, said):
    kernel, _ = gluon()[0]
    assert FAMILY.judge(kernel, SM90)
    verdict = FAMILY.judge(replace(kernel, **fields), SM90)
    assert not verdict and verdict.rule == rule and said in verdict.reason, verdict


def test_on_hopper_it_is_chosen_for_many_rows():
    problem = stacked(m=8192, n=4096, k=4096)
    assert Dispatcher(device="h200_sxm").select(problem).config.pipeline == "gluon_scaled"


MATRIX = {
    "sm_80": {"dtype_a": "int8"},
    "sm_90": {"dtype_a": "e4m3fn"},
    "sm_100": {"dtype_a": "e4m3fn"},
    "sm_120": {"dtype_a": "e4m3fn"},
    "gfx942": {"dtype_a": "e4m3fnuz"},
    "gfx950": {"dtype_a": "e4m3fn"},
    "gfx1201": {"dtype_a": "e4m3fn"},
}
HERE = selection.architectures(MATRIX)


@pytest.mark.turns(32)
def test_scaled_kernels_compile_everywhere(store):
    wanted = []
    for number, name in enumerate(HERE):
        for place, pipeline in enumerate(
            p for p in ("basic", "tma") if p in FAMILY.pipelines(arch(name))
        ):
            form = ("contiguous", "masked")[(number + place) % 2]
            fields = {**DEEPSEEK, **MATRIX[name], "form": form, "pipeline": pipeline}
            kernel = config(name, tile_k=128, **fields)
            assert FAMILY.judge(kernel, arch(name)), kernel.name
            wanted.append((kernel, name))
    if "sm_90" in HERE:
        wanted += [(kernel, "sm_90") for kernel, _ in (*gluon()[::3], gates()[0])]
    report = build_once(wanted, store)
    assert not report.failures, "\n".join(map(str, report.failures))
