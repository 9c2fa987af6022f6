"""Block scales: every form against float64, where scales lie, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import config, problem_of
from scale_cases import FORMS, cases, few, gluon

import selection
import tilewright as tw
from shared_builds import build_once
from tilewright import arrays, verify
from tilewright.arch import arch, archs
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY, GemmProblem, scales
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.gemm.support import supports
from tilewright.ops.nouns import View
from tilewright.quantise import quantise

DEEPSEEK = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def label(case) -> str:
    kernel, problem = case
    words = (kernel.pipeline, kernel.scheduler, problem.layout, problem.dtype_a, kernel.tile_k)
    return "-".join(map(str, (*words, problem.scale_a, problem.scale_b)))


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_form_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", few("sm_90"), ids=label)
def test_few_rows_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("case", [*cases("gfx942")[::4], *few("gfx942")[::4]], ids=label)
def test_amd_types_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("size", [(1, 1, 1), (1, 130, 64), (130, 1, 129), (33, 65, 300)])
@pytest.mark.parametrize("form", FORMS[:4])
def test_awkward_sizes_are_served_by_some_kernel(hopper, size, form):
    problem = GemmProblem(*size, dtype_a="e4m3fn", scale_a=form[0], scale_b=form[1])
    result = verify.verify(hopper, problem)
    assert result.ok, result


def test_the_gluon_kernel_has_a_sibling_for_cpu_arrays(hopper):
    kernel, problem = gluon()[0]
    assert FAMILY.interpreted(kernel).pipeline == "tma"
    few = replace(problem, m=80, n=96, k=272, lda=0, ldb=0, ldc=0, strides_sa=(), strides_sb=())
    small = replace(kernel, tile_m=64, num_warps=4)
    result = verify.verify(hopper, few, small.name)
    assert result.ok, result


def test_quantised_operands_multiply_to_what_they_were(hopper):
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((80, 384), np.float32), rng.standard_normal((144, 384), np.float32)
    x *= 10.0 ** rng.uniform(-2, 2, (80, 1)).astype(np.float32)
    a, sa = quantise(x, "1x128")
    b, sb = quantise(w.T, "128x128")
    out = hopper.run("gemm", a, b, sa, sb, scale_a="1x128", scale_b="128x128")
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    relative = abs(out.astype(np.float64) - exact) / np.sqrt((exact**2).mean(1, keepdims=True))
    assert relative.max() < 0.2 and relative.mean() < 0.03


def test_scales_may_lie_in_any_order(hopper):
    problem = GemmProblem(80, 160, 400, **DEEPSEEK)
    (a, b, sa, sb), _ = verify.make_operands(problem, seed=5)
    options = {"scale_a": "1x128", "scale_b": "128x128"}
    expected = hopper.run("gemm", a, b, sa, sb, **options)
    wide = np.zeros((160, 8), np.float32)
    wide[::2, ::2] = sa
    for other in (np.asfortranarray(sa), wide[::2, ::2]):
        assert (hopper.run("gemm", a, b, other, np.asfortranarray(sb), **options) == expected).all()
    one = np.broadcast_to(np.float32(2), sb.shape)
    doubled = hopper.run("gemm", a, b, sa, one, **options)
    plain = hopper.run("gemm", a, b, sa, np.ones_like(sb), **options)
    assert (doubled.astype(np.float32) == 2 * plain.astype(np.float32)).all()


def test_a_wrong_scale_does_not_pass():
    problem = GemmProblem(64, 256, 256, **DEEPSEEK)
    inputs, out = verify.make_operands(problem, seed=3)
    kernel = config(**DEEPSEEK)
    doubles = [arrays.to_float64(x) for x in inputs]
    out[...] = verify.reference(problem, doubles)["C"].astype(out.dtype)
    assert verify.check(problem, kernel, inputs, out).ok
    for number, shift in ((2, 0), (2, 1), (3, 0), (3, 1)):
        wrong = list(doubles)
        wrong[number] = np.roll(wrong[number], 1, shift)
        out[...] = verify.reference(problem, wrong)["C"].astype(out.dtype)
        assert not verify.check(problem, kernel, inputs, out).ok, (number, shift)


def test_sums_of_blocks_are_held_to_more_than_one_long_sum():
    plain = verify.tolerance(GemmProblem(64, 64, 8192, dtype_a="e4m3fn"), config(dtype_a="e4m3fn"))
    scaled = verify.tolerance(GemmProblem(64, 64, 8192, **DEEPSEEK), config(**DEEPSEEK))
    assert scaled.scaled < plain.scaled


# --- the problem ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale_a": "128"}, "'128' is not a block of scales"),
        ({"scale_a": "1x96"}, "96 is not a power of two"),
        ({"scale_b": "0x128"}, "not a block"),
        ({"scale_b": "128x1-int8"}, "scales are fp32, fp16, bf16, e8m0, not int8"),
        ({"scale_b": "128x1-fp32"}, "write 128x1"),
        ({"scale_a": 128}, "not a block"),
        ({"strides_sa": (1, 2)}, "there is no scale_a"),
        ({"scale_b": "1x1", "strides_sb": (1,)}, "not a pair of strides"),
        ({"scale_b": "1x1", "strides_sb": (-1, 1)}, "not a pair of strides"),
        ({"scale_a": "1x64", "epilogue": "+".join(["clamp"] * 6)}, "take 13 operands"),
        ({"scale_a": "1x64", "dtype_c": "int32"}, "times their scales"),
    ],
)
def test_impossible_problems(fields, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(64, 64, 64, dtype_a="int8", **fields)


def view(shape, strides=None, dtype="e4m3fn", address=256):
    return View(shape, strides or (shape[1], 1), dtype, address, "cpu")


A, B = view((8, 256)), view((256, 200), (1, 256))
SA, SB = view((8, 2), dtype="fp32"), view((2, 2), dtype="fp32")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((A, B, SA), r"gemm takes 4 operands \(A, B, scale_a, scale_b\) and was given 3"),
        ((A, B, view((8, 3), dtype="fp32"), SB), r"scale_a has shape \(8, 3\).*of shape \(8, 2\)"),
        ((A, B, SA, view((200, 2), dtype="fp32")), r"scale_b has shape \(200, 2\)"),
        ((A, B, view((8, 2), dtype="bf16"), SB), "scale_a is bf16, but '1x128' means fp32"),
        ((A, B, SA, view((2, 2), (2, -1), dtype="fp32")), "runs forward"),
        ((A, B, view((16,), (1,), dtype="fp32"), SB), r"scale_a has shape \(16,\)"),
    ],
)
def test_scales_that_do_not_fit(given, words):
    with pytest.raises(BadArgument, match=words):
        problem_of(given, None, {"scale_a": "1x128", "scale_b": "128x128"})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chain", ["", "bias+gelu"])
def test_operands_lie_as_the_problem_says_and_say_it_again(form, chain):
    p = GemmProblem(64, 96, 272, dtype_a="e4m3fn", scale_a=form[0], scale_b=form[1], epilogue=chain)
    if p.scale_a:
        p = replace(p, strides_sa=(1, 64))
    made = operands(p)
    assert [o.name for o in made[2 : 2 + scales.count(p)]] == [
        name for name, word in zip(("scale_a", "scale_b"), form, strict=True) if word
    ]
    found = [view(o.shape, o.strides, o.dtype) for o in made]
    assert problem_of(found[:-1], found[-1], FAMILY.options(p)) == p
    assert FAMILY.parse_name(config(scale_a=form[0], scale_b=form[1]).name).scale_b == form[1]


def test_batches_equations_and_sums_over_nothing_have_no_scales():
    for fields, words in (
        ({"batch": 3}, "no batches"),
        ({"batching": "strided"}, "no batches"),
        ({"k": 0}, "no blocks to scale"),
    ):
        with pytest.raises(BadArgument, match=words):
            GemmProblem(**{"m": 8, "n": 8, "k": 256, **DEEPSEEK, **fields})
    many = View((3, 8, 256), (8 * 256, 256, 1), "e4m3fn", 256, "cpu")
    with pytest.raises(BadArgument, match="no batches"):
        problem_of([many, B, SA, SB], None, {"scale_a": "1x128", "scale_b": "128x128"})
    with pytest.raises(BadArgument, match="no equation"):
        problem_of([A, B, SA], None, {"scale_a": "1x128", "equation": "mk,kn->mn"})


def test_scales_count_as_bytes_and_are_told():
    plain = GemmProblem(8, 200, 256, dtype_a="e4m3fn")
    both = GemmProblem(8, 200, 256, **DEEPSEEK)
    assert both.min_bytes - plain.min_bytes == (8 * 2 + 2 * 2) * 4 and both.flops == plain.flops
    assert "scale_a 1x128 scale_b 128x128" in str(both)
    words = {"m": "8", "n": "8", "k": "256", "dtype": "fp8", "scale_a": "1x128"}
    stated = FAMILY.parse_problem({**words, "strides_sa": "1,8"}, arch("sm_90"))
    assert (stated.scale_a, stated.strides_sa) == ("1x128", (1, 8))
    with pytest.raises(BadArgument, match="is not a whole number"):
        FAMILY.parse_problem({**words, "strides_sa": "x"}, arch("sm_90"))


def test_spaces_have_the_fields():
    space = tw.KernelSpace("gemm", {"dtype_a": ["int8"], "scale_b": ["128x1", ""]})
    found = space.expand("sm_90").configs
    assert [(c.scale_b, c.dtype_c) for c in found] == [("128x1", "bf16"), ("", "int32")]
    with pytest.raises(BadArgument, match="no meaning on axis scale_a"):
        tw.KernelSpace("gemm", {"scale_a": ["*"]}).expand("sm_90")


def test_kernels_serve_only_their_own_blocks():
    problem = GemmProblem(64, 64, 256, **DEEPSEEK)
    for fields in ({"scale_a": "1x64"}, {"scale_b": ""}, {"scale_a": "1x128-bf16"}):
        verdict = supports(config(**{**DEEPSEEK, **fields}), problem, arch("sm_90"))
        assert not verdict and verdict.rule == "signature", fields
    far = replace(problem, strides_sa=(2**24, 2**24))
    verdict = supports(config(**DEEPSEEK), far, arch("sm_90"))
    assert not verdict and verdict.rule == "addressing"


# --- building ---------------------------------------------------------------------------------


@pytest.mark.turns(48)
def test_scales_compile_everywhere(store):
    requests = []
    for this in map(arch, selection.architectures(n for n in archs() if arch(n).dot == "matrix")):
        fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
        dtype = fp8 if this.dtypes[fp8].support == "native" else "int8"
        for pipeline in ("basic", "tma", "tma_ws"):
            if pipeline not in FAMILY.pipelines(this):
                continue
            kernel = config(
                this.name,
                **{**DEEPSEEK, "dtype_a": dtype},
                pipeline=pipeline,
                scheduler="persistent",
            )
            assert FAMILY.judge(kernel, this), FAMILY.judge(kernel, this)
            requests.append((kernel, this.name))
    report = build_once(requests, store)
    assert not report.failures, "\n".join(map(str, report.failures))


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", selection.architectures(("sm_90", "gfx942", "gfx1201")))
def test_kernels_for_few_rows_spill_nothing(store, name):
    this, blocks = arch(name), {"scale_a": "1x128", "scale_b": "128x128"}
    fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
    found = {}
    for m in (4, 16, 32):
        problem = GemmProblem(m, 4608, 7168, dtype_a=fp8, dtype_c="bf16", **blocks)
        for kernel in FAMILY.default_space(problem, this).expand(this).configs:
            if kernel.pipeline.startswith("small_m") and kernel.split_k == 1:
                found[kernel.name] = kernel
    assert found
    some = selection.some([*found.values()], 4)
    for result in build_once([(kernel, name) for kernel in some], store).results:
        assert result.ok and result.kernel.resources.spill_bytes == 0, result


def test_steps_of_several_blocks_are_one_block_each_elsewhere():
    """What the interpreter runs in its place, and how exact a sum is taken to be."""
    for kernel, problem in gluon():
        sibling = FAMILY.interpreted(kernel)
        assert sibling.tile_k == min(kernel.tile_k, scales.k_block(kernel))
        assert verify.tolerance(problem, sibling) == verify.tolerance(problem, kernel)


@pytest.mark.turns(64)
def test_the_gluon_kernel_keeps_its_sums_in_registers(store):
    chosen = [gluon()[i] for i in (0, 1, 2, 4, 7, 8, 11, 13, 14, 18, 19, 21, 22, 24, 25, 27, 28)]
    for result in build_once([(kernel, "sm_90") for kernel, _ in chosen], store).results:
        assert result.ok, result
        made = result.kernel
        text = inspect(made, store, "ptx")
        assert "wgmma.mma_async" in text and "cp.async.bulk.tensor.2d.shared::cluster" in text
        assert "cp.async.ca.shared.global" in text  # the scales
        assert made.resources.spill_bytes == 0, result.name
        assert made.num_warps == result.config.num_warps + 4
        budget = shared_memory(result.config, arch("sm_90"))
        assert budget - 448 < made.shared <= budget, result.name
