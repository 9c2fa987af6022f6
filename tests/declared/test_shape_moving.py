"""Permutations, transposes and casts: how they are stated, their gradients, and what is refused."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import ops
from tilewright.arch import arch
from tilewright.compile import build
from tilewright.declared.shape import _forms, _problems
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument

RUNS: list[tuple[int, ...]] = []


def plainly(x, scale=None):
    """Stands for the operation, and keeps the shape that it was given."""
    assert scale is None and np.shares_memory(x, BASE[0])
    RUNS.append(x.shape)
    return np.ascontiguousarray(x)


BASE: list[np.ndarray] = []
permute = ops.family("strided_copy").functions["permute"](plainly)
transpose = ops.family("strided_copy").functions["batched_transpose"](plainly)
cast = ops.family("strided_copy").functions["cast"](lambda x, out_dtype, scale: plainly(x, scale))


@st.composite
def moved(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    wide = np.arange(np.prod(shape) * 2).reshape(*shape[:-1], -1)
    x = wide[..., : shape[-1]].transpose(draw(st.permutations(range(len(shape)))))
    return x, draw(st.permutations(range(len(shape))))


@settings(max_examples=20, deadline=None)
@given(moved())
def test_any_permutation_is_stated_with_few_dimensions(given):
    x, dims = given
    BASE[:], RUNS[:] = [x], []
    assert np.array_equal(permute(x, tuple(dims)), x.transpose(dims))
    assert np.array_equal(permute(x, [d - x.ndim for d in dims]), x.transpose(dims))
    assert np.array_equal(cast(x, "fp32"), x)
    if x.ndim > 1:
        assert np.array_equal(transpose(x), x.swapaxes(-1, -2))
    assert all(len(shape) == _forms.DIMENSIONS for shape in RUNS)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(2, 5), min_size=4, max_size=4))
def test_neighbours_are_one_dimension(dims, shape):
    sizes, strides = _forms.canonical(
        [shape[d] for d in dims], [int(np.prod(shape[d + 1 :])) for d in dims]
    )
    breaks = sum(a + 1 != b for a, b in itertools.pairwise(dims))
    assert sum(n > 1 for n in sizes) == breaks + 1
    x = np.arange(np.prod(shape))
    walked = np.lib.stride_tricks.as_strided(x, sizes, [s * x.itemsize for s in strides])
    assert np.array_equal(walked.reshape(-1), x.reshape(shape).transpose(dims).reshape(-1))


def test_a_cast_keeps_the_order_in_memory():
    x = np.zeros((2, 3, 4)).transpose(2, 0, 1)
    BASE[:], RUNS[:] = [x], []
    assert cast(x, "fp32").strides == x.strides and RUNS == [(1, 1, 1, 1, 1, 24)]


@pytest.mark.parametrize(
    ("shape", "dims", "said"),
    [
        ((2, 3, 32), (0, 1, 2), {"ACROSS": 5, "DIMS": 1, "READS": 16, "WRITES": 16}),
        ((4, 48, 80), (0, 2, 1), {"ACROSS": 4, "DIMS": 3, "READS": 16, "WRITES": 16}),
        ((4, 48, 20), (0, 2, 1), {"ACROSS": 4, "READS": 4, "WRITES": 16}),
        ((4, 20, 48), (0, 2, 1), {"ACROSS": 4, "READS": 16, "WRITES": 4}),
        ((4, 16, 8, 32), (3, 1, 0, 2), {"ACROSS": 2, "DIMS": 4}),
        ((4, 3, 480), (0, 2, 1), {"ACROSS": 4, "PACKED": "y", "COLUMNS": 4}),
        ((4, 480, 3), (0, 2, 1), {"ACROSS": 4, "PACKED": "x", "ROWS": 4}),
        ((4, 3, 50), (0, 2, 1), {"ACROSS": 4, "PACKED": "y", "READS": 2, "WRITES": 1}),
        ((4, 50, 3), (0, 2, 1), {"ACROSS": 4, "PACKED": "x", "READS": 1, "WRITES": 2}),
        ((4, 1024, 196), (0, 2, 1), {"ACROSS": 4, "PACKED": "", "READS": 4, "WRITES": 16}),
        ((4, 49, 7), (0, 2, 1), {"ACROSS": 4, "PACKED": "", "READS": 1, "WRITES": 1}),
        ((4, 50, 2, 15), (0, 2, 1, 3), {"ACROSS": 5, "DIMS": 4, "PACKED": "ends"}),
        ((4, 50, 2, 7), (0, 2, 1, 3), {"ACROSS": 5, "DIMS": 4, "PACKED": "both"}),
        ((4, 50, 2, 14), (0, 2, 1, 3), {"ACROSS": 5, "PACKED": "", "READS": 2}),
        ((9, 333), (0, 1), {"ACROSS": 5, "DIMS": 1, "PACKED": "ends"}),
        ((4, 480, 16), (0, 2, 1), {"ACROSS": 4, "PACKED": "", "READS": 16, "WRITES": 16}),
    ],
)
def test_which_kernels_move_it(shape, dims, said):
    family, this = ops.family("strided_copy"), arch("sm_90")
    problem = family.problem_type(**_problems.permuted(shape, dims))
    found = family.default_space(problem, this).expand(this).configs
    assert 0 < len(found) <= 60
    for config in found:
        assert {name: getattr(config, name) for name in said} == said
    assert sum(bool(family.supports(config, problem, this)) for config in found) >= 2


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("shape", "reads", "writes"),
    [
        ((4, 1024, 196), "v2.b32", "v4.b32"),  # 4 elements of 2 bytes, and 8
        ((4, 196, 1024), "v4.b32", "v2.b32"),
        ((4, 98, 1024), "v4.b32", "b32"),
        ((4, 50, 3), "b32", "b32"),  # rows of three channels, packed
        ((4, 49, 7), "b16", "b16"),
    ],
)
def test_what_a_lane_moves_at_once(shape, reads, writes, store):
    """As machine code has it."""
    problem = ops.family("strided_copy").problem_type(**_problems.permuted(shape, (0, 2, 1)))
    config = Dispatcher(device="h200_sxm").select(problem).config
    report = build([(config, "sm_90")], store=store, workers=1)
    report.raise_if_failed()
    text = store.read(report.kernels[0], "ptx").decode()
    found = [{*re.findall(rf"{how}\.global\.((?:v\d\.)?b\d+)", text)} for how in ("ld", "st")]
    assert found == [{reads}, {writes}]


def test_results_of_torch_and_their_gradients():
    x = torch.randn(3, 5, 4, 6, requires_grad=True)
    y = tw.permute(x, (0, 2, 3, 1))
    assert y.is_contiguous() and torch.equal(y, x.permute(0, 2, 3, 1))
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    assert torch.equal(x.grad, weights.permute(0, 3, 1, 2))
    half = tw.cast(x, torch.bfloat16)
    assert torch.equal(half, x.bfloat16())
    x.grad = None
    half.backward(torch.ones_like(half))
    assert torch.equal(x.grad, torch.ones_like(x))


def test_functions_take_arrays_that_do_not_say_their_strides():
    """As JAX's."""
    numpy = pytest.importorskip("jax.numpy")
    like = torch.arange(24.0).reshape(2, 3, 4)
    x = numpy.asarray(like.numpy())
    assert torch.equal(tw.permute(x, (2, 0, 1)), like.permute(2, 0, 1))
    assert torch.equal(tw.batched_transpose(x), like.transpose(1, 2))
    assert torch.equal(tw.cast(x, "bf16"), like.bfloat16())
    assert torch.equal(tw.elementwise(x, x[0], chain="add"), like + like[0])
    assert torch.equal(tw.reduce(x, "sum", 1), like.sum(1))
    assert torch.equal(tw.max_pool1d(x, 2), torch.nn.functional.max_pool1d(like, 2))


