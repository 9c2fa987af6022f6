"""Every GEMM kernel, dtype, layout and padding, run on the CPU and compared with float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import awkward, cases, config, few_rows, odd_tiles, sharing, swapped

from tilewright import arrays, verify
from tilewright.arch import arch, device, peak_tflops
from tilewright.arch.figures import DEVICE
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, UnsupportedProblem
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.nouns import MAIN
from tilewright.runtime.interpreter import interpreter


def label(case) -> str:
    kernel, problem = case
    words = (kernel.pipeline, kernel.scheduler, problem.layout, problem.dtype_a, problem.dtype_c)
    return "-".join((*words, problem.precision, f"al{kernel.alignment}"))


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


@pytest.mark.grid(4)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_kind_of_kernel_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(12)
@pytest.mark.parametrize(
    "case", [c for c in cases("gfx942") if c[0].dtype_a.endswith("fnuz")][::3], ids=label
)
def test_fnuz_types_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(7)
@pytest.mark.parametrize("case", few_rows("sm_90"), ids=lambda c: c[0].name[5:])
def test_few_rows_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", sharing("sm_90"), ids=lambda c: c[0].name[5:])
def test_shared_tiles_are_right(case):
    """With few compute units, so that stream-K's shares end inside tiles."""
    kernel, problem = case
    few = Dispatcher(device=replace(device("h200_sxm"), compute_units=5))
    result = verify.verify(few, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", odd_tiles(), ids=label)
def test_siblings_of_tiles_with_odd_edges_are_right(hopper, case):
    kernel, problem = case
    assert FAMILY.judge(FAMILY.interpreted(kernel), arch("sm_90"))
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(4)
@pytest.mark.parametrize("case", swapped(), ids=lambda c: c[0].name[5:])
def test_kernels_that_compute_the_transpose_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(5)
@pytest.mark.parametrize("units", [1, 2, 3, 4, 5, 7, 16, 50])
@pytest.mark.parametrize("reduction", ["linear", "tree"])
def test_stream_k_is_right_however_many_workgroups_share(units, reduction):
    kernel = config(scheduler="stream_k", reduction=reduction)
    few = Dispatcher(device=replace(device("h200_sxm"), compute_units=units))
    result = verify.verify(few, GemmProblem(3 * 64, 2 * 64, 5 * 64), kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("reduction", ["atomic", "linear", "tree"])
@pytest.mark.parametrize("pipeline", ["basic", "tma"])
@pytest.mark.parametrize("how", [{"scheduler": "split_k", "split_k": 3}, {"scheduler": "stream_k"}])
def test_a_workspace_is_left_as_it_was_found(pipeline, how, reduction):
    """Flags zero, and where partials are added into it all of it; so a second launch is right."""
    kernel = config(pipeline=pipeline, reduction=reduction, **how)
    problem = GemmProblem(128, 128, 7 * 64)
    few = replace(device("h200_sxm"), compute_units=3)
    (a, b), out = verify.make_operands(problem, seed=5)
    plan = FAMILY.launch(kernel, problem, few)
    kept = {one.name: one.initial == "kept_zero" for one in plan.temporaries}
    assert kept == {"flags": True, "partials": reduction == "atomic"}
    temporaries = {
        one.name: np.full(one.bytes, 0 if kept[one.name] else 0xFF, np.uint8)
        for one in plan.temporaries
    }
    sources = FAMILY.sources(kernel, arch("sm_90"))
    for _ in range(2):
        arrays.poison(out)
        named = {"A": a, "B": b, "C": out}
        interpreter().run(sources, plan, named, ["C"], temporaries=temporaries)
        assert verify.check(problem, kernel, [a, b], out).ok
        assert not any(array.any() for name, array in temporaries.items() if kept[name])


@pytest.mark.grid(5)
@pytest.mark.parametrize("problem", awkward(), ids=lambda p: f"{p.m}x{p.n}x{p.k}-{p.dtype_a}")
def test_awkward_sizes_are_served_by_some_kernel(hopper, problem):
    # Errors are allowed by the size of the results; a single one may come near 0 by chance.
    alone = problem.m * problem.n == 1
    result = verify.verify(hopper, problem, seed=0 if alone else None)
    assert result.ok, result


def test_nothing_outside_the_output_is_written(hopper):
    whole = np.full((100, 200), 7.0, np.float32)
    out = whole[3:70, 5:50]
    rng = np.random.default_rng(0)
    a = rng.standard_normal((67, 83), np.float32)
    b = rng.standard_normal((83, 45), np.float32)
    hopper.run("gemm", a, b, out=out)
    assert np.allclose(out, a @ b, atol=1e-4)
    outside = np.ones(whole.shape, bool)
    outside[3:70, 5:50] = False
    assert (whole[outside] == 7.0).all()


def test_nan_and_infinity_reach_the_output(hopper):
    a = np.ones((8, 16), np.float32)
    b = np.ones((16, 8), np.float32)
    a[1, 2], a[3, 0] = np.nan, np.inf
    out = hopper.run("gemm", a, b)
    assert np.isnan(out[1]).all() and np.isinf(out[3]).all()
    assert np.isfinite(np.delete(out, [1, 3], axis=0)).all()


def test_a_kernel_in_gluon_is_stood_in_for_by_its_triton_sibling(hopper):
    kernel = config(pipeline="gluon_ws", scheduler="persistent", store="split")
    sibling = FAMILY.interpreted(kernel)
    assert sibling == config(pipeline="tma", scheduler="persistent", store="split")
    assert FAMILY.interpreted(sibling) == sibling
    assert FAMILY.sources(kernel, arch("sm_90"))[MAIN].language == "gluon"
    assert FAMILY.sources(sibling, arch("sm_90"))[MAIN].language == "triton"
    assert FAMILY.judge(sibling, arch("sm_90"))
    a, b = (np.random.default_rng(2).standard_normal((96, 96)).astype("float16") for _ in "ab")
    kernels = (
        config(dtype_a="fp16", pipeline=p, scheduler="persistent") for p in ("tma", "gluon_ws")
    )
    one, other = (hopper.run_named(k.name, a, b.T) for k in kernels)
    assert np.array_equal(one, other)


def test_64_bit_strides_give_the_same_result(hopper):
    problem = GemmProblem(67, 45, 83)
    result = verify.verify(hopper, problem, config(alignment=1, index_bits=64).name)
    assert result.ok, result


def test_a_kernel_refuses_what_it_cannot_compute(hopper):
    kernel = config(pad_m=False, pad_n=False, pad_k=False)
    a = np.zeros((64, 65), np.float32)
    b = np.zeros((64, 65), np.float32).T
    with pytest.raises(UnsupportedProblem, match="dtype_a is bf16, the problem has fp32"):
        hopper.run_named(kernel.name, a, b)


def test_out_must_not_overlap_an_operand(hopper):
    memory = np.zeros((64, 128), np.float32)
    with pytest.raises(BadArgument, match="shares memory"):
        hopper.run("gemm", memory[:, :64], np.eye(64, dtype=np.float32), out=memory[:, 32:96])


def test_out_may_be_other_columns_of_the_same_array(hopper):
    memory = np.random.default_rng(1).standard_normal((64, 128), np.float32)
    a = memory[:, :64]
    hopper.run("gemm", a, np.eye(64, dtype=np.float32), out=memory[:, 64:])
    assert np.array_equal(memory[:, 64:], a)


def test_a_wrong_kernel_does_not_pass_verification():
    problem = GemmProblem(64, 64, 64)
    inputs, out = verify.make_operands(problem, seed=3)
    kernel = config()
    right = arrays.to_float64(inputs[0]) @ arrays.to_float64(inputs[1])
    out[...] = right.astype(out.dtype)
    assert verify.check(problem, kernel, inputs, out).ok
    out[5, 7] = out[5, 7] * 1.05 + 1
    assert not verify.check(problem, kernel, inputs, out).ok
    out[...] = right.astype(out.dtype)
    out[0, 0] = np.nan
    assert not verify.check(problem, kernel, inputs, out).ok


def test_an_output_left_unwritten_does_not_pass():
    problem = GemmProblem(64, 64, 64, dtype_a="int8")
    inputs, out = verify.make_operands(problem, seed=3)
    assert not verify.check(problem, config(dtype_a="int8"), inputs, out).ok


@pytest.mark.turns(12)
def test_no_estimate_is_under_what_memory_and_the_data_sheet_allow():
    gpu, least = device("h200_sxm"), min(DEVICE.LAUNCH_US, GEMM.FEW_LAUNCH_US)
    for kernel, small in [*cases("sm_90"), *few_rows("sm_90"), *sharing("sm_90")]:
        large = replace(small, n=128 * small.n, k=128 * small.k, lda=0, ldb=0, ldc=0)
        for problem, most in ((small, 100), (large, 100_000)):
            dtype = "tf32" if problem.precision == "tf32" else problem.dtype_a
            moving = problem.min_bytes / gpu.bandwidth_gbs / 1e3
            multiplying = problem.flops / peak_tflops(arch("sm_90"), gpu, dtype) / 1e6
            us = FAMILY.estimate(kernel, problem, gpu).total_us
            assert least + max(moving, multiplying) < us < most, (kernel.name, problem)
