"""Quantise and back: how far values move, what becomes of zeros, infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import arrays, dtypes
from tilewright.blocks import Block, parse
from tilewright.errors import BadArgument
from tilewright.quantise import DTYPES, dequantise, quantise, spread

torch = pytest.importorskip("torch")

STEP = {"e4m3fn": 2.0**-9, "e5m2": 2.0**-16, "e4m3fnuz": 2.0**-10, "e5m2fnuz": 2.0**-17}
"""Spacing of the values next to zero."""

words = st.builds(
    "{}x{}{}".format,
    *(st.integers(0, 8).map(lambda e: 2**e) for _ in range(2)),
    st.sampled_from(("", "-bf16")),
)


@st.composite
def matrices(draw):
    rows, columns = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    spread = 10.0 ** rng.uniform(-3, 3, (rows, 1))
    x = (rng.standard_normal((rows, columns)) * spread).astype(np.float32)
    if draw(st.booleans()):
        x = np.asfortranarray(x)
    return torch.from_numpy(x) if draw(st.booleans()) else x


@pytest.mark.turns(24)
@settings(deadline=None, max_examples=150)
@given(matrices(), words, st.sampled_from(DTYPES))
def test_values_come_back_to_within_half_a_step(x, word, dtype):
    values, scales = quantise(x, word, dtype)
    block = parse(word)
    assert dtypes.of(values).name == dtype and dtypes.of(scales).name == block.dtype
    assert tuple(scales.shape) == block.shape(*x.shape) and tuple(values.shape) == tuple(x.shape)
    assert arrays.is_torch(values) == arrays.is_torch(x) == arrays.is_torch(scales)
    back = arrays.to_float64(dequantise(values, scales, word))
    exact = arrays.to_float64(x)
    each = spread(arrays.to_float64(scales), block, *x.shape)
    # Half of the distance between neighbours; and scales that were rounded down cut the largest.
    if dtype == "int8":
        allowed = each / 2
    else:
        fine = dtypes.dtype(dtype).eps / 2 * abs(exact)
        allowed = fine + each * STEP[dtype] / 2
    cut = 0.0 if block.dtype == "fp32" else dtypes.dtype("bf16").eps
    allowed = allowed * 1.001 + cut * abs(exact)
    assert bool((abs(back - exact) <= allowed).all())


@settings(deadline=None, max_examples=50)
@given(matrices(), words, st.sampled_from(DTYPES))
def test_every_block_uses_the_whole_range(x, word, dtype):
    values, scales = quantise(x, word.partition("-")[0], dtype)
    block = parse(word.partition("-")[0])
    largest = dtypes.dtype(dtype).largest or 127
    magnitudes = np.abs(np.asarray(arrays.to_float64(values)))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            rows = slice(i * block.rows, (i + 1) * block.rows)
            columns = slice(j * block.columns, (j + 1) * block.columns)
            assert magnitudes[rows, columns].max() == largest


@settings(deadline=None, max_examples=50)
@given(matrices(), words, st.sampled_from(DTYPES))
def test_what_was_quantised_stays_as_it_is(x, word, dtype):
    """Quantising what came back gives the same values: nothing is left to lose. (With the block's
    scales rounded, the largest value may not be the dtype's largest, and the scale moves.)"""
    word = word.partition("-")[0]
    values, scales = quantise(x, word, dtype)
    again, _ = quantise(dequantise(values, scales, word, "fp32"), word, dtype)
    assert bool((arrays.to_float64(again) == arrays.to_float64(values)).all())


@settings(deadline=None, max_examples=50)
@given(matrices(), words, st.sampled_from(DTYPES))
def test_torch_and_numpy_agree(x, word, dtype):
    other = x.numpy() if arrays.is_torch(x) else torch.from_numpy(x)
    for here, there in zip(quantise(x, word, dtype), quantise(other, word, dtype), strict=True):
        one, two = (np.asarray(arrays.to_float64(y)) for y in (here, there))
        assert (one == two).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_infinities_and_nan(library, dtype):
    x = np.zeros((4, 8), np.float32)
    x[1, :4] = [1, -2, np.inf, -np.inf]
    x[2, 4:] = 1e-45  # over the dtype's largest value, less than the least float
    if dtype != "int8":
        x[3] = [np.nan, 1, 2, 4, 0, 0, 0, np.nan]
    given = torch.from_numpy(x) if library == "torch" else x
    values, scales = quantise(given, "1x4", dtype)
    got = np.asarray(arrays.to_float64(values))
    factors = np.asarray(arrays.to_float64(scales))
    largest = dtypes.dtype(dtype).largest or 127
    assert (factors > 0).all() and (factors[0] == 1).all() and factors[2, 1] == 1
    assert (got[0] == 0).all() and (got[2] == 0).all()
    assert list(got[1, 1:4]) == [-largest, largest, -largest]
    if dtype != "int8":
        assert np.isnan(got[3, [0, 7]]).all() and np.isfinite(got[3, 1:7]).all()
        assert got[3, 3] == largest


def test_a_transposed_view_is_quantised_in_its_own_order():
    weights = np.random.default_rng(1).standard_normal((96, 256), np.float32)
    values, scales = quantise(weights.T, "128x32")
    same, other = quantise(weights, "32x128")
    assert (same == values.T).all() and (other == scales.T).all()
    assert values.T.flags.c_contiguous and values.shape == (256, 96)
    tensor, _ = quantise(torch.from_numpy(weights).T, "128x32")
    assert tensor.T.is_contiguous()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats_are_taken(dtype):
    x = np.random.default_rng(2).standard_normal((8, 16)).astype(dtype)
    values, scales = quantise(x, "1x16")
    assert np.allclose(dequantise(values, scales, "1x16"), x, rtol=0.07, atol=0.01)
    tensor, factors = quantise(torch.from_numpy(x).bfloat16(), "1x16")
    back = dequantise(tensor, factors, "1x16", "bf16")
    assert back.dtype == torch.bfloat16


def test_huge_values_with_16_bit_scales_stay_finite():
    x = np.full((2, 4), 3e38, np.float32)
    values, scales = quantise(x, "1x4-fp16")
    assert np.isfinite(scales.astype(np.float32)).all()
    assert (values.astype(np.float32) == 448).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quantise([[1.0]], "1x1"), "x is a list"),
        (lambda: quantise(np.ones(4, np.float32), "1x1"), r"shape \(4,\)"),
        (lambda: quantise(np.ones((0, 4), np.float32), "1x1"), r"shape \(0, 4\)"),
        (lambda: quantise(np.ones((2, 4), np.int8), "1x1"), "x is int8; pass floats"),
        (lambda: quantise(np.ones((2, 4), np.float32), ""), "is missing"),
        (lambda: quantise(np.ones((2, 4), np.float32), "1x3"), "3 is not a power of two"),
        (lambda: quantise(np.ones((2, 4), np.float32), "1x4-int8"), "not int8"),
        (lambda: quantise(np.ones((2, 4), np.float32), "1x4-fp32"), "write 1x4"),
        (lambda: quantise(np.ones((2, 4), np.float32), "4"), "not a block of scales"),
        (lambda: quantise(np.ones((2, 4), np.float32), "1x4", "bf16"), "cannot quantise to bf16"),
        (lambda: quantise(np.full((2, 4), np.nan, np.float32), "1x4", "int8"), "NaN"),
        (
            lambda: dequantise(np.ones((2, 4), np.int8), np.ones((2, 4), np.float32), "1x4"),
            r"scales have shape \(2, 4\).*of shape \(2, 1\)",
        ),
    ],
)
def test_what_cannot_be_quantised(call, words):
    with pytest.raises(BadArgument, match=words):
        call()


def test_blocks_say_the_shape_of_their_scales():
    assert parse("1x128") == Block(1, 128) and parse("") is None
    assert parse("128x1-bf16").dtype == "bf16"
    assert Block(128, 128).shape(129, 128) == (2, 1)
