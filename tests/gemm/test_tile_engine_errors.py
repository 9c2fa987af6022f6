"""What is wrong with a sweep document in CK Tile Engine's form: one error that names the place."""

from __future__ import annotations

import pytest
from sweep_documents import GFX942, SM90, document, read, steps, values

from tilewright.errors import BadArgument, BadFile
from tilewright.ops.gemm.formats.tile_engine import read_sweep

BAD = [
    ({"tile_m": {"vals": [64]}}, ["$.tile_config.tile_m", "vals"]),
    ({"tile_m": {"value": [64]}}, ["$.tile_config.tile_m", "did you mean 'values'"]),
    ({"tile_m": {"values": 64}}, ["$.tile_config.tile_m.values", "list"]),
    ({"tile_m": {"values": [64], "min": 1}}, ["$.tile_config.tile_m", "min"]),
    ({"tile_m": {"min": 64, "max": 128}}, ["$.tile_config.tile_m", "step"]),
    ({"tile_m": {"min": 64, "max": "128", "step": 64}}, ["$.tile_config.tile_m.max"]),
    ({"tile_m": {"min": 64, "max": 128, "step": 0}}, ["$.tile_config.tile_m.step"]),
    ({"tile_m": {"min": 64, "max": 32, "step": 8}}, ["$.tile_config.tile_m", "64", "32"]),
    ({"tile_m": {"min": 1, "max": 10**12, "step": 1}}, ["$.tile_config.tile_m"]),
    ({"tile_m": {"min": 64, "max": 64, "step": 1, "exclude": 64}}, ["tile_m.exclude"]),
    ({"tile_m": {"min": 64, "max": 64, "step": 1, "exclude": [64]}}, ["tile_m", "no values"]),
    ({"tile_m": values()}, ["$.tile_config.tile_m", "no values"]),
    ({"tile_m": {}}, ["$.tile_config.tile_m"]),
    ({"tile_m": values("64")}, ["$.tile_config.tile_m", "'64'"]),
    ({"tile_m": values(64.0)}, ["$.tile_config.tile_m", "64.0"]),
    ({"tile_m": values(0)}, ["$.tile_config.tile_m", "0"]),
    ({"tile_m": values(True)}, ["$.tile_config.tile_m", "True"]),
    ({"tile_m": values([64])}, ["$.tile_config.tile_m", "[64]"]),
    ({"tile_m": values({})}, ["$.tile_config.tile_m"]),
    ({"tile_mm": values(64)}, ["$.tile_config.tile_mm", "did you mean 'tile_m'"]),
    ({"warp_tile_x": values(16)}, ["$.tile_config.warp_tile_x", "unknown field"]),
    ({"pipline": values("mem")}, ["$.trait_config.pipline", "did you mean 'pipeline'"]),
    ({"pipeline": values("compv33")}, ["$.trait_config.pipeline", "did you mean 'compv3'"]),
    ({"pipeline": values(3)}, ["$.trait_config.pipeline", "3"]),
    ({"scheduler": values("intrawav")}, ["$.trait_config.scheduler", "intrawave"]),
    ({"epilogue": values("shuffle")}, ["$.trait_config.epilogue", "did you mean 'cshuffle'"]),
    ({"pad_m": values("false")}, ["$.trait_config.pad_m", "'false'"]),
    ({"pad_m": values(0)}, ["$.trait_config.pad_m", "0"]),
    ({"persistent": values("yes")}, ["$.trait_config.persistent", "'yes'"]),
    ({"datatype_a": values("fp61")}, ["$.trait_config.datatype_a", "fp61", "fp16"]),
    ({"layout": values("rcx")}, ["$.trait_config.layout", "rcx"]),
    ({"layout": values("rcr"), "layout_a": values("r")}, ["layout_a"]),
    ({"num_warps": values(4)}, ["num_warps", "warp_m"]),
    ({"mma": values([32, 32, 8])}, ["mma", "warp_tile_m"]),
    ({"num_stages": values(2)}, ["num_stages", "compv3"]),
    ({"scheduler": values("tile")}, ["scheduler", "persistent"]),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_a_bad_document_is_one_error_that_names_the_place(changes, words):
    with pytest.raises(BadFile) as error:
        read(document(**changes))
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("doc", "words"),
    [
        ({}, ["no axes"]),
        ({"problem": {}}, ["no axes"]),
        ({"tile_confg": {}}, ["$.tile_confg", "did you mean 'tile_config'"]),
        ({"tile_config": []}, ["$.tile_config", "object"]),
        ({**document(), "k_block_per_cuu": 1}, ["did you mean 'k_block_per_cu'"]),
        ({**document(), "streamk_confg": {}}, ["did you mean 'streamk_config'"]),
        ({**document(), "tile_m": 64}, ["$.tile_m", "$.tile_config.tile_m"]),
        ({**document(), "layout": None}, ["$.layout", "null"]),
    ],
)
def test_a_bad_top_level(doc, words):
    with pytest.raises(BadFile) as error:
        read(doc)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "given", [{"dtpye": "fp16"}, {"dtype": "fp17"}, {"layout": "rc"}, {"tile_m": "64"}]
)
def test_a_bad_signature_is_the_callers_error(given):
    with pytest.raises(BadArgument):
        read(document(), signature=given)


@pytest.mark.parametrize("axes", [("warp_m", "warp_n", "warp_k"),
                                  ("warp_tile_m", "warp_tile_n", "warp_tile_k")])  # fmt: skip
def test_axes_that_become_one_have_a_bound_that_the_error_says(axes):
    vast = document(**{axis: steps(1, 2999, 1) for axis in axes})
    with pytest.raises(BadFile, match=r"\$\.tile_config\.warp_.*26,973,008,999 combinations with"):
        read_sweep(vast, GFX942)


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ({"values": [64] * 10_001}, "10001 values are over 10000"),
        ({"min": 64, "max": 128, "step": 64, "exclude": [[]]}, "exclude: must be a list of whole"),
        ({"min": 64, "max": 2**62, "step": 1}, "is over 10000 values"),
    ],
)
def test_an_axis_has_a_bound(axis, says):
    with pytest.raises(BadFile, match=says):
        read_sweep(document(tile_m=axis), SM90)
