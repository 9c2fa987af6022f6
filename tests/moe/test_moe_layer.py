"""Mixtures of experts as one layer, in the interpreter, against float64."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from inspect import signature

import numpy as np
import pytest
import torch
from layer_cases import LIMITS, in_fp8, in_int4, operands, reference, worst

import tilewright as tw
from tilewright import capturing, moe
from tilewright.errors import BadArgument
from tilewright.moe.stated import Options

GPT_OSS = {"interleaved": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}
FORMS = {
    "swiglu": ({}, True),
    "swiglu interleaved": ({"interleaved": True}, True),
    "geglu": ({"activation": "gelu_tanh"}, True),
    "clamped": (GPT_OSS, True),
    "clamped apart": ({"limit": 0.5}, True),
    "with a factor alone": ({"alpha": 1.7, "shift": 1.0}, True),
    "with another shift": ({"limit": 0.5, "shift": 0.5}, True),
    "geglu with a limit": ({"activation": "gelu", "limit": 0.5}, True),
    "reglu interleaved": ({"activation": "relu", "interleaved": True}, True),
    "glu": ({"activation": "sigmoid"}, True),
    "gelu alone": ({"activation": "gelu"}, False),
    "relu alone": ({"activation": "relu"}, False),
}


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("biased", [False, True])
def test_every_form_is_right(name, biased):
    said, gated = FORMS[name]
    given = operands(13, 32, 24, 5, 2, gated=gated, dtype=torch.float32)
    biases = {}
    if biased:
        made = torch.Generator().manual_seed(7)
        biases["b1"] = torch.randn(5, given[1].shape[1], generator=made)
        biases["b2"] = torch.randn(5, 32, generator=made)
    y = tw.fused_moe(*given, **said, **biases)
    assert worst(y, reference(*given, **said, **biases)) < LIMITS[torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_right(dtype):
    given = operands(20, 64, 32, 6, 3, dtype=dtype)
    y = tw.fused_moe(*given)
    assert y.dtype == dtype and y.shape == (20, 64)
    assert worst(y, reference(*given)) < LIMITS[dtype]
    assert torch.equal(tw.fused_moe(*given), y)


def test_an_activation_may_be_a_function():
    given = operands(9, 32, 16, 4, 2, dtype=torch.float32)

    def squared(rows):
        gate, up = rows.chunk(2, -1)
        return gate.relu().square() * up

    y = tw.fused_moe(*given, activation=squared)
    x, w1, w2, weights, ids = given
    wanted = torch.zeros(9, 32)
    for t in range(9):
        for j in range(2):
            e = int(ids[t, j])
            wanted[t] += weights[t, j] * (w2[e] @ squared(w1[e] @ x[t]))
    assert torch.allclose(y, wanted, atol=1e-4)
    with pytest.raises(BadArgument, match="is the whole activation"):
        tw.fused_moe(*given, activation=squared, interleaved=True)


GRADIENTS = {
    "swiglu": {},
    "clamped": GPT_OSS,
    "shared": {"shared": True, "routed_scaling_factor": 2.0},
    "with biases": {"activation": "gelu", "biases": True},
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_float64(name):
    said = dict(GRADIENTS[name])
    x, w1, w2, weights, ids = operands(9, 32, 16, 5, 2, dtype=torch.float32)
    ids[0, 1], ids[3] = -1, 7  # of none here
    leaves = [x, w1, w2, weights]
    if said.pop("biases", False):
        said |= {"b1": torch.randn(5, 32), "b2": torch.randn(5, 32)}
        leaves += [said["b1"], said["b2"]]
    if said.pop("shared", False):
        said["shared"] = (torch.randn(48, 32) / 6, torch.randn(32, 24) / 5)
        leaves += said["shared"]
    for one in leaves:
        one.requires_grad_()
    arrived = torch.randn(9, 32, dtype=torch.float64)
    y = tw.fused_moe(x, w1, w2, weights, ids, **said)
    wanted = reference(x, w1, w2, weights, ids, **said)
    assert worst(y.detach(), wanted.detach()) < LIMITS[torch.float32]
    got = torch.autograd.grad((y * arrived.float()).sum(), leaves)
    right = torch.autograd.grad((wanted * arrived).sum(), leaves)
    for one, other in zip(got, right, strict=True):
        assert worst(one, other.double()) < 1e-3


@pytest.mark.turns(4)
@pytest.mark.parametrize("said", [{}, {"activation": "gelu_tanh"}, GPT_OSS])
def test_weights_in_fp8_with_scales_of_blocks(said):
    x, w1, w2, weights, ids = operands(7, 256, 128, 3, 2)
    eight, held, few = in_fp8(w1, w2)
    y = tw.fused_moe(x, *eight, weights, ids, **few, **said)
    assert y.dtype == torch.bfloat16
    assert worst(y, reference(x, *held, weights, ids, **said)) < LIMITS[torch.float8_e4m3fn]


def test_weights_in_four_bits():
    x, w1, w2, weights, ids = operands(7, 128, 64, 3, 2)
    nibbles, held, few = in_int4(w1, w2)
    y = tw.fused_moe(x, *nibbles, weights, ids, **few)
    assert worst(y, reference(x, *held, weights, ids)) < LIMITS[torch.bfloat16]


def test_weights_may_lie_the_other_way():
    """[experts, hidden, rows], as some models keep them."""
    x, w1, w2, weights, ids = operands(9, 32, 16, 4, 2, dtype=torch.float32)
    turned = [w.transpose(1, 2).contiguous().transpose(1, 2) for w in (w1, w2)]
    y = tw.fused_moe(x, *turned, weights, ids)
    assert worst(y, reference(x, w1, w2, weights, ids)) < LIMITS[torch.float32]


ROUTINGS = {
    "one token": np.array([[2, 0]]),
    "all on one expert": np.full((12, 2), 3),
    "all on the first, twice none": np.array([[0, -1]] * 9),
    "none here": np.array([[-1, -1]] * 5),
    "some tokens none": np.array([[-1, 4], [7, -1], [1, 2], [99, -5], [-1, -1]]),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_routings_of_every_kind(name):
    ids = torch.tensor(ROUTINGS[name])
    x, w1, w2, _, _ = operands(len(ids), 32, 16, 5, 2, dtype=torch.float32)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3))
    unused = [e for e in range(5) if e not in ids.tolist()[0] and (ids != e).all()]
    y, wanted = tw.fused_moe(x, w1, w2, weights, ids), reference(x, w1, w2, weights, ids)
    assert worst(y, wanted) < LIMITS[torch.float32]
    w1[unused], w2[unused] = torch.nan, torch.nan  # weights of no token are not read
    assert torch.equal(tw.fused_moe(x, w1, w2, weights, ids), y)


def test_experts_elsewhere_are_left_out():
    """Two ranks of an expert-parallel layer add up to the whole."""
    x, w1, w2, weights, ids = operands(11, 32, 16, 6, 3, dtype=torch.float32)
    sum_of_ranks = 0
    for mine in ([4, 1, 0], [3, 5, 2]):
        here = torch.full((6,), -1, dtype=torch.int32)
        here[mine] = torch.arange(3, dtype=torch.int32)
        y = tw.fused_moe(x, w1[mine], w2[mine], weights, ids, expert_map=here)
        assert worst(y, reference(x, w1[mine], w2[mine], weights, ids, expert_map=here)) < 1e-4
        sum_of_ranks = sum_of_ranks + y
    assert worst(sum_of_ranks, reference(x, w1, w2, weights, ids)) < LIMITS[torch.float32]


def test_an_expert_takes_no_more_than_its_capacity():
    given = operands(40, 32, 16, 4, 2, dtype=torch.float32)
    y, whole = tw.fused_moe(*given, capacity=7), tw.fused_moe(*given)
    assert worst(y, reference(*given, capacity=7)) < LIMITS[torch.float32]
    assert torch.equal(y[:7], whole[:7]) and not torch.equal(y, whole)
    assert torch.equal(tw.fused_moe(*given, capacity=40), whole)


IN_THE_EPILOGUE = {
    "swiglu": ({}, "swiglu", True),
    "geglu": ({"activation": "gelu_tanh"}, "geglu_tanh", True),
    "gpt-oss": ({**GPT_OSS, "bias": True}, "bias+clamped_swiglu_plus", False),
    "a limit alone": ({"limit": 10.0}, "clamped_swiglu", True),
    "another shift": ({"limit": 10.0, "shift": 0.5}, "", False),
    "a bias of halves apart": ({"bias": True}, "bias", False),
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", IN_THE_EPILOGUE)
def test_which_activations_are_no_step_of_their_own(name):
    said, epilogue, apart = IN_THE_EPILOGUE[name]
    planned = moe.plan(tokens=6, hidden=32, inner=16, experts=4, k=2, **said)
    first = next(step.problem for step in planned.steps if step.name == "first product")
    assert (first.epilogue, first.gates_apart) == (epilogue, apart)
    own_step = any(step.name == "activation" for step in planned.steps)
    assert own_step == ("glu" not in epilogue)


@pytest.mark.parametrize(
    ("fields", "between"),
    [
        ({}, []),
        ({"limit": 0.5, "weights_first": True}, []),
        ({"interleaved": True}, ["activation"]),
        ({"bias": True}, ["activation"]),
        ({"gated": False}, ["round"]),
    ],
)
def test_in_fp8_by_blocks_a_product_rounds_what_the_next_takes(fields, between):
    layer = {"tokens": 60, "hidden": 256, "inner": 128, "experts": 4, "k": 2, **fields}
    steps = moe.plan(**layer, dtype_b="e4m3fn", **FEW).steps
    names = [step.name for step in steps]
    first, second = names.index("first product"), names.index("second product")
    assert names[first + 1 : second] == between
    assert (steps[first].problem.quant == "block") == (between == [])


@pytest.mark.parametrize(
    ("tokens", "gpu", "dtype"), [(60, "mi300x", "e4m3fnuz"), (32, "h200_sxm", "e4m3fn")]
)
def test_where_tiles_would_be_twice_as_wide_for_it_the_activation_rounds(tokens, gpu, dtype):
    layer = {"tokens": tokens, "hidden": 256, "inner": 128, "experts": 4, "k": 2, **FEW}
    on = tw.Dispatcher(device=gpu)
    steps = moe.plan(**layer, dtype_b=dtype, dispatcher=on).steps
    assert [step.name for step in steps][3] == "activation" and not steps[2].problem.quant


@pytest.mark.turns(6)
@pytest.mark.parametrize("said", [{}, GPT_OSS])
def test_torch_compiles_the_layer_into_one_graph(said):
    given = operands(6, 32, 16, 4, 2, dtype=torch.float32)
    layer = partial(tw.fused_moe, **said)
    compiled = torch.compile(lambda *a: layer(*a) * 2, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(*given), layer(*given) * 2)
    x = given[0].requires_grad_()
    grads = [torch.autograd.grad(f(*given).sum(), x)[0] for f in (compiled, layer)]
    assert torch.allclose(grads[0], grads[1] * 2, atol=1e-5)


@pytest.mark.turns(6)
def test_torch_compiles_a_layer_with_its_router():
    x, w1, w2, _, _ = operands(6, 32, 16, 4, 2, dtype=torch.float32)
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    layer = partial(tw.routed_moe, k=2, renormalize=True, limit=3.0)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x, logits, w1, w2), layer(x, logits, w1, w2))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_shared_expert_serves_every_token(interleaved):
    given = operands(2 * 4, 32, 16, 4, 2, dtype=torch.float32)
    x, w1, w2, weights, ids = given
    _, up, down, _, _ = operands(1, 32, 24, 1, 1, dtype=torch.float32, seed=5)
    said = {
        "shared": (up[0], down[0]),
        "routed_scaling_factor": 2.5,
        "interleaved": interleaved,
    }
    wanted = reference(*given, **said)
    y = tw.fused_moe(x.view(2, 4, 32), w1, w2, weights.view(2, 4, 2), ids.view(2, 4, 2), **said)
    assert y.shape == (2, 4, 32) and worst(y.view(8, 32), wanted) < LIMITS[torch.float32]


def test_numpy_arrays_and_an_output_that_is_given():
    given = operands(7, 32, 16, 4, 2, dtype=torch.float32)
    arrays = [one.numpy() for one in given]
    for said in ({}, {"limit": 0.5}):
        out = np.full((7, 32), np.nan, np.float32)
        assert tw.fused_moe(*arrays, out=out, **said) is out
        assert worst(torch.from_numpy(out), reference(*given, **said)) < LIMITS[torch.float32]


def test_no_tokens():
    x, w1, w2, weights, ids = operands(3, 32, 16, 4, 2, dtype=torch.float32)
    assert tw.fused_moe(x[:0], w1, w2, weights[:0], ids[:0]).shape == (0, 32)


def test_a_router_chooses_first():
    x, w1, w2, _, _ = operands(10, 32, 16, 8, 2, dtype=torch.float32)
    logits = torch.randn(10, 8, generator=torch.Generator().manual_seed(2))
    bias = torch.linspace(-1, 1, 8)
    routing = {"k": 3, "scoring": "sigmoid", "renormalize": True, "bias": bias, "n_group": 4}
    routing |= {"topk_group": 2, "routed_scaling_factor": 1.5}
    weights, ids = tw.topk_routing(logits, **routing)
    y = tw.routed_moe(x, logits, w1, w2, **routing)
    assert worst(y, reference(x, w1, w2, weights, ids)) < LIMITS[torch.float32]


@pytest.mark.turns(4)
@pytest.mark.parametrize("tokens", [1, 16, 40])
def test_a_few_tokens_are_routed_and_sorted_at_once(tmp_path, tokens):
    x, w1, w2, _, _ = operands(tokens, 32, 16, 12, 4, dtype=torch.float32)
    made = torch.randn(tokens, 12, generator=torch.Generator().manual_seed(2))
    routing = {"k": 4, "scoring": "sigmoid", "renormalize": True, "routed_scaling_factor": 1.5}
    with tw.capture(tmp_path / "met.jsonl"):
        y = tw.routed_moe(x, made, w1, w2, **routing)
    met = [*capturing.load(tmp_path / "met.jsonl")]
    assert (met[0].family == "sorted_routing") == (tokens <= 16)
    assert torch.equal(y, tw.fused_moe(x, w1, w2, *tw.topk_routing(made, **routing)))
    del routing["k"], routing["routed_scaling_factor"]
    sizes = {"tokens": tokens, "hidden": 32, "inner": 16, "experts": 12, "k": 4}
    planned = moe.plan(**sizes, dtype="fp32", router=routing)
    assert met == [*planned.problems]
    limited = moe.plan(**sizes, dtype="fp32", router=routing, capacity=3)
    assert [step.name for step in limited.steps[:2]] == ["route", "sort"]


def test_what_else_decides_the_order_is_sorted_by_itself(tmp_path):
    x, w1, w2, _, _ = operands(6, 32, 16, 4, 2, dtype=torch.float32)
    made = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    here = torch.tensor([0, -1, 1, 2, -1, 3, -1, -1], dtype=torch.int32)
    with tw.capture(tmp_path / "met.jsonl"):
        tw.routed_moe(x, made, w1, w2, k=2, expert_map=here)
        tw.routed_moe(x, made[:, :4], w1, w2, k=2, capacity=3)
        tw.routed_moe(x, made[:, :4].clone().requires_grad_(), w1, w2, k=2)
    met = capturing.load(tmp_path / "met.jsonl")
    assert not any(problem.family == "sorted_routing" for problem in met)


FEW = {"scale_a": "1x128", "scale_b": "128x128"}


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, {}),
        ({"activation": "gelu"}, {"activation": "gelu"}),
        (GPT_OSS, GPT_OSS),
        ({"gated": False, "activation": "relu"}, {"activation": "relu"}),
        ({"bias": True}, {"b1": 1, "b2": 1}),
        ({"all_experts": 6}, {"expert_map": 1}),
        ({"capacity": 3}, {"capacity": 3}),
        ({"shared": 24}, {"shared": 1}),
        ({"shared": 24, **GPT_OSS}, {"shared": 1, **GPT_OSS}),
        ({"shared": 24, "gated": False, "activation": "gelu"}, {"shared": 1, "activation": "gelu"}),
        ({"dtype_b": "e4m3fn", **FEW}, FEW),
    ],
)
def test_a_plan_is_of_what_a_call_runs(tmp_path, fields, said):
    gated = fields.get("gated", True)
    hidden, inner = (256, 128) if "dtype_b" in fields else (32, 16)
    given = operands(6, hidden, inner, 4, 2, gated=gated)
    more = {
        "b1": torch.zeros(4, given[1].shape[1], dtype=torch.bfloat16),
        "b2": torch.zeros(4, hidden, dtype=torch.bfloat16),
        "expert_map": torch.tensor([0, 1, 2, 3, -1, -1], dtype=torch.int32),
        "shared": tuple(
            torch.zeros(shape, dtype=torch.bfloat16)
            for shape in ((24 * (1 + gated), hidden), (hidden, 24))
        ),
    }
    said = {name: more.get(name, value) for name, value in said.items()}
    if "dtype_b" in fields:
        x, w1, w2, *routed = given
        given = (x, *(w.to(torch.float8_e4m3fn) for w in (w1, w2)), *routed)
        said["scales"] = torch.ones(4, 2, 2), torch.ones(4, 2, 1)
    with tw.capture(tmp_path / "met.jsonl"):
        tw.fused_moe(*given, **said)
    met = capturing.load(tmp_path / "met.jsonl")
    planned = moe.plan(tokens=6, hidden=hidden, inner=inner, experts=4, k=2, **fields)
    assert [*met] == [*planned.problems]


def test_a_plan_says_each_step_and_its_kernel():
    sizes = {"tokens": 64, "hidden": 7168, "inner": 2048, "experts": 32, "k": 8}
    dispatcher = tw.Dispatcher(device="h200_sxm")
    routed = {"scoring": "sigmoid", "has_bias": True}
    layer = {**sizes, "activation": "gelu", "limit": 7.0, "all_experts": 256, "router": routed}
    found = moe.plan(**layer, dispatcher=dispatcher)
    names = ("route", "sort", "first product", "activation", "second product", "combine")
    assert tuple(step.name for step in found.steps) == names
    assert found.estimated_us == sum(step.estimated_us for step in found.steps) > 0
    for step in found.steps:
        assert dispatcher.select(step.problem).config == step.plan.config
        assert step.name in str(found) and step.plan.config.name in str(found)
    assert found.steps[0].problem.experts == 256
    # Each product has tiles of its own.
    assert len({step.plan.config.name for step in found.steps}) == len(names)


@pytest.mark.parametrize("said", [{}, {"weights_first": True}, GPT_OSS])
def test_arrays_of_jax_give_a_tensor(said):
    jax = pytest.importorskip("jax")
    given = operands(6, 32, 16, 4, 2, dtype=torch.float32)
    _, up, down, _, _ = operands(1, 32, 24, 1, 1, dtype=torch.float32, seed=5)
    theirs = [jax.numpy.asarray(one.numpy()) for one in (*given, up[0], down[0])]
    for _ in range(2):
        y = tw.fused_moe(*theirs[:5], shared=tuple(theirs[5:]), **said)
        wanted = reference(*given, shared=(up[0], down[0]), **said)
        assert worst(y, wanted) < LIMITS[torch.float32]
    logits = jax.numpy.asarray(np.random.default_rng(0).standard_normal((6, 4), np.float32))
    y = tw.routed_moe(theirs[0], logits, *theirs[1:3], k=2, **said)
    mine = [torch.from_dlpack(one) for one in (theirs[0], logits, *theirs[1:3])]
    assert torch.equal(y, tw.routed_moe(*mine, k=2, **said))


X, W1, W2, WEIGHTS, IDS = operands(4, 32, 16, 3, 2, dtype=torch.float32)


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        ((X, W1[0], W2, WEIGHTS, IDS), {}, "w1 has shape"),
        ((X, W1[:, :20], W2, WEIGHTS, IDS), {}, "inner or 2 · inner"),
        ((X, W1, W2[:2], WEIGHTS, IDS), {}, "w1 has shape"),
        ((X[:, :16], W1, W2, WEIGHTS, IDS), {}, "x has 16 columns, but w1 takes 32"),
        ((X, W1, W2, WEIGHTS[:, :1], IDS), {}, "both are"),
        ((X[:3], W1, W2, WEIGHTS, IDS), {}, "as x has rows"),
        ((X, W1, W2, WEIGHTS, IDS), {"activation": "swish"}, "is not a gate's activation"),
        ((X, W1[:, :16], W2, WEIGHTS, IDS), {"activation": "sigmoid"}, "without a gate"),
        ((X, W1[:, :16], W2, WEIGHTS, IDS), {"limit": 7.0}, "has no gates"),
        ((X, W1, W2, WEIGHTS, IDS.float()), {}, "ids are fp32"),
        ((X, W1, W2, WEIGHTS, IDS), {"b1": W1}, "bias of shape"),
        ((X, W1, W2, WEIGHTS, IDS), {"scale_a": "1x128"}, "belong together"),
        ((X, W1, W2, WEIGHTS, IDS), {"scales": (W1, W2)}, "belong together"),
        ((X, W1, W2, WEIGHTS, IDS), {**FEW, "scales": (W1, W2), "scale_a": "1x64"}, "1x128"),
    ],
)
def test_what_does_not_fit_is_refused(given, options, why):
    with pytest.raises(BadArgument, match=why):
        tw.fused_moe(*given, **options)


def test_what_a_layer_takes_is_passed_on_as_it_is():
    """The keywords of `fused_moe` are those of `Options`, which its relatives pass on to."""
    taken = signature(tw.fused_moe).parameters.values()
    words = {one.name: one.default for one in taken if one.kind is one.KEYWORD_ONLY}
    assert words == {one.name: one.default for one in fields(Options)}


@pytest.mark.parametrize("word", ["shared", "weights_first", "routed_scaling_factor", "out"])
def test_what_belongs_to_the_sum_is_no_word_of_the_rows(word):
    x, w1, w2, _, experts = operands(9, 32, 16, 4, 2, dtype=torch.float32)
    with pytest.raises(BadArgument, match=f"^{word}= belongs to the sum"):
        moe.rows_of_experts(x, w1, w2, experts, **{word: None})


def test_a_word_of_no_layer_is_refused_with_the_nearest():
    x, w1, w2, _, _ = operands(9, 32, 16, 4, 2, dtype=torch.float32)
    with pytest.raises(BadArgument, match="no option 'activaton' \\(did you mean 'activation'"):
        tw.routed_moe(x, torch.zeros(9, 4), w1, w2, k=2, activaton="silu")
