"""The portable kernel and the one that combines splits, in the interpreter, against float64: every
feature with others, every mask, and sizes at which kernels break."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from attention_cases import drawn

from tilewright import Dispatcher, ops
from tilewright.arch import arch
from tilewright.ops.attention import AttentionProblem, spaces
from tilewright.ops.attention.features import FEATURES
from tilewright.registry import Registry
from tilewright.verify import verify

FAMILY = ops.family("attention")
HERE = arch("sm_90")


def config(problem, **algorithm):
    """A config of pipeline basic for a problem."""
    fields = {"pipeline": "basic", "tile_q": 32, "tile_kv": 32, "alignment": 1, **algorithm}
    return FAMILY.make_config({**FAMILY.axes(), **spaces.signature(problem), **fields}, HERE)


def any_config(problem, seed):
    """One with any tiles, splits and packing."""
    rng = random.Random(seed)
    most = problem.block_size or 128
    tile_kv = min(rng.choice((32, 32, 64, 128)), most)
    algorithm = {
        "tile_q": min(rng.choice((16, 32, 64)), most),
        "tile_kv": tile_kv,
        "pack": rng.random() < 0.4 and problem.blocks_shape[1:] in ((), (1,)),
        "alignment": 16 if problem.alignment == 16 else 1,
    }
    if rng.random() < 0.4:
        algorithm |= {"scheduler": "split", "split_len": tile_kv * rng.choice((1, 2))}
    return config(problem, **algorithm)


def check(problem, chosen, seed=0):
    on = Dispatcher(Registry("basic").register_all([chosen]), device="h200")
    found = verify(on, problem, chosen.name, seed=seed)
    assert found.ok, (chosen.name, str(problem), str(found))


OF_APPEND = {"append", "rotaryi", "rotaryh"}
"""Appending is a kernel of its own, with tests of its own."""


def _spread(each):
    """Problems that have any features, each feature in at least `each` of them."""
    pool, chosen = [p for p in (drawn(seed, most=80) for seed in range(300)) if not p.new_kv], []
    for word in FEATURES:
        having = [p for p in pool if word in p.words and len(p.words) > 1][:each]
        assert len(having) == each or word in OF_APPEND, word
        chosen += having
    return list(dict.fromkeys(chosen))


DRAWN = _spread(2)


@pytest.mark.grid(1)
@pytest.mark.parametrize("seed", range(len(DRAWN)))
def test_features_together(seed):
    problem = DRAWN[seed]
    check(problem, any_config(problem, seed), seed)


SIZES = ((1, 1), (1, 139), (139, 1), (73, 131), (131, 73), (33, 32), (3, 0), (64, 96))


@pytest.mark.turns(64)
@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize("algorithm", [{}, {"scheduler": "split", "split_len": 64}])
def test_sizes_under_masks(q_len, kv_len, algorithm):
    masks = (
        {},
        {"right": 0},
        {"right": 0, "corner": "top_left"},
        {"left": 40, "right": 7, "first": 37},
        {"left": -2, "right": 50, "corner": "top_left"},
        {"left": 5, "right": -3},
    )
    for mask in masks:
        problem = AttentionProblem(
            1, 2, q_len, kv_len, 32, kv_heads=1, dtype="fp16", others="lse", **mask
        )
        check(problem, config(problem, **algorithm))


@pytest.mark.parametrize("pack", [False, True])
def test_the_last_row_of_a_tile_sees_the_first_key_of_a_block(pack):
    length = 16 if pack else 32  # a tile of 32 rows, of one head or of two
    problem = AttentionProblem(
        1, 2, length, 33, 32, kv_heads=1, dtype="fp16", others="lse", right=0
    )  # fmt: skip
    check(problem, config(problem, pack=pack))


@pytest.mark.grid(5)
@pytest.mark.parametrize(
    "dims", [(32, 32), (40, 24), (80, 80), (96, 160), (192, 128), (59, 111), (256, 256)]
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "e4m3fn"])
def test_head_dims(dims, dtype):
    problem = AttentionProblem(1, 1, 20, 40, dims[0], head_dim_v=dims[1], dtype=dtype, right=0)
    check(problem, config(problem, tile_q=16))


@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 59, "left": 9, "right": 2, "first": 3},
        {"head_dim": 64, "page_size": 4, "pages": 24, "page_entries": 11,
         "others": "usedkv+pagetable+vectorised"},
        {"head_dim": 80, "head_dim_v": 40, "q_strides": (20 * 2 * 240, 2 * 240, 240, 3),
         "others": "lse"},
    ],
)  # fmt: skip
def test_products_that_load_q_again(fields):
    """On RDNA, where Q does not stay in registers."""
    problem = AttentionProblem(1, 2, 20, 40, **{"dtype": "fp32", "kv_heads": 1, **fields})
    chosen = replace(config(problem, tile_q=16, tile_kv=16), num_stages=1)
    on = Dispatcher(Registry("basic").register_all([chosen]), device="rx_7900_xtx")
    assert dict(FAMILY.sources(chosen, arch("gfx1100"))["main"].constants)["ROLLED"]
    found = verify(on, problem, chosen.name, seed=1)
    assert found.ok, str(found)


def test_equal_splits():
    """More of them than a sequence has steps, and sequences of different lengths."""
    problem = AttentionProblem(2, 1, 5, 300, 32, right=0, others="lse+sinks+usedkv")
    check(problem, config(problem, tile_q=16, scheduler="split"))


def test_latent_decode():
    problem = AttentionProblem(
        2, 16, 1, 100, 576, 1, 512, page_size=32, pages=9, page_entries=4,
        others="usedkv+pagetable+latent",
    )  # fmt: skip
    check(problem, config(problem, tile_q=16, pack=True))
    check(problem, config(problem, tile_q=16, pack=True, scheduler="split", split_len=32))


def test_strides_within_rows():
    """Alignment 1 takes rows whose elements are no neighbours."""
    problem = AttentionProblem(
        1, 2, 20, 30, 32, dtype="fp16", alignment=2, q_strides=(20 * 2 * 96, 2 * 96, 96, 3)
    )
    check(problem, config(problem))


def test_a_negative_scale_is_no_exception():
    import numpy as np

    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 70, 1, 32)).astype(np.float32) for _ in range(3))
    on = Dispatcher(device="h200")
    found = on.run("attention", q * 30, k, v, scale=-1.0)
    wanted = on.run("attention", q * -30, k, v, scale=1.0)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_values_of_fp8_by_columns():
    """Also where a kernel of Hopper that reads them so is asked for, whose sibling computes it."""
    p = AttentionProblem(
        1, 2, 40, 48, 32, right=0, dtype="e4m3fn", others="hscale",
        v_strides=(2 * 32 * 48, 1, 32 * 48, 48),
    )  # fmt: skip
    check(p, config(p))
    of_hopper = {"pipeline": "gluon_ws", "tile_q": 128, "tile_kv": 64, "num_warps": 8}
    check(p, config(p, **of_hopper, num_stages=2, alignment=16))
