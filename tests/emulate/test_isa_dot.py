"""Dot products of packed elements, lane by lane in Python's numbers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from one import one

LANES = {"gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32}


def f16(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bf16(bits: int) -> float:
    return f32(bits << 16)


def bits32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def pairs(kind, random, lanes: int) -> np.ndarray:
    """Two elements of moderate size a lane."""
    values = random.integers(-64, 64, (2, lanes)) / 16.0
    if kind is f16:
        halves = values.astype(np.float16).view(np.uint16)
    else:
        halves = values.astype(np.float32).view(np.uint32) >> 16
    return (halves[0] | halves[1].astype(np.uint32) << 16).astype(np.uint32)


FLOATS = [
    ("gfx90a", "v_dot2_f32_f16 v0, v1, v2, v3", f16),
    ("gfx942", "v_dot2_f32_f16 v0, v1, v2, v3", f16),
    ("gfx1100", "v_dot2_f32_f16 v0, v1, v2, v3", f16),
    ("gfx1201", "v_dot2_f32_f16 v0, v1, v2, v3", f16),
    ("gfx950", "v_dot2_f32_bf16 v0, v1, v2, v3", bf16),
    ("gfx1201", "v_dot2_f32_bf16 v0, v1, v2, v3", bf16),
    ("gfx942", "v_dot2c_f32_f16_e32 v3, v1, v2", f16),
    ("gfx1100", "v_dot2acc_f32_f16_e32 v3, v1, v2", f16),
    ("gfx1201", "v_dot2_f32_f16 v0, v1, v2, 1.0", f16),
]


@pytest.mark.parametrize(("gpu", "text", "kind"), FLOATS)
def test_two_floats(gpu, text, kind):
    random = np.random.default_rng(3)
    lanes = LANES[gpu]
    a, b = pairs(kind, random, lanes), pairs(kind, random, lanes)
    c = (random.integers(-999, 999, lanes) / 256).astype(np.float32).view(np.uint32)
    made = one(text, gpu, vector={0: 7, 1: a, 2: b, 3: c}, active=0x0FFFFFFF)
    result = 3 if "v3, v1" in text else 0
    before = c if result == 3 else np.full(lanes, 7)
    for lane in range(lanes):
        x, y = int(a[lane]), int(b[lane])
        added = 1.0 if text.endswith("1.0") else f32(int(c[lane]))
        exact = kind(x & 0xFFFF) * kind(y & 0xFFFF) + kind(x >> 16) * kind(y >> 16) + added
        expected = bits32(exact) if lane < 28 else before[lane]
        assert made.vector[result, 0, lane] == expected


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201"])
def test_two_bf16_to_bf16_drops_bits(gpu):
    random = np.random.default_rng(4)
    a, b = pairs(bf16, random, 32), pairs(bf16, random, 32)
    c = random.integers(0x3F80, 0x4180, 32)
    made = one(
        "v_dot2_bf16_bf16 v0, v1, v2, v3",
        gpu,
        vector={0: 0xABCD0000, 1: a, 2: b, 3: c | 0x55550000},
    )
    for lane in range(32):
        x, y = int(a[lane]), int(b[lane])
        exact = bf16(x & 0xFFFF) * bf16(y & 0xFFFF) + bf16(x >> 16) * bf16(y >> 16)
        expected = bits32(exact + bf16(int(c[lane]))) >> 16
        assert made.vector[0, 0, lane] == 0xABCD0000 | expected


@pytest.mark.parametrize(
    ("gpu", "text", "kept"),
    [
        ("gfx90a", "v_dot2_f32_f16 v0, v1, v2, 0", False),
        ("gfx942", "v_dot2_f32_f16 v0, v1, v2, 0", True),
        ("gfx1100", "v_dot2_f32_f16 v0, v1, v2, 0", True),
        ("gfx1201", "v_dot2_f32_f16 v0, v1, v2, 0", True),
    ],
)
def test_denormal_inputs(gpu, text, kept):
    made = one(text, gpu, vector={1: 0x00010001, 2: 0x78007800})
    expected = 2 * f16(1) * f16(0x7800) if kept else 0.0
    assert f32(int(made.vector[0, 0, 0])) == expected


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


@pytest.mark.parametrize(
    ("gpu", "text", "of_a", "of_b"),
    [
        ("gfx1100", "v_dot4_i32_iu8 v0, v1, v2, v3 neg_lo:[1,1,0]", signed, signed),
        ("gfx1201", "v_dot4_i32_iu8 v0, v1, v2, v3 neg_lo:[0,1,0]", int, signed),
        ("gfx1100", "v_dot4_i32_iu8 v0, v1, v2, v3 neg_lo:[1,0,0]", signed, int),
        ("gfx1100", "v_dot4_i32_iu8 v0, v1, v2, v3", int, int),
        ("gfx942", "v_dot4_i32_i8 v0, v1, v2, v3", signed, signed),
        ("gfx90a", "v_dot4c_i32_i8_e32 v3, v1, v2", signed, signed),
    ],
)
def test_four_bytes(gpu, text, of_a, of_b):
    random = np.random.default_rng(5)
    lanes = LANES[gpu]
    a, b, c = (random.integers(0, 1 << 32, lanes).astype(np.uint32) for _ in range(3))
    made = one(text, gpu, vector={1: a, 2: b, 3: c})
    result = 3 if "v3, v1" in text else 0
    for lane in range(lanes):
        total = int(c[lane])
        for shift in (0, 8, 16, 24):
            total += of_a(int(a[lane]) >> shift & 255) * of_b(int(b[lane]) >> shift & 255)
        assert made.vector[result, 0, lane] == total & 0xFFFFFFFF
