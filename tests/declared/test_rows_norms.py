"""Norms of rows and their rounding to 8 bits: gradients against torch, means far from 0, special
values, and calls that are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tilewright as tw
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.compile import build
from tilewright.errors import BadArgument

COLUMNS = 40


def drawn(*shape, **said):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), **said)


def by_torch(name, x, w, b, eps):
    if name == "rms_norm":
        return F.rms_norm(x, (x.shape[-1],), w, eps)
    return F.layer_norm(x, (x.shape[-1],), w, b, eps)


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("wanted", ["x w b residual", "w", "x", "residual b"])
@pytest.mark.parametrize("used", ["both", "y", "total"])
def test_gradients_are_torchs(name, wanted, used):
    """Rows of any rank, some operands alone, some outputs alone, and gradients that arrive with
    strides."""
    shapes = {"x": (2, 3, COLUMNS), "w": (COLUMNS,), "b": (COLUMNS,), "residual": (2, 3, COLUMNS)}
    if name == "rms_norm":
        del shapes["b"]
    given = {n: drawn(*shape) + 0.5 for n, shape in shapes.items()}
    ours = {n: x.clone().requires_grad_(n in wanted.split()) for n, x in given.items()}
    theirs = {n: x.clone().requires_grad_(n in wanted.split()) for n, x in given.items()}
    weight = drawn(COLUMNS, 3, 2)

    def loss(y, total):
        parts = {"y": (y,), "total": (total,), "both": (y, total)}[used]
        return sum((one.transpose(0, 2) * weight).sum() for one in parts)

    mine = dict(ours)
    total = theirs["x"] + theirs["residual"]
    expected = by_torch(name, total, theirs["w"], theirs.get("b"), 1e-3)
    found, summed = getattr(tw, name)(mine.pop("x"), **mine, eps=1e-3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(summed, total)
    if used == "total" and wanted == "w":
        return  # it has no gradient to be given
    loss(found, summed).backward()
    loss(expected, total).backward()
    for n, one in theirs.items():
        grad = None if ours[n].grad is None else ours[n].grad
        assert (grad is None) == (not one.requires_grad), n
        if one.requires_grad:
            wants = torch.zeros_like(one) if one.grad is None else one.grad
            torch.testing.assert_close(grad, wants, msg=lambda said, n=n: f"{n}: {said}")


def test_a_gradient_arrives_in_the_results_type_and_leaves_in_the_operands():
    x, w = drawn(5, COLUMNS).bfloat16().requires_grad_(), drawn(COLUMNS).requires_grad_()
    y = tw.layer_norm(x, w=w, offset=1.0, out_dtype="fp32")
    y.square().sum().backward()
    wide, far = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    F.layer_norm(wide, (COLUMNS,), far + 1).square().sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(w.grad.double(), far.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("said", [{"smooth": torch.ones(COLUMNS)}, {"quant": "row"}])
def test_forms_without_gradients_say_so(said):
    x = drawn(2, COLUMNS).requires_grad_()
    types = {"out_dtype": "int8"} if "quant" in said else {}
    with pytest.raises(BadArgument, match=r"layer_norm with .* has no gradients"):
        tw.layer_norm(x, **said, **types)
    with torch.no_grad():
        tw.layer_norm(x, **said, **types)


@pytest.mark.turns(12)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_a_workgroup_may_take_many_tiles(name, ahead):
    """As it does where there are more rows than in the other tests."""
    family, this = ops.family(name), arch("sm_90")
    problem = family.problem_type(
        rows=37, columns=COLUMNS, has_w=True, has_residual=True, has_dtotal=True
    )
    config = next(
        one
        for one in family.default_space(problem, this).expand(this).configs
        if (2, 8, ahead) == (one.ROWS, one.TURNS, one.AHEAD) and family.supports(one, problem, this)
    )
    found = verify.verify(tw.Dispatcher(device="h200_sxm"), problem, config.name, seed=1)
    assert found.ok, found


# --- tiles ----------------------------------------------------------------------------------------


def chosen(name, **fields):
    problem = ops.family(name).problem_type(**fields)
    return problem, tw.Dispatcher(device="h200_sxm").select(problem).config


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("columns", [2500, 8202, 12288, 17000])
def test_long_rows_are_right_in_every_block(name, columns):
    """In two tiles, in one, and in pieces of either size; one by one, read again or not, and in
    turns of workgroups that load rows ahead."""
    family, this = ops.family(name), arch("sm_90")
    problem = family.problem_type(
        rows=5, columns=columns, has_w=True, has_residual=columns == 2500, statistics=True
    )
    blocks = {2500: (4096,), 17000: (24576, 4096, 8192)}
    held, *pieces = blocks.get(columns, (12288, 4096))
    kinds = {}
    for one in family.default_space(problem, this).expand(this).configs:
        if family.supports(one, problem, this) and one.ROWS == 1:
            kinds[one.BLOCK, one.AGAIN, one.AHEAD] = one
    assert {*kinds} == {
        *((n, False, 0) for n in (held, *pieces)), *((held, False, n) for n in (1, 2, 4)),
        (held, True, 0),
    }  # fmt: skip
    few = replace(device("h200_sxm"), compute_units=2)
    for config in (one for (*_, ahead), one in kinds.items() if ahead in (0, 2)):
        found = verify.verify(tw.Dispatcher(device=few), problem, config.name, seed=1)
        assert found.ok, found


def test_long_rows_are_read_again_where_every_sm_has_several():
    """By the fewest warps whose rows an SM's own cache has together, and as few registers."""
    layer, rms = partial(chosen, "layer_norm", rows=1000), partial(chosen, "rms_norm", rows=1100)
    for one, columns, warps, registers in (
        (layer, 8192, 8, 64), (layer, 12288, 8, 64), (layer, 20000, 16, 64),
        (rms, 6144, 8, 32), (rms, 12288, 16, 40), (rms, 20000, 32, 32),
    ):  # fmt: skip
        config = one(columns=columns)[1]
        assert (config.AGAIN, config.num_warps, config.maxnreg) == (True, warps, registers)
    for more in ({"rows": 250}, {"columns": 12287}, {"quant": "row", "out_dtype": "int8"}):
        assert not chosen("layer_norm", **{"rows": 1000, "columns": 12288, **more})[1].AGAIN
    for columns, warps in ((4096, 4), (8192, 8)):  # an SM has as many rows that are held
        once = chosen("rms_norm", rows=2000, columns=columns)[1]
        assert (once.HELD, once.AGAIN, once.AHEAD, once.num_warps) == (True, False, 0, warps)
    problem = layer(columns=12288)[0]
    assert not tw.Dispatcher(device="mi300x").select(problem).config.AGAIN


