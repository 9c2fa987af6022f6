"""Chains of operations on elements: broadcasting, gradients, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import tilewright as tw
from tilewright import ops
from tilewright.compile import build
from tilewright.declared.shape import _problems
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops import epilogues

FAMILY = ops.family("elementwise_chain")


def plainly(x, chain, a=None, b=None, c=None, **said):
    """Stands for the operation: the reference, on the arrays that it was given."""
    given = {"a": a, "b": b, "c": c}
    for name, one in (("x", x), *given.items()):
        if one is not None:
            bits = said[f"{name}_over"]
            sizes = [said[f"n{i}"] if bits >> (3 - i) & 1 else 1 for i in range(4)]
            assert list(one.shape) == sizes
    flags = {f"has_{name}": one is not None for name, one in given.items()}
    problem = FAMILY.problem_type(chain=chain, **said, **flags, dtype="fp32")
    return FAMILY.declared.reference(x, **given, problem=problem)


elementwise = FAMILY.functions["elementwise"](plainly)


@st.composite
def operands(draw):
    """x, and two operands that broadcast against its shape, of any order in memory."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    found = []
    for _ in range(3):
        own = [n if draw(st.booleans()) else 1 for n in shape]
        own = own[draw(st.integers(0, len(own))) :] if found else own
        made = np.arange(1.0, 1 + 2 * np.prod(own, dtype=int)).reshape(*own, 2)[..., 0]
        order = draw(st.permutations(range(len(own))))
        found.append(made.transpose(order).copy().transpose([*np.argsort(order)]))
    return found


@settings(max_examples=20, deadline=None)
@given(operands())
def test_operands_are_broadcast_as_numpys(given):
    x, a, b = given
    assert np.array_equal(elementwise(x, a, b, chain="mul+add"), x * a + b)


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("columns", "apart", "moved"),
    [
        (98, 2, {"v4.b32", "b16"}),  # the same: a, whose rows are apart, one by one
        (100, 2, {"v2.b32"}),
        (104, 2, {"v4.b32"}),
        (104, 1, {"v4.b32"}),
        (98, 1, {"v4.b32", "b16"}),  # over the ends of rows; one by one in the last tile
    ],
)
def test_what_a_lane_moves_at_once(columns, apart, moved, store):
    """As machine code has it: two elements of 2 bytes, four, eight. apart: rows of a from one of
    its rows to the next."""
    stated = {**_problems.chained((64, columns), "add", 3), "a_s2": columns * apart}
    problem = FAMILY.problem_type(**stated)
    config = Dispatcher(device="h200_sxm").select(problem).config
    report = build([(config, "sm_90")], store=store, workers=1)
    report.raise_if_failed()
    text = store.read(report.kernels[0], "ptx").decode()
    assert {*re.findall(r"(?:ld|st)\.global\.((?:v\d\.)?b\d+)", text)} == moved


@pytest.mark.parametrize(
    ("sizes", "chain", "over", "alike"),
    [
        ((9, 33, 65), "add", (3,), 1),  # x lies as y does, a is broadcast
        ((9, 33, 65), "mul+add", (5, 7), 5),
        ((9, 33, 66), "add", (3,), 1),  # of 4 bytes
        ((9, 33, 68), "add", (3,), 0),  # rows have vectors
        ((9, 33, 66), "add", (7,), 3),  # longer ones where all lie as y does
        ((9, 33, 64), "add", (7,), 0),
        ((1 << 16, 1 << 10, 33), "add", (3,), 0),  # more elements than are counted
    ],
)
def test_odd_rows_are_counted_over_their_ends(sizes, chain, over, alike):
    problem = FAMILY.problem_type(**_problems.chained(sizes, chain, *over))
    config = Dispatcher(device="h200_sxm").select(problem).config
    assert alike == config.ALIKE


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_element(shape):
    """Its operands are broadcast along nothing, and none is far."""
    x, a = torch.full(shape, 2.0), torch.full(shape, 0.5)
    assert tw.elementwise(x, a, chain="mul").tolist() == torch.ones(shape).tolist()


