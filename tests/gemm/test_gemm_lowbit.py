"""Operands of 4 bits and the MX formats: run on the CPU, built for every architecture, refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gemm_cases import problem_of
from lowbit_cases import MX, SIGNATURES, cases, config

from shared_builds import build_once
from tilewright import arrays, verify
from tilewright.arch import arch, archs
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, NoKernelFound
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.names import parse
from tilewright.ops.nouns import View
from tilewright.quantise import dequantise, quantise

INT4 = {"dtype_b": "int4", "scale_b": "128x1-bf16"}


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def label(case) -> str:
    return case[0].name[5:]


def test_every_kind_of_kernel_is_legal_on_hopper():
    assert len(cases("sm_90")) == len(SIGNATURES)


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_kind_of_kernel_is_right(hopper, case):
    kernel, problem = case
    assert parse(kernel.name) == kernel
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(1, 8, 2, dtype_b="int4"),
        GemmProblem(3, 5, 70, dtype_b="e2m1", scale_b="32x1-e8m0"),
        GemmProblem(17, 1, 34, dtype_a="e2m1", **MX),
        GemmProblem(1, 1, 33, dtype_a="e5m2", **MX),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["h200_sxm", "mi300x"])
def test_awkward_sizes_are_served_by_some_kernel(problem, device):
    result = verify.verify(Dispatcher(device=device), problem)
    assert result.ok, result


def test_quantised_weights_give_nearly_what_the_weights_do(hopper):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 256), np.float32).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((24, 256), np.float32)
    packed, scales = quantise(w.T, "128x1-bf16", "int4")
    out = hopper.run("gemm", a, packed, scales, **INT4)
    exact = a.astype("float64") @ dequantise(packed, scales, "128x1-bf16", packed="int4")
    assert np.allclose(out.astype("float64"), exact, rtol=2**-7, atol=0.05)
    error = out.astype("float64") - a.astype("float64") @ w.T
    assert 0.02 < np.sqrt((error**2).mean() / 256) < 0.2


def test_a_nan_scale_makes_its_rows_or_columns_nan(hopper):
    for pipeline in ("mx", "weights", "basic"):
        dtype = "e4m3fn" if pipeline == "basic" else "e2m1"
        problem = GemmProblem(16, 32, 128, dtype_a=dtype, **MX)
        inputs, out = verify.make_operands(problem, seed=1)
        inputs[2].view(np.uint8)[3, 1] = 255
        inputs[3].view(np.uint8)[0, 5] = 255
        kernel = config(**{**MX, "dtype_a": dtype}, pipeline=pipeline, tile_k=64)
        if pipeline == "basic":
            kernel = config(**{**MX, "dtype_a": dtype}, pipeline=pipeline, tile_k=32)
        hopper.run_named(kernel.name, *inputs, out=out, **FAMILY.options(problem))
        nan = np.isnan(out.astype("float32"))
        assert nan[3].all() and nan[:, 5].all()
        assert not np.delete(np.delete(nan, 3, 0), 5, 1).any(), pipeline
        assert verify.check(problem, kernel, inputs, out).ok


def test_torch_says_fp4_and_e8m0_itself(hopper):
    torch = pytest.importorskip("torch")
    problem = GemmProblem(16, 32, 128, dtype_a="e2m1", **MX)
    inputs, out = verify.make_operands(problem, seed=1)
    a, b = (torch.from_numpy(x) for x in inputs[:2])
    scales = [torch.from_numpy(x.view(np.uint8)).view(torch.float8_e8m0fnu) for x in inputs[2:]]
    a, b = a.view(torch.float4_e2m1fn_x2), b.T.view(torch.float4_e2m1fn_x2).T
    got = torch.empty(16, 32, dtype=torch.bfloat16)
    hopper.run("gemm", a, b, *scales, out=got, **MX)
    hopper.run("gemm", *inputs, out=out, dtype_a="e2m1", dtype_b="e2m1", **MX)
    assert np.array_equal(arrays.to_numpy(got), out)


def test_sizes_in_bytes_count_half_bytes():
    problem = GemmProblem(16, 64, 256, **INT4)
    assert problem.min_bytes == 2 * 16 * 256 + 64 * 256 // 2 + 2 * 64 * 2 + 2 * 16 * 64
    assert problem.strides_bytes[:2] == (512, 128)
    assert problem.spans_bytes[1] == 64 * 128
    assert problem.alignment == 16 and GemmProblem(16, 64, 20, **INT4).alignment == 2
    assert GemmProblem(2, 2, 2**20, dtype_b="int4", ldb=2**30).spans_bytes[1] == 2**29 + 2**19
    operand = FAMILY.operands(problem)[1]
    assert (operand.shape, operand.strides, operand.dtype) == ((128, 64), (1, 128), "uint8")
    *inputs, out = [View(o.shape, o.strides, o.dtype, 0, "cpu") for o in FAMILY.operands(problem)]
    assert problem_of(inputs, out, FAMILY.options(problem)) == problem


A = np.zeros((4, 64), ml_dtypes.bfloat16)
B = np.zeros((8, 32), np.uint8).T
SCALES = np.ones((1, 8), ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: d.run("gemm", A, B, SCALES, scale_b="128x1-bf16"), "say what is packed"),
        (lambda d: d.run("gemm", A, B[:16], SCALES, **INT4), "A is 4×64 but B is 32×8"),
        (lambda d: d.run("gemm", A, B.copy("C"), SCALES, **INT4), "K, which is packed, must be"),
        (lambda d: d.run("gemm", A, A.T, SCALES, **INT4), "B is bf16; int4 comes in bytes"),
        (lambda d: d.run("gemm", A, B, SCALES, **{**INT4, "dtype_b": "fp16"}), "B is uint8"),
        (lambda d: d.run("gemm", A, B, SCALES, **{**INT4, "dtype_b": "int5"}), "unknown dtype"),
        (lambda d: d.run("gemm", A, B, SCALES[:, :7], **INT4), r"scale_b has shape \(1, 7\)"),
        (
            lambda d: d.run("gemm", A, B, SCALES, dtype_b="int4", scale_b="128x1-e8m0"),
            "scale_b is bf16, but '128x1-e8m0' means e8m0",
        ),
        (lambda d: GemmProblem(4, 8, 64, dtype_a="int4"), "no GEMM takes int4"),
        (
            lambda d: GemmProblem(4, 8, 64, dtype_a="fp32", dtype_b="int4"),
            "A is fp32 but B is int4",
        ),
        (lambda d: GemmProblem(4, 8, 63, dtype_b="int4"), "k = 63 is odd"),
        (lambda d: GemmProblem(4, 8, 64, dtype_b="int4", layout="rrr"), "must be column-major"),
        (lambda d: GemmProblem(4, 8, 64, dtype_a="e2m1", layout="ccr"), "must be row-major"),
        (lambda d: GemmProblem(4, 8, 64, dtype_b="int4", ldb=65), "ldb = 65 is no whole number"),
    ],
)
def test_what_cannot_be_meant_is_said(hopper, call, words):
    with pytest.raises(BadArgument, match=words):
        call(hopper)


def test_a_registry_of_other_kernels_says_why_they_do_not_serve():
    from tilewright.registry import Registry

    plain = config(pipeline="basic", dtype_b="")
    chooser = Dispatcher(Registry("plain").register_all([plain]), device="h200_sxm")
    with pytest.raises(NoKernelFound, match="dtype_b is bf16, the problem has int4"):
        chooser.select(GemmProblem(16, 64, 256, **INT4))


# --- what the compiler makes of it ------------------------------------------------------------

BUILT = ("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90")
NATIVE = {
    "sm_100": {"mxfp8": "kind::mxf8f6f4.block_scale", "mxfp4": "kind::mxf4.block_scale"},
    "sm_103": {"mxfp8": "kind::mxf8f6f4.block_scale", "mxfp4": "kind::mxf4.block_scale"},
    "sm_120": {"mxfp8": "kind::mxf8f6f4.block_scale", "mxfp4": "kind::mxf4nvf4.block_scale"},
    "gfx950": dict.fromkeys(("mxfp8", "mxfp4"), "v_mfma_scale_f32_32x32x64_f8f6f4"),
    "gfx1250": dict.fromkeys(("mxfp8", "mxfp4"), "v_wmma_scale_f32_16x16x128_f8f6f4"),
}


@pytest.mark.turns(64)
def test_every_architecture_gets_what_it_takes(store):
    kernels = (config(**INT4), config(dtype_a="e2m1", **MX))
    requests = [(kernel, name) for name in BUILT for kernel in kernels]
    report = build_once(requests, store)
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        form = "ptx" if result.arch.vendor == "nvidia" else "amdgcn"
        text = inspect(result.kernel, store, form)
        assert any(word in text for word in ("mma.sync", "wgmma", "v_mfma")), result.name
        assert result.kernel.resources.spill_bytes == 0


@pytest.mark.turns(24)
def test_gluon_weights_are_unpacked_into_operands_of_matrix_instructions(store):
    """Nothing of B goes back to shared memory: what stores there is C, once, on its way out."""
    tile = {"pipeline": "gluon_weights", "tile_k": 256, "group_m": 1, **INT4}
    few, wide = config(tile_m=8, **tile), config(tile_m=64, **tile)
    report = build_once([(few, "sm_90"), (wide, "sm_90")], store)
    assert not report.failures, "\n".join(map(str, report.failures))
    for result, instruction in zip(report.results, ("mma.sync", "wgmma"), strict=True):
        text = inspect(result.kernel, store, "ptx")
        assert instruction in text
        last = text.rindex(instruction)
        assert "st.shared" not in text[text.index("cp.async.bulk") : last]
        assert result.kernel.resources.spill_bytes == 0


def test_few_rows_of_weights_go_to_the_copy_engine_where_there_is_one():
    for name, pipeline in (("h200_sxm", "gluon_weights"), ("mi300x", "weights")):
        chosen = Dispatcher(device=name).select(GemmProblem(16, 4096, 4096, **INT4))
        assert chosen.config.pipeline == pipeline


@pytest.mark.parametrize("name", archs())
def test_data_and_pipelines_agree_on_the_mx_formats(name):
    this = arch(name)
    for word in ("mxfp8", "mxfp4"):
        refused = this.dtypes[word].support == "refused"
        assert ("mx" in FAMILY.pipelines(this)) != refused
        assert (this.dtypes[word].support == "native") == (name in NATIVE)


@pytest.mark.turns(64)
def test_block_scaled_instructions_are_used_where_there_are_such(store):
    large = {"tile_m": 128, "tile_n": 128, "num_warps": 8, "pipeline": "mx"}
    elements = {"mxfp8": "e4m3fn", "mxfp4": "e2m1"}
    requests = [
        (config(name, dtype_a=elements[word], **large, **MX), name)
        for name, words in NATIVE.items()
        for word in words
    ]
    report = build_once(requests, store)
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        word = "mxfp4" if result.config.dtype_a == "e2m1" else "mxfp8"
        form = "ptx" if result.arch.vendor == "nvidia" else "amdgcn"
        assert NATIVE[result.arch.name][word] in inspect(result.kernel, store, form), result.name