def test_rows_that_no_cache_has_are_loaded_ahead():
    problem, config = chosen("rms_norm", rows=1000, columns=12000, has_residual=True)
    plan = tw.Dispatcher(device="h200_sxm").select(problem)
    assert config.AHEAD and not config.AGAIN and plan.launch.steps[0].grid == (264, 1, 1)
    for name in ("rms_norm", "layer_norm"):
        assert chosen(name, rows=1000, columns=14336)[1].AHEAD
        assert not chosen(name, rows=250, columns=14336)[1].AHEAD
    wide = {"dtype": "fp32", "w_dtype": "fp32", "out_dtype": "fp32"}
    assert not chosen("rms_norm", rows=1000, columns=20000, **wide)[1].AHEAD


def test_the_longest_rows_are_all_read_at_a_time_where_an_sm_can_have_them():
    """Or four are on their way to each."""
    for rows, ahead, again in ((100, 0, False), (200, 4, False), (1056, 4, False), (1057, 0, True)):
        config = chosen("rms_norm", rows=rows, columns=24128)[1]
        assert (ahead, again) == (config.AHEAD, config.AGAIN), rows
        assert not chosen("layer_norm", rows=rows, columns=24128)[1].AHEAD
    wide = {"dtype": "fp32", "w_dtype": "fp32", "out_dtype": "fp32"}
    for rows, again in ((132, False), (264, True), (265, False)):
        assert again == chosen("rms_norm", rows=rows, columns=20000, **wide)[1].AGAIN, rows


def test_a_few_short_rows_have_a_workgroup_each():
    assert chosen("rms_norm", rows=517, columns=832)[1].ROWS == 1
    assert chosen("rms_norm", rows=30000, columns=832)[1].ROWS == 2


def test_short_rows_of_layer_norms_share_what_is_loaded_for_a_column():
    assert chosen("layer_norm", rows=4096, columns=3072)[1].ROWS == 2
    assert chosen("rms_norm", rows=4096, columns=3072)[1].ROWS == 1
    assert chosen("layer_norm", rows=256, columns=3072)[1].ROWS == 1


@pytest.mark.turns(4)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_rows_ahead_are_copied_to_shared_memory(target, store):
    problem = chosen("rms_norm", rows=1000, columns=20000, has_w=True)[0]
    family, this = ops.family("rms_norm"), arch(target)
    (config,) = (
        one
        for one in family.default_space(problem, this).expand(this).configs
        if (one.AHEAD, one.num_warps, one.alignment) == (1, 32, 16)
        and family.supports(one, problem, this)
    )
    (built,) = build([(config, target)], store=store, workers=1).results
    assert built.kernel.shared > 24576 * 2, built
    assert "cp.async" in store.read(built.kernel, "ptx").decode()


def test_a_row_between_two_powers_of_two_is_held_in_two_tiles():
    rows = ((8192, 8192), (8193, 12288), (12288, 12288), (12289, 16384), (16385, 24576))
    for columns, block in rows:
        assert block == chosen("layer_norm", rows=4096, columns=columns)[1].BLOCK
    rounded = {"quant": "row", "out_dtype": "e4m3fn"}
    assert chosen("layer_norm", rows=4096, columns=8193, **rounded)[1].BLOCK == 16384


