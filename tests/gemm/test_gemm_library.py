"""Algorithms of the vendor's library as configs: their names, what they may serve, and what the
library is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_cases import PLAIN, SPLIT, vendors

from tilewright.arch import arch, device
from tilewright.errors import BadArgument, EmptySpace, UnknownName
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import ALIGNMENTS
from tilewright.ops.gemm.library_config import WORKSPACES, CublasLtConfig
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.library import MEETINGS, Algorithm, Found, Matrix
from tilewright.ops.nouns import Pointer
from tilewright.ops.products import OUTPUTS, accumulator
from tilewright.registry import Registry
from tilewright.select.constraints import Constraints
from tilewright.space import KernelSpace
from tilewright.verdict import Verdict

SM_90, MI300X = arch("sm_90"), arch("gfx942")
H200 = device("h200_sxm")
BF16 = GemmProblem(512, 2048, 4096)
FP8 = GemmProblem(64, 256, 512, dtype_a="e4m3fn", dtype_c="bf16")
NAME = "gemm_rcr_bf16_bf16_bf16_fp32_vendor_cublaslt13_66_t20_s36_k1_none_z0_o5_i0_c2_ws0_al16"

BLOCKS = ("1x128", "128x128")

numbers = st.integers(0, 2**32 - 1)


@st.composite
def configs(draw):
    """Any algorithm that can be said, usable somewhere or not."""
    dtype = draw(st.sampled_from(sorted(OUTPUTS)))
    algorithm = Algorithm(
        *(draw(numbers) for _ in range(4)),
        draw(st.sampled_from(sorted(MEETINGS))),
        *(draw(numbers) for _ in range(4)),
    )
    return CublasLtConfig(
        draw(st.sampled_from(LAYOUTS)),
        dtype,
        dtype,
        OUTPUTS[dtype][0],
        accumulator(dtype),
        draw(st.sampled_from(("ieee", "tf32"))) if dtype == "fp32" else "ieee",
        f"cublaslt{draw(st.integers(1, 99))}",
        algorithm,
        draw(st.sampled_from(WORKSPACES)),
        draw(st.sampled_from(ALIGNMENTS)),
        draw(st.sampled_from(("", "bias", "bias+gelu_tanh"))) if dtype != "int8" else "",
        draw(st.sampled_from(BATCHINGS)),
        *(draw(st.sampled_from((("", ""), BLOCKS))) if dtype != "int8" else ()),
    )


@given(configs())
def test_a_name_says_the_whole_algorithm(config):
    assert FAMILY.parse_name(config.name) == config


@given(configs(), configs())
def test_two_algorithms_have_two_names(one, other):
    assert (one.name == other.name) == (one == other)


def test_a_name_stays_what_it_is():
    assert vendors(BF16).name == NAME
    tf32 = GemmProblem(64, 64, 64, "fp32", precision="tf32", batch=2, epilogue="bias+gelu_tanh")
    assert vendors(tf32, SPLIT, 32).name == (
        "gemm_rcr_fp32_fp32_fp32_fp32_vendor_cublaslt13_66_t20_s36_k4_compute_z1_o0_i0_c3_ws32_al16"
        "_tf32_batch-strided_epi-bias-gelu_tanh"
    )
    assert vendors(SCALED).name == NAME.replace("bf16_bf16_bf16", "e4m3fn_e4m3fn_bf16") + (
        "_sa1x128_sb128x128"
    )


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("_k1", "_k01"),
        NAME.replace("_ws0", "_ws3"),
        NAME.replace("cublaslt13", "hipblaslt1"),
        NAME.replace("cublaslt13", "cublaslt0"),
        NAME.replace("_none_", "_atomic_"),
        NAME.replace("_66_", "_4294967296_"),
        NAME.replace("rcr", "rsr"),
        NAME + "_tf32",
        NAME + "_",
        NAME.replace("_c2", "_c٢"),
    ],
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(UnknownName, match="not the name of an algorithm of the vendor's library"):
        FAMILY.parse_name(name)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layout": "rsr"}, "layout"),
        ({"library": "cublas13"}, "cublaslt13"),
        ({"workspace": -1}, "workspace"),
        ({"alignment": 32}, "alignment"),
        ({"algorithm": replace(PLAIN, tile=-1)}, "tile"),
        ({"algorithm": replace(PLAIN, meeting="3")}, "meeting"),
        ({"dtype_acc": "int32"}, "accumulated"),
        ({"scale_a": "1x100"}, "power of two"),
    ],
)
def test_a_config_that_no_name_can_say_is_refused(fields, said):
    with pytest.raises(BadArgument, match=said):
        replace(vendors(BF16), **fields)


def test_a_registry_keeps_algorithms_beside_kernels():
    kernel = FAMILY.default_space(BF16, SM_90).expand(SM_90).configs[0]
    kept = Registry("r").register_all([vendors(BF16, SPLIT, 8), kernel])
    assert Registry.from_json(kept.to_json()) == kept


# --- rules ---------------------------------------------------------------------------------


SCALED = GemmProblem(
    64, 256, 640, "e4m3fn", dtype_c="bf16", scale_a=BLOCKS[0], scale_b=BLOCKS[1],
    strides_sa=(1, 64), strides_sb=(1, 8),
)  # fmt: skip
"""As torch has them: each column of B's scales is padded to a multiple of four."""
SCALES_OF_A_BATCH = GemmProblem(
    64, 64, 64, "e4m3fn", dtype_c="bf16", epilogue="row_scale+col_scale", batch=2,
    batching="strided",
)  # fmt: skip
SERVED = [
    BF16,
    GemmProblem(1, 1, 1),
    GemmProblem(7, 9, 11, "fp16", layout="crc"),
    GemmProblem(64, 64, 64, "bf16", dtype_c="fp32"),
    GemmProblem(64, 64, 64, "fp32"),
    GemmProblem(64, 64, 64, "fp32", precision="tf32"),
    GemmProblem(64, 64, 64, batch=3),
    GemmProblem(64, 64, 64, batch=3, stride_b=0),
    GemmProblem(64, 64, 64, lda=72, ldb=80, ldc=96),
    GemmProblem(64, 64, 64, epilogue="bias"),
    GemmProblem(64, 64, 64, "int8"),
    FP8,
    replace(FP8, epilogue="scale"),
    replace(FP8, epilogue="row_scale+col_scale"),
    SCALED,
    replace(SCALED, k=512, lda=0, ldb=0, strides_sb=(1, 4)),
]
REFUSED = [
    (GemmProblem(64, 64, 64, "int8", layout="rrr"), "layout"),
    (GemmProblem(64, 72, 64, "int8"), "extent"),
    (GemmProblem(64, 64, 64, "int8", dtype_c="bf16", epilogue="row_scale+col_scale"), "dtype"),
    (replace(FP8, dtype_a="e5m2", dtype_b="e5m2"), "dtype"),
    (GemmProblem(64, 128, 128, "e4m3fn", layout="rrr"), "layout"),
    (GemmProblem(64, 64, 64, layout="rsr"), "layout"),
    (GemmProblem(64, 64, 64, epilogue="relu"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="bias+relu"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="gelu"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="gelu_tanh", layout="rrc"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="bias+gelu_tanh"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="scale+bias"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="bias", layout="rcc"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="scale"), "epilogue"),
    (replace(FP8, epilogue="bias"), "epilogue"),
    (SCALES_OF_A_BATCH, "epilogue"),
    (replace(FP8, epilogue="row_scale"), "epilogue"),
    (GemmProblem(64, 64, 64, epilogue="row_scale+col_scale"), "epilogue"),
    (GemmProblem(64, 64, 64, pre_a="scale"), "operands"),
    (GemmProblem(64, 128, 128, "e4m3fn", scale_a="1x128", scale_b="128x128"), "extent"),
    (replace(SCALED, strides_sb=(1, 5)), "extent"),
    (replace(SCALED, strides_sa=(5, 1)), "extent"),
    (replace(SCALED, m=62, strides_sa=(1, 62)), "extent"),
    (replace(SCALED, scale_a="1x64", strides_sa=()), "operands"),
    (replace(SCALED, scale_b="", strides_sb=()), "operands"),
    (replace(SCALED, epilogue="scale"), "epilogue"),
    (GemmProblem(64, 64, 128, scale_a=BLOCKS[0], scale_b=BLOCKS[1]), "operands"),
    (GemmProblem(64, 64, 64, batch=2, batching="pointers"), "operands"),
    (GemmProblem(0, 64, 64), "extent"),
    (GemmProblem(64, 0, 64), "extent"),
    (GemmProblem(64, 64, 0), "extent"),
    (GemmProblem(64, 64, 64, batch=0, batching="strided"), "extent"),
    (replace(FP8, n=264, ldc=0), "extent"),
]


