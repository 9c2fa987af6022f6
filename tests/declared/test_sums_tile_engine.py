"""CK Tile Engine's documents of reductions and pooling, as they are published."""

from __future__ import annotations

import json

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadFile
from tilewright.space_file import load_space

GFX950 = arch("gfx950")
TILE = {"tile_m": 16, "tile_n": 64, "warp_per_block_m": 2, "warp_per_block_n": 2}
LAID_OUT = {"warp_tile_m": 8, "warp_tile_n": 64, "thread_tile_m": 2, "thread_tile_n": 8}
NONE = {name: {"values": []} for name in (*TILE, *LAID_OUT)}


@pytest.fixture
def read(tmp_path):
    def made(document, folder="reduce", **options):
        place = tmp_path / folder / "configs"
        place.mkdir(parents=True, exist_ok=True)
        (place / "a.json").write_text(json.dumps(document))
        return load_space(place / "a.json", GFX950, **options)

    return made


def published(**more):
    return {
        "problem": {},
        "problem_size": {"input_shape": [[64, 32, 4], [8, 4, 32, 8]]},
        "tile_config": {"fixed": [{**TILE, **LAID_OUT}], "combination": NONE, **more},
    }


def test_a_published_document_of_reductions(read):
    space, notes = read(published(), signature={"dtype": "fp16"})
    assert space.family == "reduction"
    configs = space.expand(GFX950).configs
    assert {(c.KEPT, c.BLOCK, c.num_warps, c.COLUMNS) for c in configs} == {(16, 64, 4, False)}
    assert {(c.dtype, c.sum, c.norm, c.mean) for c in configs} == {("fp16", True, True, False)}
    assert len({c.SPLIT for c in configs}) == len(configs) == 11
    assert [note.partition(": ")[0] for note in notes] == ["$", "$.tile_config", "$.problem_size"]
    problem = ops.family("reduction").problem_type(
        outer=64, far=1, middle=1, near=128, inner=1, dtype="fp16", sum=True, norm=True
    )
    assert any(ops.family("reduction").supports(c, problem, GFX950) for c in configs)


def test_words_of_ck_s_builder_say_the_parts(read):
    for variant, alone in (("multiops_threadwise", True), ("multiops_multiblock", False)):
        space, _ = read({"variant": variant, **published()}, folder="anywhere")
        assert {c.SPLIT == 1 for c in space.expand(GFX950).configs} == {alone}


def test_combinations_and_own_axes(read):
    values = {name: {"values": [value, 2 * value]} for name, value in TILE.items()}
    document = published(fixed=[], combination={**NONE, **values})
    space, notes = read({**document, "mean": True, "SPLIT": [1]})
    configs = space.expand(GFX950).configs
    assert {(c.KEPT, c.BLOCK, c.num_warps) for c in configs} == {
        (m, n, w) for m in (16, 32) for n in (64, 128) for w in (4, 8, 16)
    }
    assert {(c.mean, c.sum, c.SPLIT) for c in configs} == {(True, False, 1)}
    assert not any("mean of squares" in note for note in notes)


def test_a_tile_that_serves_nothing_is_told(read):
    _, notes = read(published(fixed=[{**TILE, "tile_m": 128, "tile_n": 128}]))
    assert any("128 × 128 in 4 warps serves no problem" in note for note in notes)


def test_own_documents_are_read(read):
    space, notes = read({"family": "reduction", "KEPT": [4], "sum": True}, folder="own")
    assert [c.KEPT for c in space.expand(GFX950).configs] == [4]
    assert notes == []


@pytest.mark.parametrize(
    ("tiles", "why"),
    [
        ({"fixed": []}, "has no tile"),
        ({"fixed": [{"tile_m": 16}]}, "a tile has no tile_n"),
        ({"fixed": [{**TILE, "tile_q": 1}]}, r"fixed\[0\]: unknown field 'tile_q'"),
        ({"fixed": [{**TILE, "tile_m": 0}]}, "must be a positive whole number"),
        ({"fixed": {}}, "must be a list of tiles"),
        ({"fixes": []}, "must have 'fixed'"),
        ({"combination": []}, "must be an object"),
    ],
)
def test_faults_name_their_place(read, tiles, why):
    with pytest.raises(BadFile, match=rf"a.json: \$.tile_config.*{why}"):
        read({"tile_config": tiles})


# --- pooling ------------------------------------------------------------------------------------

TRAITS = {"output_index": [True, False], "propagate_nan": [False]}
OLDER = {
    "block_config": {
        "block_m": {"values": [32, 64]},
        "block_n": {"values": [1]},
        "warp_m": {"values": [1, 2]},
        "warp_n": {"values": [1]},
        "thread_tile_m": {"values": [1, 2]},
        "thread_tile_n": {"values": [1]},
    },
    "trait_config": {**TRAITS, "pool_dim": {"values": [2, 3]}},
    "k_block_per_cu": 1,
}
NEWER = {
    "problem": {"description": "a description"},
    "tile_config": {**OLDER["block_config"], "warp_tile_m": [32], "warp_tile_n": [1]},
    "trait_config": {**TRAITS, "reduce_op": ["max", "avg"], "pooling_dim": ["2d"]},
}


def test_published_documents_of_pooling(read):
    window = {"kernel_h": 3, "kernel_w": 3, "stride_h": 2, "stride_w": 2}
    space, notes = read({**OLDER, **window}, folder="pooling", signature={"dtype": "fp16"})
    assert space.family == "pool"
    configs = space.expand(GFX950).configs
    assert {c.ROWS * c.FAST for c in configs} == {32, 64}
    assert {(c.num_warps, c.index, c.mode) for c in configs} == {
        (warps, index, "max") for warps in (1, 2) for index in (True, False)
    }
    assert {(c.dtype, c.FIRST, c.kernel_h, c.stride_w) for c in configs} == {("fp16", False, 3, 2)}
    assert {c.VECTOR for c in configs} == {1, 8}
    assert len(configs) == (6 + 7) * 2 * 2 * 2
    assert len(notes) == 6 and all("ignored" in note for note in notes)
    pool = ops.family("pool")
    problem = pool.problem_type(
        images=2, depth=1, height=33, width=33, channels=64, dtype="fp16", **window
    )
    served = {c.VECTOR for c in configs if pool.supports(c, problem, GFX950)}
    assert served == {1, 8}


def test_an_average_has_no_index(read):
    space, notes = read(NEWER, folder="pooling")
    found = {(c.mode, c.index) for c in space.expand(GFX950).configs}
    assert found == {("max", True), ("max", False), ("average", False)}
    assert notes[-1].startswith("$: no window")
    with pytest.raises(BadFile, match=r"output_index: an average has no index"):
        read({**OLDER, "trait_config": {"output_index": True}, "mode": "average"}, "pooling")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"trait_config": TRAITS}, r"\$: trait_config belongs beside"),
        ({"block_config": []}, r"\$.block_config: must be an object"),
        ({"block_config": {"warp_m": 1}}, r"\$: no block_m"),
        ({"block_config": {"block_m": 96}}, r"no tile of ROWS × FAST has 96 elements"),
        ({"block_config": {"block_m": 64, "block_q": 1}}, r"unknown field 'block_q'"),
        ({**NEWER, "trait_config": {"reduce_op": "sum"}}, r"'sum' is none of max, min, avg"),
        ({**NEWER, "trait_config": {"output_index": "yes"}}, r"is true or false"),
    ],
)
def test_faults_of_pooling_name_their_place(read, document, why):
    with pytest.raises(BadFile, match=why):
        read(document, folder="pooling")
