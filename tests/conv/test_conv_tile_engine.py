"""CK Tile Engine's documents of grouped convolution, in the form in which they are published, and
its lists of problems."""

from __future__ import annotations

import json

import pytest

from tilewright import Dispatcher, Registry
from tilewright.arch import arch
from tilewright.errors import BadFile, EmptySpace
from tilewright.measure.problems import load_problems
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.formats.tile_engine import TILES
from tilewright.space_file import load_space

GFX950 = arch("gfx950")
PIPELINES = ["basic_v1", "mem", "compv3", "compv4", "compv5", "compv6", "comp_async",
             "basic_async_v1"]  # fmt: skip


def published(variant: str, ndim: int) -> dict:
    return {
        "variant": variant,
        "trait_config": {
            "data_type": {"values": ["bf16"]},
            "pipeline": {"values": PIPELINES},
            "scheduler": {"values": ["intrawave", "interwave"]},
            "ndim_spatial": {"values": [ndim]},
            "num_groups_to_merge": {"values": [1, 2]},
            "double_smem_buffer": {"values": [False, True]},
            "split_image": {"values": [False, True]},
            "explicit_gemm": {"values": [False]},
            "two_stage": {"values": [False] if variant != "bwd_weight" else [False, True]},
        },
    }


@pytest.fixture
def read(tmp_path):
    def made(document, **options):
        folder = tmp_path / "grouped_conv" / "configs"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.json").write_text(json.dumps(document))
        return load_space(folder / "a.json", GFX950, **options)

    return made


@pytest.mark.parametrize(
    ("variant", "ndim", "direction", "schedulers"),
    [
        ("forward", 2, "forward", {"tile"}),
        ("bwd_data", 3, "data", {"tile"}),
        ("bwd_weight", 3, "weights", {"tile", "split"}),
    ],
)
def test_published_documents(read, variant, ndim, direction, schedulers):
    space, notes = read(published(variant, ndim))
    expanded = space.expand(GFX950)
    configs = expanded.configs
    assert not expanded.dropped
    assert {(c.direction, c.spatial_dims, c.dtype) for c in configs} == {(direction, ndim, "bf16")}
    assert {(c.tile_m, c.tile_n, c.tile_k, c.num_warps) for c in configs} == {*TILES}
    assert {(c.pipeline, c.num_stages) for c in configs} == {("implicit", n) for n in (1, 2, 3, 4)}
    assert {c.scheduler for c in configs} == schedulers
    assert {c.index_bits for c in configs} == {32, 64}
    assert {c.merged_groups for c in configs} == {1, 2}
    assert len(configs) == len(TILES) * 4 * 2 * 2 * len(schedulers)
    assert [note.partition(": ")[0] for note in notes] == [
        "$.trait_config.double_smem_buffer", "$",
        "$.trait_config.pipeline", "$.trait_config.scheduler",
    ]  # fmt: skip


def test_tiles_and_waves_of_a_document(read):
    space, notes = read(
        {
            "variant": "2d_fwd",
            "tile_config": {
                "tile_m": [64], "tile_n": [32, 64], "tile_k": [32], "wave_m": [2], "wave_n": [2],
                "wave_k": [1], "warp_tile_m": [32], "warp_tile_n": [32], "warp_tile_k": [16],
            },
            "trait_config": {"pipeline": ["compv4"], "pad_m": [True], "vector_size_a": [4],
                             "epilogue": ["cshuffle"], "data_type": ["fp8"]},
        }
    )  # fmt: skip
    configs = space.expand(GFX950).configs
    assert {(c.tile_m, c.tile_n, c.num_warps, c.num_stages) for c in configs} == {
        (64, 32, 4, 3), (64, 64, 4, 3),
    }  # fmt: skip
    assert {(c.dtype, c.direction, c.epilogue) for c in configs} == {("e4m3fn", "forward", "")}
    assert any("vector_size_a: ignored: alignment" in note for note in notes)


