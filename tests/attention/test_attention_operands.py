"""Problems, operands, options and names say the same: whatever features a problem has."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import drawn, legal
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import arrays, ops
from tilewright.arch import arch
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument
from tilewright.ops.attention import AttentionConfig, AttentionProblem, config
from tilewright.ops.attention.features import CHOICES, FEATURES, REQUIRED, join, split
from tilewright.ops.attention.inputs import make_inputs
from tilewright.ops.attention.mask import MASKS, Mask
from tilewright.ops.attention.pipelines import PIPELINES
from tilewright.ops.attention.rows import (
    by_row,
    keys_at,
    keys_seen,
    place,
    queries_at,
    sequences,
    whole,
)
from tilewright.ops.attention.stated import words_of
from tilewright.ops.nouns import Call, View

FAMILY = ops.family("attention")
SM_90 = arch("sm_90")
SEEDS = st.integers(0, 10**9)


def call_of(p: AttentionProblem, address: int = 0, outputs: bool = True) -> Call:
    """The call that passes the operands of `p`."""
    views = {
        one.name: View(one.shape, one.strides, one.dtype, address, "cpu")
        for one in FAMILY.operands(p)
    }
    stated = FAMILY.operands(p)
    return Call(
        tuple(views[o.name] for o in stated if o.role != "out" and not o.keyword),
        {o.name: views[o.name] for o in stated if o.keyword},
        tuple(views[o.name] for o in stated if o.role == "out") if outputs else None,
        FAMILY.options(p),
    )


@given(SEEDS)
@settings(max_examples=300)
def test_a_call_with_its_operands_and_options_states_the_problem(seed):
    p = drawn(seed)
    assert FAMILY.problem_of(call_of(p)) == p


@given(SEEDS)
def test_without_outputs_the_same_ones_are_made(seed):
    p = replace(drawn(seed), o_strides=())
    call = call_of(p, outputs=False)
    assert replace(FAMILY.problem_of(call), alignment=p.alignment) == p
    assert FAMILY.outputs(call) == tuple(o for o in FAMILY.operands(p) if o.role == "out")


@given(SEEDS, st.sampled_from((1, 2, 4, 8, 16)))
def test_alignment_is_that_of_addresses_and_of_strides(seed, address):
    p = drawn(seed)
    found = FAMILY.problem_of(call_of(p, address)).alignment
    assert address % found == 0
    for one in FAMILY.operands(p):
        if one.name in ("q", "k", "v", "o"):
            size = DTYPES[one.dtype].bytes
            steps = [s * size for n, s in zip(one.shape, one.strides, strict=True) if n > 1 != s]
            assert all(step % found == 0 for step in steps)


@given(SEEDS)
def test_every_operand_has_inputs_of_its_own_shape(seed):
    p = drawn(seed, most=70)
    made = make_inputs(p, arrays.Random(seed))
    read = [one for one in FAMILY.operands(p) if one.read]
    assert list(made) == [*(one.name for one in read), *(n for n in made if n in FAMILY.scalars)]
    for one in read:
        view = arrays.view(made[one.name])
        assert (view.shape, view.dtype) == (one.shape, one.dtype)
    again = make_inputs(p, arrays.Random(seed))
    for name, x in made.items():
        np.testing.assert_array_equal(
            np.asarray(x, np.float64), np.asarray(again[name], np.float64)
        )


@given(SEEDS)
def test_lengths_fit_and_what_no_sequence_has_is_poison(seed):
    p = drawn(seed, most=70)
    made = make_inputs(p, arrays.Random(seed))
    said = whole(made)
    found = sequences(p, said)
    own = {"q": [], "k": []}
    for of in found:
        assert 0 <= of.n_q <= p.q_len and 0 <= of.kv_first <= of.new
        assert of.n_kv >= p.new_kv and of.kv_first + of.n_kv <= p.kv_len
        own["q"].append(queries_at(p, of))
        at, row = keys_at(p, said, of, of.kv_first, of.before)
        seen = keys_seen(p, made["blocks"], of, of.before) if p.blocks_shape else np.ones_like(at)
        own["k"].append((at[seen != 0], row[seen != 0]))
        written = place(p, "k", *keys_at(p, said, of, of.new, p.new_kv))
        view = by_row(p, "k", made["k"])[written].astype("float64")
        assert np.isnan(view).all()
    for name, places in own.items():
        view = by_row(p, name, made[name]).astype("float64")
        rows = [row for at in places for row in zip(*place(p, name, *at), strict=True)]
        assert len(set(rows)) == len(rows), "sequences share no row"
        width = view[(0,) * len(place(p, name, 0, 0))].size if view.size else 0
        assert np.isfinite(view).sum() == len(rows) * width
        for row in rows:
            assert np.isfinite(view[row]).all()


# --- features ----------------------------------------------------------------------------------


@given(st.sets(st.sampled_from(sorted(FEATURES))))
def test_features_are_refused_exactly_where_they_contradict_or_lack_one_another(words):
    wrong = any(len(words.intersection(choice)) > 1 for choice in CHOICES)
    wrong |= any(w in words and not words.intersection(of) for w, of in REQUIRED.items())
    if wrong:
        with pytest.raises(BadArgument):
            split(join(words))
    else:
        assert split(join(words)) == words


@given(st.lists(st.sampled_from(sorted(FEATURES)), min_size=2, unique=True))
def test_features_have_one_order(words):
    text = "+".join(words)
    if text != join(set(words)):
        with pytest.raises(BadArgument, match=r"must be written as|not both|needs"):
            split(text)


@given(SEEDS)
def test_a_problem_has_the_features_that_it_was_made_with(seed):
    words = legal(random.Random(seed))
    assert drawn(seed, words=words).words == words


# --- masks -------------------------------------------------------------------------------------


def bounds(most: int):
    return st.none() | st.integers(-most, most)


@pytest.mark.turns(24)
@given(
    bounds(40), bounds(40), st.integers(0, 8), st.booleans(), st.integers(0, 30), st.integers(0, 30)
)
@settings(max_examples=500)
def test_pairs_are_those_that_are_seen(left, right, first, bottom_right, n_q, n_kv):
    mask = Mask(left, right, first if left is not None else 0, bottom_right)
    seen = mask.seen(np.arange(n_q), np.arange(n_kv), n_q, n_kv)
    assert mask.pairs(n_q, n_kv) == int(seen.sum())


@given(SEEDS)
def test_work_is_two_products_and_an_exponential_for_each_pair(seed):
    p = drawn(seed)
    n_q, n_kv = p.lengths
    seen = p.mask.seen(np.arange(n_q), np.arange(n_kv), n_q, n_kv).sum()
    pairs = round(int(seen) * p.batch * (p.density or 1.0)) * p.heads
    assert p.work["exp"] == pairs
    assert p.flops == p.work[p.dtype] == 2 * pairs * (p.head_dim + p.head_dim_v)
    assert p.min_bytes >= 0


# --- names -------------------------------------------------------------------------------------


@given(SEEDS, st.randoms(use_true_random=False))
def test_a_name_says_the_whole_config(seed, rng):
    p = drawn(seed)
    scheduler = rng.choice(("tile", "persistent", "split"))
    one = AttentionConfig(
        **{
            name: getattr(p, name)
            for name in ("dtype", "dtype_kv", "dtype_o", "head_dim", "head_dim_v", "page_size",
                         "features")
        },
        mask=rng.choice(MASKS),
        tile_q=rng.choice((16, 64, 192)),
        tile_kv=rng.choice((16, 128)),
        num_warps=rng.choice((1, 4, 12)),
        num_stages=rng.choice((1, 4)),
        pipeline=rng.choice(sorted(PIPELINES)),
        scheduler=scheduler,
        split_len=rng.choice((0, 512)) if scheduler == "split" else 0,
        alignment=rng.choice((1, 16)),
        pack=rng.random() < 0.5,
    )  # fmt: skip
    assert FAMILY.parse_name(one.name) == one
    assert config.check(one, tuple(PIPELINES)) is one


@given(SEEDS)
def test_the_default_space_serves_each_problem(seed):
    p = drawn(seed)
    configs = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    assert any(FAMILY.supports(c, p, SM_90) for c in configs)


@pytest.mark.parametrize("wrong", [{"head_dim": 40}, {"head_dim_v": 12}, {"page_size": 12}])
def test_vectorised_pages_hold_whole_groups(wrong):
    fields = {"batch": 1, "heads": 2, "q_len": 1, "kv_len": 30, "head_dim": 32, "page_size": 16,
              "pages": 2, "page_entries": 2, "dtype_kv": "e4m3fn"}  # fmt: skip
    words = "usedkv+pagetable+vectorised"
    assert AttentionProblem(**fields, others=words).vector == 16
    with pytest.raises(BadArgument, match="groups of 16 elements"):
        AttentionProblem(**(fields | wrong), others=words)


def test_an_entry_that_names_no_page_is_read_as_the_nearest():
    p = AttentionProblem(
        1, 1, 1, 8, 16, pages=3, page_size=2, page_entries=4, others="usedkv+pagetable"
    )
    said = {"page_table": np.array([[-7, 0, 2, 99]]), "kv_used": np.array([8])}
    (of,) = sequences(p, said)
    pages, rows = keys_at(p, said, of, 0, 8)
    assert pages.tolist() == [0, 0, 0, 0, 2, 2, 2, 2] and rows.tolist() == [0, 1] * 4


def test_rows_whose_elements_lie_apart_have_no_alignment():
    """Kernels of any alignment take neighbours in a row for neighbours in memory."""
    apart = View((1, 4, 1, 16), (512, 128, 128, 8), "bf16", 256, "cpu")
    rows = View((1, 4, 1, 16), (64, 16, 16, 1), "bf16", 256, "cpu")
    for inputs in ((apart, rows, rows), (rows, apart, rows), (rows, rows, apart)):
        assert FAMILY.problem_of(Call(inputs)).alignment == 1
    assert FAMILY.problem_of(Call((rows, rows, rows))).alignment == 16


COLUMNS = AttentionProblem(
    4, 16, 4096, 4096, 128, dtype="e4m3fn", others="hscale",
    v_strides=(16 * 128 * 4096, 1, 128 * 4096, 4096),
)  # fmt: skip
"""Values of fp8 lie by columns."""


def test_values_of_eight_bits_by_columns_are_aligned():
    """A call of it states it, and kernels of Hopper serve it."""
    assert FAMILY.problem_of(call_of(COLUMNS, address=256)) == COLUMNS
    assert FAMILY.problem_of(call_of(COLUMNS, address=8)).alignment == 8
    assert FAMILY.parse_problem(words_of(COLUMNS), SM_90) == COLUMNS
    found = FAMILY.default_space(COLUMNS, SM_90).expand(SM_90).configs
    served = [c for c in found if FAMILY.supports(c, COLUMNS, SM_90)]
    assert {(c.pipeline, c.alignment) for c in served} == {("gluon_ws", 16), ("basic", 1)}
    wide = replace(COLUMNS, dtype="bf16", dtype_kv="", dtype_o="", others="")
    assert FAMILY.problem_of(call_of(wide, address=256)).alignment == 1


@pytest.mark.parametrize("name", ["sm_100", "gfx942", "gfx1201"])
def test_values_by_columns_are_served_everywhere(name):
    this = arch(name)
    fp8 = resolve("fp8", this.fp8)
    p = replace(COLUMNS, dtype=fp8, dtype_kv=fp8)
    found = FAMILY.default_space(p, this).expand(this).configs
    assert any(FAMILY.supports(c, p, this) for c in found)


def test_a_sequence_has_no_more_keys_than_its_own_pages():
    """Of a list of pages; a table has as many for each."""
    p = AttentionProblem(
        2, 2, 1, 64, 32, pages=8, page_size=16, page_entries=4, others="usedkv+pagelist"
    )
    said = {"page_list": np.arange(4), "page_starts": np.array([0, 1, 4])}
    used = {"kv_used": np.array([60, 40])}
    assert [of.n_kv for of in sequences(p, {**said, **used})] == [16, 40]
    assert [of.n_kv for of in sequences(p, said)] == [16, 48]
    table = AttentionProblem(
        2, 2, 1, 64, 32, pages=8, page_size=16, page_entries=3, others="usedkv+pagetable"
    )
    assert [of.n_kv for of in sequences(table, used)] == [48, 40]
