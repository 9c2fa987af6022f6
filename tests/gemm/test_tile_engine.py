"""Sweep documents in CK Tile Engine's form."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from sweep_documents import FP16, GFX942, SM90, document, expand, noted, read, seen, steps, values

from tilewright import ops
from tilewright.arch import Mma, arch
from tilewright.errors import BadFile, EmptySpace
from tilewright.ops.gemm.formats.tile_engine import read_sweep
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.space import KernelSpace
from tilewright.space_file import space_to_json

# --- what published files hold ------------------------------------------------------------------

FULL = document(
    tile_m=steps(64, 256, 64),
    tile_n=steps(64, 256, 64),
    tile_k=steps(64, 256, 64),
    warp_m=values(4, 2, 1),
    warp_n=values(4, 2, 1),
    warp_tile_m=values(4, 16, 32),
    warp_tile_n=values(16, 32, 64),
    warp_tile_k=values(8, 16, 32, 64, 128),
    pipeline=values("compv3", "compv4", "mem"),
    scheduler=values("intrawave", "interwave"),
    epilogue=values("cshuffle", "default"),
    persistent=values(False, True),
)

ONE_TILE = document(
    # A range whose step passes its end: one value.
    tile_m=steps(64, 256, 256),
    tile_n=steps(64, 256, 256),
    tile_k=steps(64, 256, 256),
    warp_tile_m=values(16),
    warp_tile_n=values(16),
    warp_tile_k=values(32),
    pipeline=values("compv4"),
    persistent=values(False, True),
)

PUBLISHED = {
    "universal": {**FULL, "k_block_per_cu": 1},
    "ci": {**ONE_TILE, "k_block_per_cu": 1},
    "with an empty problem": {"problem": {}, **FULL},
    "single pipeline mem, large tile": document(
        tile_m=values(256), tile_n=values(256), tile_k=values(32), pipeline=values("mem")
    ),
    "newer traits": document(
        pipeline=values("compv3", "comp_async", "comp_tdm", "comp_tdm_v2"),
        epilogue=values("cshuffle", "default", "tdm"),
    ),
    "stream-K": {**document(), "streamk_config": {"reduction_strategy": ["atomic", "tree"]}},
    "multi-D": {**document(), "multi_d_config": {"num_d_tensors": values(1, 2)}},
    "preshuffle": {
        **document(pipeline=values("preshufflev2"), scheduler=values("default")),
        "permute_n": True,
    },
    "block scale": {**document(a_preshuffle_quant=values(False)), "group_size_k": 128},
    "quantised, without a pipeline": {
        **document(pipeline=None, scheduler=None, profile=values("rowcol")),
        "quant_config": {"a_group": values("1x1x128")},
    },
    "flat": {
        **document()["tile_config"],
        "datatype": values("fp16"),
        "layout_a": values("r"),
        "layout_b": values("c"),
        "layout_c": values("r"),
        "kPadM": values(False),
        "pipeline": values("compv3", "mem"),
    },
    "commented": {"_comment": "a note", **document()},
    "bare lists": document(tile_m=[128, 256], pipeline=["compv3"], pad_m=[False]),
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_expand_as_they_stand(name):
    assert expand(PUBLISHED[name]).configs


@pytest.mark.turns(96)
@pytest.mark.parametrize("this", [SM90, arch("gfx950"), arch("gfx1201")], ids=lambda a: a.name)
def test_a_published_sweep_expands_on_other_architectures(this):
    assert len(expand(FULL, this).configs) > 100


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("universal", "k_block_per_cu"),
        ("preshuffle", "permute_n"),
        ("preshuffle", "preshufflev2"),
        ("quantised, without a pipeline", "profile"),
    ],
)
def test_what_has_no_counterpart_is_reported_by_name(name, word):
    assert noted(read(PUBLISHED[name])[1], word)
    assert not noted(read(document())[1], word)


@pytest.mark.parametrize(
    ("strategies", "reductions"),
    [
        (["atomic", "tree"], {"atomic", "tree"}),
        ({"values": ["reduction", "linear"]}, {"linear"}),
        (None, {"linear"}),
    ],
)
def test_a_stream_k_block_makes_stream_k_kernels(strategies, reductions):
    block = {} if strategies is None else {"reduction_strategy": strategies}
    doc = {**document(persistent=values(False)), "streamk_config": block}
    found = expand(doc).configs
    assert {c.scheduler for c in found} == {"stream_k"}
    assert {c.reduction for c in found} == reductions
    assert noted(read(doc)[1], "streamk_config", "stream_k")


def test_a_stream_k_block_with_an_unknown_strategy_is_refused():
    doc = {**document(), "streamk_config": {"reduction_strategy": ["atomik"]}}
    with pytest.raises(BadFile, match=r"\$.streamk_config.reduction_strategy.*'atomic'"):
        read(doc)


@pytest.mark.turns(48)
def test_every_combination_is_accounted_for():
    space, _ = read(FULL)
    expansion = space.expand(GFX942)
    product = 1
    for axis in space.axes.values():
        product *= len(axis)
    assert len(expansion.configs) + len(expansion.dropped) + expansion.duplicates == product
    assert expansion.duplicates == 0  # what collapses was collapsed before


# --- axes -------------------------------------------------------------------------------------


def test_a_range_includes_its_maximum_and_leaves_out_what_is_excluded():
    space, _ = read(document(tile_m=steps(64, 256, 64, 192), tile_n=steps(64, 200, 64)))
    assert list(space.axes["tile_m"]) == [64, 128, 256]
    assert list(space.axes["tile_n"]) == [64, 128, 192]


def test_warps_collapse_to_their_product_and_say_so():
    space, notes = read(document(warp_m=values(1, 2, 4), warp_n=values(2, 1)))
    assert sorted(space.axes["num_warps"]) == [1, 2, 4, 8]
    assert noted(notes, "warp_m", "num_warps")
    assert not noted(read(document())[1], "num_warps")


@pytest.mark.parametrize(
    ("dtype", "tile", "mma"),
    [
        ("fp16", (32, 32, 8), (32, 32, 8)),
        ("fp16", (32, 32, 16), (32, 32, 8)),
        ("bf16", (16, 16, 32), (16, 16, 16)),
        ("fp8", (32, 32, 16), (32, 32, 16)),
        ("fp8", (16, 16, 64), (16, 16, 32)),
        ("int8", (16, 16, 32), (16, 16, 32)),
        ("fp32", (16, 16, 16), (16, 16, 4)),
    ],
)
def test_a_warp_tile_is_the_instruction_it_is_made_of(dtype, tile, mma):
    m, n, k = tile
    doc = document(warp_tile_m=values(m), warp_tile_n=values(n), warp_tile_k=values(k))
    doc["tile_config"]["tile_k"] = values(32)
    expansion = expand(doc, GFX942, {"dtype": dtype})
    assert seen(expansion, "mma") == {(mma,)}


def test_where_two_instructions_would_do_the_larger_is_meant():
    both = dataclasses.replace(
        GFX942,
        mma=(Mma("small", ("fp16",), "fp32", ((16, 16, 16),), 1), *arch("gfx950").mma),
    )
    doc = document(warp_tile_m=values(16), warp_tile_n=values(16), warp_tile_k=values(32))
    assert seen(expand(doc, both), "mma") == {((16, 16, 32),)}


def test_tf32_has_instructions_of_its_own():
    doc = document(warp_tile_k=values(4), precision=values("tf32"))
    assert seen(expand(doc, signature={"dtype": "fp32"}), "mma") == {((32, 32, 4),)}
    doc = document(warp_tile_k=values(4))
    expansion = expand(doc, signature={"dtype": "fp32"})
    assert seen(expansion, "mma") == {((32, 32, 2),)}
    assert not expansion.dropped


def test_an_impossible_warp_tile_is_dropped_by_its_rule():
    expansion = expand(document(warp_tile_m=values(4, 32)))
    assert expansion.summary() == {"mma": 2}
    assert "4x32x16" in expansion.dropped[0].verdict.reason
    with pytest.raises(EmptySpace, match="4x32x16"):
        expand(document(warp_tile_m=values(4)))


def test_the_compiler_chooses_instructions_on_nvidia():
    space, notes = read(FULL, SM90)
    assert space.axes["mma"] == [(0, 0, 0)]
    assert noted(notes, "warp_tile_m", "sm_90")


@pytest.mark.parametrize(
    ("pipeline", "stages"),
    [
        ("compv3", {2}),
        ("compv4", {3}),
        ("compv5", {2}),
        ("compv6", {3}),
        ("comp_async", {3}),
        ("mem", {2, 4}),
        ("basicv1", {1}),
        ("comp_tdm_v1", set()),
    ],
)
def test_pipelines_become_depths(pipeline, stages):
    also = () if stages else ("basicv1",)
    doc = document(tile_m=values(64), tile_n=values(64), pipeline=values(pipeline, *also))
    expansion = expand(doc)
    assert seen(expansion, "pipeline", "num_stages") == {("basic", s) for s in stages or {1}}
    assert noted(read(doc)[1], pipeline)


def test_pipelines_that_say_their_depth_do_not_cross_with_those_that_have_an_axis():
    doc = document(pipeline=values("compv4", "tma"), num_stages=values(4, 2))
    for pad in ("pad_m", "pad_n", "pad_k"):
        doc["trait_config"][pad] = values(True)
    expansion = expand(doc, SM90)
    assert seen(expansion, "pipeline", "num_stages") == {("basic", 3), ("tma", 4), ("tma", 2)}
    assert len(expansion.configs) == 2 * 3  # tile_n
    assert not expansion.dropped


def test_the_tensor_data_mover_is_the_copy_engine():
    doc = document(pipeline=values("compv3", "comp_tdm"))
    expansion = expand(doc)
    assert seen(expansion, "pipeline") == {("basic",)}
    assert expansion.summary() == {"pipeline": 2}


def test_own_pipelines_have_their_own_stages():
    expansion = expand(document(pipeline=values("basic"), num_stages=values(1, 2)))
    assert seen(expansion, "num_stages") == {(1,), (2,)}


def test_schedulers():
    assert seen(expand(document()), "scheduler") == {("tile",)}
    both = document(persistent=values(True, False), scheduler=values("interwave", "intrawave"))
    expansion = expand(both)
    assert seen(expansion, "scheduler") == {("tile",), ("persistent",)}
    assert len(expansion.configs) == 2 * 2
    assert noted(read(both)[1], "scheduler", "interwave")
    own = document(persistent=None, scheduler=values("persistent"))
    assert seen(expand(own), "scheduler") == {("persistent",)}


def test_epilogues_collapse_and_are_reported():
    doc = document(epilogue=values("cshuffle", "default"))
    space, notes = read(doc)
    assert space.axes["store"] == ["direct"]
    assert noted(notes, "epilogue", "cshuffle", "default")


def test_padding_keeps_its_meaning():
    assert seen(expand(document(pad_k=values(True, False))), "pad_k") == {(True,), (False,)}


# --- dtypes and layouts -----------------------------------------------------------------------


def test_the_problem_block_gives_dtypes_and_layouts():
    doc = document()
    doc["problem"] = {
        "layout_a": values("r"),
        "layout_b": values("c", "R"),
        "layout_c": values("r", "c"),
        "datatype_a": values("bf16"),
        "datatype_b": values("bf16"),
        "datatype_c": values("fp32"),
    }
    expansion = expand(doc)
    assert seen(expansion, "layout") == {("rcr",), ("rcc",), ("rrr",), ("rrc",)}
    assert seen(expansion, "dtype_a", "dtype_b", "dtype_c") == {("bf16", "bf16", "fp32")}


@pytest.mark.parametrize(("this", "exact"), [(GFX942, "e4m3fnuz"), (SM90, "e4m3fn")])
def test_fp8_is_what_the_architecture_means(this, exact):
    doc = {**document(), "datatype": "fp8", "layout": "rcr"}
    assert seen(expand(doc, this, None), "dtype_a", "dtype_b") == {(exact, exact)}


def test_int8_accumulates_in_int32():
    types = seen(expand(document(), signature={"dtype": "int8"}), "dtype_c", "dtype_acc")
    assert types == {("int32", "int32")}


def test_the_signature_fills_what_the_document_leaves_out():
    given = {"dtype_a": "fp16", "dtype_c": "fp32", "layout": "rrr"}
    assert seen(expand(document(), signature=given), "layout", "dtype_a", "dtype_c") == {
        ("rrr", "fp16", "fp32")
    }
    stated = {**document(), "datatype": "bf16", "layout": values("ccr")}
    assert seen(expand(stated, signature=given), "layout", "dtype_a", "dtype_c") == {
        ("ccr", "bf16", "bf16")
    }
    assert seen(expand(document(), signature=None), "layout", "dtype_a") == {("rcr", "bf16")}


def test_a_fourth_layout_letter_is_that_of_multi_d():
    for layout, differs in (("rcrr", False), ("rcrc", True)):
        space, notes = read({**document(), "layout": layout})
        assert space.axes["layout"] == ["rcr"]
        assert noted(notes, "$.layout", "fourth", "lie as C does") == differs


# --- wildcards --------------------------------------------------------------------------------


@pytest.mark.parametrize("wildcard", ["*", -1])
def test_wildcards_come_from_the_architecture(wildcard):
    doc = document(
        tile_m=values(wildcard),
        warp_m=values(wildcard),
        warp_tile_m=values(wildcard),
        warp_tile_n=values(wildcard),
        warp_tile_k=values(wildcard),
        persistent=values(wildcard),
    )
    expansion = expand(doc)
    assert seen(expansion, "tile_m") == {(m,) for m in (16, 32, 64, 128, 256)}
    assert seen(expansion, "num_warps") == {(w,) for w in GFX942.num_warps}
    assert seen(expansion, "mma") == {((16, 16, 16),), ((32, 32, 8),)}
    assert seen(expansion, "scheduler") == {("tile",), ("persistent",)}


def test_a_wildcard_warp_tile_keeps_to_the_sizes_that_are_given():
    doc = document(warp_tile_m=values("*"), warp_tile_n=values(16), warp_tile_k=values("*"))
    assert seen(expand(doc), "mma") == {((16, 16, 16),)}


def test_a_wildcard_pipeline_and_layout():
    doc = document(pipeline=values("*"), layout_a=values("*"))
    for pad in ("pad_m", "pad_n", "pad_k"):
        doc["trait_config"][pad] = values(True)
    expansion = expand(doc, SM90)
    assert seen(expansion, "layout") == {("rcr",), ("ccr",)}
    assert seen(expansion, "pipeline") <= {(p,) for p in PIPELINES}
    assert ("tma",) in seen(expansion, "pipeline")


# --- one form for both ------------------------------------------------------------------------


def test_the_librarys_own_axes_are_read_by_their_names():
    doc = {
        "family": "gemm",
        "tile_config": {"tile_m": values(64), "num_warps": values(4, 8), "mma": [[32, 32, 8]]},
        "trait_config": {
            "num_stages": values(1, 2),
            "group_m": 4,
            "alignment": values(8, 16),
            "index_bits": values(64),
            "precision": "ieee",
        },
    }
    expansion = expand(doc)
    assert len(expansion.configs) == 2 * 2 * 2
    assert seen(expansion, "group_m", "index_bits", "mma", "tile_m") == {(4, 64, (32, 32, 8), 64)}


def test_one_instruction_needs_no_list_of_lists():
    assert read({"mma": [32, 32, 8]})[0].axes["mma"] == [(32, 32, 8)]


@pytest.mark.turns(64)
def test_a_space_comes_back_from_its_own_document():
    space = KernelSpace(
        "gemm",
        {
            "layout": ["rcr", "rrr"],
            "dtype_a": ["fp16", "fp8"],
            "dtype_b": [""],
            "dtype_c": ["fp16"],
            "dtype_acc": ["fp32"],
            "precision": ["ieee"],
            "tile_m": ["*"],
            "tile_n": [64, -1],
            "tile_k": [64],
            "num_warps": [4],
            "num_stages": [2, 3],
            "pipeline": ["*", "basic"],
            "scheduler": ["tile", "persistent"],
            "group_m": [8],
            "store": ["*"],
            "pad_m": [True, False],
            "pad_n": [True],
            "pad_k": ["*"],
            "alignment": [16],
            "mma": [(0, 0, 0), (16, 16, 16)],
            "index_bits": [32],
        },
    )
    doc = copy.deepcopy(space_to_json(space))
    doc["mma"]["values"] = [list(shape) for shape in doc["mma"]["values"]]  # as JSON has it
    back, notes = read_sweep(doc, GFX942)
    assert {k: list(v) for k, v in back.axes.items()} == {k: list(v) for k, v in space.axes.items()}
    assert back.expand(GFX942) == space.expand(GFX942)
    assert notes == []


def test_the_family_reads_sweeps():
    space, notes = ops.family("gemm").formats.read(document(), GFX942, FP16)
    assert (space, notes) == read(document())


def test_a_letter_said_often_is_one_layout():
    often = {f"layout_{x}": ["r", "c"] * 4000 for x in "abc"}
    space, _ = read_sweep({"problem": often}, SM90)
    assert len(space.axes["layout"]) == 8
