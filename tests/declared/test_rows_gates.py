"""Gated activations: as torch computes them, with gradients, of halves that lie in every way."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import tilewright as tw
from tilewright import ops, verify
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


def drawn(*shape, seed=0, dtype=torch.float32):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2
    return made.to(dtype).requires_grad_()


def near(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("gate", ACTIVATIONS)
@pytest.mark.parametrize("lie", ["behind", "interleaved", "apart"])
@pytest.mark.grid(3)
def test_it_is_torchs_with_its_gradients(gate, lie):
    x, dy = drawn(2, 3, 42), torch.randn(2, 3, 21, generator=torch.Generator().manual_seed(1))
    if lie == "apart":
        a, b = (drawn(2, 3, 21, seed=i) for i in (0, 1))
        inputs, found = (a, b), tw.gated_activation(a, up=b, gate=gate)
    else:
        a, b = (x[..., ::2], x[..., 1::2]) if lie == "interleaved" else x.chunk(2, -1)
        inputs = (x,)
        found = tw.gated_activation(x, gate=gate, interleaved=lie == "interleaved")
    wanted = ACTIVATIONS[gate](a) * b
    near(found, wanted)
    ours = torch.autograd.grad(found, inputs, dy)
    near(ours, torch.autograd.grad(wanted, inputs, dy))


def test_the_clamped_form_of_gpt_oss():
    x = drawn(4, 34)
    with torch.no_grad():
        x *= 5
    said = {"limit": 7.0, "alpha": 1.702, "shift": 1.0, "interleaved": True}
    a, b = x[:, ::2].clamp(max=7.0), x[:, 1::2].clamp(-7.0, 7.0)
    wanted = a * torch.sigmoid(1.702 * a) * (b + 1)
    found = tw.gated_activation(x, **said)
    near(found, wanted)
    assert (a == 7).any() and (abs(b) == 7).any()
    dy = torch.ones_like(wanted)
    (ours,), (theirs,) = (torch.autograd.grad(y, x, dy) for y in (found, wanted))
    near(ours, theirs)


def test_halves_may_be_slices_of_a_wider_array():
    whole = drawn(3, 50).detach()
    x, up = whole[:, 2:22], whole[:, 25:45]
    near(tw.gated_activation(x, up=up), F.silu(x) * up)
    near(tw.gated_activation(whole[:, :40]), F.silu(whole[:, :20]) * whole[:, 20:40])


def test_large_numbers_and_nan_go_where_torchs_go():
    x = torch.tensor([[-1e30, 1e30, -200.0, 200.0, float("nan"), 0.0]])
    for gate, torchs in ACTIVATIONS.items():
        found = tw.gated_activation(x, up=torch.ones_like(x), gate=gate)
        torch.testing.assert_close(found, torchs(x), equal_nan=True)


@pytest.mark.parametrize("columns", [70, 17000])
@pytest.mark.turns(8)
def test_values_beyond_the_last_column_are_not_the_largest(columns):
    """sigmoid(0) is one half, and results of lanes without a column would be as large."""
    x = torch.full((1, columns), -4.0)
    y, scales = tw.gated_activation(
        x, up=torch.full_like(x, 0.25), gate="sigmoid", shift=0.25, quant="row", out_dtype="int8"
    )
    near(scales * 127, torch.sigmoid(x[:, 0]) * 0.5)
    assert (y == 127).all()


def test_what_does_not_fit_is_refused():
    x = torch.randn(2, 8)
    for said, why in (
        ({"up": x, "interleaved": True}, "interleaved = True is for both halves in one array"),
        ({"gate": "tanh"}, "no gate = 'tanh'; there are 'silu', 'gelu'"),
        ({"quant": "block", "out_dtype": "int8"}, "blocks of 128 in rows of 4"),
        ({"up": torch.randn(2, 4)}, r"up .* \(2, 4\)|where columns is"),
    ):
        with pytest.raises(BadArgument, match=why):
            tw.gated_activation(x, **said)
    with pytest.raises(BadArgument, match=r"shape \(2, 7\)"):
        tw.gated_activation(torch.randn(2, 7))


def test_results_of_8_bits_have_no_gradients():
    family = ops.family("gated_activation")
    problem = family.problem_type(rows=2, columns=8, quant="row", out_dtype="e4m3fn")
    assert "8 bits" in family.gradients(problem, ("x",)).reason


def test_no_rows_and_no_columns():
    assert tw.gated_activation(torch.empty(0, 8)).shape == (0, 4)
    assert tw.gated_activation(torch.empty(3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gated_activation", {"quant": "block", "out_dtype": "e4m3fn"}),
        ("gated_activation_backward", {"interleaved": True}),
        ("rms_norm", {"quant": "row", "out_dtype": "int8"}),
    ],
)
def test_problems_without_rows_are_verified(name, said):
    problem = ops.family(name).problem_type(rows=0, columns=128, **said)
    dispatcher = Dispatcher(device="h200_sxm")
    config = dispatcher.select(problem).config
    assert verify.verify(dispatcher, problem, config.name, seed=1).ok


@pytest.mark.parametrize("columns", [1, 64, 768, 1408, 2880, 14336, 28672, 40000])
def test_few_kernels_are_looked_at(columns):
    from tilewright.arch import arch

    for name, more in (
        ("gated_activation", {}),
        ("gated_activation", {"quant": "row", "out_dtype": "int8"}),
        ("gated_activation_backward", {}),
    ):
        family = ops.family(name)
        problem = family.problem_type(rows=4096, columns=columns, **more)
        configs = family.default_space(problem, arch("sm_90")).expand(arch("sm_90")).configs
        assert len(configs) <= 60
        served = [c for c in configs if family.supports(c, problem, arch("sm_90"))]
        assert served


def test_lanes_take_more_where_all_of_a_gpu_have_some():
    """8 elements of many; else 4, for more lanes."""
    for rows, columns, wanted in ((4096, 28672, 8), (48171, 448, 8), (16, 28672, 4)):
        problem = ops.family("gated_activation").problem_type(rows=rows, columns=columns)
        config = tw.Dispatcher(device="h200_sxm").select(problem).config
        assert wanted * 32 * config.num_warps == config.BLOCK * config.ROWS
