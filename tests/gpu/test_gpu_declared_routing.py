"""Experts of tokens, and rows sorted by expert, on a real GPU: gradients against torch, and ten
thousand random routings."""

from __future__ import annotations

import pytest
from gpu_arch import ARCH

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.arch import arch  # noqa: E402

pytestmark = pytest.mark.gpu

V3 = {"scoring": "sigmoid", "renormalize": True, "n_group": 8, "topk_group": 4, "has_bias": True}


def every_config(problem):
    """The names of all kernels that serve a problem."""
    family, this = ops.family(problem.family), arch(ARCH)
    found = family.default_space(problem, this).expand(this).configs
    return [config.name for config in found if family.supports(config, problem, this)]


def sorted_slowly(ids, experts, block):
    """Order, up to the total, and places, by torch's sort."""
    flat = ids.reshape(-1).long()
    here = (flat >= 0) & (flat < experts)
    expert, rows = torch.where(here, flat, experts).sort(stable=True)
    counts = torch.bincount(expert, minlength=experts + 1)[:experts]
    padded = (counts + block - 1) // block * block
    ends = padded.cumsum(0)
    within = torch.arange(len(rows), device=ids.device)[: int(counts.sum())]
    expert, rows = expert[: len(within)], rows[: len(within)]
    at = (ends - padded)[expert] + within - (counts.cumsum(0) - counts)[expert]
    order = flat.new_full((int(ends[-1]),), flat.numel())
    order[at] = rows
    places = torch.full_like(flat, -1)
    places[rows] = at
    return order, places, counts, ends


def test_ten_thousand_random_routings_are_sorted():
    """Routings are drawn in tens, side by side in one call, as 10 × 24 experts: the rows of each
    routing have experts of their own."""
    draw = torch.Generator("cuda").manual_seed(0)
    for turn in range(1000):
        tokens = 1 + turn * 7 % 97
        ids = torch.randint(-1, 24, (10, tokens, 3), device="cuda", generator=draw)
        if turn % 5 == 0:  # few of the experts are chosen
            ids = torch.where(ids < 3, ids, 2)
        apart = 24 * torch.arange(10, device="cuda")[:, None, None]
        ids = torch.where(ids < 0, ids, ids + apart).int().view(-1, 3)
        block = (1, 4, 16)[turn % 3]
        order, blocks, counts, ends, total, places = tw.sort_by_expert(
            ids, experts=240, block=block
        )
        wanted, at, many, last = sorted_slowly(ids, 240, block)
        used = int(last[-1])
        assert int(total) == used and torch.equal(order[:used].long(), wanted)
        assert (order[used:] == ids.numel()).all() and torch.equal(places.view(-1).long(), at)
        assert torch.equal(counts.long(), many) and torch.equal(ends.long(), last)
        experts = torch.arange(240, device="cuda").repeat_interleave((many + block - 1) // block)
        assert torch.equal(blocks[: used // block].long(), experts)
        assert (blocks[used // block :] == -1).all()


@pytest.mark.parametrize("tokens", [8, 3000])
def test_they_repeat_bit_for_bit(tokens):
    logits = torch.randn(tokens, 256, device="cuda")
    bias = torch.randn(256, device="cuda") * 0.1
    said = {name: value for name, value in V3.items() if name != "has_bias"}

    def run():
        weights, ids = tw.topk_routing(logits, bias=bias, k=8, **said)
        return weights, ids, *tw.sort_by_expert(ids, weights=weights, experts=256, block=64)

    first = run()
    for _ in range(20):
        assert all(map(torch.equal, first, run()))


@pytest.mark.parametrize("tokens", [8, 3000])
def test_a_captured_call_is_replayed(tokens):
    ids = torch.randint(0, 64, (tokens, 8), device="cuda", dtype=torch.int32)
    out = tw.sort_by_expert(ids, experts=64, block=16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.sort_by_expert(ids, experts=64, block=16, out=out)
    for _ in range(3):
        ids.copy_(torch.randint(0, 64, (tokens, 8), device="cuda"))
        for one in out:
            one.fill_(-7)
        graph.replay()
        wanted, at, *_ = sorted_slowly(ids, 64, 16)
        assert torch.equal(out[0][: len(wanted)].long(), wanted)
        assert torch.equal(out[5].view(-1).long(), at)


@pytest.mark.parametrize("rows", [100, 2000])
def test_all_kernels_give_the_same_maps(rows, dispatcher):
    problem = ops.family("sort_by_expert").problem_type(
        tokens=rows, k=1, experts=40, block=8, id_dtype="int32"
    )
    ids = torch.randint(-1, 41, (rows, 1), device="cuda", dtype=torch.int32)
    names = every_config(problem)
    every = [dispatcher.run_named(name, ids, experts=40, block=8) for name in names]
    assert len(names) > 1
    for one in every[1:]:
        assert all(map(torch.equal, every[0], one))


@pytest.mark.parametrize("scoring", ["softmax", "softmax_of_chosen", "sigmoid"])
def test_gradients_are_torchs(scoring):
    x = torch.randn(2, 333, 128, device="cuda").requires_grad_()
    weights, ids = tw.topk_routing(x, k=8, scoring=scoring, renormalize=True)
    arrived = torch.randn_like(weights)
    (found,) = torch.autograd.grad(weights, x, arrived)
    wide = x.detach().double().requires_grad_()
    at = ids.long()
    if scoring == "sigmoid":
        made = wide.sigmoid().gather(-1, at)
        made = made / made.sum(-1, keepdim=True)
    else:  # a softmax that is renormalised is that of the chosen
        made = torch.softmax(wide.gather(-1, at), -1)
    (right,) = torch.autograd.grad(made, wide, arrived.double())
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("slots", [5000, 7000])
def test_gradients_of_a_sum_of_experts_are_torchs(slots):
    """Some rows have no choice, and some choices no row; and the same bits come twice."""
    tokens, k, width = 777, 8, 520
    draw = torch.Generator("cuda").manual_seed(1)
    places = torch.full((tokens * k,), -1, device="cuda", dtype=torch.int32)
    some = torch.randperm(tokens * k, generator=draw, device="cuda")[:4500]
    places[some] = torch.randperm(slots, generator=draw, device="cuda")[:4500].int()
    places = places.reshape(tokens, k)
    rows = torch.randn(slots, width, device="cuda", generator=draw).bfloat16()
    weights = torch.rand(tokens, k, device="cuda", generator=draw)
    dy = torch.randn(tokens, width, device="cuda", generator=draw).bfloat16()
    given = rows.requires_grad_(), weights.requires_grad_()

    def gradients():
        y = tw.sum_of_experts(given[0], places, weights=given[1], routed_scaling_factor=2.5)
        return torch.autograd.grad(y, given, dy)

    wide = [one.detach().double().requires_grad_() for one in given]
    there = (places >= 0)[..., None]
    terms = torch.where(there, wide[0][places.clamp(min=0).long()], 0) * wide[1][..., None]
    right = torch.autograd.grad(terms.sum(1) * 2.5, wide, dy.double())
    first, again = gradients(), gradients()
    assert all(map(torch.equal, first, again))
    torch.testing.assert_close(first[0].double(), right[0], rtol=1e-2, atol=1e-6)
    torch.testing.assert_close(first[1].double(), right[1], rtol=1e-4, atol=1e-3)
