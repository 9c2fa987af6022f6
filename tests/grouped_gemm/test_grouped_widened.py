"""Weights in 8 bits beside activations in 16: groups and plain products against float64, rules, and
what is chosen."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from grouped_cases import config
from widened_cases import cases, label

import selection
from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument
from tilewright.ops import gemm
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem, pack

SM90 = arch("sm_90")
FP8 = {"dtype_b": "e4m3fn", "scale_b": "128x128"}
INT8 = {"dtype_b": "int8", "epilogue": "col_scale"}


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_type_and_scale_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", cases("gfx942")[::5], ids=label)
def test_kernels_for_amd_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


EMULATED = (
    ("basic", "gathered", "fp8", {"scale_b": "64x64"}),
    ("weights", "contiguous", "fp8", {"scale_b": "128x64"}),
    ("weights", "masked", "int8", {"epilogue": "col_scale"}),
)


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("pipeline", "form", "held", "said"), EMULATED, ids=str)
def test_machine_code_for_amd_is_right(store, name, pipeline, form, held, said):
    """Executed: the conversions are instructions of their own on each architecture."""
    here = f"emulated:{name}"
    dtype_b = resolve(held, arch(name).fp8)
    small = {"tile_m": 16, "tile_n": 64, "tile_k": 64, "pipeline": pipeline}
    kernel = config(name, form=form, dtype_b=dtype_b, **small, **said)
    more = {"rows_a": 10, "per_row": 2} if form == "gathered" else {}
    sizes = {"groups": 2, "m": 20, "n": 64, "k": 144}
    problem = GroupedGemmProblem(form, **sizes, dtype_b=dtype_b, **said, **more)
    result = verify.verify(Dispatcher(device=here, store=store), problem, kernel.name, device=here)
    assert result.ok, result


@pytest.mark.grid(1)
@pytest.mark.parametrize("form", ["contiguous", "masked", "gathered", "list"])
@pytest.mark.parametrize("said", [FP8, INT8], ids=["fp8", "int8"])
def test_some_kernel_serves_awkward_sizes(hopper, form, said):
    if form == "list":
        sizes = ((21, 65, 133), (0, 3, 7), (40, 16, 64))
        problem = GroupedGemmProblem("list", sizes=sizes, dtype_b=said["dtype_b"])
    else:
        more = {"rows_a": 7, "per_row": 3} if form == "gathered" else {}
        problem = GroupedGemmProblem(form, groups=3, m=21, n=65, k=133, **said, **more)
    result = verify.verify(hopper, problem)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(33, 65, 133, **FP8),
        GemmProblem(5, 64, 256, dtype_a="fp16", dtype_b="int8", epilogue="col_scale+bias"),
        GemmProblem(33, 48, 64, dtype_b="e5m2", layout="crc", batch=3),
        GemmProblem(4, 8, 0, dtype_b="int8"),
    ],
    ids=str,
)
def test_plain_products_are_right(hopper, problem):
    result = verify.verify(hopper, problem)
    assert result.ok, result


def test_calls_say_it_by_their_arrays(hopper):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((9, 256)).astype(np.float16)
    w = rng.integers(-128, 128, (2, 32, 256)).astype(np.int8)
    of_rows = rng.uniform(0.5, 2.0, (2, 32)).astype(np.float32)
    ends = np.array([4, 9], np.int32)
    y = hopper.run("grouped_gemm", x, w.transpose(0, 2, 1), ends, of_rows, epilogue="col_scale")
    assert y.dtype == np.float16
    for (begin, end), held, scale in zip(((0, 4), (4, 9)), w, of_rows, strict=True):
        right = x[begin:end].astype(np.float64) @ (held.T * scale.astype(np.float64))
        assert np.allclose(y[begin:end], right, rtol=4e-3, atol=4e-3 * np.abs(right).max())


def test_a_list_of_arrays(hopper):
    rng = np.random.default_rng(4)
    pairs = [
        (
            rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16),
            rng.standard_normal((n, k)).astype(ml_dtypes.float8_e4m3fn).T,
        )
        for m, n, k in ((4, 24, 40), (0, 8, 16), (9, 5, 130))
    ]
    packed = pack(pairs)
    hopper.run("grouped_gemm", *packed.inputs, out=packed.out, **packed.options)
    for y, (a, b) in zip(packed.outputs, pairs, strict=True):
        right = a.astype(np.float64) @ b.astype(np.float64)
        assert np.allclose(y.astype(np.float64), right, rtol=1e-2, atol=1e-2)


def test_what_is_no_such_product_is_refused():
    with pytest.raises(BadArgument, match="A is fp32 but B is e4m3fn"):
        GroupedGemmProblem("contiguous", groups=2, m=8, n=8, k=8, dtype_a="fp32", dtype_b="e4m3fn")
    with pytest.raises(BadArgument, match="A is e4m3fn but B is bf16"):
        GemmProblem(8, 8, 8, dtype_a="e4m3fn", dtype_b="bf16")
    for form in ("weights", "columns"):
        with pytest.raises(BadArgument, match=f"may have, not {form}; convert one"):
            GroupedGemmProblem(form, groups=2, m=8, n=8, k=8, dtype_b="int8")


@pytest.mark.parametrize(
    ("fields", "rule", "said"),
    [
        ({"pipeline": "tma"}, "packed", "basic and weights convert e4m3fn to bf16"),
        ({"pipeline": "gluon_ws"}, "packed", "basic and weights convert e4m3fn to bf16"),
        ({"pipeline": "mx"}, "packed", "A is bf16"),
        ({"pipeline": "weights", "layout": "rrr"}, "packed", "B is column-major, not r"),
        ({"dtype_b": "e4m3fnuz"}, "dtype", "sm_90 does not take e4m3fnuz"),
    ],
)
def test_a_config_that_breaks_a_rule_is_dropped_by_it(fields, rule, said):
    plain = {"dtype_b": "e4m3fn", "tile_k": 64, "tile_n": 128, "num_stages": 3}
    assert FAMILY.judge(config(**plain), SM90)
    verdict = FAMILY.judge(config(**{**plain, **fields}), SM90)
    assert verdict.rule == rule and said in verdict.reason


@pytest.mark.parametrize("name", ["tma", "small_m", "small_m_tma", "gluon_ws", "gluon_pingpong"])
def test_other_pipelines_of_a_product_refuse_it(name):
    if name.startswith("small_m"):
        how = {
            "tile_m": 8,
            "scheduler": "split_k",
            "split_k": 2,
            "group_m": 1,
            "reduction": "linear",
        }
    else:
        how = {"scheduler": "persistent", "tile_k": 64, "num_stages": 3}
    fields = {**gemm.FAMILY.axes(), "pipeline": name, **how}
    assert gemm.FAMILY.judge(gemm.FAMILY.make_config(fields, SM90), SM90)
    kernel = gemm.FAMILY.make_config({**fields, "dtype_b": "e4m3fn"}, SM90)
    verdict = gemm.FAMILY.judge(kernel, SM90)
    assert verdict.rule == "packed" and "basic and weights convert e4m3fn" in verdict.reason


def test_the_default_space_has_both_pipelines_and_ranks_them():
    on = device("h200_sxm")
    for said in (FP8, INT8):
        problem = GroupedGemmProblem("gathered", groups=64, m=512, n=4096, k=4096, rows_a=64,
                                     per_row=8, **said)  # fmt: skip
        configs = FAMILY.default_space(problem, SM90).expand(SM90).configs
        assert {c.pipeline for c in configs} == {"basic", "weights"} and len(configs) < 300
        ranked = FAMILY.rank(problem, configs, on)
        assert len(ranked) == len(configs) and 0 < ranked[0][1].total_us < 1e6


def test_weights_of_half_the_bytes_are_estimated_to_arrive_sooner(hopper):
    sizes = {"groups": 32, "m": 32, "n": 4096, "k": 4096}
    wide, narrow = (
        FAMILY.estimate(found.config, found.problem, found.device).total_us
        for found in (
            hopper.select(GroupedGemmProblem("contiguous", **sizes, **said)) for said in ({}, INT8)
        )
    )
    assert 0.4 * wide < narrow < 0.95 * wide


def test_converting_costs_time_where_products_decide():
    on = device("h200_sxm")
    sizes = {"groups": 4, "m": 8192, "n": 4096, "k": 4096}
    wide, narrow = (
        FAMILY.rank(
            GroupedGemmProblem("contiguous", **sizes, dtype_b=dtype),
            [config(tile_m=128, tile_n=128, num_stages=3, num_warps=8, dtype_b=dtype)],
            on,
        )[0][1].total_us
        for dtype in ("bf16", "e4m3fn")
    )
    assert narrow > wide


ARCHS = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950", "gfx1201")
MATRIX = {"sm_90": ("ptx", "wgmma"), "gfx942": ("amdgcn", "v_mfma_f32_"),
          "gfx950": ("amdgcn", "v_mfma_f32_")}  # fmt: skip
HERE = selection.architectures(ARCHS)


@pytest.mark.turns(32)
def test_they_compile_everywhere(store):
    wanted = []
    for number, name in enumerate(HERE):
        legal = [c for c, _ in cases(name)]
        by_pipeline = {c.pipeline: c for c in legal[number % 5 :: 3]}
        assert {*by_pipeline} == {"basic", "weights"}, name
        wanted += [(c, name) for c in by_pipeline.values()]
    report = build_once(wanted, store)
    assert not report.failures, "\n".join(map(str, report.failures))


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", [name for name in MATRIX if name in HERE])
def test_matrix_instructions_of_16_bits_multiply_them(store, name):
    native = "e4m3fnuz" if name == "gfx942" else "e4m3fn"
    said = {"dtype_b": native, "tile_n": 128, "num_stages": 3}
    made = [config(name, pipeline=pipeline, **said) for pipeline in ("basic", "weights")]
    made.append(config(name, tile_m=128, **said))
    form, word = MATRIX[name]
    for result in build_once([(c, name) for c in made], store).results:
        code = inspect(result.kernel, store, form)
        found = {line for line in code.splitlines() if re.search(word + ".*mma|" + word, line)}
        assert any("bf16" in line for line in found), result.name
        assert not any("fp8" in line or "e4m3" in line for line in found), result.name
        assert result.kernel.resources.spill_bytes == 0
        assert result.kernel.shared <= shared_memory(result.config.one, arch(name))