@pytest.mark.parametrize("problem", SERVED, ids=str)
def test_the_library_is_asked_for_and_serves(problem):
    assert not isinstance(FAMILY.library_query(problem, SM_90, "cublaslt13"), Verdict)
    assert FAMILY.supports(vendors(problem), problem, SM_90)


@pytest.mark.parametrize(("problem", "rule"), REFUSED, ids=str)
def test_the_library_is_not_asked_for(problem, rule):
    asked = FAMILY.library_query(problem, SM_90, "cublaslt13")
    assert isinstance(asked, Verdict) and asked.rule == rule and asked.reason


def test_what_the_library_is_not_asked_for_its_algorithms_do_not_serve():
    for problem, rule in REFUSED:
        if problem.layout[1] != "s" and not problem.pre_a:
            assert FAMILY.supports(vendors(problem), problem, SM_90).rule == rule


def test_the_library_is_nvidias():
    asked = FAMILY.library_query(BF16, MI300X, "cublaslt13")
    assert isinstance(asked, Verdict) and asked.rule == "library" and "NVIDIA" in asked.reason
    assert FAMILY.judge(vendors(BF16), MI300X).rule == "library"
    assert all("vendor" in FAMILY.pipelines(arch) for arch in (SM_90, MI300X))


def test_8_bit_operands_need_an_architecture_with_them():
    asked = FAMILY.library_query(FP8, arch("sm_80"), "cublaslt13")
    assert isinstance(asked, Verdict) and asked.rule == "dtype"


