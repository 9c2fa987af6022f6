"""CK Tile Engine's documents of reductions, in the form in which they are published."""

from __future__ import annotations

import json

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadFile
from tilewright.space import load_space

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
