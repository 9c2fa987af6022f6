"""Masks of blocks: which blocks of keys each block of queries sees. The kernels in the interpreter
against float64, the lists that they walk, what is refused, and torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_masks import MASKS

import selection
import tilewright as tw
from shared_builds import build_once
from simulate import worst_error
from tilewright import Dispatcher, ops
from tilewright.arch import arch, device
from tilewright.errors import BadArgument
from tilewright.ops.attention import AttentionProblem, parts, rules, spaces
from tilewright.ops.nouns import MAIN
from tilewright.registry import Registry
from tilewright.runtime.interpreter import interpreter
from tilewright.verify import verify

FAMILY = ops.family("attention")
HERE = arch("sm_90")


def problem_of(q_len=40, kv_len=67, shape=(1, 2), **fields):
    said = {"batch": 2, "head_dim": 32, "kv_heads": 1, "dtype": "fp16", "others": "lse"}
    said |= {"block_size": 32, **fields}
    return AttentionProblem(heads=2, q_len=q_len, kv_len=kv_len, blocks_shape=shape, **said)


def config(problem, **algorithm):
    """A config of pipeline basic for a problem."""
    fields = {"pipeline": "basic", "tile_q": 32, "tile_kv": 32, "alignment": 1, **algorithm}
    return FAMILY.make_config({**FAMILY.axes(), **spaces.signature(problem), **fields}, HERE)


def check(problem, seed=0, **algorithm):
    chosen = config(problem, **algorithm)
    on = Dispatcher(Registry("blocks").register_all([chosen]), device="h200")
    found = verify(on, problem, chosen.name, seed=seed)
    assert found.ok, (chosen.name, str(problem), str(found))


@pytest.mark.grid(2)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "sizes", [(40, 67), (67, 40), (1, 70), (70, 1), (32, 64), (33, 31), (3, 0)], ids=str
)
def test_sizes_under_masks(sizes, mask):
    """Neither queries nor keys are multiples of the block."""
    check(problem_of(*sizes, batch=1, **MASKS[mask]))


@pytest.mark.turns(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "e4m3fn"])
def test_dtypes(dtype):
    p = problem_of(dtype=dtype, right=0, density=0.5)
    check(p)


@pytest.mark.turns(8)
@pytest.mark.grid(2)
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize(
    "algorithm",
    [
        {"tile_q": 16},
        {"tile_kv": 16},
        {"pack": True},
        {"scheduler": "split", "split_len": 64},
        {"scheduler": "split", "split_len": 32, "pack": True},
    ],
    ids=str,
)
def test_ways_to_walk_a_list(mask, algorithm):
    p = problem_of(20, 70, (2, 1), softcap=20.0, **MASKS[mask])
    check(p, seed=1, **algorithm)


@pytest.mark.turns(16)
def test_equal_splits():
    """More of them than some lists have steps, of sequences of different lengths."""
    p = problem_of(20, 200, (2, 2), others="lse+usedkv", right=0, density=0.3)
    check(p, scheduler="split")


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    "fields",
    [
        {"others": "lse+packedq+packedkv", "total_q": 60, "total_kv": 110},
        {"others": "lse+usedq+usedkv+leftpad"},
        {"others": "usedkv+pagetable", "page_size": 16, "pages": 10, "page_entries": 5, "right": 0},
        {"others": "lse+sinks+random", "dropout": 0.25},
        {"others": "lse+usedkv", "new_kv": 3, "bias_shape": (1, 2)},
    ],
    ids=str,
)
def test_it_goes_with_lengths_pages_and_other_features(fields):
    check(problem_of(**fields))


TILES = {64: ((64, 64, 4, 2),), 128: ((128, 64, 8, 3), (64, 128, 4, 2)), 192: ((192, 64, 12, 2),)}


@pytest.mark.turns(8)
@pytest.mark.grid(2)
@pytest.mark.parametrize("density", [0.2, 0.6])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("others", ["lse", "lse+usedkv", "lse+packedq+packedkv"])
@pytest.mark.parametrize(
    ("block_size", "tile"), [(block, tile) for block, tiles in TILES.items() for tile in tiles]
)
def test_warps_with_roles_walk_the_lists(block_size, tile, others, mask, density):
    """Blocks of one and of several tiles, and tiles that see nothing."""
    rows = {"total_q": 200, "total_kv": 400} if "packed" in others else {}
    p = problem_of(
        150, 333, (2, 2), head_dim=64, dtype="bf16", block_size=block_size, others=others,
        density=density, **rows, **MASKS[mask],
    )  # fmt: skip
    q, kv, warps, stages = tile
    c = config(
        p, pipeline="gluon_ws", tile_q=q, tile_kv=kv, num_warps=warps, num_stages=stages,
        scheduler="persistent", alignment=16,
    )  # fmt: skip
    assert worst_error(c, p, device("h200"), seed=block_size) <= 1.0


def dense(mask, block, q_len, kv_len):
    wide = mask.repeat(block, 2).repeat(block, 3)
    return np.broadcast_to(wide, (2, 2, *wide.shape[2:]))[:, :, :q_len, :kv_len]


def wanted(q, k, v, seen):
    """O and LSE in float64, of keys that are seen; hidden ones are never multiplied."""
    o, lse = np.zeros(q.shape), np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf)
    for b, h, i in np.argwhere(seen.any(3)):
        own = seen[b, h, i]
        s = (k[b, own, 0].astype(float) @ q[b, i, h].astype(float)) / q.shape[3] ** 0.5
        lse[b, h, i] = np.log(np.exp(s).sum())
        o[b, i, h] = np.exp(s - lse[b, h, i]) @ v[b, own, 0].astype(float)
    return o, lse


def made():
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, 20, 2, 16), np.float32)
    k, v = rng.standard_normal((2, 2, 40, 1, 16), np.float32)
    return q, k, v


def mask_of(*shape, share=0.5):
    return np.random.default_rng(5).uniform(size=shape) < share


@pytest.mark.parametrize("shape", [(2, 2), (1, 2), (2, 1), (1, 1)], ids=str)
def test_a_call_gives_attention_over_the_blocks(shape):
    q, k, v = made()
    blocks = mask_of(*shape, 2, 3)
    blocks[0, 0, 1] = False  # queries from 16 on see nothing
    blocks[..., 1] = False  # nobody sees keys 16 to 31
    k[:, 16:32], v[:, 16:32] = np.nan, np.nan
    o, lse = tw.attention(q, k, v, blocks=blocks, block_size=16, lse=True)
    right, log = wanted(q, k, v, dense(blocks, 16, 20, 40))
    np.testing.assert_allclose(o, right, atol=2e-6)
    np.testing.assert_allclose(lse, log, atol=2e-6)
    assert not o[0, 16:, 0].any() and np.isneginf(lse[0, 0, 16:]).all()


def test_a_mask_of_elements_holds_within_blocks():
    q, k, v = made()
    blocks = mask_of(2, 2, 2, 3, share=0.7)
    far = np.arange(20)[:, None] + 20 - np.arange(40)
    seen = dense(blocks, 16, 20, 40) & (far >= 0) & (far <= 13)
    o = tw.attention(q, k, v, blocks=blocks, block_size=16, window=(13, 0))
    np.testing.assert_allclose(o, wanted(q, k, v, seen)[0], atol=2e-6)


def lists(p, blocks):
    """What the kernel that lists blocks writes."""
    c = config(p, tile_q=16, tile_kv=16)
    launch = FAMILY.launch(c, p, device("h200"))
    (step,) = (step for step in launch.steps if step.part == parts.LIST_BLOCKS.name)
    made = {one.name: np.full(one.shape, -7, np.int32) for one in launch.temporaries}
    alone = replace(launch, steps=(step,))
    interpreter().run(FAMILY.sources(c, HERE), alone, {"blocks": blocks}, (), temporaries=made)
    return made["block_list"], made["block_counts"]


@pytest.mark.parametrize("mask", MASKS)
def test_lists_have_the_blocks_that_are_seen_whole_ones_first(mask):
    p = AttentionProblem(
        2, 2, 100, 16 * 300 + 3, 16, blocks_shape=(1, 2), block_size=16, **MASKS[mask]
    )
    blocks = mask_of(1, 2, 7, 301)
    found, counts = lists(p, blocks)
    seen = p.mask.seen(np.arange(100), np.arange(p.kv_len), 100, p.kv_len)
    seen = np.pad(seen, ((0, 0), (0, 13)))
    for b, h, row in np.ndindex(2, 2, 7):
        own = seen[16 * row : 16 * row + 16].reshape(-1, 301, 16)
        whole = blocks[0, h, row] & own.all((0, 2))
        cut = blocks[0, h, row] & own.any((0, 2)) & ~whole
        n, m = counts[b, h, row]
        assert found[b, h, row, :n].tolist() == np.flatnonzero(whole).tolist()
        listed = found[b, h, row, 301 - m :].tolist()
        assert listed[::-1] == np.flatnonzero(cut).tolist()


def test_bytes_that_are_true_besides_1():
    """Any byte but 0 is true, as in NumPy and torch."""
    q, k, v = made()
    blocks = mask_of(1, 1, 2, 3)
    other = (blocks.astype(np.uint8) * 255).view(bool)
    o, same = (tw.attention(q, k, v, blocks=x, block_size=16) for x in (blocks, other))
    np.testing.assert_array_equal(o, same)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"block_size": 24}, "block_size = 24 is not a multiple of 16, the rows of the smallest"),
        ({"blocks_shape": ()}, "blocks and block_size are said together"),
        ({"blocks_shape": (3, 1)}, r"blocks_shape = \(3, 1\) must be 1 or 2 sequences"),
        ({"blocks_shape": (1, 3)}, "and 1 or 4 heads"),
        ({"density": 1.5}, "density"),
        ({"blocks_shape": (), "block_size": 0, "density": 0.5}, "of a mask of blocks"),
    ],
    ids=str,
)
def test_problems_that_contradict_themselves(fields, why):
    with pytest.raises(BadArgument, match=why):
        AttentionProblem(2, 4, 70, 101, 32, **{"blocks_shape": (1, 1), "block_size": 32, **fields})


@pytest.mark.parametrize(
    ("blocks", "said", "why"),
    [
        (mask_of(2, 3), {}, "blocks has 2 dimensions, not 4"),
        (mask_of(1, 1, 2, 2), {}, r"blocks is \[1, 1, 2, 2\], but beside the others must be"),
        (mask_of(1, 4, 2, 3), {}, "must be 1 or 2 sequences, and 1 or 2 heads"),
        (mask_of(1, 1, 2, 3).astype(np.uint8), {}, "blocks is uint8, but must be bool"),
        (mask_of(1, 1, 3, 2).transpose(0, 1, 3, 2), {}, r"pass blocks.contiguous\(\)"),
        (mask_of(1, 1, 2, 3), {"block_size": None}, "block_size"),
        (mask_of(1, 1, 2, 3), {"block_size": 0}, "block_size"),
        (mask_of(1, 1, 2, 3), {"block_size": (16, 16)}, "block_size"),
        (mask_of(1, 1, 2, 3), {"block_size": 24}, "block_size = 24 is not a multiple of 16"),
        (mask_of(1, 1, 2, 3), {"density": -1.0}, "density"),
    ],
    ids=str,
)
def test_wrong_calls(blocks, said, why):
    with pytest.raises(BadArgument, match=why):
        tw.attention(*made(), blocks=blocks, **{"block_size": 16, **said})


def test_words_that_need_one_another():
    with pytest.raises(BadArgument, match="blocks need block_size="):
        tw.attention(*made(), blocks=mask_of(1, 1, 2, 3))
    for said in ({"block_size": 16}, {"density": 0.5}):
        with pytest.raises(BadArgument, match="says nothing in this call"):
            tw.attention(*made(), **said)


def test_which_kernels_take_it():
    p = problem_of(block_size=48)
    fits = config(p, tile_q=16, tile_kv=16)
    assert rules.supports(fits, p, HERE)
    for algorithm, why in (
        ({"tile_q": 32}, "blocks of 48 rows are no multiple of tiles 32x16"),
        ({"tile_kv": 32}, "blocks of 48 rows are no multiple of tiles 16x32"),
        ({"pack": True}, "heads of a packed tile share one mask"),
    ):
        verdict = rules.supports(replace(fits, **algorithm), p, HERE)
        assert verdict.rule == "mask_blocks" and why in verdict.reason
    shared = replace(p, blocks_shape=(2, 1))
    assert rules.supports(replace(fits, pack=True), shared, HERE)
    decode = {"pipeline": "gluon_decode", "tile_q": 64, "tile_kv": 64, "num_warps": 4}
    other = config(p, **decode, num_stages=2, pack=True)
    assert "does not know blocks" in FAMILY.judge(other, HERE).reason


@pytest.mark.parametrize("block_size", [16, 48, 64, 1024])
def test_the_default_space_has_tiles_for_any_block(block_size):
    p = problem_of(300, 300, block_size=block_size)
    for name in ("sm_80", "sm_90", "gfx942", "gfx1201"):
        this = arch(name)
        configs = FAMILY.default_space(p, this).expand(this).configs
        assert FAMILY.serving(p, configs, this)


def test_a_density_is_what_the_estimate_takes():
    p = problem_of(4096, 4096, head_dim=128, block_size=128)
    c = config(p, tile_q=64, tile_kv=64)
    times = [
        FAMILY.estimate(c, replace(p, density=share), device("h200")).total_us
        for share in (0.0, 1.0, 0.25)
    ]
    assert times[0] == times[1] > 2 * times[2]
    assert replace(p, density=0.25).flops == p.flops / 4


@pytest.mark.turns(32)
def test_a_compiled_call_is_the_call():
    def model(q, k, v, blocks):
        return tw.attention(q * 2, k, v, blocks=blocks, block_size=16, mask="causal")

    given = (*map(torch.from_numpy, (*made(), mask_of(1, 2, 2, 3))),)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), model(*given))


ARCHS = selection.architectures(("sm_80", "sm_90", "gfx90a", "gfx942", "gfx1201"))


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ARCHS)
def test_it_compiles_without_spills(name, store):
    this = arch(name)
    p = problem_of(2048, 2048, (1, 1), head_dim=64, dtype="bf16", block_size=128, right=0)
    found = FAMILY.default_space(p, this).expand(this).configs
    found = sorted((c for c in found if not c.pack), key=lambda c: c.tile_q * c.tile_kv)
    results = build_once([(c, name) for c in (found[0], found[-1])], store).results
    assert {r.part for r in results} == {MAIN, parts.LIST_BLOCKS.name}
    for result in results:
        assert result.kernel is not None, result.reason
        assert result.kernel.resources.spill_bytes == 0


@pytest.mark.turns(16)
def test_no_page_is_looked_up_behind_the_last_key(store):
    """The last block is longer than the keys, with which the table of pages ends: an emulated GPU
    finds what is read behind it."""
    p = problem_of(
        20, 64, batch=1, block_size=128, density=1.0, page_size=32, pages=3, page_entries=2,
        others="usedkv+pagetable",
    )  # fmt: skip
    this = arch("gfx942")
    fields = {"pipeline": "basic", "tile_q": 16, "tile_kv": 32, "num_warps": 4, "num_stages": 1}
    chosen = FAMILY.make_config({**FAMILY.axes(), **spaces.signature(p), **fields}, this)
    registry = Registry("blocks").register_all([chosen])
    found = verify(Dispatcher(registry, store=store, device="emulated:gfx942"), p, chosen.name)
    assert found.ok, str(found)
