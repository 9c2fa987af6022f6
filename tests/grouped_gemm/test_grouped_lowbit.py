"""Groups with operands of 4 bits and in the MX formats: against float64, how calls say them."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import config
from grouped_lowbit_cases import cases, label, zero_points

import selection
from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem
from tilewright.ops.grouped_gemm.catalogue import launch
from tilewright.packing import pack
from tilewright.quantise import dequantise, quantise

SM90 = arch("sm_90")
MX = {"scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0"}
INT4 = {"dtype_b": "int4", "scale_b": "128x1-bf16"}
FP4 = {"dtype_a": "e2m1", "dtype_b": "e2m1", **MX}
FP8_FP4 = {"dtype_a": "e4m3fn", "dtype_b": "e2m1", **MX}


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_format_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(1)
@pytest.mark.parametrize("form", ["contiguous", "masked", "gathered"])
@pytest.mark.parametrize("said", [INT4, FP4, FP8_FP4], ids=["int4", "fp4", "fp8 by fp4"])
def test_some_kernel_serves_awkward_sizes(hopper, form, said):
    more = {"rows_a": 7, "per_row": 3} if form == "gathered" else {}
    problem = GroupedGemmProblem(form, groups=3, m=21, n=65, k=134, **said, **more)
    result = verify.verify(hopper, problem)
    assert result.ok, result


def test_a_call_says_what_its_bytes_hold(hopper):
    """int4 weights of two experts, as quantised one by one."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((9, 256)).astype(np.float16)
    experts = [rng.standard_normal((32, 256), np.float32).T for _ in range(2)]
    made = [quantise(w, "128x1-fp16", "int4") for w in experts]
    packed = np.stack([p.T for p, _ in made]).transpose(0, 2, 1)  # K is contiguous
    scales = np.stack([s for _, s in made])
    ends = np.array([4, 9], np.int32)
    said = {"dtype_b": "int4", "scale_b": "128x1-fp16"}
    out = hopper.run("grouped_gemm", x, packed, ends, scales, **said)
    assert out.shape == (9, 32) and out.dtype == np.float16
    for (begin, end), (p, s) in zip(((0, 4), (4, 9)), made, strict=True):
        right = x[begin:end].astype(np.float64) @ dequantise(p, s, "128x1-fp16", packed="int4")
        assert np.allclose(out[begin:end], right, rtol=4e-3, atol=4e-3 * np.abs(right).max())
    with pytest.raises(BadArgument, match="B is bytes; say what is packed in them"):
        hopper.run("grouped_gemm", x, packed, ends, scales, scale_b="128x1-fp16")
    with pytest.raises(BadArgument, match="must be contiguous"):
        hopper.run("grouped_gemm", x, packed.copy(), ends, scales, **said)


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", zero_points("sm_90"), ids=label)
def test_zero_points_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


def test_zero_points_follow_the_scales_of_a_call(hopper):
    """Weights that count from 0 to 15, as AWQ and GPTQ keep them, by hand."""
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (9, 128)).astype(np.float16)
    q, zero = rng.integers(0, 16, (2, 128, 32)), rng.integers(0, 16, (2, 2, 32))
    scale = rng.uniform(0.5, 2, (2, 2, 32)).astype(np.float16)
    packed = pack((q - 8) & 15, 1).transpose(0, 2, 1).copy().transpose(0, 2, 1)
    ends, zeros = np.array([4, 9], np.int32), (zero - 8).astype(np.int8)
    said = {"dtype_b": "int4", "scale_b": "64x1-fp16", "zero_b": True}
    out = hopper.run("grouped_gemm", x, packed, ends, scale, zeros, **said)
    w = (q - zero.repeat(64, 1)) * scale.astype(np.float64).repeat(64, 1)
    for begin, end, group in ((0, 4, 0), (4, 9, 1)):
        right = x[begin:end] @ w[group]
        assert np.allclose(out[begin:end], right, rtol=2e-3, atol=2e-3 * np.abs(right).max())
    for given, why in (
        ((scale, zeros[:, :1]), r"zero_b is int8 of shape \(2, 1, 32\)"),
        ((scale, zeros.astype(np.float16)), "zero_b is fp16"),
        ((scale,), "takes 5 operands"),
    ):
        with pytest.raises(BadArgument, match=why):
            hopper.run("grouped_gemm", x, packed, ends, *given, **said)


def test_a_problem_and_a_kernel_have_words_for_zero_points():
    said = {**INT4, "zero_b": True}
    sizes = {"groups": 2, "m": 8, "n": 64, "k": 256}
    problem = GroupedGemmProblem("contiguous", **sizes, **said)
    assert problem.strides_zb == (128, 64, 1) and "zero_b" in str(problem)
    plain = GroupedGemmProblem("contiguous", **sizes, **INT4)
    assert problem.min_bytes == plain.min_bytes + 2 * 2 * 64
    words = {name: str(value) for name, value in sizes.items()}
    told = {"form": "contiguous", **words, **INT4, "zero_b": "true"}
    assert FAMILY.parse_problem(told, SM90) == problem and FAMILY.options(problem) == said
    kernel = config(pipeline="weights", tile_k=128, tile_m=16, **said)
    assert "_contiguous_zb_rcr_" in kernel.name and FAMILY.parse_name(kernel.name) == kernel
    assert FAMILY.supports(kernel, problem, SM90)
    assert FAMILY.supports(kernel, plain, SM90).rule == "signature"
    with pytest.raises(BadArgument, match="zero_b is for int4 weights with scales"):
        GroupedGemmProblem("contiguous", **sizes, zero_b=True)
    with pytest.raises(BadArgument, match="there is no zero_b"):
        GroupedGemmProblem("contiguous", **sizes, **INT4, strides_zb=(1, 1, 1))


