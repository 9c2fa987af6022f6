"""CK Tile Engine's documents of kernels for a few rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tilewright.arch import arch
from tilewright.errors import BadArgument, BadFile
from tilewright.space_file import load_space

TILES = {
    "tile_m": {"values": [1]}, "tile_n": {"values": [1]}, "tile_k": {"values": [512]},
    "m_per_warp": {"values": [1]}, "n_per_warp": {"values": [1]}, "vector_size": {"values": [8]},
    "lanes_per_output": {"values": [64]}, "warps_per_block": {"values": [1]},
    "output_axis": {"values": ["smallM"]}, "use_dot2": {"values": [True]},
}  # fmt: skip
TRAITS = {
    "pipeline": {"values": ["decode"]}, "scheduler": {"values": ["intrawave"]},
    "epilogue": {"values": ["default", "atomic_add"]}, "split_k": {"values": [1, 2]},
    "pad_k": {"values": [False]}, "persistent": {"values": [False]},
}  # fmt: skip
BF16 = {"a": "bf16", "b": "bf16", "c": "bf16", "acc": "fp32"}
FP8 = {"a": "fp8", "b": "fp8", "c": "bf16"}


@pytest.fixture
def read(tmp_path):
    def made(types: Any = (BF16,), tiles: Any = None, traits: Any = None, **options: Any) -> Any:
        folder = tmp_path / "gemm_decode" / "configs"
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "_comment": "x",
            "tile_config": {**TILES, **(tiles or {})},
            "trait_config": {**TRAITS, **(traits or {})},
            "datatypes": [*types] if isinstance(types, tuple) else types,
        }
        (folder / "a.json").write_text(json.dumps(document))
        return load_space(folder / "a.json", arch("gfx950"), **options)

    return made


def names(read: Any, *args: Any, **options: Any) -> list[str]:
    expanded = read(*args, **options)[0].expand(arch("gfx950"))
    assert not expanded.dropped
    return [config.name for config in expanded.configs]


KERNEL = "gemm_rcr_{}_bf16_fp32_1x1x512_w1_s2_small_m_{}_g1_direct_padmn_al16{}"
SPLITS = ("tile", "split_k2_linear", "split_k2_atomic")


def test_kernels_of_a_document(read):
    plain = [KERNEL.format("bf16_bf16", how, "") for how in SPLITS]
    assert names(read) == plain
    biased = names(read, traits={"has_bias": [False, True]})
    assert {*biased} == {*plain, *(f"{name}_epi-bias" for name in plain)}
    _, notes = read()
    assert [note.partition(": ")[0].rpartition(".")[2] for note in notes] == [
        "vector_size", "lanes_per_output", "use_dot2", "scheduler",
    ]  # fmt: skip


def test_scales_are_an_epilogue_or_blocks_and_of_both_operands(read):
    layouts = {"x_scale_layout": ["void", "PerTensor"], "w_scale_layout": ["void", "PerTensor"]}
    types = "e4m3fn_e4m3fn"
    found = names(read, (BF16, FP8), traits={**layouts, "split_k": [1], "has_bias": [True]})
    assert found == [
        KERNEL.format("bf16_bf16", "tile", "_epi-bias"),
        KERNEL.format(types, "tile", "_epi-bias"),
        KERNEL.format(types, "tile", "_epi-scale-bias"),
    ]
    _, notes = read((BF16, FP8), traits={**layouts, "split_k": [1]})
    assert "10 combinations left out" in notes[-1]  # of 16, two epilogues are one
    # CK's weights are [n, k], so that a block of 64 rows and 128 columns is [128, 64] of B.
    blocks = {"x_scale_layout": ["Block2D<1, 128>"], "w_scale_layout": ["Block2D<64, 128>"]}
    assert names(read, (FP8,), traits={**blocks, "split_k": [1]}) == [
        KERNEL.format(types, "tile", "_sa1x128_sb128x64")
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tiles": {"tile_q": [1]}}, r"\$.tile_config.tile_q: unknown field 'tile_q'"),
        ({"tiles": {"tile_m": ["1"]}}, "'1' is not a positive integer"),
        ({"tiles": {"split_k": [1]}}, "split_k was given before"),
        ({"tiles": {"output_axis": ["smallN"]}}, "'smallN' has no counterpart here: few columns"),
        ({"traits": {"persistent": [True]}}, "True has no counterpart here: pipeline small_m"),
        ({"traits": {"persistent": [0]}}, "0 has no counterpart here"),
        ({"traits": {"epilogue": [["default"]]}}, "is not one of default, atomic_add"),
        ({"traits": {"has_bias": [1]}}, "1 is not true or false"),
        ({"traits": {"x_scale_layout": ["Block"]}}, "'Block' is not void, PerTensor or Block2D"),
        ({"traits": {"x_scale_layout": ["PerTensor"]}}, "every combination has scales"),
        ({"types": {}}, "datatypes: a list of objects"),
        ({"types": ({"a": "bf16"},)}, r"datatypes\[0\]: dtypes of a, b and c"),
        ({"types": ({**BF16, "a": "*"},)}, "name each dtype"),
        ({"types": ({**BF16, "a": 3},)}, "3 is not a string"),
        ({"types": ({**BF16, "acc": "fp16"},)}, "sums of pipeline small_m are fp32"),
    ],
)  # fmt: skip
def test_what_is_refused(read, given, why):
    with pytest.raises(BadFile, match=why):
        read(**given)
    with pytest.raises(BadArgument, match="says its own dtype"):
        read(signature={"dtype": "bf16"})


def test_a_document_of_mx_that_says_no_dtype(tmp_path):
    path = tmp_path / "a.json"
    tiles = {"tile_m": [64], "tile_n": [64], "tile_k": [128], "warp_m": [2], "warp_n": [2]}
    path.write_text(json.dumps({"variant": "mx_gemm", "tile_config": tiles,
                                "trait_config": {"pipeline": ["comp_tdm"]}}))  # fmt: skip
    gfx1250 = arch("gfx1250")
    with pytest.raises(BadFile, match="does not say the dtype of pipeline mx; give it in the sig"):
        load_space(path, gfx1250)
    space, _ = load_space(path, gfx1250, signature={"dtype": "fp4"})
    assert [config.pipeline for config in space.expand(gfx1250).configs] == ["mx"]


def test_the_asynchronous_pipeline_of_one_tile(tmp_path):
    path = tmp_path / "a.json"
    tiles = {"tile_m": [64], "tile_n": [64], "tile_k": [64], "warp_m": [2], "warp_n": [2]}
    path.write_text(json.dumps({"tile_config": tiles,
                                "trait_config": {"pipeline": ["basic_async_v1"]}}))  # fmt: skip
    space, notes = load_space(path, arch("gfx950"))
    (config,) = space.expand(arch("gfx950")).configs
    assert (config.pipeline, config.num_stages) == ("basic", 2)
    assert notes == ["$.trait_config.pipeline: basic_async_v1 = basic with 2 stages"]
