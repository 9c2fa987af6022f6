"""Operands of any number of dimensions, 8-bit floats of two dtypes, words of other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import tilewright as tw
from shared_builds import build_once
from tilewright import GemmProblem, verify
from tilewright.arch import arch
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, EmptySpace
from tilewright.ops.gemm import FAMILY, ranks
from tilewright.ops.nouns import Call, View

SHAPES = [
    ((8,), (8, 6)),
    ((4, 8), (8,)),
    ((8,), (8,)),
    ((2, 3, 4, 8), (2, 3, 8, 6)),
    ((2, 1, 4, 8), (1, 3, 8, 6)),
    ((2, 3, 4, 8), (3, 8, 6)),
    ((5, 2, 3, 4, 8), (8, 6)),
    ((8,), (2, 3, 8, 6)),
    ((2, 3, 4, 8), (8,)),
    ((2, 3, 4, 8), (2, 1, 8, 6)),
]


@pytest.mark.turns(32)
@pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
def test_matmul_of_any_ranks_with_its_gradients(of_a, of_b):
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(s, generator=generator, requires_grad=True) for s in (of_a, of_b)]
    wide = [x.detach().double().requires_grad_() for x in ours]
    made, wanted = tw.gemm(*ours), torch.matmul(*wide)
    assert made.shape == wanted.shape
    torch.testing.assert_close(made.double(), wanted, atol=1e-5, rtol=1e-5)
    slope = torch.randn(wanted.shape, generator=generator)
    (made * slope).sum().backward()
    (wanted * slope).sum().backward()
    for x, y in zip(ours, wide, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, atol=1e-4, rtol=1e-4)


def test_an_expanded_batch_is_read_in_place():
    a, b = torch.randn(2, 1, 4, 8).expand(2, 3, 4, 8), torch.randn(2, 3, 8, 6)
    torch.testing.assert_close(tw.gemm(a, b), torch.matmul(a, b), atol=1e-5, rtol=1e-5)


def test_numpys_arrays_too():
    a, b = np.ones((2, 2, 4, 8), np.float32), np.ones(8, np.float32)
    assert np.array_equal(tw.gemm(a, b), np.matmul(a, b))


def view(*shape: int) -> View:
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return View(shape, strides, "fp32", 0, "cpu")


sizes = st.lists(st.sampled_from([1, 2, 3]), max_size=4)


@given(sizes, sizes, st.booleans(), st.booleans())
def test_the_equation_has_matmuls_shape_or_none(batch_a, batch_b, vector_a, vector_b):
    a = (8,) if vector_a else (*batch_a, 4, 8)
    b = (8,) if vector_b else (*batch_b, 8, 6)
    assume((len(a), len(b)) != (2, 4))  # that B is a shuffled one
    call = Call((view(*a), view(*b)), {}, None, {})
    try:
        wanted = np.matmul(np.ones(a), np.ones(b)).shape
    except ValueError:
        with pytest.raises(BadArgument, match=r"must be equal, or 1|sizes differ|batches of|is no"):
            FAMILY.outputs(call)
        return
    assert tuple(FAMILY.outputs(call)[0].shape) == wanted


def test_matrices_batches_and_shuffled_operands_stay_as_they_are():
    for a, b in (((4, 8), (8, 6)), ((2, 4, 8), (2, 8, 6)), ((16, 64), (2, 2, 64, 8))):
        call = Call((view(*a), view(*b)), {}, None, {})
        assert ranks.as_contraction(call) is call


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("alpha", "epilogue='scale', scale=alpha"),
        ("beta", "epilogue='add'"),
        ("zero_point", "pack q - 8"),
        ("transpose_b", "pass B.T"),
    ],
)
def test_words_of_other_libraries_are_answered_with_the_way_here(word, says):
    with pytest.raises(BadArgument, match=says):
        tw.gemm(np.ones((4, 8), np.float32), np.ones((8, 6), np.float32), **{word: 2.0})


# --- 8-bit floats of two dtypes -------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [("e4m3fn", "e5m2"), ("e5m2", "e4m3fn")])
def test_two_dtypes_of_8_bits_are_multiplied(a, b):
    problem = GemmProblem(20, 24, 40, dtype_a=a, dtype_b=b, dtype_c="bf16")
    assert verify.verify(Dispatcher(device="h200_sxm"), problem, seed=1).ok


@pytest.mark.turns(24)
def test_hoppers_matrix_instruction_takes_both(store):
    problem = GemmProblem(256, 256, 256, dtype_a="e4m3fn", dtype_b="e5m2", dtype_c="bf16")
    kernels = FAMILY.default_space(problem, arch("sm_90")).expand(arch("sm_90")).configs
    config = next(c for c in kernels if c.pipeline == "gluon_ws")
    (result,) = build_once([(config, "sm_90")], store).results
    assert result.ok, result
    assert ".f32.e4m3.e5m2" in inspect(result.kernel, store, "ptx")


def test_what_does_not_multiply_two_dtypes_says_so():
    mixed = {"dtype_a": "e4m3fn", "dtype_b": "e5m2", "dtype_c": "bf16"}
    problem = GemmProblem(256, 256, 256, **mixed)
    with pytest.raises(EmptySpace, match="e4m3fn by e5m2 with no WMMA of gfx1201"):
        FAMILY.default_space(problem, arch("gfx1201")).expand(arch("gfx1201"))
    dropped = FAMILY.default_space(problem, arch("gfx950")).expand(arch("gfx950")).dropped
    assert any("multiplies one dtype" in one.verdict.reason for one in dropped)
    with pytest.raises(BadArgument, match="convert one"):
        GemmProblem(256, 256, 256, **mixed, scale_a="1x128", scale_b="128x128")