def test_this_librarys_axes_and_a_signature(read):
    space, _ = read(
        {"variant": "forward", "tile_m": [64], "tile_n": [64], "tile_k": [32], "num_warps": [4],
         "pipeline": ["implicit"], "num_stages": [2, 3], "epilogue": ["bias+relu"]},
        signature={"dtype": "fp16"},
    )  # fmt: skip
    configs = space.expand(GFX950).configs
    assert [(c.dtype, c.num_stages, c.epilogue) for c in configs] == [
        ("fp16", 2, "bias+relu"), ("fp16", 3, "bias+relu"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"pipelin": ["mem"]}, r"trait_config.pipelin: unknown field 'pipelin' \(did you mean"),
        ({"pipeline": ["memm"]}, "pipeline: unknown pipeline 'memm'"),
        ({"pipeline": ["mem", "implicit"]}, "or this library's, not both"),
        ({"pipeline": ["mem"], "num_stages": [2]}, "mem says its own num_stages"),
        ({"scheduler": ["interwav"]}, "unknown scheduler 'interwav'"),
        ({"two_stage": [1]}, "two_stage is true or false"),
        ({"two_stage": [True], "scheduler": ["tile"]}, "give two_stage, or schedulers of this"),
        ({"split_image": [True], "index_bits": [32]}, "give split_image or index_bits"),
        ({"wave_m": [2], "num_warps": [4]}, "give wave_m, wave_n and wave_k, or num_warps"),
        ({"wave_m": ["2"]}, "waves are whole numbers"),
        ({"data_type": ["bf16"], "dtype": ["bf16"]}, "dtype was given before"),
    ],
)
def test_what_is_refused(read, fields, why):
    with pytest.raises(BadFile, match=why):
        read({"variant": "forward", "trait_config": fields})


INSTANCE = {
    "id": 0, "tile_m": 64, "tile_n": 32, "tile_k": 32, "warp_m": 2, "warp_n": 1, "warp_k": 1,
    "warp_tile_m": 32, "warp_tile_n": 32, "warp_tile_k": 8, "vector_size_a": 8, "vector_size_b": 4,
    "vector_size_c": 1, "pipeline": "compv1", "scheduler": "intrawave", "epilogue": "cshuffle",
    "double_smem_buffer": False, "num_groups_to_merge": 1, "num_wave_groups": 1,
    "specialization": "default", "two_stage": False, "explicit_gemm": False, "split_image": False,
    "streamk_enabled": False, "streamk_reduction_strategy": None, "streamk_persistent": False,
}  # fmt: skip
KERNEL = "conv_{}_2d_bf16_bf16_64x32x32_w2_s1_implicit_{}_g8_al8-2"


def profiled(variant: str, *changes: dict) -> dict:
    listed = [{**INSTANCE, "id": at, **change} for at, change in enumerate(changes)]
    return {"variant": variant, "ndim_spatial": 2, "layout": "nhwgc", "datatype": "bf16",
            "instances": listed}  # fmt: skip


def test_the_dispatchers_instances(read):
    space, notes = read(
        profiled(
            "bwd_weight", {}, {"two_stage": True}, {"split_image": True}, {"streamk_enabled": True},
            {"streamk_enabled": True, "streamk_reduction_strategy": "tree"},
            {"num_groups_to_merge": 8}, {"pipeline": "mem", "vector_size_c": 16},
            {"explicit_gemm": True, "vector_size_c": 8}, {"specialization": "filter1x1_pad0"},
        )
    )  # fmt: skip
    expanded = space.expand(GFX950)
    plain = KERNEL.format("weights", "tile")
    assert [config.name for config in expanded.configs] == [
        plain,
        KERNEL.format("weights", "split_two_stage"),
        f"{plain}_i64",
        KERNEL.format("weights", "stream_k_linear"),
        KERNEL.format("weights", "stream_k_tree"),
        f"{plain}_mg8",
        plain.replace("s1", "s2").replace("8-2", "8-16"),
        plain.replace("s1", "s4").replace("8-2", "8-16"),
        "conv_weights_2d_gemm_crr_bf16_bf16_bf16_fp32_64x32x32_w2_s1_basic_tile_g8_direct_padmnk_al8",
    ]  # fmt: skip
    assert not expanded.dropped
    assert [note.partition(": ")[2].split()[0] for note in notes] == [
        "scheduler", "warp_tile_m", "specialization", "1",
    ]  # fmt: skip


def test_what_an_architecture_and_a_problem_refuse_of_instances(read):
    space, _ = read(
        profiled("forward", {}, {"two_stage": True}, {"warp_k": 3}, {"num_groups_to_merge": 2},
                 {"explicit_gemm": True, "tile_k": 8})
    )  # fmt: skip
    expanded = space.expand(GFX950)
    assert [one.verdict.reason for one in expanded.dropped] == [
        "pixels are split for gradients of weights, not for direction forward",
        "num_warps = 6 is not a power of two",
        "tile_k = 8 is under 16, the least gfx950 multiplies",
    ]
    problem = ConvProblem(1, 32, 32, (8, 8), (3, 3))
    registry = Registry("instances")
    for config in expanded.configs:
        registry.register(config)
    dispatcher = Dispatcher(registry, "mi355x")
    assert dispatcher.is_supported(problem)
    fates = {one.name: one for one in dispatcher.explain(problem).fates}
    plain, merged = (config.name for config in expanded.configs)
    assert (fates[plain].fate, fates[merged].fate) == ("chosen", "refused")
    assert "groups" in fates[merged].reason


