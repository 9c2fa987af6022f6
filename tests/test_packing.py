"""4-bit elements, two to a byte, and quantising to them: exact, rounded right, inverse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from tilewright import packing
from tilewright.errors import BadArgument
from tilewright.quantise import dequantise, quantise

LIBRARIES = {"numpy": lambda x: x, "torch": torch.from_numpy}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_packing_is_the_inverse_of_unpacking(library, axis):
    codes = np.random.default_rng(0).integers(0, 16, (6, 10), np.uint8)
    packed = packing.pack(LIBRARIES[library](codes), axis)
    assert tuple(packed.shape) == ((3, 10) if axis == 0 else (6, 5))
    assert np.array_equal(np.asarray(packing.unpack(packed, axis)), codes)


def test_the_lower_bits_hold_the_lower_index():
    assert packing.pack(np.array([1, 2, 3, 15]), 0).tolist() == [0x21, 0xF3]
    with pytest.raises(
        BadArgument, match="3 elements of 4 bits along axis 0 do not fill whole bytes"
    ):
        packing.pack(np.array([1, 2, 3]), 0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_codes_stand_for_what_ml_dtypes_says(library):
    codes = np.arange(16, dtype=np.uint8)
    packed = LIBRARIES[library](packing.pack(codes, 0))
    for kind, name in (("int4", "int4"), ("e2m1", "float4_e2m1fn")):
        wide = np.asarray(packing.decode(packed, kind, 0))
        # ml_dtypes keeps each in a byte of its own.
        expected = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
        assert np.array_equal(wide, expected)
        assert np.array_equal(np.signbit(wide), np.signbit(expected))


@pytest.mark.parametrize("library", LIBRARIES)
def test_e2m1_rounds_as_ml_dtypes_does(library):
    x = np.linspace(-7, 7, 2 * 3 * 280).reshape(2, -1).astype(np.float32)  # ties among them
    x = np.clip(x, -6, 6)
    values, scales = quantise(LIBRARIES[library](x), "1x2048", "e2m1")
    assert (np.asarray(scales) == 1).all()
    expected = x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    back = np.asarray(dequantise(values, scales, "1x2048", packed="e2m1"))
    assert np.array_equal(back, expected)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("kind", "block", "bound"),
    [
        ("int4", "1x32", 0.5 / 7),
        ("int4", "1x32-bf16", 0.5 / 7 * (1 + 2**-8)),
        ("e2m1", "1x32", 1 / 6),
        ("e2m1", "1x32-e8m0", 1 / 4),  # 7.9 saturates to 6
        ("e4m3fn", "1x32-e8m0", 2**-4 + 1 / 8),
        ("e5m2", "1x32-e8m0", 2**-3 + 1 / 8),
    ],
)
def test_values_come_back_to_within_a_share_of_their_groups_largest(library, kind, block, bound):
    x = np.random.default_rng(1).standard_normal((40, 70), np.float32)
    x *= np.exp2(np.random.default_rng(2).integers(-20, 20, (40, 1))).astype(np.float32)
    values, scales = quantise(LIBRARIES[library](x), block, kind)
    packed = kind if kind in ("int4", "e2m1") else ""
    back = np.asarray(dequantise(values, scales, block, packed=packed))
    padded = np.pad(abs(x), ((0, 0), (0, 96 - 70))).reshape(40, 3, 32).max(2)
    largest = padded.repeat(32, 1)[:, :70]
    assert (abs(back - x) <= largest * bound).all()
    again, same = quantise(LIBRARIES[library](back), block, kind)
    if kind != "int4" and "e8m0" in block:  # powers of two change nothing
        twice = dequantise(again, same, block, packed=packed)
        assert np.array_equal(np.asarray(twice), back)


def test_scales_of_mx_are_powers_of_two_as_the_specification_has_them():
    x = np.array([[6.0, 1], [7.9, 1], [8.0, 1], [2.0**-126, 0], [0, 0], [2.0**127, 1]], np.float32)
    _, scales = quantise(x, "1x2-e8m0", "e2m1")
    assert scales.dtype == ml_dtypes.float8_e8m0fnu and scales.shape == (6, 1)
    assert scales.view(np.uint8)[:, 0].tolist() == [127, 127, 128, 0, 127, 252]
    _, scales = quantise(x, "1x2-e8m0", "e4m3fn")
    assert scales.view(np.uint8)[:3, 0].tolist() == [121, 121, 122]


@pytest.mark.parametrize("library", LIBRARIES)
def test_zeros_infinities_and_nan(library):
    x = np.array([[0, 0, 0, 0], [np.inf, -np.inf, 3, -7]], np.float32)
    for kind in ("int4", "e2m1"):
        values, scales = quantise(LIBRARIES[library](x), "1x4", kind)
        back = np.asarray(dequantise(values, scales, "1x4", packed=kind))
        assert (back[0] == 0).all()
        assert np.allclose(back[1, [0, 1, 3]], (7, -7, -7))
        with pytest.raises(BadArgument, match=f"NaN, which {kind} cannot hold"):
            quantise(LIBRARIES[library](np.full((1, 2), np.nan, np.float32)), "1x2", kind)
    nan = np.full((1, 1), 255, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    assert np.isnan(dequantise(np.zeros((1, 2), np.uint8), nan, "1x4-e8m0", packed="e2m1")).all()


def test_weights_are_packed_along_their_contiguous_dimension():
    w = np.random.default_rng(3).standard_normal((8, 64), np.float32)
    values, scales = quantise(w.T, "32x1-bf16", "int4")
    assert values.shape == (32, 8) and values.strides == (1, 32) and scales.shape == (2, 8)
    rows, _ = quantise(w, "1x32-bf16", "int4")
    assert np.array_equal(rows, values.T)
    with pytest.raises(BadArgument, match="7 elements of 4 bits along axis 1"):
        quantise(w[:, :7], "1x8", "int4")
