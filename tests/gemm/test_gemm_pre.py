"""Operations on A and B before the product: against float64, what is refused, own ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemm_cases import config, problem_of
from operand_cases import PRE, combined

from shared_builds import build_once
from tilewright import arrays, gemm, verify
from tilewright.arch import arch, device
from tilewright.compile import Store, build, inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops import epilogues
from tilewright.ops.epilogues import OPERATIONS, Operation, Takes, register
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.nouns import View
from tilewright.runtime.interpreter import interpreter
from tilewright.space import KernelSpace


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


@pytest.mark.grid(6)
@pytest.mark.parametrize("case", combined("sm_90"), ids=lambda c: c[0].name[5:])
def test_every_operation_on_either_operand_is_right(case):
    """With few compute units, so that stream-K's shares end inside tiles."""
    kernel, problem = case
    few = Dispatcher(device=replace(device("h200_sxm"), compute_units=5))
    result = verify.verify(few, problem, kernel.name)
    assert result.ok, result


@pytest.mark.parametrize("case", combined("gfx942")[1::6], ids=lambda c: c[0].name[5:])
def test_amd_types_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(1)
@pytest.mark.parametrize("size", [(1, 1, 1), (130, 2, 1), (1, 130, 300), (65, 33, 7)])
def test_awkward_sizes_are_served_by_some_kernel(hopper, size):
    for dtype in ("bf16", "fp32"):
        problem = GemmProblem(*size, dtype_a=dtype, pre_a="bias+add", pre_b="mul+row_scale")
        result = verify.verify(hopper, problem)
        assert result.ok, result


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_lies_outside_of_an_operand_adds_nothing(hopper, layout):
    """A clamp from 2 to 3 makes 2 of the zeros past K's end, of A and of B."""
    order = {"r": "C", "c": "F"}
    a = np.zeros((5, 70), np.float32, order=order[layout[0]])
    b = np.full((70, 6), 9.0, np.float32, order=order[layout[1]])
    out = np.empty((5, 6), np.float32, order=order[layout[2]])
    low, high = np.array([2.0], np.float32), np.array([3.0], np.float32)
    chains = {"pre_a": "clamp", "pre_b": "clamp"}
    kernel = config(layout=layout, alignment=1, dtype_a="fp32", **chains)
    hopper.run_named(kernel.name, a, b, low, high, low, high, out=out, **chains)
    assert (out == 2.0 * 3.0 * 70).all()


def test_operands_come_in_order_by_the_front_door():
    rng = np.random.default_rng(0)
    a, a1, d = (rng.standard_normal(s).astype(np.float32) for s in ((9, 20), (9, 20), (9, 12)))
    b, b1 = (rng.standard_normal((20, 12)).astype(np.float32) for _ in "ab")
    scale, bias = np.array([0.5], np.float32), rng.standard_normal(12).astype(np.float32)
    chains = {"pre_a": "add+scale", "pre_b": "mul", "epilogue": "bias+add"}
    out = gemm(a, b, a1, scale, b1, bias, d, **chains)
    expected = ((a + a1) * 0.5).astype(np.float64) @ (b * b1) + bias + d
    assert np.allclose(out, expected, atol=1e-4)


def test_elements_are_rounded_once():
    """The tolerance tells it from not rounding them, and from rounding after each operation."""
    problem = GemmProblem(128, 128, 2048, dtype_c="fp32", pre_a="add+col_scale")
    inputs, out = verify.make_operands(problem, seed=3)
    kernel = config(dtype_c="fp32", pre_a=problem.pre_a)
    a, b, other, scale = (arrays.to_float64(x) for x in inputs)
    whole = (a + other) * scale.reshape(1, -1)
    twice = arrays.rounded(a + other, "bf16") * scale.reshape(1, -1)
    out[...] = arrays.rounded(whole, "bf16") @ b
    assert verify.check(problem, kernel, inputs, out).ok
    for wrong in (whole, arrays.rounded(twice, "bf16")):
        out[...] = wrong @ b
        assert not verify.check(problem, kernel, inputs, out).ok


