"""Layers whose operands have scales by row or by tensor, zero points, and weights that come first,
in the interpreter, against float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from layer_cases import (
    LIMITS,
    by_block,
    by_row,
    by_tensor,
    in_int4_with_zeros,
    operands,
    reference,
    worst,
)

import tilewright as tw
from tilewright import capturing, moe
from tilewright.errors import BadArgument

GIVEN = (torch.tensor(0.03), torch.tensor([0.2]))
"""Scales of tokens and of activations, whose largest are below 13 and 89."""

ROUNDED = {
    "a row, a row": (by_row, {"scale_a": "row"}),
    "a row, an expert": (by_tensor, {"scale_a": "row"}),
    "given, an expert": (by_tensor, {"scale_a": "tensor", "scales_a": GIVEN}),
    "given, a row": (by_row, {"scale_a": "tensor", "scales_a": GIVEN}),
    "blocks, a row": (by_row, {"scale_a": "1x128"}),
}
EIGHT_BITS = 0.06
"""How far tokens and activations of 3 bits of mantissa may be `off`: each is by 0.03."""


def off(y, wanted):
    """The rms of the error beside the rms of what is right."""
    return float((y.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


GPT_OSS = {"interleaved": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("said", [{}, GPT_OSS], ids=["swiglu", "gpt-oss"])
def test_scales_that_are_no_blocks(name, said):
    made, how = ROUNDED[name]
    x, w1, w2, weights, ids = operands(7, 128, 128, 3, 2)
    x *= torch.linspace(0.5, 2.0, 7).bfloat16()[:, None]
    ids[2, 1] = -1
    eight, held, scales = made(w1, w2)
    y = tw.fused_moe(x, *eight, weights, ids, **scales, **how, **said)
    assert y.dtype == torch.bfloat16
    assert off(y, reference(x, *held, weights, ids, **said)) < EIGHT_BITS


def test_every_scale_counts():
    """Each row and each expert has another scale: one that is left out is far off."""
    x, w1, w2, weights, ids = operands(9, 64, 32, 4, 2)
    for made in (by_row, by_tensor):
        eight, held, scales = made(w1, w2)
        first, second = scales["scales"]
        factors = [2.0 ** (torch.arange(s.numel()) % 5).view(s.shape) for s in (first, second)]
        scales["scales"] = (first * factors[0], second * factors[1])
        wider = [h * f.double().view(*f.shape, *[1] * (3 - f.ndim)) for h, f in
                 zip(held, factors, strict=True)]  # fmt: skip
        y = tw.fused_moe(x, *eight, weights, ids, **scales, scale_a="row")
        assert off(y, reference(x, *wider, weights, ids)) < EIGHT_BITS


def test_int8_by_row_without_a_gate_and_with_biases():
    x, w1, w2, weights, ids = operands(7, 64, 48, 3, 2, gated=False)
    eight, held, scales = by_row(w1, w2, dtype=torch.int8)
    made = torch.Generator().manual_seed(7)
    biases = {"b1": torch.randn(3, 48, generator=made), "b2": torch.randn(3, 64, generator=made)}
    biases = {name: b.bfloat16() for name, b in biases.items()}
    said = {"activation": "gelu", **biases}
    y = tw.fused_moe(x, *eight, weights, ids, **scales, scale_a="row", **said)
    assert worst(y, reference(x, *held, weights, ids, **said)) < LIMITS[torch.bfloat16]


HELD_IN_16 = {
    "a row": by_row,
    "a row of int8": partial(by_row, dtype=torch.int8),
    "an expert": by_tensor,
    "blocks": by_block,
}


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", HELD_IN_16)
@pytest.mark.parametrize("said", [{}, GPT_OSS, {"weights_first": True}], ids=str)
def test_weights_in_8_bits_beside_tokens_in_16(name, said):
    """Nothing is rounded to 8 bits: the error is that of a layer in bf16."""
    x, w1, w2, weights, ids = operands(7, 128, 128, 3, 2)
    x *= torch.linspace(0.5, 2.0, 7).bfloat16()[:, None]
    eight, held, scales = HELD_IN_16[name](w1, w2)
    y = tw.fused_moe(x, *eight, weights, ids, **scales, **said)
    assert y.dtype == torch.bfloat16
    assert worst(y, reference(x, *held, weights, ids, **said)) < LIMITS[torch.bfloat16]


def test_tokens_of_another_type_than_16_bits_are_refused():
    with pytest.raises(BadArgument, match="x is fp32 and w1 e4m3fn, which no product takes"):
        tw.fused_moe(X.float(), *EIGHT, WEIGHTS, IDS, **ROWS)


def test_zero_points_of_four_bits():
    x, w1, w2, weights, ids = operands(7, 128, 64, 3, 2)
    nibbles, held, few = in_int4_with_zeros(w1, w2)
    y = tw.fused_moe(x, *nibbles, weights, ids, **few)
    assert worst(y, reference(x, *held, weights, ids)) < LIMITS[torch.bfloat16]


def test_a_shared_expert_in_16_bits_beside_weights_in_four():
    x, w1, w2, weights, ids = operands(7, 128, 64, 3, 2)
    nibbles, held, few = in_int4_with_zeros(w1, w2)
    _, up, down, _, _ = operands(1, 128, 32, 1, 1, seed=5)
    shared = (up[0], down[0])
    y = tw.fused_moe(x, *nibbles, weights, ids, **few, shared=shared)
    wanted = reference(x, *held, weights, ids, shared=shared)
    assert worst(y, wanted) < LIMITS[torch.bfloat16]


FIRST = {
    "swiglu": {},
    "gpt-oss": GPT_OSS,
    "another shift": {"limit": 0.5, "shift": 0.5},
    "with biases": {"biases": True},
    "a capacity": {"capacity": 5},
    "shared": {"shared": True, "routed_scaling_factor": 2.0},
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", FIRST)
def test_weights_may_come_before_the_first_product(name):
    said = dict(FIRST[name])
    given = operands(13, 32, 24, 5, 2, dtype=torch.float32)
    given[4][0, 1], given[4][3] = -1, 7  # of none here
    if said.pop("biases", False):
        said |= {"b1": torch.randn(5, 48), "b2": torch.randn(5, 32)}
    if said.pop("shared", False):
        said["shared"] = (torch.randn(48, 32) / 6, torch.randn(32, 24) / 5)
    y = tw.fused_moe(*given, **said, weights_first=True)
    assert worst(y, reference(*given, **said, weights_first=True)) < LIMITS[torch.float32]
    assert worst(y, reference(*given, **said)) > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_come_first_may_have_any_type(dtype):
    x, w1, w2, weights, ids = operands(9, 32, 16, 4, 2, dtype=dtype)
    weights = weights.to(dtype)
    y = tw.fused_moe(x, w1, w2, weights, ids, weights_first=True)
    assert worst(y, reference(x, w1, w2, weights, ids, weights_first=True)) < LIMITS[dtype]


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ["a row, a row", "a row, an expert", "given, an expert"])
def test_weights_come_first_beside_scales(name):
    made, how = ROUNDED[name]
    x, w1, w2, weights, ids = operands(7, 128, 128, 3, 2)
    eight, held, scales = made(w1, w2)
    y = tw.fused_moe(x, *eight, weights, ids, **scales, **how, weights_first=True)
    wanted = reference(x, *held, weights, ids, weights_first=True)
    assert off(y, wanted) < EIGHT_BITS


def test_weights_that_come_first_have_gradients():
    leaves = [*operands(9, 32, 16, 5, 2, dtype=torch.float32)]
    ids = leaves.pop()
    ids[0, 1], ids[3] = -1, 7
    for some in (leaves, leaves[3:]):
        given = [one.detach() for one in leaves[: 4 - len(some)]]
        made = [one.detach().requires_grad_() for one in some]
        y = tw.fused_moe(*given, *made, ids, weights_first=True)
        wanted = reference(*given, *made, ids, weights_first=True)
        arrived = torch.randn(9, 32, dtype=torch.float64)
        got = torch.autograd.grad((y * arrived.float()).sum(), made)
        right = torch.autograd.grad((wanted * arrived).sum(), made)
        for one, other in zip(got, right, strict=True):
            assert worst(one, other.double()) < 1e-3


def test_a_router_s_weights_may_come_first():
    x, w1, w2, _, _ = operands(10, 32, 16, 8, 2, dtype=torch.float32)
    logits = torch.randn(10, 8, generator=torch.Generator().manual_seed(2))
    weights, ids = tw.topk_routing(logits, k=1, scoring="sigmoid")
    said = {"k": 1, "scoring": "sigmoid", "weights_first": True}  # Llama 4
    y = tw.routed_moe(x, logits, w1, w2, **said)
    wanted = reference(x, w1, w2, weights, ids, weights_first=True)
    assert worst(y, wanted) < LIMITS[torch.float32]
    logits.requires_grad_()
    assert torch.autograd.grad(tw.routed_moe(x, logits, w1, w2, **said).sum(), logits)[0].any()


@pytest.mark.turns(6)
@pytest.mark.parametrize("said", [{}, {"weights_first": True}], ids=["weights last", "first"])
def test_torch_compiles_a_layer_with_scales_into_one_graph(said):
    x, w1, w2, weights, ids = operands(6, 64, 32, 4, 2)
    eight, _, scales = by_tensor(w1, w2)
    layer = partial(tw.fused_moe, **scales, scale_a="row", **said)
    compiled = torch.compile(lambda *a: layer(*a) * 2, fullgraph=True, backend="aot_eager")
    given = (x, *eight, weights.bfloat16(), ids)
    with torch.no_grad():
        assert torch.equal(compiled(*given), layer(*given) * 2)


PLANNED = {
    "a row, a row": {"scale_a": "row", "scale_b": "row"},
    "a row, an expert": {"scale_a": "row", "scale_b": "tensor"},
    "given, an expert": {"scale_a": "tensor", "scale_b": "tensor"},
    "not gated": {"scale_a": "row", "scale_b": "row", "gated": False},
    "first": {"scale_a": "row", "scale_b": "tensor", "weights_first": True},
    "first, 16 bits": {"weights_first": True},
    "first, of another type": {"weights_first": True, "weight_dtype": "bf16"},
    "zero points": {"scale_b": "32x1-bf16", "dtype_b": "int4", "zero_b": True},
    "16 bits, a row": {"scale_b": "row", "dtype_b": "e4m3fn"},
    "16 bits, blocks": {"scale_b": "64x64", "dtype_b": "e4m3fn"},
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_is_of_what_a_call_runs(tmp_path, name):
    fields = dict(PLANNED[name])
    gated = fields.get("gated", True)
    x, w1, w2, weights, ids = operands(6, 128, 64, 4, 2, gated=gated)
    said = {} if gated else {"activation": "silu"}
    said["weights_first"] = fields.get("weights_first", False)
    if fields.get("scale_a"):
        (w1, w2), _, scales = (by_row if fields["scale_b"] == "row" else by_tensor)(w1, w2)
        said |= {**scales, "scale_a": fields["scale_a"]}
        if fields["scale_a"] == "tensor":
            said["scales_a"] = GIVEN
        fields["dtype_b"] = "e4m3fn"
    elif fields.get("dtype_b") == "e4m3fn":
        (w1, w2), _, scales = (by_row if fields["scale_b"] == "row" else by_block)(w1, w2)
        said |= scales
    elif fields.get("zero_b"):
        (w1, w2), _, few = in_int4_with_zeros(w1, w2)
        said |= few
    if "weight_dtype" in fields:
        weights = weights.bfloat16()
    with tw.capture(tmp_path / "met.jsonl"):
        tw.fused_moe(x, w1, w2, weights, ids, **said)
    met = capturing.load(tmp_path / "met.jsonl")
    planned = moe.plan(tokens=6, hidden=128, inner=64, experts=4, k=2, **fields)
    assert {*met} == {*planned.problems}


def test_weights_that_come_first_leave_the_activation_in_the_epilogue():
    planned = moe.plan(tokens=6, hidden=32, inner=16, experts=4, k=2, weights_first=True)
    names = [step.name for step in planned.steps]
    assert names == ["sort", "first product", "second product", "combine"]
    assert planned.steps[1].problem.epilogue == "row_scale+swiglu"


X, W1, W2, WEIGHTS, IDS = operands(4, 128, 64, 3, 2)
EIGHT, _, ROWS = by_row(W1, W2)
NIBBLES, _, FOUR = in_int4_with_zeros(W1, W2)


@pytest.mark.parametrize(
    ("weights", "said", "why"),
    [
        (EIGHT, {**ROWS, "scale_a": "tensor"}, "scales_a= belongs to scale_a = 'tensor'"),
        (EIGHT, {**ROWS, "scale_a": "row", "scales_a": GIVEN}, "scales_a= belongs to"),
        (EIGHT, {**ROWS, "scale_a": "1x32-e8m0"}, "rows are rounded by 1x128, row, tensor"),
        (EIGHT, {**ROWS, "scale_a": "row", "scale_b": "tensor"}, r"they are \[experts\]"),
        (NIBBLES, {**FOUR, "scale_a": "row"}, "weights in int4 take rows of 16 bits"),
        (
            EIGHT,
            {**ROWS, "scale_a": "row", "zeros": FOUR["zeros"]},
            "zero points are of int4",
        ),
    ],
)
def test_what_does_not_fit_is_refused(weights, said, why):
    with pytest.raises(BadArgument, match=why):
        tw.fused_moe(X, *weights, WEIGHTS, IDS, **said)