def test_rows_that_would_leave_l2_too_early_are_read_in_larger_pieces():
    for rows, dtype, block in ((2000, "fp32", 8192), (100, "fp32", 4096), (2000, "bf16", 4096)):
        config = chosen("rms_norm", rows=rows, columns=25000, dtype=dtype)[1]
        assert (False, block) == (config.HELD, config.BLOCK)


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [500, 9001, pytest.param(25000, marks=pytest.mark.turns(12))])
def test_a_mean_far_from_zero_costs_no_digits(columns):
    """Of squares in fp32, nothing would be left of the variance."""
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32) + 4096
    dy = np.random.default_rng(1).standard_normal((2, columns)).astype(np.float32)
    wide = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = F.layer_norm(wide, (columns,))
    expected.backward(torch.tensor(dy, dtype=torch.float64))
    assert abs(tw.layer_norm(x) - expected.detach().numpy()).max() < 2e-3
    dx = tw.layer_norm_backward(x, dy)
    assert abs(dx - wide.grad.numpy()).max() < 5e-3


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_what_is_not_a_number_stays_in_its_row(name):
    x = drawn(7, 64)
    clean = getattr(tw, name)(x)
    x[2, 5], x[4, 1] = float("nan"), float("inf")
    y = getattr(tw, name)(x)
    assert y[2].isnan().all() and y[4].isnan().any()
    others = [0, 1, 3, 5, 6]
    assert torch.equal(y[others], clean[others])


@pytest.mark.parametrize("quant", ["row", "block"])
def test_what_is_not_a_number_is_no_largest_value(quant):
    """The others of its row are rounded as without it, and zeros have the scale 1."""
    x = drawn(3, 256)
    x[0], x[1, 9] = 0.0, 0.0
    clean, scales = tw.quantise_rows(x, quant=quant, out_dtype="e4m3fn")
    x[1, 9] = float("nan")
    y, found = tw.quantise_rows(x, quant=quant, out_dtype="e4m3fn")
    y, clean = y.float(), clean.float()
    assert torch.equal(found, scales) and (scales[0] == 1).all() and not y[0].any()
    assert y[1, 9].isnan() and torch.equal(y.nan_to_num(), clean)


def test_8_bits_saturate():
    x = torch.tensor([[1e30, -1e30, 1.0, float("inf")] * 4])
    for dtype, most in (("int8", (127, -128)), ("e4m3fn", (448, -448))):
        y = tw.quantise_rows(x, quant="tensor", scale=torch.tensor([0.5]), out_dtype=dtype)
        assert y.float()[0, :4].tolist() == [*most, 2, most[0]]


def test_experts_choose_smooth_scales():
    x, smooth = drawn(4, 64), drawn(3, 64).abs() + 0.5
    expert = torch.tensor([[0, 2], [1, -1], [2, 2], [3, 0]], dtype=torch.int32)
    y, scales = tw.quantise_expert_rows(x, smooth, expert)
    for token, chosen in enumerate(expert.tolist()):
        for slot, one in enumerate(chosen):
            row = token * 2 + slot
            if one not in (0, 1, 2):
                assert scales[row] == 1 and not y[row].any()
                continue
            alone, scale = tw.quantise_rows(x[token : token + 1], smooth=smooth[one].clone())
            assert torch.equal(y[row], alone[0]) and scales[row] == scale[0]
    turned, other = tw.quantise_expert_rows(x, smooth, expert, slots_first=True)
    assert torch.equal(turned.view(2, 4, 64).transpose(0, 1).reshape(8, 64), y)
    assert torch.equal(other.view(2, 4).T.reshape(8), scales)


# --- calls --------------------------------------------------------------------------------------


def test_without_rows_or_columns_there_is_nothing_to_do():
    for shape in ((0, 64), (3, 0)):
        assert tw.layer_norm(np.empty(shape, np.float32)).shape == shape
    assert tw.rms_norm(np.ones(8, np.float32)).shape == (8,)


X = np.ones((4, 64), np.float32)


@pytest.mark.parametrize(
    ("name", "operands", "said", "why"),
    [
        ("rms_norm", (X,), {"quant": "row"}, "does not go with out_dtype = fp32"),
        ("layer_norm", (X,), {"out_dtype": "int8"}, "quant = '' does not go with"),
        ("layer_norm", (X,), {"bias": X[0]}, "no operand 'bias'"),
        ("layer_norm", (X,), {"b": X[0, :9]}, r"b of layer_norm has shape \(9,\)"),
        ("layer_norm", (X.T,), {}, r"strides \(1, 64\)"),
        ("quantise_rows", (X,), {"quant": "tensor"}, "needs scale="),
        ("quantise_rows", (X,), {"scale": X[0, :1]}, "scale= belongs to quant = 'tensor'"),
        ("quantise_rows", (X,), {"quant": "block"}, "blocks of 128 in rows of 64"),
        ("quantise_rows", (X,), {"quant": "column"}, "there are 'row', 'block', 'tensor'"),
        ("quantise_rows", (X,), {"smooth": X[0].astype(np.float16)}, "must be fp32"),
        ("quantise_expert_rows", (X, X, np.zeros((4, 2), np.int64)), {}, "must be int32"),
    ],
)
def test_what_means_nothing_is_refused(name, operands, said, why):
    with pytest.raises(BadArgument, match=why):
        getattr(tw, name)(*operands, **said)
