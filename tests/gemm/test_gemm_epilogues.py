"""Epilogues: every operation and several chains against float64, what is refused, own ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from epilogue_cases import CHAINS, cases
from gemm_cases import config, problem_of

from shared_builds import build_once
from tilewright import arrays, verify
from tilewright.arch import arch, device
from tilewright.compile import Store, build, inspect
from tilewright.compile.key import sources_digest
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, LaunchFailed, UnknownName
from tilewright.ops import epilogues
from tilewright.ops.epilogues import OPERATIONS, Operation, Takes, register
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.shuffle import shuffle
from tilewright.ops.nouns import MAIN, View
from tilewright.runtime.interpreter import interpreter
from tilewright.space import KernelSpace


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def label(case) -> str:
    kernel, problem = case
    words = (kernel.pipeline, kernel.scheduler, kernel.store, problem.layout)
    return "-".join((*words, problem.dtype_a, problem.dtype_c, problem.epilogue))


@pytest.mark.grid(10)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_operation_and_chain_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.parametrize("case", cases("gfx942")[4::5], ids=label)
def test_amd_types_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.turns(48)
@pytest.mark.parametrize("size", [(1, 2, 1), (130, 2, 64), (1, 130, 300), (65, 34, 1)])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8"])
def test_awkward_sizes_are_served_by_some_kernel(hopper, size, dtype):
    for chain in ("scale+bias+silu+add", "bias+swiglu+mul"):
        problem = GemmProblem(*size, dtype_a=dtype, epilogue=chain)
        result = verify.verify(hopper, problem)
        assert result.ok, (chain, result)


def test_a_matrix_may_have_a_leading_dimension_of_its_own(hopper):
    for layout in ("rcr", "rcc"):
        problem = GemmProblem(48, 80, 64, layout=layout, epilogue="add+mul", ldc=96, ldd=112)
        result = verify.verify(hopper, problem)
        assert result.ok, result
    wide = config(index_bits=64, alignment=1, epilogue="add+mul")
    result = verify.verify(hopper, GemmProblem(67, 45, 83, epilogue="add+mul"), wide.name)
    assert result.ok, result


def test_a_wrong_operation_does_not_pass():
    """The tolerance tells operations apart that differ little."""
    problem = GemmProblem(64, 64, 16, dtype_a="fp32", epilogue="scale+gelu")
    inputs, out = verify.make_operands(problem, seed=3)
    for chain, right in (("scale+gelu", True), ("scale+gelu_tanh", False), ("scale+silu", False)):
        doubles = [arrays.to_float64(x) for x in inputs]
        out[...] = verify.reference(replace(problem, epilogue=chain), doubles)["C"]
        assert verify.check(problem, config(dtype_a="fp32"), inputs, out).ok == right, chain


def test_nan_stays_and_8_bit_outputs_saturate(hopper):
    import ml_dtypes

    a = np.ones((16, 16), np.float32)
    a[1, 2], a[2], a[3] = np.nan, 1e3, -np.inf
    out = np.empty((16, 16), ml_dtypes.float8_e4m3fn)
    one = np.ones(1, np.float32)
    hopper.run("gemm", a, np.eye(16, dtype=np.float32) + 1, one, out=out, epilogue="scale")
    got = out.astype(np.float32)
    assert np.isnan(got[1]).all() and (got[2] == 448).all() and (got[3] == -448).all()
    for chain in ("relu", "clamp"):
        extra = (-one, one) if chain == "clamp" else ()
        got = hopper.run("gemm", a, np.eye(16, dtype=np.float32) + 1, *extra, epilogue=chain)
        assert np.isnan(got[1]).all() and np.isfinite(got[3]).all()


def test_activations_of_extreme_values_are_their_limits(hopper):
    a = np.array([[np.inf], [3e38], [1e5], [0.0], [-1e5], [-3e38], [np.nan]], np.float32)
    for chain in ("gelu", "gelu_tanh", "silu"):
        got = hopper.run("gemm", a, np.ones((1, 4), np.float32), epilogue=chain)
        assert np.array_equal(got[:4], np.maximum(a[:4], 0).repeat(4, 1)), chain
        assert (got[4:6] == 0).all() and np.isnan(got[6]).all(), chain


def test_int8_is_dequantised(hopper):
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (40, 64), np.int8)
    b = rng.integers(-128, 128, (64, 48), np.int8)
    rows, columns = (rng.random(n, np.float32).reshape(n, 1) for n in (40, 48))
    out = np.empty((40, 48), np.float32)
    call = {"out": out, "epilogue": "row_scale+col_scale"}
    hopper.run("gemm", a, b, rows, columns.reshape(1, 48), **call)
    exact = a.astype(np.float64) @ b.astype(np.float64) * rows * columns.T
    assert np.allclose(out, exact, rtol=1e-6)


SHARED = {"scheduler": "split_k", "split_k": 2, "reduction": "linear"}
WALKING = {"scheduler": "persistent"}
ONE_ROW = {"tile_m": 16, "group_m": 1}
REQUANTISING: tuple[dict[str, object], ...] = (
    {"pipeline": "basic"},
    {"pipeline": "basic", "scheduler": "stream_k", "reduction": "tree"},
    {"pipeline": "tma", "scheduler": "persistent", "store": "split"},
    {"pipeline": "tma", **SHARED},
    {"pipeline": "gluon_ws", "scheduler": "persistent"},
    {"pipeline": "gluon_pingpong", "tile_m": 128, "tile_n": 128, "num_warps": 8, **WALKING},
    {"pipeline": "gluon_cdna", "tile_n": 128},
    {"pipeline": "small_m", **ONE_ROW},
    {"pipeline": "small_m", "tile_m": 1, "group_m": 1},
    {"pipeline": "small_m_tma", **ONE_ROW, **SHARED},
    {"pipeline": "preshuffle", "layout": "rsr"},
)
"""Every pipeline with int32 sums."""


@pytest.mark.parametrize("how", REQUANTISING, ids=lambda how: "-".join(map(str, how.values())))
def test_int8_is_requantised(how):
    """Exactly: scales are powers of two, so that products of integers fall on ties too, which go to
    the even neighbour; what is beyond int8 becomes its ends."""
    gpu = "mi300x" if how["pipeline"] == "gluon_cdna" else "h200_sxm"
    kernel = config(
        device(gpu).arch, dtype_a="int8", dtype_c="int8", epilogue="row_scale+col_scale", **how
    )
    rng = np.random.default_rng(5)
    m = min(40, kernel.tile_m)
    a, b = rng.integers(-9, 10, (m, 256), np.int8), rng.integers(-9, 10, (256, 48), np.int8)
    rows, columns = (2.0 ** rng.integers(-3, 1, n).astype(np.float32) for n in (m, 48))
    exact = (a.astype(np.int64) @ b.astype(np.int64)) * rows[:, None] * columns
    assert (exact % 1 == 0.5).mean() > 0.05, "ties"
    assert (exact > 127).any() and (exact < -128).any(), "values beyond int8"
    given = np.asfortranarray(b) if kernel.layout[1] != "s" else shuffle(b)
    out = np.full((m, 48), 77, np.int8)
    Dispatcher(device=gpu).run_named(
        kernel.name, a, given, rows, columns, out=out, epilogue=kernel.epilogue
    )
    assert np.array_equal(out, np.rint(exact).clip(-128, 127))


@pytest.mark.parametrize("dtype", ["int8", "bf16"])
def test_what_int8_cannot_hold_becomes_its_ends_and_nan_0(hopper, dtype):
    import ml_dtypes

    kind = np.int8 if dtype == "int8" else ml_dtypes.bfloat16
    a, b = np.array([[1], [-1], [0]], kind), np.ones((1, 16), kind)
    for scale, expected in (
        (np.inf, (127, -128, 0)),  # ∞·0 is no number
        (np.nan, (0, 0, 0)),
        (3e38, (127, -128, 0)),
        (127.5, (127, -128, 0)),
        (126.5, (126, -126, 0)),
        (0.5, (0, 0, 0)),
        (np.nextafter(np.float32(0.5), np.float32(1)), (1, -1, 0)),
        (1e-40, (0, 0, 0)),
    ):
        out = np.full((3, 16), 77, np.int8)
        hopper.run("gemm", a, b, np.array([scale], np.float32), out=out, epilogue="scale")
        assert (out == np.array(expected)[:, None]).all(), scale


def test_a_kernel_that_cuts_instead_of_rounding_does_not_pass():
    problem = GemmProblem(64, 64, 64, dtype_a="int8", dtype_c="int8", epilogue="scale")
    inputs, out = verify.make_operands(problem, seed=1)
    exact = verify.reference(problem, inputs)["C"]
    kernel = config(dtype_a="int8", dtype_c="int8", epilogue="scale")
    for how, right in ((np.rint, True), (np.trunc, False), (np.floor, False)):
        out[...] = how(exact)
        assert verify.check(problem, kernel, inputs, out).ok == right
    assert 20 < np.abs(exact).mean() < 100, "made-up scales use the range, not its ends"


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("bais", "unknown operation 'bais'.*did you mean 'bias'"),
        ("bias+", "unknown operation ''"),
        ("bias gelu", "unknown operation"),
        ("swiglu+swiglu", "halves the columns more than once"),
        ("add+swiglu", "comes after swiglu"),
        ("+".join(["clamp"] * 7), "takes 14 operands"),
    ],
)
def test_impossible_chains(chain, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(64, 64, 64, epilogue=chain)
    with pytest.raises(BadArgument, match=words):
        config(epilogue=chain)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"epilogue": "gelu", "dtype_c": "e4m3fn"}, "end the epilogue with a scale"),
        ({"epilogue": "clamp", "dtype_c": "e4m3fn"}, "end the epilogue with a scale"),
        ({"dtype_c": "e4m3fn"}, "not e4m3fn"),
        ({"dtype_a": "int8", "dtype_c": "int8"}, "not int8; end the epilogue with a scale"),
        ({"dtype_a": "int8", "dtype_c": "int8", "epilogue": "bias"}, "end the epilogue with a"),
        ({"epilogue": "relu", "dtype_a": "int8", "dtype_c": "int32"}, "after epilogue relu"),
        ({"epilogue": "swiglu", "n": 63}, "in twos"),
        ({"epilogue": "bias", "ldd": 64}, "no matrix"),
        ({"epilogue": "add", "ldd": 63}, "ldd = 63"),
    ],
)
def test_impossible_problems(fields, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(**{"m": 64, "n": 64, "k": 64, **fields})


def view(shape, strides=None, dtype="bf16", address=256):
    return View(shape, strides or (*shape[1:], 1), dtype, address, "cpu")


A, B = view((8, 16)), view((16, 24), (1, 16))


@pytest.mark.parametrize(
    ("chain", "extra", "words"),
    [
        ("bias", (), r"gemm takes 3 operands \(A, B, bias\) and was given 2"),
        ("bias", (view((8,)),), "bias of shape"),
        ("bias", (view((24,), dtype="fp32"),), "bias is fp32; with C as bf16 it must be bf16"),
        ("bias", (view((24,), (2,)),), "contiguous"),
        ("row_scale", (view((8,)),), "must be fp32"),
        ("scale", (view((2,), dtype="fp32"),), "scalar on the device"),
        ("add", (view((8, 24), (1, 8)),), "column-major, out is row-major"),
        ("add+mul", (view((8, 24)), view((8, 24), (32, 1))), "share one leading dimension"),
        ("swiglu+add", (view((8, 24)),), "add of shape"),
    ],
)
def test_operands_that_do_not_fit(chain, extra, words):
    with pytest.raises(BadArgument, match=words):
        problem_of([A, B, *extra], None, {"epilogue": chain})


@pytest.mark.parametrize("chain", [*OPERATIONS, *CHAINS])
@pytest.mark.parametrize("layout", ["rcr", "rrc"])
def test_operands_lie_as_the_problem_says_and_say_it_again(chain, layout):
    ldd = 128 if epilogues.has_matrix(chain) else 0
    p = GemmProblem(64, 16, 32, layout=layout, epilogue=chain, ldc=96, ldd=ldd)
    found = [view(o.shape, o.strides, o.dtype) for o in operands(p)]
    assert problem_of(found[:-1], found[-1], FAMILY.options(p)) == p
    assert FAMILY.parse_name(config(epilogue=chain).name).epilogue == chain


def test_only_matrices_count_towards_alignment():
    bias, matrix = view((24,), address=2), view((8, 24), address=264)
    assert problem_of([A, B, bias], None, {"epilogue": "bias"}).alignment == 16
    assert problem_of([A, B, matrix], None, {"epilogue": "add"}).alignment == 8


def test_operands_of_the_epilogue_count_as_bytes():
    plain, both = GemmProblem(8, 16, 32), GemmProblem(8, 16, 32, epilogue="bias+add+row_scale")
    assert both.min_bytes - plain.min_bytes == 16 * 2 + 8 * 16 * 2 + 8 * 4
    half = GemmProblem(8, 16, 32, epilogue="swiglu")
    assert plain.min_bytes - half.min_bytes == 8 * 8 * 2 and half.flops == plain.flops


def test_spaces_and_words_have_the_field():
    space = KernelSpace("gemm", {"epilogue": ["bias+gelu", "swiglu"], "dtype_a": ["int8"]})
    found = space.expand("sm_90").configs
    assert [(c.epilogue, c.dtype_c) for c in found] == [("bias+gelu", "bf16"), ("swiglu", "bf16")]
    with pytest.raises(BadArgument, match="no meaning on axis epilogue"):
        KernelSpace("gemm", {"epilogue": ["*"]}).expand("sm_90")
    words = {"m": "8", "n": "8", "k": "8", "epilogue": "bias+gelu"}
    assert FAMILY.parse_problem(words, arch("sm_90")).epilogue == "bias+gelu"
    document = {"trait_config": {"epilogue": {"values": ["bias+gelu"]}}}
    space, _ = FAMILY.formats.read(document, arch("sm_90"), None)
    assert space.expand("sm_90").configs[0].epilogue == "bias+gelu"


# --- building ---------------------------------------------------------------------------------


@pytest.mark.turns(64)
def test_chains_compile_everywhere(store, tmp_path):
    requests = []
    for name in ("sm_90", "gfx90a", "gfx942", "gfx950"):
        fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[arch(name).fp8]
        for pipeline in ("basic", "tma"):
            if pipeline not in FAMILY.pipelines(arch(name)):
                continue
            for chain in CHAINS[: 5 if name == "sm_90" else 2]:
                kernel = config(name, epilogue=chain, pipeline=pipeline, tile_n=128)
                requests.append((kernel, name))
            kernel = config(name, epilogue="gelu+scale", pipeline=pipeline, dtype_c=fp8)
            if FAMILY.judge(kernel, arch(name)):
                requests.append((kernel, name))
        int8 = {"dtype_a": "int8", "dtype_c": "int8", "epilogue": "row_scale+col_scale"}
        for how in REQUANTISING:
            kernel = config(name, **int8, **how)
            if FAMILY.judge(kernel, arch(name)):
                requests.append((kernel, name))
    report = build_once(requests, store)
    assert not report.failures, "\n".join(map(str, report.failures))
    built = {(r.config.pipeline, r.config.dtype_c) for r in report.results}
    assert {(how["pipeline"], "int8") for how in REQUANTISING} <= built
    again = build(requests[:3], store=Store(tmp_path / "again"))
    for one, other in zip(report.results[:3], again.results, strict=True):
        assert one.kernel.blobs == other.kernel.blobs


# --- an operation of one's own ----------------------------------------------------------------


@pytest.fixture
def own(monkeypatch):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", here + ":" + str(Path(verify.__file__).parents[1]))
    interpreter().close()  # the next child reads the environment anew
    made = [
        Operation(
            "squared_relu",
            "epilogue_kernels:squared_relu",
            "max(x, 0)²",
            lambda x: x.clip(0) ** 2,
            amplifies=8,
        ),
        Operation(
            "blend",
            "epilogue_kernels:blend",
            "x + w·(other - x)",
            lambda x, w, other: x + w * (other - x),
            (Takes("weight", "m", "fp32"), Takes("other", "d")),
            amplifies=8,
        ),
    ]
    for operation in made:
        register(operation)
    yield made
    for operation in made:
        del OPERATIONS[operation.name]
    epilogues._parsed.cache_clear()
    interpreter().close()


@pytest.mark.turns(48)
def test_an_operation_of_ones_own(own, hopper, monkeypatch, tmp_path):
    problem = GemmProblem(67, 45, 83, epilogue="bias+squared_relu+blend")
    kernel = config(alignment=1, epilogue=problem.epilogue)
    assert FAMILY.parse_name(kernel.name) == kernel
    with pytest.raises(LaunchFailed, match="TILEWRIGHT_KERNEL_MODULES"):
        verify.verify(hopper, problem, kernel.name)
    monkeypatch.setenv("TILEWRIGHT_KERNEL_MODULES", "epilogue_kernels")
    interpreter().close()
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result
    store = Store(tmp_path)
    report = build([(kernel, "sm_90"), (kernel, "gfx942")], store=store)
    report.raise_if_failed()
    assert "ex2" not in inspect(report.results[0].kernel, store, "ptx")
    modules = FAMILY.sources(kernel, arch("sm_90"))[MAIN].modules
    assert modules[-1] == "epilogue_kernels"
    assert sources_digest(*modules) != sources_digest(*modules[:-1])


def test_what_cannot_be_registered(own):
    register(own[0])  # the same again
    for change, words in (
        ({"function": "epilogue_kernels:blend"}, "another operation"),
        ({"name": "x-y"}, "no name"),
        ({"name": "x__y"}, "no name"),
        ({"name": "other", "function": "nowhere"}, "module:function"),
        ({"name": "other", "function": "__main__:f"}, "put it in a module"),
        ({"name": "other", "takes": (Takes("x", "q"),)}, "kind 'q'"),
        ({"name": "other", "takes": (Takes("x", "s"),) * 3}, "3 operands"),
    ):
        with pytest.raises(BadArgument, match=words):
            register(replace(own[0], **change))
    with pytest.raises(UnknownName, match="unknown operation 'other'"):
        FAMILY.parse_name(config(epilogue="relu").name.replace("epi-relu", "epi-other"))


def test_a_function_that_is_not_there_fails_its_own_build(own, tmp_path):
    lost = replace(own[0], name="lost", function="epilogue_kernels:lost")
    register(lost)
    own.append(lost)
    (result,) = build([(config(epilogue="lost"), "sm_90")], store=Store(tmp_path)).results
    assert not result.ok and "has no function 'lost'" in result.reason
