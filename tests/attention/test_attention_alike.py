"""Problems that share a row of a table, or a batch-invariant kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attention_problems import problems
from hypothesis import given

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.attention import AttentionProblem
from tilewright.plan import Planner
from tilewright.select.constraints import Constraints

FAMILY = ops.family("attention")
H200 = device("h200_sxm")
SM_90 = arch("sm_90")
PREFILL = AttentionProblem(3, 32, 1000, 3000, 128, kv_heads=8, right=0)
PAGED = AttentionProblem(
    5, 32, 1, 5000, 128, kv_heads=8, pages=999, page_size=16, page_entries=400,
    others="usedkv+pagetable",
)  # fmt: skip


@given(problems())
def test_the_key_of_a_key_is_the_key(problem):
    key = FAMILY.tuning_key(problem)
    assert FAMILY.tuning_key(key) == key
    assert (key.features, key.mask.kind) == (problem.features, problem.mask.kind)


@given(problems())
def test_nearby_problems_are_keys_of_the_same_kernels(problem):
    for near in FAMILY.nearby(problem):
        p = near.problem
        assert p == FAMILY.tuning_key(p) != FAMILY.tuning_key(problem)
        same = ("features", "head_dim", "head_dim_v", "dtype", "dtype_kv", "dtype_o", "page_size")
        assert all(getattr(p, name) == getattr(problem, name) for name in same)
        assert p.q_len >= problem.q_len and p.kv_len >= problem.kv_len


@pytest.mark.parametrize(
    "fields",
    [
        {"layout": "bhsd", "kv_layout": "bhsd"},
        {"q_strides": (4096000, 8192, 256, 1)},
        {"softcap": 50.0},
        {"dropout": 0.25},
        {"slopes_batched": True},
        {"deterministic": True},
        {"batch_invariant": True},
    ],
)
def test_what_does_not_decide_which_kernel_is_best(fields):
    usual = {"softcap": 30.0} if "softcap" in fields else {}
    usual |= {"dropout": 0.5} if "dropout" in fields else {}
    one, other = replace(PREFILL, **usual), replace(PREFILL, **(usual | fields))
    assert FAMILY.tuning_key(one) == FAMILY.tuning_key(other)


def test_pages_in_use_do_not_decide():
    assert FAMILY.tuning_key(PAGED) == FAMILY.tuning_key(replace(PAGED, pages=7, page_entries=500))


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_heads": 32},
        {"left": 100},
        {"right": None},
        {"alignment": 8},
        {"batch": 4},
        {"corner": "top_left"},
    ],
)
def test_what_does_decide(fields):
    assert FAMILY.tuning_key(PREFILL) != FAMILY.tuning_key(replace(PREFILL, **fields))


def test_a_corner_does_not_decide_between_equal_lengths():
    square = replace(PREFILL, q_len=512, kv_len=512)
    assert FAMILY.tuning_key(square) == FAMILY.tuning_key(replace(square, corner="top_left"))


def test_nearby_lengths_then_the_batch():
    assert [(str(n.problem), n.how) for n in FAMILY.nearby(PREFILL)] == [
        ("attention b3 h32:8 1024×4096 d128 bf16 causal", "lengths padded to 1024×4096"),
        ("attention b4 h32:8 1024×4096 d128 bf16 causal",
         "lengths padded to 1024×4096, batch to 4"),
    ]  # fmt: skip
    assert not list(FAMILY.nearby(replace(PREFILL, batch=4, q_len=1024, kv_len=4096)))


def test_packed_rows_keep_their_share():
    packed = AttentionProblem(6, 8, 1000, 1000, 64, total_q=3000, total_kv=3000,
                              others="packedq+packedkv")  # fmt: skip
    first = next(iter(FAMILY.nearby(packed)))
    assert (first.problem.q_len, first.problem.total_q) == (1024, 6 * 512)


# --- batch-invariant kernels -------------------------------------------------------------------


@pytest.mark.parametrize("problem", [PAGED, replace(PREFILL, q_len=1, right=None)], ids=str)
def test_one_kernel_for_every_batch(problem):
    planner = Planner(device=H200, constraints=Constraints(batch_invariant=True))
    chosen = {planner.select(replace(problem, batch=batch)).config for batch in (1, 2, 7, 64, 500)}
    assert len(chosen) == 1
    assert FAMILY.invariant(chosen.pop())


def test_splits_are_where_the_sequence_says():
    """Of a long sequence that has the device to itself, and of one among many."""
    planner = Planner(device=H200, constraints=Constraints(batch_invariant=True))
    lengths = {}
    for batch in (1, 64):
        plan = planner.select(replace(PAGED, batch=batch, kv_len=65536, page_entries=4096))
        lengths[batch] = (plan.config.scheduler, plan.config.split_len)
    assert lengths[1] == lengths[64]
    config = planner.select(PAGED).config
    assert not FAMILY.invariant(replace(config, scheduler="split", split_len=0))
    assert FAMILY.invariant(replace(config, scheduler="split", split_len=2048))


def test_the_longest_of_a_batch_does_not_decide():
    planner = Planner(device=H200, constraints=Constraints(batch_invariant=True))
    found = {
        planner.select(replace(PAGED, kv_len=n, page_entries=-(-n // 16))).config
        for n in (100, 5000, 99999)
    }
    assert len(found) == 1


def test_a_call_may_ask_for_what_a_dispatcher_may():
    planner, constraints = Planner(device=H200), Constraints(batch_invariant=True)
    for batch in (1, 64):
        p = replace(PAGED, batch=batch)
        found = planner.select(replace(p, batch_invariant=True))
        asked = planner.select(p, constraints)
        assert (found.config, found.reason) == (asked.config, asked.reason)
        assert FAMILY.invariant(found.config)
    assert planner.select(replace(PAGED, batch=1)).config != found.config


def test_a_batch_invariant_choice_says_so():
    plan = Planner(device=H200, constraints=Constraints(batch_invariant=True)).select(PAGED)
    assert plan.reason.endswith("chosen for batch = 16, 8192 keys, as for every batch and length")


def test_every_kernel_repeats():
    for config in FAMILY.default_space(PAGED, SM_90).expand(SM_90).configs:
        assert FAMILY.repeats(config)


# --- problems that are the same ----------------------------------------------------------------


def test_one_query_sees_every_key_under_a_causal_mask():
    assert AttentionProblem(2, 4, 1, 64, 64, right=0) == AttentionProblem(2, 4, 1, 64, 64)
    top = AttentionProblem(2, 4, 1, 64, 64, right=0, corner="top_left")
    window = AttentionProblem(2, 4, 1, 64, 64, left=7, right=0)
    own = AttentionProblem(2, 4, 1, 64, 64, right=0, others="usedq")
    assert [p.mask.kind for p in (top, window, own)] == ["causal", "window", "causal"]