def test_a_dtype_that_no_convolution_has_drops_its_kernels(read):
    space, _ = read({**profiled("forward", {}), "datatype": "e8m0"})
    with pytest.raises(EmptySpace, match="no convolution reads e8m0"):
        space.expand(GFX950)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (profiled("forward", {"vector_size": 1}), r"\[0\].vector_size: unknown field"),
        (profiled("forward", {}, {"tile_m": 0}), r"\[1\].tile_m: 0 is not a whole number from 1"),
        (profiled("forward", {"tile_m": True}), r"tile_m: True is not a whole number"),
        (profiled("forward", {"two_stage": 1}), "two_stage: 1 is not true or false"),
        (profiled("forward", {"pipeline": 1}), "pipeline: 1 is not a string"),
        (profiled("forward", {"pipeline": "compv9"}), "unknown pipeline 'compv9'"),
        (profiled("forward", {"scheduler": "x"}), "scheduler: 'x' is not one of CK's"),
        (profiled("forward", {"epilogue": "relu"}), "epilogue: 'relu' is not cshuffle"),
        (profiled("forward", {"vector_size_a": 3}), "vectors of 6 bytes are no power of two"),
        (profiled("forward", {"streamk_reduction_strategy": 2}), "2 is not a word or null"),
        (profiled("forward", {"two_stage": True, "streamk_enabled": True}), "both share the sum"),
        ({**profiled("forward", {}), "instances": {}}, "a list of kernels, of at least one"),
        ({**profiled("forward", {}), "instances": [3]}, "a kernel is an object, not 3"),
        ({**profiled("forward", {}), "instances": [{"tile_m": 3}]}, r"\[0\]: no tile_n"),
        ({**profiled("forward", {}), "datatype": "int9"}, r"\$.datatype: unknown dtype"),
        ({**profiled("forward", {}), "tile_k": 32}, "say tile_k in each instance"),
        (profiled("grouped_conv", {}), "says one direction for all instances"),
        (profiled("forward_depthwise", {}), "channels-first images"),
    ],
)  # fmt: skip
def test_instances_that_are_refused(read, document, why):
    with pytest.raises(BadFile, match=why):
        read(document)


PYTHON = """
from grouped_conv_utils import GroupedConvProblem
LIST = [
    GroupedConvProblem(
        N=4, C=256, K=128, G=4, Di=1, Hi=28, Wi=27, Z=1, Y=3, X=1, stride_d=1, stride_h=2,
        stride_w=1, pad_d=0, pad_h=1, pad_w=0, dilation_d=1, dilation_h=1, dilation_w=1
    ),
    GroupedConvProblem(N=8, C=5, K=7, Di=6, Hi=7, Wi=7, Z=3, Y=3, X=3, direction="bwd_data"),
]
"""


def test_a_list_in_python_is_read_and_not_executed(tmp_path):
    path = tmp_path / "holdout.py"
    path.write_text(PYTHON + "raise SystemExit\n")
    assert load_problems([path], GFX950, "conv").problems == (
        ConvProblem(4, 256, 128, (28, 27), (3, 1), 4, (2, 1), (1, 0)),
        ConvProblem(8, 5, 7, (6, 7, 7), (3, 3, 3), direction="data"),
    )
    with pytest.raises(BadFile, match=r"line 4: .*it states a problem of conv: say --family conv"):
        load_problems([path], GFX950)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("for n in 1, 2:\n    GroupedConvProblem(N=n)\n", "line 2: N is no literal, and this file"),
        ("GroupedConvProblem(**x)\n", r"line 1: \*\* is no literal"),
        ("GroupedConvProblem(1)\n", "is stated by keywords"),
        ("1 +\n", "not Python"),
        ("print(1)\n", "no problem in it"),
    ],
)
def test_lists_in_python_that_are_refused(tmp_path, text, why):
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(BadFile, match=why):
        load_problems([path], GFX950, "conv")


def test_columns_of_its_results_are_a_list(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(
        "kernel,problem_idx,N,C,K,G,Hi,Wi,Y,X,stride_h,stride_w,pad_h,pad_w,latency_ms,tflops,"
        "non_zero\nfirst,0,2,64,64,1,7,7,3,3,1,1,1,1,0.1,2.5,100\n"
        "second,0,2,64,64,1,7,7,3,3,1,1,1,1,0.2,1.25,100\n"
    )
    found = load_problems([path], GFX950, "conv")
    assert found.problems == (ConvProblem(2, 64, 64, (7, 7), (3, 3), pad=(1, 1)),)
    assert found.repeated == 1