def test_a_result_lies_as_x():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    scale = torch.randn(3, 1, 1)
    y = tw.elementwise(x, scale, chain="mul")
    assert y.stride() == x.stride() and torch.equal(y, x * scale)
    wide = torch.randn(4, 1).expand(4, 6)
    assert torch.equal(tw.elementwise(wide, wide, chain="add"), wide + wide)
    half = tw.elementwise(x, scale, chain="mul", out_dtype=torch.bfloat16)
    assert torch.equal(half, (x * scale).bfloat16())


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("chain", "computes"),
    [
        ("mul+add+gelu", lambda x, a, b: F.gelu(x * a + b)),
        ("bias+silu+mul", lambda x, a, b: F.silu(x + a) * b),
        ("mul+relu+mul", lambda x, a, b: F.relu(x * a) * b),
        ("sub+div+tanh", lambda x, a, b: ((x - a) / b).tanh()),
        ("abs+sqrt+div+div", lambda x, a, b: x.abs().sqrt() / a / b),
        ("mul+exp+sub+neg", lambda x, a, b: b - (x * a).exp()),
        ("sigmoid+div+log+abs+sub", lambda x, a, b: (x.sigmoid() / a).log().abs() - b),
        ("add+clamp", lambda x, a, b: (x + a).clamp(b[0], b[0] + 1)),
    ],
)
def test_gradients_are_torchs(chain, computes):
    x, a, b = (torch.randn(s, requires_grad=True) for s in ((2, 3, 8), (2, 1, 8), (8,)))
    wanted = (x, a, b)
    given = wanted
    if "clamp" in chain:  # its bounds have no gradients
        wanted, bound = (x, a), b.detach()[0].reshape(1)
        given = (x, a, bound, bound + 1)
    if "div" in chain:  # by nothing near 0, and logarithms of positive numbers
        for one in (a, b):
            one.data.abs_().add_(0.5)
    y, right = tw.elementwise(*given, chain=chain), computes(x, a, b)
    torch.testing.assert_close(y, right)
    arriving = torch.randn_like(y)
    found = torch.autograd.grad(y, wanted, arriving)
    for one, other in zip(found, torch.autograd.grad(right, wanted, arriving), strict=True):
        torch.testing.assert_close(one, other)


ODD = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-4, -1e-4, 0.2499, 0.2501, 12.0, -12.0, np.inf, -np.inf]
ODD = np.array([*ODD, np.nan], np.float32)


@pytest.mark.parametrize("word", ["neg", "abs", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh"])
def test_words_of_one_element_are_torchs_at_the_edges_too(word):
    wanted = getattr(torch, word)(torch.tensor(ODD).double()).float()
    found = tw.elementwise(torch.tensor(ODD), chain=word)
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, -2.5, 0, 1])
def test_powers_are_torchs(exponent):
    x = torch.tensor(ODD)
    x = x[x != 0] if exponent < 0 else x  # of -0, torch keeps the sign
    x = x[x != -np.inf] if exponent == 0.5 else x  # torch takes the root, which is NaN
    found = tw.elementwise(x, exponent, chain="pow")
    wanted = x.double().pow(exponent).float()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0, equal_nan=True)
    near = torch.randn(8, requires_grad=True) if exponent == int(exponent) else torch.rand(8) + 0.1
    near = near.detach().requires_grad_()
    slope = torch.autograd.grad(tw.elementwise(near, exponent, chain="pow").sum(), near)
    torch.testing.assert_close(slope, torch.autograd.grad(near.pow(exponent).sum(), near))


def test_a_number_is_an_operand():
    x = torch.randn(3, 5, dtype=torch.bfloat16)
    found = tw.elementwise(x, 0.3, 2, chain="div+sub")
    assert torch.equal(found, (x.float() / 0.3 - 2).bfloat16())
    array = np.ones((2, 3), np.float32)
    assert np.array_equal(tw.elementwise(array, 0.25, -1.0, 1.5, chain="sub+clamp"), 0.75 * array)
    found = tw.elementwise(array, 2, float("inf"), chain="clamp")
    assert np.array_equal(found, 2 * array)