def test_8_bit_operands_saturate(hopper):
    import ml_dtypes

    fp8 = ml_dtypes.float8_e4m3fn
    a, b = np.full((16, 32), 300.0, fp8), np.eye(32, dtype=fp8)
    out = hopper.run("gemm", a, b, np.array([4.0], np.float32), pre_a="scale")
    assert (out.astype(np.float32) == 448.0).all()


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pre_a": "ad"}, "unknown operation 'ad'.*did you mean 'add'"),
        ({"pre_b": "swiglu"}, "keeps its shape"),
        ({"pre_a": "scale", "dtype_a": "int8"}, "scale in an epilogue"),
        ({"pre_a": "+".join(["clamp"] * 4), "epilogue": "+".join(["add"] * 5)}, "13 operands"),
        ({"pre_b": "add", "layout": "rsr"}, "combine the weights before"),
        ({"pre_a": "bias", "ldpa": 64}, "pre_a has no matrix"),
        ({"ldpb": 64}, "pre_b has no matrix"),
        ({"pre_a": "add", "ldpa": 63}, "ldpa = 63"),
        ({"pre_a": "add", "ldpa": 65, "alignment": 4}, "only multiples of 2 bytes"),
        ({"pre_a": ["add"]}, "words joined"),
        ({"pre_a": "add", "batch": 3}, "for one GEMM, not a batch"),
        ({"layout": "rsr", "batch": 3}, "for one GEMM, not a batch"),
        ({"pre_b": "add", "scale_a": "1x128"}, "with block scales"),
        ({"layout": "rsr", "scale_b": "128x128"}, "with block scales"),
    ],
)
def test_impossible_problems(fields, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(**{"m": 64, "n": 64, "k": 64, **fields})


def view(shape, strides=None, dtype="bf16", address=256):
    return View(shape, strides or (*shape[1:], 1), dtype, address, "cpu")


A, B = view((8, 16)), view((16, 24), (1, 16))


@pytest.mark.parametrize(
    ("chains", "extra", "words"),
    [
        ({"pre_a": "add"}, (), r"gemm takes 3 operands \(A, B, add\) and was given 2"),
        ({"pre_a": "bias"}, (view((8,)),), "over A's columns, which is 8×16"),
        ({"pre_b": "row_scale"}, (view((24,), dtype="fp32"),), "over B's rows, which is 16×"),
        ({"pre_a": "add"}, (view((8, 16), (1, 8)),), "column-major, A is row-major"),
        ({"pre_b": "add"}, (view((16, 24)),), "row-major, B is column-major"),
        ({"pre_a": "add"}, (view((8, 16), dtype="fp32"),), "with A as bf16 it must be bf16"),
        ({"pre_b": "add"}, (view((24, 16)),), "not a matrix of B's shape"),
        (
            {"pre_a": "add+mul"},
            (view((8, 16)), view((8, 16), (32, 1))),
            "matrices of 'add.mul' must share one leading dimension, not add 16, mul 32",
        ),
    ],
)
def test_operands_that_do_not_fit(chains, extra, words):
    with pytest.raises(BadArgument, match=words):
        problem_of([A, B, *extra], None, chains)


@pytest.mark.parametrize("pipeline", ["tma", "gluon_ws"])
def test_pipelines_that_copy_tiles_as_they_lie_refuse(pipeline):
    kernel = config(pipeline=pipeline, scheduler="persistent", pre_a="add")
    verdict = FAMILY.judge(kernel, arch("sm_90"))
    assert verdict.rule == "combination" and "under basic they pass through" in verdict.reason
    assert FAMILY.judge(replace(kernel, pipeline="basic"), arch("sm_90"))


@pytest.mark.parametrize("field", ["pre_a", "pre_b"])
def test_kernels_serve_their_own_chain_only(field):
    kernel, plain = config(**{field: "add"}), config()
    problem = GemmProblem(64, 64, 64, **{field: "add"})
    assert FAMILY.supports(kernel, problem, arch("sm_90"))
    refused = FAMILY.supports(plain, problem, arch("sm_90"))
    assert refused.reason == f"{field} is none, the problem has add"
    assert not FAMILY.supports(kernel, GemmProblem(64, 64, 64), arch("sm_90"))


def test_their_matrices_count_in_spans_and_bytes():
    plain = GemmProblem(8, 16, 32)
    both = replace(plain, pre_a="add+bias", pre_b="row_scale", alignment=0, ldpa=2**28)
    assert both.min_bytes - plain.min_bytes == 8 * 32 * 2 + 32 * 2 + 32 * 4
    refused = FAMILY.supports(config(pre_a="add+bias", pre_b="row_scale"), both, arch("sm_90"))
    assert refused.rule == "addressing" and "a matrix of pre_a spans" in refused.reason


# --- round trips, spaces, words ---------------------------------------------------------------


@pytest.mark.parametrize("chain", PRE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_lie_as_the_problem_says_and_say_it_again(chain, layout):
    ld = 128 if epilogues.has_matrix(chain) else 0
    chains = {"pre_a": chain, "pre_b": chain, "epilogue": "bias"}
    p = GemmProblem(64, 16, 32, layout=layout, ldpa=ld, ldpb=ld, **chains)
    found = [view(o.shape, o.strides, o.dtype) for o in operands(p)]
    assert problem_of(found[:-1], found[-1], FAMILY.options(p)) == p
    assert FAMILY.options(p) == chains


def test_the_default_space_and_words_have_the_fields(hopper):
    words = {"m": "64", "n": "64", "k": "64", "pre_a": "add+scale", "pre_b": "mul"}
    problem = FAMILY.parse_problem(words, arch("sm_90"))
    chosen = hopper.select(problem).config
    assert (chosen.pipeline, chosen.pre_a, chosen.pre_b) == ("basic", "add+scale", "mul")
    assert str(problem) == "gemm 64×64×64 bf16 rcr A: add+scale B: mul"
    with pytest.raises(BadArgument, match="no meaning on axis pre_a"):
        KernelSpace("gemm", {"pre_a": ["*"]}).expand("sm_90")


# --- building ---------------------------------------------------------------------------------


@pytest.mark.turns(64)
def test_chains_compile_everywhere_within_their_shared_memory(store):
    requests = []
    for name in ("sm_80", "sm_90", "gfx90a", "gfx942", "gfx950"):
        fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[arch(name).fp8]
        for fields in (
            {"pre_a": "add+mul", "pre_b": "mul", "tile_m": 32},
            {"pre_a": "bias+gelu", "pre_b": "row_scale", "layout": "crr"},
            {"pre_b": "add", "tile_n": 128, "num_warps": 8, "num_stages": 3},
            {"pre_a": "add", "dtype_a": fp8},
        ):
            kernel = config(name, **fields)
            if FAMILY.judge(kernel, arch(name)):
                requests.append((kernel, name))
    report = build_once(requests, store)
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        if arch(result.arch.name).dtypes[result.config.dtype_a].support == "native":
            room = shared_memory(result.config, result.arch) + 1024  # the compiler adds a little
            assert result.kernel.shared <= room, result.name
        if result.arch.name in ("gfx942", "gfx950"):
            text = inspect(result.kernel, store, "amdgcn")
            assert "v_mfma" in text and "buffer_load_dwordx" in text, result.name


@pytest.mark.turns(48)
def test_an_operation_of_ones_own(hopper, monkeypatch, tmp_path):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", here + ":" + str(Path(verify.__file__).parents[1]))
    monkeypatch.setenv("TILEWRIGHT_KERNEL_MODULES", "epilogue_kernels")
    interpreter().close()  # the next child reads the environment anew
    blend = Operation(
        "pre_blend",
        "epilogue_kernels:blend",
        "x + w·(other - x)",
        lambda x, w, other: x + w * (other - x),
        (Takes("weight", "m", "fp32"), Takes("other", "d")),
        amplifies=8,
    )
    inverse = Operation("inverse", "epilogue_kernels:reciprocal", "1/x", lambda x: 1 / x)
    register(blend)
    register(inverse)
    try:
        twos = np.full((5, 70), 2.0, np.float32), np.full((70, 6), 2.0, np.float32)
        for field in ("pre_a", "pre_b"):  # 1/0 times the other's 0 would be NaN
            kernel = config(layout="rrr", dtype_a="fp32", alignment=1, **{field: "inverse"})
            out = hopper.run_named(kernel.name, *twos, **{field: "inverse"})
            assert (out == 70.0).all()
        problem = GemmProblem(67, 45, 83, pre_a="pre_blend", pre_b="add+pre_blend")
        kernel = config(alignment=1, pre_a=problem.pre_a, pre_b=problem.pre_b)
        assert "_prea-pre.blend_preb-add-pre.blend" in kernel.name
        assert FAMILY.parse_name(kernel.name) == kernel
        result = verify.verify(hopper, problem, kernel.name)
        assert result.ok, result
        build([(kernel, "sm_90")], store=Store(tmp_path)).raise_if_failed()
    finally:
        del OPERATIONS["pre_blend"], OPERATIONS["inverse"]
        epilogues._parsed.cache_clear()
        interpreter().close()
