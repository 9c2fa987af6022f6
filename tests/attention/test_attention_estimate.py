"""The estimate of attention: what it prefers, and what it depends on."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import drawn
from hypothesis import given
from hypothesis import strategies as st

import choice_gain
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.attention import AttentionConfig, AttentionProblem
from tilewright.ops.attention.estimate import tile_steps, walks
from tilewright.ops.attention.mask import Mask

FAMILY = ops.family("attention")
H200, MI300X = device("h200_sxm"), device("mi300x")
DENSE = re.compile(r"attention b(\d+) h(\d+)(?::(\d+))? (\d+)×\d+ d(\d+) (bf16|fp16)( causal)?")


def best(problem: AttentionProblem, on=H200) -> AttentionConfig:
    this = arch(on.arch)
    configs = FAMILY.default_space(problem, this).expand(this).configs
    serving = [c for c in configs if FAMILY.supports(c, problem, this)]
    return FAMILY.rank(problem, serving, on)[0][0]


def config(**fields) -> AttentionConfig:
    given = {
        "dtype": "bf16", "dtype_kv": "bf16", "dtype_o": "bf16", "head_dim": 128, "head_dim_v": 128,
        "mask": "none", "tile_q": 128, "tile_kv": 64, "num_warps": 8, "num_stages": 2,
        "pipeline": "basic", "scheduler": "tile",
    }  # fmt: skip
    return AttentionConfig(**(given | fields))


def us(problem: AttentionProblem, **fields) -> float:
    return FAMILY.estimate(config(mask=problem.mask.kind, **fields), problem, H200).total_us


@pytest.mark.parametrize(
    ("q_len", "tile"),
    [(1, 16), (7, 16), (16, 16), (33, 64), (48, 64), (64, 64), (65, 128), (100, 128), (128, 128)],
)
def test_of_short_queries_the_smallest_tile_that_holds_them(q_len, tile):
    """CK Tile's rule; nothing but the estimate says it here. Of a tile that the queries would fill
    by less than a half (17 of 64 rows), two smaller ones may be faster."""
    problem = AttentionProblem(64, 32, q_len, 4096, 128)
    this = arch(H200.arch)
    offered = {c.tile_q for c in FAMILY.default_space(problem, this).expand(this).configs}
    assert {16, 64, 128} <= offered
    assert best(problem).tile_q == tile
    if q_len <= 64:
        assert best(problem, MI300X).tile_q == tile


def test_many_queries_get_a_tall_tile():
    assert best(AttentionProblem(4, 32, 4096, 4096, 128)).tile_q >= 128


def test_heads_that_share_keys_are_packed_for_one_query_and_long_keys_are_split():
    one = best(AttentionProblem(1, 64, 1, 65536, 128, kv_heads=8))
    assert (one.scheduler, one.pack) == ("split", True)
    assert best(AttentionProblem(128, 64, 1, 65536, 128, kv_heads=8)).scheduler == "tile"


def test_a_causal_mask_takes_half_of_the_time():
    full = AttentionProblem(8, 16, 8192, 8192, 128)
    half = us(replace(full, right=0)) / us(full)
    assert 0.45 < half < 0.6
    window = us(replace(full, left=1023, right=0))
    assert window < 0.3 * us(full)


def test_long_tiles_first_cost_no_waves():
    """132 causal tiles and one more: equal tiles would take two waves."""
    one = us(AttentionProblem(1, 133, 1024, 1024, 128, right=0))
    assert one < 1.15 * us(AttentionProblem(1, 132, 1024, 1024, 128, right=0))


@pytest.mark.parametrize("word", ["softcap", "alibi", "dropout"])
def test_a_feature_takes_time(word):
    plain = AttentionProblem(8, 16, 4096, 4096, 64)
    fields = {"softcap": {"softcap": 30.0}, "alibi": {"others": "alibi"},
              "dropout": {"dropout": 0.25}}[word]  # fmt: skip
    sizes = {"head_dim": 64, "head_dim_v": 64}
    assert us(replace(plain, **fields), **sizes, features=word) > us(plain, **sizes)


def test_pages_take_time_and_small_ones_more():
    cache = AttentionProblem(16, 8, 1, 8192, 128, others="usedkv")
    paged = [
        replace(cache, pages=16 * 8192 // size, page_size=size, page_entries=8192 // size,
                others="usedkv+pagetable")
        for size in (64, 1)
    ]  # fmt: skip
    times = [us(p, tile_q=16, num_warps=4, page_size=p.page_size, features=p.features)
             for p in paged]  # fmt: skip
    assert us(cache, tile_q=16, num_warps=4, features="usedkv") < times[0] < times[1]


def test_lengths_on_average_decide_and_the_longest_bounds():
    packed = AttentionProblem(8, 16, 8192, 8192, 128, total_q=8192, total_kv=8192,
                              others="packedq+packedkv")  # fmt: skip
    features = packed.features
    whole = AttentionProblem(8, 16, 8192, 8192, 128)
    assert us(packed, features=features) < 0.3 * us(whole)
    one = AttentionProblem(1, 16, 8192, 8192, 128)
    assert us(packed, features=features) > 0.1 * us(one)  # one sequence may have all of it


def test_short_tiles_read_keys_again():
    """Each tile of a head reads its keys; L2 does not keep all of them for the next."""
    problem = AttentionProblem(1, 64, 8192, 262144, 128)

    def memory(tile_q: int) -> float:
        found = FAMILY.estimate(config(tile_q=tile_q, num_warps=4), problem, H200)
        return dict(found.terms)["memory"]

    assert memory(16) > 2 * memory(128)


def test_a_workgroup_alone_waits_at_each_step():
    steps = 65536 // 64
    one = AttentionProblem(1, 1, 16, 65536, 128)
    assert us(one, tile_q=16, num_warps=4, num_stages=9) > 0.45 * steps


def test_equal_estimates_go_by_name():
    problem = AttentionProblem(0, 4, 8, 8, 64)  # nothing to do
    this = arch(H200.arch)
    ranked = FAMILY.rank(problem, FAMILY.default_space(problem, this).expand(this).configs, H200)
    assert [*ranked] == sorted(ranked, key=lambda pair: (pair[1].total_us, pair[0].name))


@pytest.mark.parametrize("seed", range(12))
def test_kernels_are_judged_and_estimated_together_as_alone(seed):
    problem, on = drawn(seed, dtypes=("bf16", "e4m3fn")), (H200, MI300X)[seed % 2]
    this = arch(on.arch)
    strange = replace(problem, q_strides=(2**31, 2**25, 2**10, 1), layout="bshd")
    configs = FAMILY.default_space(problem, this).expand(this).configs
    for asked in (problem, strange):
        served = [i for i, c in enumerate(configs) if FAMILY.supports(c, asked, this)]
        assert FAMILY.serving(asked, configs, this) == served
    for c, estimate in FAMILY.rank(problem, configs, on):
        assert FAMILY.estimate(c, problem, on) == estimate


SIZES = st.integers(0, 90)
BOUNDS = st.none() | st.integers(-5, 40)


@given(BOUNDS, BOUNDS, st.integers(0, 5), st.booleans(), SIZES, SIZES,
       st.sampled_from((1, 4, 16)), st.sampled_from((4, 16)))  # fmt: skip
def test_steps_are_those_of_the_pairs_that_are_seen(
    left, right, first, corner, n_q, n_kv, rows, kv
):
    """Against the mask itself: every seen pair is in a step, where a look at all tiles is one."""
    mask = Mask(left, right, first if left is not None else 0, corner)
    walk = walks(mask, n_q, n_kv, np.array([float(rows)]), np.array([kv]))
    tiles = -(-n_q // rows)
    if tiles > 16:
        return  # only some are looked at
    seen = mask.seen(np.arange(n_q), np.arange(n_kv), n_q, n_kv)
    needed = [
        sum(seen[t * rows : (t + 1) * rows, s : s + kv].any() for s in range(0, n_kv, kv))
        for t in range(tiles)
    ]
    assert walk.longest[0] >= max(needed, default=0)
    assert walk.mean[0] * tiles >= sum(needed) - 1e-6
    if left is None:
        assert walk.mean[0] * tiles == pytest.approx(sum(needed))


@pytest.mark.parametrize("name", ["h200_sxm", "mi300x", "rtx_4090", "rx_7900_xtx", "b200"])
def test_every_device_has_an_estimate(name):
    problem = AttentionProblem(2, 16, 512, 512, 128, kv_heads=4, right=0)
    on = device(name)
    assert 1 < FAMILY.estimate(best(problem, on), problem, on).total_us < 1e5


@pytest.mark.parametrize(
    ("file", "keys", "lines"),
    [("attention_gqa_h200.jsonl", (), 17), ("attention_rest_h200.json", ("sets", "fp16"), 12)],
)
def test_the_estimate_is_near_what_it_was_not_fitted_to(file, keys, lines):
    """Heads that share keys, and fp16, on an H200: the figures were fitted to bf16 with keys for
    every head."""
    measured, errors = [], []
    for line in choice_gain.rows(file, *keys):
        if not (found := DENSE.fullmatch(line.get("problem", ""))):
            continue
        batch, heads, kv_heads, length, dim = (int(n or 0) for n in found.groups()[:5])
        problem = AttentionProblem(
            batch, heads, length, length, dim, kv_heads=kv_heads or heads, dtype=found[6],
            right=0 if found[7] else None,
        )  # fmt: skip
        assert str(problem) == line["problem"]
        timed = choice_gain.timed(FAMILY, line["brief_us"])
        estimates = {c: FAMILY.estimate(c, problem, H200).total_us for c in timed}
        errors += [math.log(timed[c] / us) for c, us in estimates.items()]
        measured.append((problem, timed))
    assert len(measured) == lines
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.15
    assert choice_gain.gain(FAMILY, H200, measured) > 0.9


@given(
    st.builds(
        Mask,
        st.none() | st.integers(-3, 9),
        st.none() | st.integers(-3, 9),
        st.just(0),
        st.booleans(),
    ),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 8),
    st.data(),
)
def test_steps_of_a_tile_are_those_that_see_a_key_and_cut_ones_do_not_see_all(
    mask, n_q, n_kv, tile_kv, data
):
    first = data.draw(st.integers(0, n_q - 1))
    last = data.draw(st.integers(first, n_q - 1))
    blocks = -(-n_kv // tile_kv)
    rows, keys = np.arange(first, last + 1), np.arange(blocks * tile_kv)
    seen = mask.seen(rows, keys, n_q, n_kv).reshape(len(rows), blocks, tile_kv)
    some, every = seen.any((0, 2)), seen.all((0, 2))
    walked = np.flatnonzero(some)
    steps, cut = tile_steps(mask, first, last, n_q, n_kv, tile_kv)
    if len(walked):
        assert steps == walked[-1] - walked[0] + 1  # also over what none of the rows sees
        assert cut == steps - every.sum()
