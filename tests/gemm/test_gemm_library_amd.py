"""Algorithms of AMD's library as configs: their names, what they may serve, and what they cannot
keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_cases import PLAIN, SOLUTION, amds, vendors

from tilewright import Constraints, Dispatcher
from tilewright.arch import arch, device
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import ALIGNMENTS
from tilewright.ops.gemm.library_config import WORKSPACES, HipblasLtConfig
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.library import Found, Solution
from tilewright.ops.products import OUTPUTS, accumulator
from tilewright.registry import Registry
from tilewright.verdict import Verdict

GFX90A, GFX942, GFX950, GFX1201 = map(arch, ("gfx90a", "gfx942", "gfx950", "gfx1201"))
MI300X = device("mi300x")
BF16 = GemmProblem(512, 2048, 4096)
FP8 = GemmProblem(64, 256, 512, dtype_a="e4m3fn", dtype_c="bf16")
FNUZ = GemmProblem(64, 256, 512, dtype_a="e4m3fnuz", dtype_c="bf16")
NAME = "gemm_rcr_bf16_bf16_bf16_fp32_vendor_hipblaslt1_n66771_h0f9c2a41_ws0_al16"


@st.composite
def configs(draw):
    """Any algorithm that can be said, usable somewhere or not."""
    dtype = draw(st.sampled_from(sorted(OUTPUTS)))
    return HipblasLtConfig(
        draw(st.sampled_from(LAYOUTS)),
        dtype,
        dtype,
        OUTPUTS[dtype][0],
        accumulator(dtype),
        draw(st.sampled_from(("ieee", "tf32"))) if dtype == "fp32" else "ieee",
        f"hipblaslt{draw(st.integers(1, 99))}",
        Solution(draw(st.integers(0, 2**31 - 1)), f"{draw(st.integers(0, 2**32 - 1)):08x}"),
        draw(st.sampled_from(WORKSPACES)),
        draw(st.sampled_from(ALIGNMENTS)),
        draw(st.sampled_from(("", "bias", "bias+gelu_tanh"))) if dtype != "int8" else "",
        draw(st.sampled_from(BATCHINGS)),
    )


@given(configs())
def test_a_name_says_the_whole_algorithm(config):
    assert FAMILY.parse_name(config.name) == config


@given(configs(), configs())
def test_two_algorithms_have_two_names(one, other):
    assert (one.name == other.name) == (one == other)


def test_a_name_stays_what_it_is():
    assert amds(BF16).name == NAME
    scaled = GemmProblem(64, 256, 512, "e4m3fnuz", epilogue="scale", batch=2)
    assert amds(scaled, Solution(7, "00000000"), 32).name == (
        "gemm_rcr_e4m3fnuz_e4m3fnuz_bf16_fp32_vendor_hipblaslt1_n7_h00000000_ws32_al16"
        "_batch-strided_epi-scale"
    )


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("_n6", "_n06"),
        NAME.replace("_n66771", "_n2147483648"),
        NAME.replace("_h0f9c2a41", "_h0F9C2A41"),
        NAME.replace("_h0f9c2a41", "_h0f9c2a4"),
        NAME.replace("_h0f9c2a41", ""),
        NAME.replace("hipblaslt1", "hipblaslt0"),
        NAME.replace("hipblaslt1", "hipblaslt"),
        NAME.replace("hipblaslt1", "cublaslt13"),
        vendors(BF16).name.replace("cublaslt13", "hipblaslt1"),
    ],
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(UnknownName, match="not the name of an algorithm of the vendor's library"):
        FAMILY.parse_name(name)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"library": "cublaslt13"}, "is not an algorithm of cublaslt13"),
        ({"library": "hipblas1"}, "hipblaslt1"),
        ({"algorithm": PLAIN}, "is not an algorithm of hipblaslt1"),
        ({"algorithm": Solution(-1, "0" * 8)}, "index = -1"),
        ({"algorithm": Solution(1, "0" * 7)}, "digest '0000000'"),
        ({"workspace": 3}, "workspace"),
    ],
)
def test_a_config_that_no_name_can_say_is_refused(fields, said):
    with pytest.raises(BadArgument, match=said):
        replace(amds(BF16), **fields)


def test_a_registry_keeps_those_of_both_libraries():
    kept = Registry("r").register_all([amds(BF16, SOLUTION, 8), vendors(BF16)])
    assert Registry.from_json(kept.to_json()) == kept


# --- rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "archs"),
    [
        (BF16, (GFX90A, GFX942, GFX950, GFX1201)),
        (GemmProblem(7, 9, 11, "fp16", layout="crc"), (GFX90A, GFX942, GFX950, GFX1201)),
        (GemmProblem(64, 64, 64, dtype_c="fp32", lda=72), (GFX90A, GFX942, GFX950, GFX1201)),
        (GemmProblem(64, 64, 64, "fp32"), (GFX90A, GFX942, GFX950, GFX1201)),
        (GemmProblem(64, 64, 64, "fp32", precision="tf32"), (GFX942,)),
        (GemmProblem(64, 64, 64, batch=3, stride_b=0), (GFX90A, GFX942, GFX950, GFX1201)),
        (GemmProblem(64, 64, 64, epilogue="bias"), (GFX90A, GFX942, GFX950, GFX1201)),
        (FP8, (GFX950, GFX1201)),
        (replace(FP8, epilogue="scale", layout="crr", lda=0, ldb=0), (GFX950, GFX1201)),
        (replace(FP8, n=255, ldc=0, alignment=1), (GFX950, GFX1201)),
        (FNUZ, (GFX942,)),
        (replace(FNUZ, epilogue="scale"), (GFX942,)),
    ],
    ids=str,
)
def test_it_is_asked_where_the_architecture_has_the_dtype(problem, archs):
    for this in (GFX90A, GFX942, GFX950, GFX1201):
        asked = FAMILY.library_query(problem, this, "hipblaslt1")
        verdict = FAMILY.supports(amds(problem), problem, this)
        if this in archs:
            assert verdict and not isinstance(asked, Verdict)
        else:
            assert isinstance(asked, Verdict) and asked.rule == verdict.rule == "dtype"


@pytest.mark.parametrize(
    ("problem", "rule"),
    [
        (GemmProblem(64, 64, 64, "int8"), "dtype"),
        (GemmProblem(64, 64, 64, "e5m2fnuz"), "dtype"),
        (GemmProblem(64, 64, 64, layout="rsr"), "layout"),
        (GemmProblem(64, 64, 64, epilogue="relu"), "epilogue"),
        (GemmProblem(64, 64, 64, epilogue="bias+gelu_tanh"), "epilogue"),
        (GemmProblem(64, 64, 64, epilogue="scale"), "epilogue"),
        (replace(FNUZ, epilogue="row_scale+col_scale"), "epilogue"),
        (replace(FNUZ, scale_a="1x128", scale_b="128x128"), "operands"),
        (GemmProblem(64, 64, 64, epilogue="bias", layout="rcc"), "epilogue"),
        (replace(FNUZ, epilogue="bias"), "epilogue"),
        (GemmProblem(64, 64, 64, pre_a="scale"), "operands"),
        (GemmProblem(64, 64, 64, batch=2, batching="pointers"), "operands"),
        (GemmProblem(0, 64, 64), "extent"),
    ],
    ids=str,
)
def test_the_library_is_not_asked_for(problem, rule):
    asked = FAMILY.library_query(problem, GFX942, "hipblaslt1")
    assert isinstance(asked, Verdict) and asked.rule == rule and asked.reason


def test_each_library_is_of_its_vendors_gpus():
    asked = FAMILY.library_query(BF16, arch("sm_90"), "hipblaslt1")
    assert isinstance(asked, Verdict) and asked.rule == "library" and "AMD" in asked.reason
    assert FAMILY.judge(amds(BF16), arch("sm_90")).rule == "library"
    assert FAMILY.judge(amds(BF16), GFX942) and not FAMILY.judge(vendors(BF16), GFX942)


def test_an_offer_becomes_a_config_with_room_for_its_workspace():
    config = FAMILY.library_config(BF16, "hipblaslt1", Found(SOLUTION, (1 << 20) + 1))
    assert config == amds(BF16, SOLUTION, 2) and type(config) is HipblasLtConfig
    launch = FAMILY.launch(config, BF16, MI300X)
    (step,) = launch.steps
    assert step.theirs.algorithm == SOLUTION and step.theirs.workspace == 2 << 20
    assert launch.capturable and launch.workspace_bytes == 2 << 20


# --- constraints ---------------------------------------------------------------------------


def test_what_it_does_not_say_it_keeps_refuses_it():
    def allowed(**fields):
        return Constraints(**fields).allows(amds(BF16), BF16, MI300X)

    assert allowed() and allowed(graph_capturable=True, pipelines=("vendor",))
    assert allowed(only_ours=True).rule == "only_ours"
    assert "hipblaslt1" in allowed(only_ours=True).reason
    refused = allowed(deterministic=True)
    assert refused.rule == "deterministic" and "repeat bit for bit" in refused.reason
    assert allowed(batch_invariant=True).rule == "batch_invariant"


def test_without_a_row_the_choice_on_amd_is_ours():
    assert FAMILY.library_faster(BF16, MI300X).rule
    assert not FAMILY.library_faster(BF16, MI300X)
    assert Dispatcher(device=MI300X).select(BF16).config.pipeline != "vendor"


def test_the_interpreter_runs_a_kernel_in_its_place():
    for problem, this in ((BF16, GFX942), (FNUZ, GFX942), (FP8, GFX950)):
        assert FAMILY.supports(FAMILY.interpreted(amds(problem)), problem, this)
        assert not FAMILY.sources(amds(problem), this)
    assert FAMILY.tolerances(BF16, amds(BF16)) == FAMILY.tolerances(BF16, None)