def test_words_of_chains_are_none_of_epilogues():
    with pytest.raises(BadArgument, match="unknown operation 'tanh'"):
        tw.gemm(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), epilogue="tanh")


def test_a_word_that_was_registered_too_is_refused(monkeypatch):
    own = epilogues.Operation("sub", "mine:sub", "own", lambda x: x)
    monkeypatch.setitem(epilogues.OPERATIONS, "sub", own)
    with pytest.raises(BadArgument, match="register it by another name"):
        tw.elementwise(np.ones(3, np.float32), 1.0, chain="sub")


def test_gradients_of_halves_are_summed_in_fp32():
    x = torch.ones(4096, 2, dtype=torch.bfloat16)
    bias = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    (found,) = torch.autograd.grad(tw.elementwise(x, bias, chain="bias").sum(), bias)
    assert found.dtype == torch.bfloat16 and found.tolist() == [4096.0, 4096.0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: tw.elementwise(x, chain="add"), "'add' takes 1 operands besides x, not 0"),
        (lambda x: tw.elementwise(x, x, chain="gelu"), "takes 0 operands besides x, not 1"),
        (lambda x: tw.elementwise(x, x, x, x, x, chain="add"), "takes 3 operands besides x"),
        (lambda x: tw.elementwise(x, x[:2], chain="add"), "do not broadcast"),
        (lambda x: tw.elementwise(x, chain="gelo"), "unknown operation 'gelo'"),
        (lambda x: tw.elementwise(x, chain="swiglu"), "swiglu makes one column of two"),
        (lambda x: tw.elementwise(x.int(), chain="relu"), "x is int32, which fp32 arithmetic"),
        (lambda x: tw.elementwise(x, chain="relu", out_dtype="int32"), "not stored as int32"),
        (
            lambda x: tw.elementwise(x, x[0, :1].requires_grad_(), chain="scale", out_dtype="int8"),
            "values that are rounded to 8 bits have none",
        ),
        (
            lambda x: tw.elementwise(x, x[0, :1].requires_grad_(), x[0, :1], chain="clamp"),
            "states no gradient of a",
        ),
        (
            lambda x: tw.elementwise(x, x[0, :1].requires_grad_(), chain="pow"),
            "states no gradient of a",
        ),
        (lambda x: tw.elementwise(3.0, x, chain="add"), "x must be a tensor"),
        (lambda x: tw.elementwise(x, True, chain="add"), "a must be a tensor"),
        (lambda x: tw.elementwise(x, 1e39, chain="add"), "a = 1e[+]39 is too large for fp32"),
        (lambda x: tw.elementwise(x, 10**400, chain="sub"), "a = 10+.* is too large for fp32"),
    ],
)
def test_what_is_refused(call, says):
    with pytest.raises(BadArgument, match=says):
        call(torch.ones(3, 4))


@pytest.mark.parametrize("shape", [(3, 1), (1,), (0, 4), ()])
def test_nothing_makes_nothing(shape):
    x = np.zeros((3, 0, 4), np.float32)
    others = np.ones(shape, np.float32) if shape != (3, 1) else np.ones((3, 1, 1), np.float32)
    for operands in ((x, others), (others, x)):
        assert tw.elementwise(*operands, chain="add").shape == (3, 0, 4)


def test_lanes_have_fewer_elements_where_there_are_not_enough_for_all():
    sizes = {"dtype": "bf16", "has_a": True, "chain": "mul", "x_over": 3, "a_over": 1, "n3": 3072}
    for rows, elements in ((128, 8), (2048, 16)):
        problem = ops.family("elementwise_chain").problem_type(n2=rows, **sizes)
        config = tw.Dispatcher(device="h200_sxm").select(problem).config
        assert elements == config.ROWS * config.COLUMNS / (32 * config.num_warps)
