"""CK Tile Engine's variants: what their folders and fields come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadFile, EmptySpace
from tilewright.ops.gemm.formats.variants import VARIANTS
from tilewright.space_file import load_space

SM90 = arch("sm_90")
DOCUMENT: dict[str, Any] = {
    "tile_config": {
        "tile_m": {"values": [128]},
        "tile_n": {"values": [64]},
        "tile_k": {"values": [64]},
        "warp_m": {"values": [2]},
        "warp_n": {"values": [2]},
        "warp_k": {"values": [1]},
        "warp_tile_m": {"values": [16]},
        "warp_tile_n": {"values": [16]},
        "warp_tile_k": {"values": [16, 32, 128]},
    },
    "trait_config": {
        "pipeline": {"values": ["compv3"]},
        "scheduler": {"values": ["intrawave"]},
        "epilogue": {"values": ["cshuffle"]},
        "persistent": {"values": [False]},
    },
    "k_block_per_cu": 1,
}


def values(*listed: Any) -> dict[str, list[Any]]:
    return {"values": [*listed]}


def traits(**more: Any) -> dict[str, Any]:
    return {**DOCUMENT, "trait_config": {**DOCUMENT["trait_config"], **more}}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """A document where CK has those of a variant, read and expanded: its space's family, what its
    configs have of some fields, and its notes."""

    def loaded(
        folder: str, document: Any, *fields: str, on: str = "gfx950", **signature: str
    ) -> Any:
        where = tmp_path / folder / "configs"
        where.mkdir(parents=True, exist_ok=True)
        (where / "default_config.json").write_text(json.dumps(document))
        found = load_space(where / "default_config.json", arch(on), None, signature)
        space, notes = found
        expansion = space.expand(on)
        seen = {tuple(getattr(c, f) for f in fields) for c in expansion.configs}
        return space.family, seen, "\n".join(notes)

    return loaded


@pytest.mark.parametrize(
    ("folder", "dtype", "fields", "wanted"),
    [
        ("gemm_universal", "fp16", ("batching", "epilogue"), ("none", "")),
        ("batched_gemm", "fp16", ("batching",), ("strided",)),
        ("batched_contraction", "fp16", ("batching",), ("strided",)),
        ("gemm_streamk", "fp16", ("scheduler", "reduction"), ("stream_k", "linear")),
        ("gemm_multi_d", "fp16", ("epilogue",), ("add+add",)),
        ("gemm_multi_abd", "fp16", ("pre_a", "pre_b", "epilogue"), ("add", "add", "add+add")),
        ("gemm_aquant", "fp8", ("scale_a", "scale_b"), ("1x128", "")),
        ("gemm_bquant", "fp8", ("scale_a", "scale_b"), ("", "128x1")),
        ("gemm_abquant", "fp8", ("scale_a", "scale_b"), ("1x128", "128x1")),
        ("gemm_rowcolquant", "fp8", ("epilogue",), ("row_scale+col_scale",)),
        ("gemm_tensor_quant", "fp8", ("epilogue",), ("scale",)),
        ("gemm_preshuffle", "fp16", ("pipeline", "num_stages", "layout"), ("preshuffle", 2, "rsr")),
        ("flatmm", "fp16", ("pipeline", "num_stages", "layout"), ("preshuffle", 2, "rsr")),
    ],
)  # fmt: skip
def test_a_folder_says_the_variant(
    load: Any, folder: str, dtype: str, fields: tuple[str, ...], wanted: tuple[Any, ...]
) -> None:
    family, seen, _ = load(folder, DOCUMENT, *fields, dtype=dtype)
    assert (family, seen) == ("gemm", {wanted})
    _, said, _ = load("anywhere", {**DOCUMENT, "variant": folder}, *fields, dtype=dtype)
    assert said == seen
    assert load("anywhere", DOCUMENT, "batching", "epilogue", dtype=dtype)[1] == {("none", "")}


@pytest.mark.parametrize(("dtype", "exact"), [("fp8", "e4m3fn"), ("fp4", "e2m1")])
def test_mx_has_scales_for_32_of_k(load: Any, dtype: str, exact: str) -> None:
    document = {**DOCUMENT, "tile_config": {**DOCUMENT["tile_config"], "tile_k": 128}}
    fields = ("pipeline", "dtype_a", "scale_a", "scale_b", "mma")
    wanted = ("mx", exact, "1x32-e8m0", "32x1-e8m0", (16, 16, 128))
    assert load("mx_gemm", document, *fields, dtype=dtype, dtype_c="bf16")[1] == {wanted}
    with pytest.raises(EmptySpace, match="gfx942"):
        load("mx_gemm", document, on="gfx942", dtype=dtype, dtype_c="bf16")


@pytest.mark.parametrize(
    ("folder", "form", "epilogue"),
    [
        ("grouped_gemm", "list", ""),
        ("grouped_gemm_rowcolquant", "contiguous", "row_scale+col_scale"),
        ("grouped_gemm_tensorquant", "list", "scale"),
    ],
)
def test_groups_are_the_other_familys(load: Any, folder: str, form: str, epilogue: str) -> None:
    family, seen, notes = load(folder, DOCUMENT, "form", "epilogue", dtype="fp8")
    assert (family, seen) == ("grouped_gemm", {(form, epilogue)})
    assert ("matrices anywhere" in notes) == (form == "list")
    own = {**DOCUMENT, "form": "masked"}
    assert load("grouped_gemm", own, "form", dtype="fp8")[1] == {("masked",)}


@pytest.mark.parametrize(
    ("folder", "wanted"),
    [
        ("grouped_gemm_aquant", ("contiguous", "1x64", "")),
        ("grouped_gemm_bquant", ("contiguous", "", "64x1")),
        ("grouped_gemm_abquant", ("contiguous", "1x64", "64x1")),
    ],
)
def test_groups_have_scales_of_blocks(load: Any, folder: str, wanted: tuple[str, ...]) -> None:
    document = {**DOCUMENT, "group_size_k": 64}
    family, seen, _ = load(folder, document, "form", "scale_a", "scale_b", dtype="fp8")
    assert (family, seen) == ("grouped_gemm", {wanted})


def test_what_a_document_says_is_its_family_whatever_the_folder(load: Any) -> None:
    assert load("grouped_gemm", {**DOCUMENT, "family": "gemm"}, dtype="fp16")[0] == "gemm"
    assert load("batched_gemm", {**DOCUMENT, "variant": "gemm_universal"}, "batching")[1] == {
        ("none",)
    }
    every = [v for name in ops.families() for v in ops.family(name).formats.folders]
    assert len(every) == len(set(every)) and {*VARIANTS, "grouped_conv"} < {*every}


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        (
            {"elementwise_ops": values("MultiDAdd", "MultiDMultiply"), "num_d_tensors": [1, 2]},
            {"add", "add+add", "mul", "mul+mul"},
        ),
        ({"elementwise_ops": ["PassThrough"], "num_d_tensors": 0}, {""}),
        ({"elementwise_ops": ["MultiDAdd", "Relu", "Gelu"], "num_d_tensors": 1},
         {"add", "relu", "gelu"}),
        ({"num_d_tensors": 1}, {"add"}),
    ],
)  # fmt: skip
def test_several_d_are_an_operation_each(load: Any, block: Any, wanted: set[str]) -> None:
    document = {**DOCUMENT, "multi_d_config": block}
    _, seen, notes = load("anywhere", document, "epilogue", dtype="fp16")
    assert seen == {(chain,) for chain in wanted}
    assert ("which operation" in notes) == ("elementwise_ops" not in block)


def test_several_a_and_b(load: Any) -> None:
    block = {
        "num_a_tensors": 3, "num_b_tensors": 1, "num_d_tensors": 1, "a_elementwise_op": "MultiDAdd",
        "b_elementwise_op": "PassThrough", "cde_elementwise_op": "MultiDMultiply",
    }  # fmt: skip
    document = {**DOCUMENT, "multi_abd_config": block}
    _, seen, _ = load("gemm_multi_abd", document, "pre_a", "pre_b", "epilogue", dtype="fp16")
    assert seen == {("add+add", "", "mul")}


@pytest.mark.parametrize(
    ("dimensions", "wanted"), [(0, {"none"}), (1, {"strided"}), (2, {"strided", "nested"})]
)
def test_dimensions_of_a_batch(load: Any, dimensions: int, wanted: set[str]) -> None:
    document = {**DOCUMENT, "num_dim_g": dimensions, "num_dim_m": 2, "num_d_tensors": 0}
    _, seen, notes = load("batched_contraction", document, "batching", dtype="fp16")
    assert seen == {(batching,) for batching in wanted}
    assert "$.num_dim_m: ignored" in notes and "equation" in notes


def test_groups_of_scales(load: Any) -> None:
    document = {**traits(b_preshuffle_quant={"values": [False, True]}), "group_size_k": 64}
    wide = {**document, "group_size_n": {"values": [1, 128]}}
    _, seen, notes = load("gemm_abquant", wide, "scale_a", "scale_b", dtype="fp8")
    assert seen == {("1x64", "64x1"), ("1x64", "64x128")}
    assert "b_preshuffle_quant: ignored: scales are read by their strides" in notes
    # Elsewhere the flag says which operand has them.
    assert load("anywhere", document, "scale_a", "scale_b", dtype="fp8")[1] == {("", "64x1")}


def test_profiles_go_with_their_groups(load: Any) -> None:
    profiles = ["aquantdecode", "bquantprefill", "bquantpreshufflequant", "rowcol", "tensor"]
    document = traits(profile={"values": profiles})
    del document["trait_config"]["pipeline"], document["trait_config"]["scheduler"]
    document["quant_config"] = {
        "a_group": {"values": ["1x1x1", "1x1x128"]},
        "b_group": {"values": ["1x1x128", "1x32x128"]},
    }
    _, seen, notes = load("gemm_quant", document, "scale_a", "scale_b", "epilogue", dtype="fp8")
    assert seen == {
        ("1x128", "", ""), ("", "128x1", ""), ("", "128x32", ""),
        ("", "", "row_scale+col_scale"), ("", "", "scale"),
    }  # fmt: skip
    assert "5 ways to scale" in notes and "a_group: 1x1x1 left out" in notes
    assert "preshuffle of bquantpreshufflequant ignored" in notes


def test_shuffled_and_plain_kernels_have_layouts_of_their_own(load: Any) -> None:
    document = traits(pipeline={"values": ["compv3", "preshufflev2"]})
    layouts = {**document, "layout": {"values": ["rcr", "rrr"]}}
    _, seen, _ = load("anywhere", layouts, "pipeline", "layout", dtype="fp16")
    assert seen == {("basic", "rcr"), ("basic", "rrr"), ("preshuffle", "rsr")}
    persistent = traits(pipeline={"values": ["regv1"]}, persistent={"values": [True]})
    with pytest.raises(EmptySpace, match="preshuffle has schedulers tile and split_k"):
        load("flatmm", persistent, dtype="fp16")


def test_how_parts_meet_says_stream_k(load: Any) -> None:
    document = traits(reduction_strategy={"values": ["atomic", "tree"]})
    _, seen, notes = load("anywhere", document, "scheduler", "reduction", dtype="fp16")
    assert seen == {("stream_k", "atomic"), ("stream_k", "tree")}
    assert "whatever persistent says" in notes


def test_an_architecture_may_have_tiles_of_its_own(load: Any) -> None:
    own = {**DOCUMENT["tile_config"], "tile_m": {"values": [256]}}
    document = {**DOCUMENT, "arch_tile_config": {"gfx950": own}}
    assert load("gemm_universal", document, "tile_m", dtype="fp16")[1] == {(256,)}
    _, seen, notes = load("gemm_universal", document, "tile_m", on="gfx942", dtype="fp16")
    assert seen == {(128,)}
    assert "ignored: it has gfx950, not gfx942" in notes


def test_one_object_may_say_all_dtypes(load: Any) -> None:
    types = {"a": "fp16", "b": "fp16", "c": "fp32", "acc": "fp32"}
    document = {**DOCUMENT, "datatype": types, "gpu_targets": ["gfx942"], "kernel_set_name": "x"}
    _, seen, notes = load("anywhere", document, "dtype_a", "dtype_c")
    assert seen == {("fp16", "fp32")}
    assert "$.gpu_targets: ignored" in notes and "$.kernel_set_name: ignored" in notes


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"variant": "gemm_multid"}, ["$.variant", "did you mean 'gemm_multi_d'"]),
        ({"variant": ["flatmm"]}, ["$.variant", "unknown"]),
        ({"arch_tile_config": []}, ["$.arch_tile_config", "object"]),
        ({"multi_d_config": []}, ["$.multi_d_config", "object"]),
        ({"num_d_tensors": -1}, ["$.num_d_tensors", "-1"]),
        ({"num_d_tensors": True}, ["$.num_d_tensors", "True"]),
        ({"num_d_tensors": 10**6}, ["$.num_d_tensors", "over 12"]),
        ({"multi_d_config": {"elementwise_ops": ["MultiDAd"]}}, ["elementwise_ops", "MultiDAdd"]),
        ({"elementwise_op": 3}, ["$.elementwise_op", "not a string"]),
        ({"group_size_k": "128"}, ["$.group_size_k", "'128'"]),
        ({"permute_n": 1}, ["$.permute_n", "true or false"]),
        ({"profile": "cquant"}, ["$.profile", "unknown profile 'cquant'", "aquant"]),
        ({"profile": "aquantx", "a_group": "1x1"}, ["$.a_group", "1x1x128"]),
        ({"profile": "aquantx", "a_group": f"1x1x{'9' * 5000}"}, ["$.a_group", "not a group"]),
        ({"profile": "rowcol", "num_d_tensors": 1}, ["$.profile", "before"]),
        ({"variant": "gemm_rowcolquant", "num_d_tensors": 1}, ["$.num_d_tensors", "already"]),
        ({"datatype": {"a": "fp61"}}, ["$.datatype.a", "fp61"]),
    ],
)
def test_a_bad_variant_is_one_error_that_names_the_place(
    load: Any, more: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(BadFile) as error:
        load("anywhere", {**DOCUMENT, **more})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_edges_of_192_are_for_the_pipelines_that_have_them(load: Any) -> None:
    tiles = {**DOCUMENT["tile_config"], "tile_n": {"values": [128, 192]}}
    padded = {f"pad_{x}": True for x in "mnk"}
    document = {"tile_config": tiles, "trait_config": {
        **padded, "pipeline": {"values": ["compv3", "gluon_pingpong"]}, "num_stages": 4,
        "scheduler": "persistent",
    }}  # fmt: skip
    document["tile_config"]["warp_m"] = {"values": [4]}
    _, seen, _ = load("anywhere", document, "pipeline", "tile_n", on="sm_90", dtype="fp16")
    assert seen == {("basic", 128), ("gluon_pingpong", 128), ("gluon_pingpong", 192)}
    with pytest.raises(EmptySpace, match="tile_n = 192 is not a power of two: pipeline basic"):
        load("x", {**DOCUMENT, "tile_config": {**tiles, "tile_n": 192}}, on="sm_90", dtype="fp16")
    assert {96, 160, 192} <= set(ops.family("gemm").wildcard("tile_n", SM90))
    assert 192 not in ops.family("gemm").wildcard("tile_n", arch("gfx950"))
