"""The CPU interpreter: right results for every dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from interpreting import (
    FLOATS,
    FP8,
    bits,
    every_value,
    launch,
)

from patience import processor_seconds
from tilewright import packing
from tilewright.dtypes import DTYPES, dtype, numpy_dtype
from tilewright.runtime.interpreter import Interpreter


@pytest.mark.parametrize("name", DTYPES)
def test_a_copy_keeps_every_bit(cpu: Interpreter, name: str) -> None:
    x = every_value(name)
    y = np.zeros_like(x)
    launch(cpu, "copy", [x, y, x.size], ["y"], (-(-x.size // 4096), 1, 1), BLOCK=4096)
    np.testing.assert_array_equal(bits(y), bits(x))


def cast(cpu: Interpreter, x: np.ndarray, name: str) -> np.ndarray:
    y = np.zeros(x.size, numpy_dtype(dtype(name)))
    launch(cpu, "cast", [x, y, x.size], ["y"], (-(-x.size // 8192), 1, 1), BLOCK=8192)
    return y


def interesting_floats(name: str) -> np.ndarray:
    """fp32 values: random bits, every value of dtype `name`, every tie between neighbours and
    both sides of it, subnormals, the edge of overflow, infinities."""
    values = every_value(name).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    ties = (values[:-1] + (values[1:] - values[:-1]) / 2).astype(np.float32)
    around = [np.nextafter(ties, np.float32(s)) for s in (-np.inf, np.inf)]
    top = values[-1] * np.float32(1) + np.array([0, 0.01, 1.05, 2]) * values[-1] / 16
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38])
    parts = [values, ties, *around, top, -top, special, every_value("fp32")]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_fp32_rounds_to_nearest_even(cpu: Interpreter, name: str) -> None:
    with np.errstate(all="ignore"):
        x = interesting_floats(name)
        expected = x.astype(numpy_dtype(dtype(name)))
    got = cast(cpu, x, name)
    nan = np.isnan(x)
    np.testing.assert_array_equal(bits(got[~nan]), bits(expected[~nan]))
    assert np.isnan(got[nan].astype(np.float32)).all()


@pytest.mark.parametrize("source", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FP8)
def test_fp8_rounds_to_nearest_even_and_saturates(cpu: Interpreter, source: str, name: str) -> None:
    with np.errstate(all="ignore"):
        x = interesting_floats(name) if source == "fp32" else every_value(source)
        wide = x.astype(np.float32)
        target = numpy_dtype(dtype(name))
        rounded = wide.astype(target)  # ml_dtypes: infinity or NaN beyond the range
    largest = float(ml_dtypes.finfo(target).max)
    got = cast(cpu, x, name)
    inside = np.isfinite(rounded.astype(np.float32))
    beyond = ~inside & ~np.isnan(wide)
    assert inside.sum() > 1000 and beyond.sum() > 100
    np.testing.assert_array_equal(bits(got[inside]), bits(rounded[inside]))
    np.testing.assert_array_equal(
        got[beyond].astype(np.float32), np.copysign(largest, wide[beyond])
    )
    assert np.isnan(got[np.isnan(wide)].astype(np.float32)).all()


@pytest.mark.parametrize("target", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FLOATS[1:])
def test_widening_is_exact(cpu: Interpreter, name: str, target: str) -> None:
    x = every_value(name)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).astype(numpy_dtype(dtype(target)))
    got = cast(cpu, x, target)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "where", "neg_abs", "sum", "exp"])
def test_arithmetic_rounds_in_the_operands_dtype(cpu: Interpreter, name: str, op: str) -> None:
    rng = np.random.default_rng(2)
    kind = numpy_dtype(dtype(name))
    x, y = (rng.standard_normal(256).astype(kind) for _ in range(2))
    z = np.zeros_like(x)
    launch(cpu, "arithmetic", [x, y, z, 256], ["z"], OP=op, BLOCK=256)
    a, b = x.astype(np.float64), y.astype(np.float64)
    exact = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "where": np.minimum(a, b),
        "neg_abs": -np.abs(a),
        "exp": np.exp(a),
        "sum": np.full(256, a.sum()),
    }[op]
    eps = dtype(name).eps * {"sum": 16, "exp": 2}.get(op, 1)
    np.testing.assert_allclose(z.astype(np.float64), exact, rtol=eps, atol=eps / 8)


def test_maximum_ignores_nan_unless_told_otherwise(cpu: Interpreter) -> None:
    x = np.array([np.nan, 1, np.inf, -np.inf], np.float32)
    y = np.array([2, np.nan, 5, np.nan], np.float32)
    z = np.zeros_like(x)
    launch(cpu, "arithmetic", [x, y, z, 4], ["z"], OP="max", BLOCK=4)
    np.testing.assert_array_equal(z, [2, 1, np.inf, -np.inf])
    launch(cpu, "arithmetic", [x, y, z, 4], ["z"], OP="max_nan", BLOCK=4)
    np.testing.assert_array_equal(z, [np.nan, np.nan, np.inf, np.nan])
    launch(cpu, "arithmetic", [x, y, z, 4], ["z"], OP="clamp", BLOCK=4)
    np.testing.assert_array_equal(z, [-1, 1, 1, -1])
    launch(cpu, "arithmetic", [x, y, z, 4], ["z"], OP="clamp_nan", BLOCK=4)
    np.testing.assert_array_equal(z, [np.nan, 1, 1, -1])


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_scalar_comparison_broadcasts_into_a_mask(cpu: Interpreter, name: str) -> None:
    x, y = np.arange(1, 9).astype(numpy_dtype(dtype(name))), np.zeros(8, np.float32)
    launch(cpu, "copy_if_positive", [x, y, 7], ["y"], BLOCK=8)
    np.testing.assert_array_equal(y, [2, 3, 4, 5, 6, 7, 8, 0])
    x[0] = -1
    launch(cpu, "copy_if_positive", [x, y, 7], ["y"], BLOCK=8)
    np.testing.assert_array_equal(y, [2, 3, 4, 5, 6, 7, 8, 0])


def test_fma_rounds_once(cpu: Interpreter) -> None:
    x = np.full(4, 1 + 2.0**-12, np.float32)
    y = np.full(4, -(1 + 2.0**-12), np.float32)
    z = np.zeros_like(x)
    launch(cpu, "arithmetic", [x, y, z, 4], ["z"], OP="fma", BLOCK=4)
    exact = x.astype(np.float64) * y.astype(np.float64) + x.astype(np.float64)
    np.testing.assert_array_equal(z, exact.astype(np.float32))


def test_a_bf16_constant(cpu: Interpreter) -> None:
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    z = np.zeros_like(x)
    launch(cpu, "arithmetic", [x, x, z, 4], ["z"], OP="full", BLOCK=4)
    np.testing.assert_array_equal(z.astype(np.float32), np.arange(4) + 1.5)


# --- products ---------------------------------------------------------------------------------


def random_matrix(name: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if name == "int8":
        return rng.integers(-128, 128, shape, dtype=np.int8)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype(name)))


def gemm(
    cpu: Interpreter,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    tile: tuple[int, int, int] = (32, 32, 16),
    precision: str = "ieee",
    bias: np.ndarray | None = None,
    programs: int = 3,
) -> None:
    strides = [s // x.itemsize for x in (a, b, c) for s in x.strides]
    sizes = [a.shape[0], b.shape[1], a.shape[1]]
    arguments = [a, b, c, np.zeros(1, np.float32) if bias is None else bias, *sizes, *strides]
    launch(
        cpu, "gemm", arguments, ["c"], (programs, 1, 1), BM=tile[0], BN=tile[1], BK=tile[2],
        PRECISION=precision, INTEGER=a.dtype == np.int8, RELU=bias is not None,
    )  # fmt: skip


@pytest.mark.grid(5)
@pytest.mark.parametrize("out", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", FLOATS)
def test_gemm_on_ragged_sizes(cpu: Interpreter, name: str, out: str) -> None:
    a, b = random_matrix(name, (50, 37), 3), random_matrix(name, (37, 70), 4)
    c = np.full((50, 70), np.nan, numpy_dtype(dtype(out)))
    gemm(cpu, a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(
        c.astype(np.float64), exact, rtol=dtype(out).eps, atol=37 * 2.0**-23 * 4
    )


def test_int8_gemm_is_exact_beyond_fp32(cpu: Interpreter) -> None:
    rng = np.random.default_rng(5)  # sums of about 2**25, half of them odd: not fp32 values
    a, b = (rng.integers(120, 128, shape, dtype=np.int8) for shape in ((16, 2048), (2048, 16)))
    c = np.full((16, 16), -1, np.int32)
    gemm(cpu, a, b, c, (16, 16, 2048))
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


def test_tf32_drops_the_low_bits_of_the_inputs(cpu: Interpreter) -> None:
    a, b = random_matrix("fp32", (32, 32), 7), random_matrix("fp32", (32, 32), 8)
    c = np.zeros((32, 32), np.float32)
    gemm(cpu, a, b, c, precision="tf32")
    cut = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b)]
    exact = cut[0].astype(np.float64) @ cut[1].astype(np.float64)
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5)
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max() > 1e-4


def test_infinity_and_nan_reach_their_rows_only(cpu: Interpreter) -> None:
    a, b = random_matrix("bf16", (32, 32), 9), random_matrix("bf16", (32, 32), 10)
    a[3, 5], a[7, 5] = np.inf, np.nan
    b[5] = 1
    c = np.zeros((32, 32), np.float32)
    gemm(cpu, a, b, c)
    assert np.isposinf(c[3]).all() and np.isnan(c[7]).all()
    assert np.isfinite(np.delete(c, [3, 7], axis=0)).all()


def test_an_epilogue(cpu: Interpreter) -> None:
    a, b = random_matrix("bf16", (32, 32), 11), random_matrix("bf16", (32, 40), 12)
    bias = random_matrix("bf16", (1, 40), 13)[0]
    c = np.zeros((32, 40), np.float32)
    gemm(cpu, a, b, c, bias=bias)
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    np.testing.assert_allclose(c, np.maximum(exact, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "fp32"])
def test_descriptors_pad_with_zeros_and_clip_stores(cpu: Interpreter, name: str) -> None:
    kind = numpy_dtype(dtype(name))
    a, b = random_matrix(name, (40, 48), 14), random_matrix(name, (72, 48), 15)
    room = np.full((40, 96), 7, ml_dtypes.bfloat16)
    c = room[:, :72]
    arguments = [(a, (32, 32)), (b, (32, 32)), (c, (32, 32)), 48]
    launch(cpu, "gemm_descriptors", arguments, ["c"], (2, 3, 1), BM=32, BN=32, BK=32)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    tolerance = 2e-2 if kind == np.float32 else 1e-5  # tf32
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2.0**-7, atol=tolerance)
    assert (room[:, 72:] == 7).all()


def test_a_256_cubed_gemm_is_quick(cpu: Interpreter) -> None:
    a, b = random_matrix("bf16", (256, 256), 16), random_matrix("bf16", (256, 256), 17)
    c = np.zeros((256, 256), ml_dtypes.bfloat16)
    gemm(cpu, a, b, c, (128, 128, 64))
    assert cpu._child is not None
    before = processor_seconds(cpu._child.pid)
    gemm(cpu, a, b, c, (128, 128, 64))
    assert processor_seconds(cpu._child.pid) - before < 2  # it takes 0.05


FORMATS = {"e4m3": "e4m3fn", "e5m2": "e5m2", "bf16": "bf16"}


@pytest.mark.parametrize(
    ("left", "right"),
    [("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e2m1", "e4m3"), ("e2m1", "e2m1"), ("bf16", "e2m1")],
)
def test_block_scaled_products_are_exact(cpu: Interpreter, left: str, right: str) -> None:
    """Every scale but NaN on either side, elements from the whole range; then NaN."""
    m, n, k = 16, 32, 64
    rng = np.random.default_rng(3)

    def elements(kind: str, rows: int, columns: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
        if kind == "e2m1":
            shape = (rows // 2, columns) if axis == 0 else (rows, columns // 2)
            packed = rng.integers(0, 256, shape, np.uint8)
            return packed, packing.decode(packed, "e2m1", axis)
        values = rng.standard_normal((rows, columns)).astype(numpy_dtype(dtype(FORMATS[kind])))
        return values, values.astype(np.float64)

    a, wide_a = elements(left, m, k, 1)
    b, wide_b = elements(right, k, n, 0)
    codes_a = rng.integers(117, 138, (m, k // 32), np.uint8)
    codes_b = rng.integers(117, 138, (n, k // 32), np.uint8)
    codes_a[:, 0], codes_b[:, 0] = 254, 0  # each beyond what a scaled element could hold
    if left == "bf16":
        codes_a[:], codes_b[:, 0] = 127, 127
    c = np.zeros((m, n), np.float32)
    constants = {"M": m, "N": n, "K": k, "A": left, "B": right, "A_SCALED": left != "bf16"}
    launch(cpu, "dot_scaled", [a, b, c, codes_a, codes_b], ["c"], **constants)
    scales_a, scales_b = (
        np.exp2(codes.astype(np.float64) - 127).repeat(32, 1) for codes in (codes_a, codes_b)
    )
    exact = (wide_a * scales_a) @ (wide_b * scales_b.T) + 1
    np.testing.assert_allclose(c, exact, rtol=1e-6)
    codes_b[5, 1] = 255
    launch(cpu, "dot_scaled", [a, b, c, codes_a, codes_b], ["c"], **constants)
    assert np.isnan(c[:, 5]).all() and np.isfinite(np.delete(c, 5, 1)).all()