@pytest.mark.parametrize("meeting", ["inplace", "output"])
def test_parts_of_a_sum_are_not_rounded_to_16_bits(meeting):
    algorithm = replace(SPLIT, meeting=meeting)
    assert FAMILY.judge(vendors(BF16, algorithm), SM_90).rule == "reduction"
    assert FAMILY.judge(vendors(GemmProblem(64, 64, 64, dtype_c="fp32"), algorithm), SM_90)


def test_an_algorithm_serves_its_signature_and_alignment_alone():
    config = vendors(BF16)
    assert FAMILY.supports(config, replace(BF16, m=77), SM_90)
    assert FAMILY.supports(config, replace(BF16, dtype_c="fp32"), SM_90).rule == "signature"
    assert FAMILY.supports(config, replace(BF16, layout="rrr", ldb=0), SM_90).rule == "signature"
    assert FAMILY.supports(config, replace(BF16, alignment=8), SM_90).rule == "vector_width"
    assert FAMILY.supports(vendors(BF16, alignment=2), replace(BF16, alignment=8), SM_90)


def test_no_axis_makes_an_algorithm():
    with pytest.raises((BadArgument, EmptySpace), match="have tune ask the library"):
        KernelSpace("gemm", {"pipeline": ["vendor"]}).expand(SM_90)


# --- constraints ---------------------------------------------------------------------------


def allowed(config, **fields):
    return Constraints(**fields).allows(config, BF16, H200)


def test_only_ours_leaves_the_library_out():
    refused = allowed(vendors(BF16), only_ours=True)
    assert refused.rule == "only_ours" and "cublaslt13" in refused.reason
    assert allowed(FAMILY.default_space(BF16, SM_90).expand(SM_90).configs[0], only_ours=True)
    assert allowed(vendors(BF16), pipelines=("vendor",))
    assert allowed(vendors(BF16), pipelines=("tma",)).rule == "pipelines"
    assert allowed(vendors(BF16), blocked=("*_cublaslt*",)).rule == "blocked"


@pytest.mark.parametrize(
    ("algorithm", "repeats"),
    [
        (PLAIN, True),
        (SPLIT, True),
        (replace(SPLIT, meeting="inplace"), False),
        (replace(SPLIT, meeting="none"), False),
    ],
)
def test_bits_repeat_where_the_order_of_sums_is_stated(algorithm, repeats):
    config = vendors(BF16, algorithm)
    assert bool(allowed(config, deterministic=True)) == repeats
    assert allowed(config, batch_invariant=True).rule == "batch_invariant"


def test_a_workspace_counts():
    assert allowed(vendors(BF16, SPLIT, 8), max_workspace=8 << 20)
    refused = allowed(vendors(BF16, SPLIT, 8), max_workspace=(8 << 20) - 1)
    assert refused.rule == "max_workspace"
    assert allowed(vendors(BF16), max_workspace=0) and allowed(vendors(BF16), graph_capturable=True)