def test_sizes_of_problems_count_elements():
    problem = GroupedGemmProblem("contiguous", groups=2, m=8, n=64, k=256, **INT4)
    assert problem.ldb == 256 and problem.stride_b == 256 * 64 and problem.alignment == 16
    of_b = 2 * 64 * (256 // 2 + 2 * 2)
    assert problem.min_bytes == 2 * 8 * (256 + 64) + of_b + 4 * 2
    words = {"form": "contiguous", "groups": "2", "m": "8", "n": "64", "k": "256"}
    assert FAMILY.parse_problem({**words, **INT4}, SM90) == problem
    assert FAMILY.options(problem) == INT4
    kernel = config(pipeline="weights", tile_k=128, tile_m=16, **INT4)
    assert FAMILY.parse_name(kernel.name) == kernel


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layout": "rrr"}, "it must be column-major"),
        ({"k": 255}, "k = 255 is odd"),
        ({"stride_b": 256 * 64 + 1}, "no whole number of bytes"),
        ({"dtype_a": "int8"}, "convert one to the other's dtype"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields, said):
    with pytest.raises(BadArgument, match=said):
        GroupedGemmProblem(
            "contiguous", **{"groups": 2, "m": 8, "n": 64, "k": 256, **INT4, **fields}
        )


def test_a_list_has_whole_elements():
    with pytest.raises(BadArgument, match="A is bf16 but B is int4, which forms contiguous"):
        GroupedGemmProblem("list", sizes=((4, 4, 4),), dtype_b="int4")
    with pytest.raises(BadArgument, match="form weights has whole elements, not e2m1"):
        GroupedGemmProblem("weights", groups=2, m=8, n=8, k=8, dtype_a="e2m1")


@pytest.mark.parametrize(
    ("fields", "rule", "said"),
    [
        ({"pipeline": "basic"}, "packed", "weights unpacks int4"),
        ({"pipeline": "tma"}, "packed", "weights unpacks int4"),
        ({"tile_k": 16}, "packed", "K step"),
        ({"pipeline": "basic", "zero_b": True}, "zeros", "weights has them"),
        ({"zero_b": True, "scale_b": "32x1-e8m0"}, "zeros", "go with no zero points"),
        ({"dtype_b": "", "scale_b": ""}, "packed", "converts a B of 4 bits"),
        ({"form": "list", "scale_b": ""}, "form", "has no form list; basic have it"),
    ],
)
def test_a_config_that_breaks_a_rule_is_dropped_by_it(fields, rule, said):
    plain = {"pipeline": "weights", "tile_k": 128, "tile_m": 16, **INT4}
    assert FAMILY.judge(config(**plain), SM90)
    verdict = FAMILY.judge(config(**{**plain, **fields}), SM90)
    assert verdict.rule == rule and said in verdict.reason


def test_several_workgroups_of_unpacking_kernels_share_a_compute_unit():
    problem = GroupedGemmProblem("contiguous", groups=64, m=4096, n=4096, k=512, **INT4)
    kernel = config(pipeline="weights", tile_k=128, tile_m=16, **INT4)
    on = device("h200_sxm")
    (step,) = launch(kernel, problem, on).steps
    assert step.grid in (4 * on.compute_units, (4 * on.compute_units, 1, 1))


def test_the_default_space_has_kernels_and_ranks_them():
    on = device("h200_sxm")
    for said in (INT4, FP4):
        problem = GroupedGemmProblem("contiguous", groups=64, m=512, n=4096, k=4096, **said)
        configs = FAMILY.default_space(problem, SM90).expand(SM90).configs
        assert 0 < len(configs) < 300
        ranked = FAMILY.rank(problem, configs, on)
        assert len(ranked) == len(configs) and 0 < ranked[0][1].total_us < 1e6


ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "gfx1201")
HERE = selection.architectures(ARCHS)


@pytest.mark.turns(32)
def test_they_compile_everywhere(store):
    wanted = []
    for number, name in enumerate(HERE):
        legal = [c for c, _ in cases(name) if c.pipeline in ("weights", "mx")]
        by_pipeline = {c.pipeline: c for c in legal[number % 3 :: 3]}
        assert "weights" in by_pipeline, name
        by_pipeline["zeros"] = zero_points(name)[number % 3][0]
        wanted += [(c, name) for c in by_pipeline.values()]
    report = build_once(wanted, store)
    assert not report.failures, "\n".join(map(str, report.failures))
