"""HSTU's attention: gradients against torch, each mask against its definition by ids, jagged
sequences and numbers that say what is not so, and calls that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import ops, verify
from tilewright.errors import BadArgument

torch = pytest.importorskip("torch")

SEED = 67
"""Makes, for the gradients, a sequence of 114 rows of which 20 are targets: a step of 16 rows lies
behind the tile that the targets begin in."""
LENGTHS = (70, 0, 33, 9)
TARGETS = (7, 0, 3, 9)
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "targets": {"num_targets": TARGETS},
    "window": {"max_attn_len": 20},
    "prefix": {"contextual_seq_len": 6},
    "full rows": {"max_attn_len": 10, "min_full_attn_seq_len": 12},
    "window of targets": {"num_targets": TARGETS, "max_attn_len": 20},
    "all": {
        "num_targets": (7, 0, 3, 3),
        "contextual_seq_len": 6,
        "max_attn_len": 9,
        "min_full_attn_seq_len": 12,
    },
    "all but targets": {
        "contextual_seq_len": 6,
        "max_attn_len": 9,
        "min_full_attn_seq_len": 12,
    },
    "none": {"causal": False},
}


def by_ids(n: int, targets: int, mask: dict[str, Any]) -> torch.Tensor:
    """Which keys rows see, by ids: rows of the prefix have the id 0, those of the history 1 and on,
    and all targets the id behind them."""
    if not mask.get("causal", True):
        return torch.ones(n, n, dtype=torch.bool)
    prefix = mask.get("contextual_seq_len", 0)
    shift = prefix - 1 if prefix else 0
    most = n - shift - targets
    ids = (torch.arange(n) - shift).clamp(0, most)
    apart = ids[:, None] - ids[None, :]
    found = (apart > 0) | torch.eye(n, dtype=torch.bool)
    if window := mask.get("max_attn_len", 0):
        near = apart <= window
        if full := mask.get("min_full_attn_seq_len", 0):
            near |= (ids >= most - full)[:, None]
        found &= near
    if prefix:
        found |= (ids == 0)[:, None] & (ids < most)[None, :]
    return found


def plain(q, k, v, lengths, mask, most: int, alpha: float) -> torch.Tensor:
    """The attention of padded sequences, one by one."""
    parts = []
    targets = mask.get("num_targets", (0,) * len(lengths))
    for b, n in enumerate(lengths):
        rows = slice(sum(lengths[:b]), sum(lengths[:b]) + n)
        s = alpha * torch.einsum("ihd,jhd->hij", q[rows], k[rows])
        p = torch.nn.functional.silu(s) / most * by_ids(n, targets[b], mask)
        parts.append(torch.einsum("hij,jhd->ihd", p, v[rows]))
    return torch.cat(parts)


def offsets_of(lengths) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def arrays(total: int, *, dim: int = 16, dim_v: int = 16, heads: int = 2) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    every = torch.randn(total, heads, 2 * dim + dim_v, generator=made)
    return [*torch.split(every, [dim, dim, dim_v], dim=-1)]


def options(mask: dict[str, Any]) -> dict[str, Any]:
    said = {"max_seq_len": 80, "alpha": 0.3, **mask}
    if "num_targets" in said:
        said["num_targets"] = torch.tensor(said["num_targets"], dtype=torch.int32)
    return said


@pytest.mark.grid(1)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_gradients_are_torchs(mask):
    x = [one.requires_grad_() for one in arrays(sum(LENGTHS))]
    y = [one.detach().double().requires_grad_() for one in x]
    o = tilewright.hstu_attention(*x, offsets_of(LENGTHS), **options(mask))
    wanted = plain(*y, LENGTHS, mask, 80, 0.3)
    torch.testing.assert_close(o.double(), wanted, rtol=1e-4, atol=1e-5)
    given = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(o, x, given)
    for one, other in zip(found, torch.autograd.grad(wanted, y, given.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


SHORT = (
    {"contextual_seq_len": 5, "max_attn_len": 9, "min_full_attn_seq_len": 18},
    {},
)


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", ["hstu_attention", "hstu_attention_backward"])
@pytest.mark.parametrize("mask", SHORT, ids=["all", "targets"])
def test_short_tiles_are_right(name, mask):
    """Tiles that are cut by every edge of the masks, with whole steps between and behind them."""
    sizes = {"rows": 150, "heads": 1, "head_dim": 16, "head_dim_v": 16, "bounds": 2}
    problem = ops.family(name).problem_type(**sizes, **mask, has_num_targets=True, dtype="fp32")
    dispatcher = tilewright.Dispatcher(device="h200_sxm")
    config = replace(dispatcher.select(problem).config, TILE=16, STEP=16)
    found = verify.verify(dispatcher, problem, config.name, seed=SEED)
    assert found.ok, found


def test_rows_behind_the_last_sequence_are_zero():
    q, k, v = (one.requires_grad_() for one in arrays(60))
    offsets = torch.tensor([0, 20, 41], dtype=torch.int32)
    o = tilewright.hstu_attention(q, k, v, offsets, max_seq_len=40, alpha=1.0)
    grads = torch.autograd.grad(o.square().sum(), (q, k, v))
    for one in (o, *grads):
        assert not one[41:].any() and one[:41].any(-1).all()


@pytest.mark.turns(8)
def test_numbers_that_say_what_is_not_so():
    """Offsets beyond the rows, and more targets than there are rows behind the prefix."""
    q, k, v = arrays(40)
    said = {"max_seq_len": 40, "alpha": 0.5, "contextual_seq_len": 4}

    def found(offsets, targets):
        at, count = (torch.tensor(one, dtype=torch.int32) for one in (offsets, targets))
        return tilewright.hstu_attention(q, k, v, at, num_targets=count, **said)

    assert torch.equal(found([0, 15, 900], [100, -3]), found([0, 15, 40], [11, 0]))


@pytest.mark.turns(8)
def test_a_sequence_is_as_if_it_were_alone():
    q, k, v = (one.contiguous().numpy() for one in arrays(sum(LENGTHS)))
    offsets = offsets_of(LENGTHS).numpy()
    o = tilewright.hstu_attention(q, k, v, offsets, max_seq_len=9, alpha=0.3)
    rows, alone = slice(70, 103), np.array([0, 33], np.int32)
    x = [one[rows] for one in (q, k, v)]
    one = tilewright.hstu_attention(*x, alone, max_seq_len=9, alpha=0.3)
    assert np.array_equal(o[rows], one)


@pytest.mark.turns(8)
def test_a_prefix_of_all_rows_is_no_mask():
    x = arrays(30)
    at = offsets_of((30,))
    said = {"max_seq_len": 30, "alpha": 0.3}
    one = tilewright.hstu_attention(*x, at, contextual_seq_len=30, **said)
    assert torch.equal(one, tilewright.hstu_attention(*x, at, causal=False, **said))


REFUSED = (
    ({"causal": False, "max_attn_len": 3}, "need causal=True"),
    ({"min_full_attn_seq_len": 3}, "without max_attn_len"),
    ({"max_attn_len": -1}, "max_attn_len = -1 is negative"),
    ({"head_dim": 300}, "head_dim = 300 is not in 1"),
    ({"dtype": "e4m3fn"}, "e4m3fn operands; it multiplies"),
    ({"bounds": 1}, "offsets has 1 elements"),
    ({"k_row": 2**23 + 16}, "k_row = 8388624 elements between rows"),
)


@pytest.mark.parametrize(("said", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_does_not_fit_is_refused(said, why):
    usual = {"rows": 9, "heads": 1, "head_dim": 16, "head_dim_v": 16, "bounds": 2}
    with pytest.raises(BadArgument, match=why):
        ops.family("hstu_attention").problem_type(**{**usual, **said})


def test_calls_that_are_refused():
    q, k, v = arrays(8)
    at = offsets_of((8,))
    with pytest.raises(BadArgument, match="needs alpha=, a number"):
        tilewright.hstu_attention(q, k, v, at, max_seq_len=8)
    with pytest.raises(BadArgument, match="offsets of hstu_attention is int64"):
        tilewright.hstu_attention(q, k, v, at.long(), max_seq_len=8, alpha=1.0)
    with pytest.raises(BadArgument, match=r"k of hstu_attention has shape"):
        tilewright.hstu_attention(q[:4], k, v, at, max_seq_len=8, alpha=1.0)


def test_tiles_are_those_of_the_architecture():
    family = ops.family("hstu_attention")
    problem = family.problem_type(rows=4096, heads=4, head_dim=128, head_dim_v=128, bounds=9)
    found = {}
    for name in ("sm_90", "gfx942", "gfx1100"):
        configs = family.default_space(problem, tilewright.arch.arch(name)).expand(name).configs
        found[name] = {(c.TILE, c.STEP, c.num_warps, c.num_stages) for c in configs}
        assert {(c.HEAD_DIM, c.V_DIM) for c in configs} == {(128, 128)} and len(configs) < 20
    assert (128, 64, 8, 2) in found["sm_90"] and found["sm_90"] != found["gfx942"]
    assert max(tile * step for tile, step, *_ in found["gfx1100"]) <= 2048


@pytest.mark.parametrize(
    ("name", "head_dim", "tile"),
    [("hstu_attention", 128, (64, 64)), ("hstu_attention_backward", 256, (32, 32))],
)
def test_tiles_without_tuning_have_64_rows_or_as_many_as_there_are(name, head_dim, tile):
    """A large tile has more rows behind the end of a sequence, and a small one reads keys more
    often."""
    for mean in (10, 200, 972):
        sizes = {"heads": 4, "head_dim": head_dim, "head_dim_v": head_dim, "bounds": 513}
        problem = ops.family(name).problem_type(rows=512 * mean, **sizes)
        chosen = tilewright.Dispatcher(device="h200_sxm").select(problem).config
        assert tile == (chosen.TILE, chosen.STEP)