# --- what the library is told -----------------------------------------------------------------


def step_of(config, problem):
    launch = FAMILY.launch(config, problem, H200)
    (step,) = launch.steps
    return launch, step, [a.operand for a in step.arguments if isinstance(a, Pointer)]


def test_a_row_major_result_is_the_transpose_of_a_product_of_transposes():
    p = GemmProblem(3, 5, 7, "fp32", lda=8, ldb=9, ldc=10)
    _, step, names = step_of(vendors(p), p)
    asked = step.theirs
    assert names == ["B", "A", "C"]
    assert asked.first == Matrix("fp32", 7, 5, 9) and asked.second == Matrix("fp32", 7, 3, 8)
    assert asked.result == Matrix("fp32", 5, 3, 10) and asked.transposed == (True, False)


def test_a_column_major_result_is_as_the_library_has_it():
    p = GemmProblem(3, 5, 7, "fp32", layout="rcc", batch=2, stride_b=0)
    _, step, names = step_of(vendors(p), p)
    asked = step.theirs
    assert names == ["A", "B", "C"] and asked.count == 2
    assert asked.first == Matrix("fp32", 7, 3, 7, 21) and asked.second == Matrix("fp32", 7, 5, 7, 0)
    assert asked.result == Matrix("fp32", 3, 5, 3, 15) and asked.transposed == (True, False)


def test_a_workspace_is_a_temporary_and_a_bias_comes_last():
    p = replace(BF16, epilogue="bias")
    launch, step, names = step_of(vendors(p, SPLIT, 4), p)
    assert names == ["B", "A", "C", "workspace", "bias"]
    (room,) = launch.temporaries
    assert (room.name, room.bytes, room.initial) == ("workspace", 4 << 20, "anything")
    assert step.theirs.workspace == 4 << 20 and step.theirs.chain == "bias"
    assert step.theirs.algorithm == SPLIT
    assert launch.capturable and not FAMILY.launch(vendors(p), p, H200).temporaries


def test_an_offer_becomes_a_config_with_room_for_its_workspace():
    for need, mib in ((0, 0), (1, 1), (1 << 20, 1), ((4 << 20) + 1, 8), (32 << 20, 32)):
        config = FAMILY.library_config(BF16, "cublaslt12", Found(SPLIT, need))
        assert config == vendors(BF16, SPLIT, mib, library="cublaslt12")
    with pytest.raises(BadArgument, match="workspace"):
        FAMILY.library_config(BF16, "cublaslt12", Found(SPLIT, (32 << 20) + 1))


# --- beside kernels ---------------------------------------------------------------------------


def test_the_interpreter_runs_a_kernel_in_its_place():
    for problem in SERVED:
        sibling = FAMILY.interpreted(vendors(problem))
        assert FAMILY.supports(sibling, problem, SM_90)
        assert not FAMILY.sources(vendors(problem), SM_90)


def test_nothing_is_known_of_its_time_so_it_ranks_last():
    ours = FAMILY.default_space(BF16, SM_90).expand(SM_90).configs[:3]
    configs = [vendors(BF16, SPLIT), *ours, vendors(BF16)]
    ranked = [config for config, _ in FAMILY.rank(BF16, configs, H200)]
    assert ranked[3:] == [vendors(BF16, SPLIT), vendors(BF16)] and set(ranked[:3]) == set(ours)
    found = FAMILY.estimate(vendors(BF16), BF16, H200)
    assert BF16.flops / 989e6 < found.total_us < FAMILY.estimate(ours[0], BF16, H200).total_us


def test_it_may_be_as_far_off_as_a_kernel_that_splits_as_often():
    split = FAMILY.tolerances(BF16, vendors(BF16, SPLIT))["C"]
    assert split.scaled > FAMILY.tolerances(BF16, vendors(BF16))["C"].scaled
    assert FAMILY.tolerances(BF16, vendors(BF16)) == FAMILY.tolerances(BF16, None)
    tf32 = GemmProblem(64, 64, 64, "fp32", precision="tf32")
    ieee = replace(tf32, precision="ieee")
    loose, tight = (FAMILY.tolerances(p, vendors(p))["C"] for p in (tf32, ieee))
    assert loose.scaled > tight.scaled
