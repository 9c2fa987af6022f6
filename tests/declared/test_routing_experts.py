"""Experts of tokens: as torch's forms of known models choose them, ties, gradients; and rows sorted
by expert, whatever the experts are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.compile import build
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.runtime.interpreter import interpreter


def logits(rows: int, experts: int, dtype: torch.dtype = torch.float32, seed: int = 0):
    made = torch.randn(rows, experts, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


# --- choosing, as models do ---------------------------------------------------------------------


def mixtral(x, k):
    weights, ids = torch.topk(torch.softmax(x.float(), -1), k)
    return weights / weights.sum(-1, keepdim=True), ids


def gpt_oss(x, k):
    values, ids = torch.topk(x.float(), k)
    return torch.softmax(values, -1), ids


def deepseek_v3(x, bias, k, groups, best, factor):
    scores = x.float().sigmoid()
    by = scores + bias
    grouped = by.view(len(x), groups, -1)
    chosen = grouped.topk(2, -1).values.sum(-1).topk(best, -1).indices
    inside = torch.zeros(len(x), groups).scatter_(1, chosen, 1).bool()
    by = grouped.masked_fill(~inside[..., None], float("-inf")).flatten(1)
    ids = by.topk(k, -1).indices
    weights = scores.gather(1, ids)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * factor, ids


def deepseek_v2(x, k, groups, best, factor):
    scores = torch.softmax(x.float(), -1)
    grouped = scores.view(len(x), groups, -1)
    chosen = grouped.amax(-1).topk(best, -1).indices
    inside = torch.zeros(len(x), groups).scatter_(1, chosen, 1).bool()
    weights, ids = grouped.masked_fill(~inside[..., None], 0.0).flatten(1).topk(k, -1)
    return weights * factor, ids


def same(found, wanted):
    weights, ids = found
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    torch.testing.assert_close(weights, wanted[0], rtol=1e-5, atol=1e-7)
    assert torch.equal(ids.long(), wanted[1])


V3 = {"scoring": "sigmoid", "renormalize": True, "n_group": 8, "topk_group": 3}


def test_experts_are_those_that_models_choose():
    x = logits(7, 64)
    same(tw.topk_routing(x, k=3, renormalize=True), mixtral(x, 3))
    same(tw.topk_routing(x, k=4, scoring="softmax_of_chosen"), gpt_oss(x, 4))
    bias = logits(1, 64, seed=1)[0] * 0.3
    found = tw.topk_routing(x, k=6, bias=bias, routed_scaling_factor=2.5, **V3)
    same(found, deepseek_v3(x, bias, 6, 8, 3, 2.5))
    said = {"n_group": 8, "topk_group": 2, "group_score": "max", "routed_scaling_factor": 16.0}
    same(tw.topk_routing(x, k=6, **said), deepseek_v2(x, 6, 8, 2, 16.0))


def test_rows_have_any_rank_and_stride():
    x = logits(12, 40, torch.bfloat16)
    weights, ids = tw.topk_routing(x[:, :24], k=2)
    again = tw.topk_routing(x[:, :24].reshape(3, 4, 24), k=2)
    assert again[1].shape == (3, 4, 2)
    assert torch.equal(again[1].view(12, 2), ids) and torch.equal(again[0].view(12, 2), weights)


def test_of_equal_experts_the_lowest_is_first():
    x = torch.zeros(3, 40)
    x[1, 30:33] = 1.0
    x[2, 0] = -0.0  # equals 0.0
    _, ids = tw.topk_routing(x, k=5)
    assert ids.tolist() == [[0, 1, 2, 3, 4], [30, 31, 32, 0, 1], [0, 1, 2, 3, 4]]
    _, ids = tw.topk_routing(x[:1], k=4, n_group=5, topk_group=2, bias=torch.zeros(40))
    assert ids.tolist() == [[0, 1, 2, 3]]


def test_nan_and_infinity_are_chosen_as_torch_would():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1, nan, 3, -inf, inf, 2, -nan, 0], [-inf] * 8], dtype=torch.float32)
    values, at = tw.topk(x, k=6)
    assert at.tolist() == [[1, 6, 4, 2, 5, 0], [0, 1, 2, 3, 4, 5]]
    assert torch.equal(torch.nan_to_num(values, 9), torch.nan_to_num(x.gather(1, at.long()), 9))
    weights, ids = tw.topk_routing(x[1:], k=2)
    assert ids.tolist() == [[0, 1]] and weights.isnan().all()
    masked = torch.tensor([[0.5, -inf, 1.5, -inf, -inf, -inf, -inf, -inf]])
    weights, ids = tw.topk_routing(masked, k=3)
    assert ids.tolist() == [[2, 0, 1]] and weights[0, 2] == 0
    assert weights.sum().item() == pytest.approx(1)


FORMS = (
    ({"scoring": "softmax"}, lambda x, ids: torch.softmax(x, -1).gather(1, ids)),
    (
        {"scoring": "softmax", "renormalize": True},
        lambda x, ids: (w := torch.softmax(x, -1).gather(1, ids)) / w.sum(-1, keepdim=True),
    ),
    ({"scoring": "softmax_of_chosen"}, lambda x, ids: torch.softmax(x.gather(1, ids), -1)),
    (
        {"scoring": "sigmoid", "renormalize": True},
        lambda x, ids: (w := x.sigmoid().gather(1, ids)) / w.sum(-1, keepdim=True),
    ),
)


@pytest.mark.parametrize(
    ("said", "form"), FORMS, ids=("all", "all, renormalised", "of chosen", "sigmoid")
)
def test_gradients_of_weights_are_torchs(said, form):
    x = logits(5, 20).requires_grad_()
    bias = torch.zeros(20, requires_grad=True)
    weights, ids = tw.topk_routing(x, bias=bias, k=4, routed_scaling_factor=1.5, **said)
    arrived = torch.randn_like(weights)
    found, of_bias = torch.autograd.grad((weights * arrived).sum(), (x, bias))
    again = x.detach().double().requires_grad_()
    (1.5 * form(again, ids.long()) * arrived).sum().backward()
    torch.testing.assert_close(found.double(), again.grad, rtol=1e-4, atol=1e-6)
    assert not of_bias.any()


def test_topk_is_torchs():
    x = logits(4, 1000).view(2, 2, 1000).requires_grad_()
    values, at = tw.topk(x, k=7, index_dtype="int64")
    wanted = torch.topk(x, 7)
    assert torch.equal(values, wanted.values) and torch.equal(at, wanted.indices)
    (found,) = torch.autograd.grad(values.square().sum(), x)
    (right,) = torch.autograd.grad(wanted.values.square().sum(), x)
    assert torch.equal(found, right)


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("topk_routing", {}, "k = 0; state k=, from 1 to the 24 experts"),
        ("topk_routing", {"k": 25}, "k = 25; state k=, from 1 to the 24 experts"),
        ("topk_routing", {"k": 2, "n_group": 5}, "does not divide"),
        ("topk_routing", {"k": 2, "n_group": 4, "topk_group": 5}, "topk_group = 5 of 4"),
        ("topk_routing", {"k": 7, "n_group": 4, "topk_group": 1}, "1 groups have 6 experts"),
        ("topk_routing", {"k": 1, "n_group": 24}, "groups of one expert"),
        ("topk_routing", {"k": 1, "scoring": "tanh"}, "there are 'softmax'"),
        ("topk", {"k": 25}, "k = 25; state k=, from 1 to the 24 columns"),
        ("topk", {"k": 2, "index_dtype": "fp32"}, "index_dtype = fp32"),
    ],
)
def test_what_does_not_fit_is_refused(name, said, why):
    with pytest.raises(BadArgument, match=why):
        getattr(tw, name)(logits(2, 24), **said)


# --- sorting ------------------------------------------------------------------------------------

NAMES = ("order", "block_experts", "counts", "ends", "total", "places", "sorted_weights")


def slow(ids: np.ndarray, experts: int, block: int) -> tuple[list[int], list[int], list[int]]:
    """Order and block experts up to the total, and places, row by row."""
    flat = ids.reshape(-1).tolist()
    order, blocks, places = [], [], [-1] * len(flat)
    for expert in range(experts):
        mine = [row for row, one in enumerate(flat) if one == expert]
        for row in mine:
            places[row] = len(order) + mine.index(row)
        order += mine + [len(flat)] * (-len(mine) % block)
        blocks += [expert] * (-(-len(mine) // block))
    return order, blocks, places


def check(ids: np.ndarray, experts: int, block: int, found) -> None:
    """Whether maps are those of ids."""
    order, of_blocks, counts, ends, total, places = found[:6]
    wanted, blocks, at = slow(ids, experts, block)
    assert total.tolist() == [len(wanted)] and ends[-1] == len(wanted)
    assert order[: len(wanted)].tolist() == wanted and (order[len(wanted) :] == ids.size).all()
    assert of_blocks[: len(blocks)].tolist() == blocks and (of_blocks[len(blocks) :] == -1).all()
    assert places.reshape(-1).tolist() == at
    assert counts.tolist() == [(ids == e).sum() for e in range(experts)]
    assert len(order) == len(of_blocks) * block >= len(wanted)
    # A permutation: every row with an expert is in one slot, and its place says which.
    rows = order[order < ids.size]
    assert sorted(rows.tolist()) == np.flatnonzero((ids >= 0) & (ids < experts)).tolist()
    assert (order[places.reshape(-1)[rows]] == rows).all()


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_maps_are_a_permutation(data):
    experts, block = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    tokens, k = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    each = st.integers(-1, experts)
    drawn = data.draw(st.lists(each, min_size=tokens * k, max_size=tokens * k))
    ids = np.array(drawn, np.int32).reshape(tokens, k)
    check(ids, experts, block, tw.sort_by_expert(ids, experts=experts, block=block))


EDGES = {
    "one expert": np.full((150, 2), 3),
    "empty experts": np.array([[0, 6], [6, 0]] * 75),
    "no expert": np.full((150, 2), -1),
    "beyond the experts": np.array([[9, 2], [7, -5]] * 75),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("chunk", [0, 256, 512])
def test_edges(edge, chunk):
    ids = EDGES[edge].astype(np.int64)
    family, this = ops.family("sort_by_expert"), arch("sm_90")
    problem = family.problem_type(tokens=150, k=2, experts=7, block=4, id_dtype="int64")
    every = family.default_space(problem, this).expand(this).configs
    name = next(c.name for c in every if (chunk, 1) == (c.CHUNK, c.alignment))
    dispatcher = Dispatcher(device="h200_sxm")
    found = dispatcher.run_named(name, ids, experts=7, block=4)
    check(ids, 7, 4, found)


def test_many_chunks_are_summed_in_order():
    family, this = ops.family("sort_by_expert"), device("h200_sxm")
    problem = family.problem_type(tokens=70_000, k=1, experts=18, id_dtype="int32")
    every = family.default_space(problem, arch("sm_90")).expand(arch("sm_90")).configs
    config = next(c for c in every if c.CHUNK == 256)
    launch = family.launch(config, problem, this)
    (scan,) = (step for step in launch.steps if step.part == "scan")
    shape = 274, 32  # chunks, and experts up to a power of two
    memory = {"chunk_counts": np.random.default_rng(0).integers(0, 99, shape).astype(np.int32)}
    memory["before"] = np.zeros(shape, np.int32)
    counts = np.zeros(18, np.int32)
    interpreter().run(
        family.sources(config, arch("sm_90")),
        replace(launch, steps=(scan,)),
        {"counts": counts},
        ["counts"],
        temporaries=memory,
    )
    summed = memory["chunk_counts"].cumsum(0)
    assert (memory["before"] == summed - memory["chunk_counts"]).all()
    assert (counts == summed[-1, :18]).all()


@pytest.mark.parametrize(
    ("tokens", "chunk"),
    [(32, 0), (64, 256), (1000, 256), (16384, 256), (131072, 1024), (10_000_000, 2048)],
)
def test_chunks_fill_the_gpu_and_are_not_too_many(tokens, chunk):
    problem = ops.family("sort_by_expert").problem_type(
        tokens=tokens, k=8, experts=128, block=64, id_dtype="int32"
    )
    config = Dispatcher(device="h200_sxm").select(problem).config
    assert chunk == config.CHUNK


@pytest.mark.turns(16)
@pytest.mark.parametrize("chunk", [1024, 2048])
def test_long_chunks_keep_the_order_of_rows(chunk):
    """Of few experts, of whom one has most rows."""
    ids = np.random.default_rng(1).integers(-1, 40, (701, 3)).clip(-1, 18).astype(np.int32)
    family, this = ops.family("sort_by_expert"), arch("sm_90")
    problem = family.problem_type(tokens=701, k=3, experts=19, block=8, id_dtype="int32")
    every = family.default_space(problem, this).expand(this).configs
    name = next(c.name for c in every if (chunk, 1) == (c.CHUNK, c.alignment))
    check(ids, 19, 8, Dispatcher(device="h200_sxm").run_named(name, ids, experts=19, block=8))


def test_experts_of_other_devices_go_nowhere_and_weights_go_along():
    rng = np.random.default_rng(3)
    ids = rng.integers(-1, 17, (20, 2)).astype(np.int32)  # -1 and 16: none of the 16 anywhere
    here = np.full(16, -1, np.int32)
    here[[3, 15, 4]] = [2, 0, 1]
    weights = rng.random((20, 2), np.float32)
    found = tw.sort_by_expert(ids, expert_map=here, weights=weights, experts=3, block=8)
    apart = (one.reshape(4, 5, 2) for one in (ids, weights))
    again = tw.sort_by_expert(next(apart), expert_map=here, weights=next(apart), experts=3, block=8)
    assert again[5].shape == (4, 5, 2) and (again[5].reshape(20, 2) == found[5]).all()
    local = np.where((ids >= 0) & (ids < 16), here[np.clip(ids, 0, 15)], -1)
    check(local, 3, 8, found)
    order, of_slots = found[0], found[6]
    padded = np.append(weights.reshape(-1), np.float32(0))
    assert (of_slots == padded[order]).all()


def test_gradients_of_weights_come_back():
    ids = torch.tensor([[0, 1], [2, 0], [1, -1]], dtype=torch.int32)
    weights = torch.rand(3, 2, requires_grad=True)
    found = dict(
        zip(NAMES, tw.sort_by_expert(ids, weights=weights, experts=3, block=2), strict=True)
    )
    arrived = torch.arange(1.0, 1.0 + len(found["sorted_weights"]))
    (back,) = torch.autograd.grad((found["sorted_weights"] * arrived).sum(), weights)
    places = found["places"].long()
    assert torch.equal(back, torch.where(places >= 0, places + 1.0, 0.0))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "state experts="),
        ({"experts": 1025}, "at most 1024"),
        ({"experts": 4, "block": -1}, "block has 1 slot at least|is -"),
        ({"experts": 4, "expert_map": np.zeros(3, np.int64)}, "must be int32"),
    ],
)
def test_what_cannot_be_sorted_is_refused(said, why):
    with pytest.raises(BadArgument, match=why):
        tw.sort_by_expert(np.zeros((4, 2), np.int32), **said)


def test_ids_that_are_not_stated_to_be_whole_are_refused():
    with pytest.raises(BadArgument, match="id_dtype may be int32, int64"):
        ops.family("sort_by_expert").problem_type(tokens=4, k=2, experts=3)


def test_nothing_is_sorted_to_nothing():
    found = tw.sort_by_expert(np.zeros((0, 2), np.int32), experts=3, block=4)
    assert [one.size for one in found[:2]] == [0, 0] and found[4].tolist() == [0]


@pytest.mark.turns(48)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_of_many_rows_are_built(target, store):
    problem = ops.family("sort_by_expert").problem_type(
        tokens=2048, k=8, experts=256, block=64, id_dtype="int32", has_weights=True
    )
    config = Dispatcher(device="h200_sxm").select(problem).config
    report = build([(config, target)], store=store, workers=1)
    report.raise_if_failed()
    assert {one.kernel.part for one in report.results} == {"count", "scan", "place"}


@pytest.mark.turns(48)
def test_many_rows_are_sorted_in_emulation(store):
    problem = ops.family("sort_by_expert").problem_type(
        tokens=150, k=4, experts=10, block=8, id_dtype="int32", has_weights=True
    )
    result = verify.verify(Dispatcher(device="emulated:gfx942", store=store), problem)
    assert result.ok and not result.findings, result


# --- the sum of a token's experts ---------------------------------------------------------------


def test_a_sum_of_experts_reads_no_row_that_is_none():
    """Places of no row, on either side, whatever the other rows hold."""
    rows = np.full((6, 80), np.nan, np.float32)
    rows[[1, 4]] = np.arange(160, dtype=np.float32).reshape(2, 80)
    places = np.array([[1, -1, 4], [-1, -(2**31), 6], [2**31 - 1, 4, -1]], np.int32)
    weights = np.array([[2, 5, 3], [1, 1, 1], [7, 0.5, 7]], np.float32)
    y = tw.sum_of_experts(rows, places, weights=weights, routed_scaling_factor=2.0)
    assert np.array_equal(y, [4 * rows[1] + 6 * rows[4], 0 * rows[1], rows[4]])


def test_sums_of_experts_do_not_depend_on_where_rows_lie():
    """In fp32, where the order of 2^24 and ones decides what is lost."""
    rows = np.ones((9, 64), np.float32)
    rows[0] = 2**24
    places = np.arange(9, dtype=np.int32)[None]
    y = tw.sum_of_experts(rows, places)
    again = tw.sum_of_experts(rows[::-1].copy(), places[:, ::-1].copy())
    assert np.array_equal(y, again)


def test_gradients_of_a_sum_of_experts_are_torchs():
    torch.manual_seed(0)
    places = torch.tensor([[[3, 0], [-1, 5]], [[1, -1], [4, 2]]], dtype=torch.int32)
    rows, weights, shared = (
        x.requires_grad_() for x in (torch.randn(7, 40), torch.rand(2, 2, 2), torch.randn(2, 2, 40))
    )
    arrived = torch.randn(2, 2, 40)

    def grads(y):
        return torch.autograd.grad((y * arrived).sum(), (rows, weights, shared))

    there = (places >= 0)[..., None]
    terms = torch.where(there, rows[places.clamp(min=0).long()], 0.0)
    wanted = 3.0 * (terms * weights[..., None]).sum(-2) + shared
    y = tw.sum_of_experts(rows, places, weights=weights, shared=shared, routed_scaling_factor=3.0)
    assert y.shape == wanted.shape and torch.allclose(y, wanted, atol=1e-5)
    for got, right in zip(grads(y), grads(wanted), strict=True):
        assert torch.allclose(got, right, atol=1e-5)
    (alone,) = torch.autograd.grad(tw.sum_of_experts(rows, places).sum(), rows)
    assert alone.sum(1).tolist() == [40.0] * 6 + [0.0]


def test_sums_of_no_tokens_and_of_no_rows():
    none = np.zeros((0, 3), np.int32)
    assert tw.sum_of_experts(np.ones((4, 32), np.float32), none).shape == (0, 32)
    with pytest.raises(BadArgument, match="1 choice at least"):
        tw.sum_of_experts(np.ones((4, 32), np.float32), np.zeros((2, 0), np.int32))


@pytest.mark.turns(4)
@pytest.mark.parametrize(("tokens", "experts", "k"), [(1, 8, 2), (16, 128, 8), (7, 100, 5)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_few_tokens_are_sorted_as_by_two_operations(tokens, experts, k, scoring):
    """Equal logits among them: ties are broken alike."""
    x = logits(tokens, experts).mul(4).round().div(4).bfloat16()
    said = {"k": k, "renormalize": True, "scoring": scoring, "routed_scaling_factor": 2.5}
    weights, ids = tw.topk_routing(x, **said)
    order, _, _, ends, _, places = tw.sort_by_expert(ids, experts=experts)
    found = tw.sorted_routing(x, **said)
    for one, other in zip(found, (weights, ids, order, ends, places), strict=True):
        assert torch.equal(one, other)


def test_more_tokens_than_one_workgroup_holds_are_refused():
    for tokens, experts, k in ((33, 64, 4), (17, 512, 2)):
        with pytest.raises(BadArgument, match="call topk_routing and sort_by_expert"):
            tw.sorted_routing(logits(tokens, experts), k=k)


def test_of_choices_with_one_place_one_has_its_gradients():
    rng = np.random.default_rng(4)
    rows, dy = (rng.standard_normal((2, 8), np.float32) for _ in range(2))
    weights = np.array([[0.5, 0.25], [2.0, 4.0]], np.float32)
    places = np.array([[1, 1], [0, -1]], np.int32)
    made = np.full((2, 8), np.nan, np.float32), np.full((2, 2), np.nan, np.float32)
    drows, dweights = tw.sum_of_experts_backward(rows, places, dy, weights=weights, out=made)
    np.testing.assert_allclose(drows[0], 2 * dy[1], rtol=1e-5)
    np.testing.assert_allclose(dweights[1], [rows[0] @ dy[1], 0], rtol=1e-4)
    owner = int(dweights[0, 1] != 0)
    np.testing.assert_allclose(dweights[0, owner], rows[1] @ dy[0], rtol=1e-4)
    np.testing.assert_allclose(drows[1], weights[0, owner] * dy[0], rtol=1e-5)
    assert dweights[0, 1 - owner] == 0