def test_eight_bits_saturate():
    x = torch.tensor([1e6, -1e6, 3.0, float("nan")])
    assert torch.equal(tw.cast(x, "e5m2").float()[:3], torch.tensor([57344.0, -57344.0, 3.0]))
    scaled = tw.cast(x[:3], "int8", scale=torch.tensor([2.0]))
    assert scaled.tolist() == [127, -128, 2]  # a tie goes to even
    assert tw.permute(x[:0].reshape(0, 3), (1, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: tw.permute(x, (0, 0, 1)), "are no order of 3 dimensions"),
        (lambda x: tw.permute(x, (0, 1)), "are no order of 3 dimensions"),
        (lambda x: tw.permute(x, "021"), "are not whole numbers"),
        (lambda x: tw.permute([[1]], (1, 0)), "must be a tensor of torch or an array of NumPy"),
        (lambda x: tw.batched_transpose(x[0, 0]), "takes matrices, not 1 dimensions"),
        (lambda x: tw.cast(x, "int8"), "fp32 is not cast to int8 without scale="),
        (lambda x: tw.cast(x, "bf16", scale=2.0), "scale= rounds floats to 8 bits"),
        (lambda x: tw.permute(x.expand(2, 3, 4), (0, 2, 1)), "share memory"),
        (
            lambda x: tw.permute(x.new_zeros((2,) * 14)[(slice(None), 0) * 7], range(6, -1, -1)),
            "7 dimensions are left",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(call, says):
    with pytest.raises(BadArgument, match=says):
        call(torch.zeros(1, 3, 4))


def test_rounded_values_have_no_gradient():
    x = torch.randn(2, 32, requires_grad=True)
    with pytest.raises(BadArgument, match="values that are rounded to 8 bits have none"):
        tw.cast(x, "e4m3fn", scale=1.0)
