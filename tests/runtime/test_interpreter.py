"""The CPU interpreter: right results for every dtype, nothing else touched, faults contained."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from patience import LIMIT_SECONDS, processor_seconds, runs, until
from tilewright import dtypes, packing
from tilewright.dtypes import DTYPES, dtype, numpy_dtype
from tilewright.errors import BadArgument, LaunchFailed
from tilewright.ops.nouns import (
    FLAG_BYTES,
    WORKSPACE,
    Descriptor,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
)
from tilewright.runtime.interpreter import Interpreter

HERE = str(Path(__file__).parent)
KERNELS = (Path(HERE) / "interp_kernels.py").read_text()
PARAMETERS = {
    f.name: [a.arg for a in f.args.args if a.annotation is None]  # the others are constants
    for f in ast.parse(KERNELS).body
    if isinstance(f, ast.FunctionDef)
}
FP8 = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"]
FLOATS = ["fp32", "fp16", "bf16", *FP8]
ENV = {
    "PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])),
    "TILEWRIGHT_KERNEL_MODULES": "interp_kernels",
}


@pytest.fixture(scope="module")
def cpu() -> Iterator[Interpreter]:
    with pytest.MonkeyPatch.context() as patch, Interpreter() as interpreter:
        for name, value in ENV.items():
            patch.setenv(name, value)
        yield interpreter


def launch(
    cpu: Interpreter,
    function: str,
    arguments: Sequence[Any],
    outputs: Sequence[int] = (),
    grid: tuple[int, int, int] = (1, 1, 1),
    timeout: float | None = LIMIT_SECONDS,
    workspace: tuple[str, int, bool, np.ndarray | None] | None = None,
    **constants: Any,
) -> None:
    """Run a kernel of interp_kernels: arrays, descriptors of arrays (pairs) and ints in order;
    ``"workspace"`` stands for (its type, bytes, whether it is zero at rest, array)."""
    operands: list[np.ndarray] = []
    kinds: list[str] = []
    described: list[Any] = []
    kind, size, zeros, given = workspace or ("", 0, False, None)
    for argument in arguments:
        if isinstance(argument, str):
            kinds.append(f"*{kind}")
            described.append(Pointer(WORKSPACE))
        elif isinstance(argument, (int, Scalar)):
            scalar = Scalar("i32", argument) if isinstance(argument, int) else argument
            kinds.append(scalar.type)
            described.append(scalar)
        elif isinstance(argument, np.ndarray):
            kinds.append(f"*{dtypes.of(argument).triton}")
            described.append(Pointer(len(operands)))
            operands.append(argument)
        else:
            array, block = argument
            name = dtypes.of(array).name
            strides = tuple(s // array.itemsize for s in array.strides)
            kinds.append("tensordesc")
            described.append(Descriptor(len(operands), name, array.shape, strides, block))
            operands.append(array)
    names = [*PARAMETERS[function], *constants]
    kinds += ["constexpr"] * len(constants)
    source = KernelSource(
        "interp_kernels",
        function,
        tuple(zip(names, kinds, strict=True)),
        tuple(constants.items()),
    )
    plan = Launch(grid, tuple(described), size, zeros)
    cpu.run(source, plan, operands, outputs, given, timeout)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def every_value(name: str) -> np.ndarray:
    """All bit patterns of an 8- or 16-bit dtype, a wide sample of a 32-bit one."""
    d = dtype(name)
    if d.bits < 32:
        return np.arange(2**d.bits, dtype=f"u{d.bytes}").view(numpy_dtype(d))
    patterns = np.random.default_rng(1).integers(0, 2**32, 20_000, dtype=np.uint32)
    return patterns.view(numpy_dtype(d))


# --- dtypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_a_copy_keeps_every_bit(cpu: Interpreter, name: str) -> None:
    x = every_value(name)
    y = np.zeros_like(x)
    launch(cpu, "copy", [x, y, x.size], [1], (-(-x.size // 4096), 1, 1), BLOCK=4096)
    np.testing.assert_array_equal(bits(y), bits(x))


def cast(cpu: Interpreter, x: np.ndarray, name: str) -> np.ndarray:
    y = np.zeros(x.size, numpy_dtype(dtype(name)))
    launch(cpu, "cast", [x, y, x.size], [1], (-(-x.size // 8192), 1, 1), BLOCK=8192)
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
    launch(cpu, "arithmetic", [x, y, z, 256], [2], OP=op, BLOCK=256)
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
    launch(cpu, "arithmetic", [x, y, z, 4], [2], OP="max", BLOCK=4)
    np.testing.assert_array_equal(z, [2, 1, np.inf, -np.inf])
    launch(cpu, "arithmetic", [x, y, z, 4], [2], OP="max_nan", BLOCK=4)
    np.testing.assert_array_equal(z, [np.nan, np.nan, np.inf, np.nan])
    launch(cpu, "arithmetic", [x, y, z, 4], [2], OP="clamp", BLOCK=4)
    np.testing.assert_array_equal(z, [-1, 1, 1, -1])
    launch(cpu, "arithmetic", [x, y, z, 4], [2], OP="clamp_nan", BLOCK=4)
    np.testing.assert_array_equal(z, [np.nan, 1, 1, -1])


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_scalar_comparison_broadcasts_into_a_mask(cpu: Interpreter, name: str) -> None:
    x, y = np.arange(1, 9).astype(numpy_dtype(dtype(name))), np.zeros(8, np.float32)
    launch(cpu, "copy_if_positive", [x, y, 7], [1], BLOCK=8)
    np.testing.assert_array_equal(y, [2, 3, 4, 5, 6, 7, 8, 0])
    x[0] = -1
    launch(cpu, "copy_if_positive", [x, y, 7], [1], BLOCK=8)
    np.testing.assert_array_equal(y, [2, 3, 4, 5, 6, 7, 8, 0])


def test_fma_rounds_once(cpu: Interpreter) -> None:
    x = np.full(4, 1 + 2.0**-12, np.float32)
    y = np.full(4, -(1 + 2.0**-12), np.float32)
    z = np.zeros_like(x)
    launch(cpu, "arithmetic", [x, y, z, 4], [2], OP="fma", BLOCK=4)
    exact = x.astype(np.float64) * y.astype(np.float64) + x.astype(np.float64)
    np.testing.assert_array_equal(z, exact.astype(np.float32))


def test_a_bf16_constant(cpu: Interpreter) -> None:
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    z = np.zeros_like(x)
    launch(cpu, "arithmetic", [x, x, z, 4], [2], OP="full", BLOCK=4)
    np.testing.assert_array_equal(z.astype(np.float32), np.arange(4) + 1.5)


# --- GEMM -------------------------------------------------------------------------------------


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
        cpu, "gemm", arguments, [2], (programs, 1, 1), BM=tile[0], BN=tile[1], BK=tile[2],
        PRECISION=precision, INTEGER=a.dtype == np.int8, RELU=bias is not None,
    )  # fmt: skip


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
    launch(cpu, "gemm_descriptors", arguments, [2], (2, 3, 1), BM=32, BN=32, BK=32)
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


# --- memory -----------------------------------------------------------------------------------


def guarded(shape: tuple[int, int], layout: str) -> tuple[np.ndarray, np.ndarray]:
    """A buffer of guard bytes and a bf16 view of it in some layout, not at its start."""
    m, n = shape
    room = np.full(4096, 0xAB, np.uint8)
    flat = room[64:].view(ml_dtypes.bfloat16)
    if layout == "row":
        return room, flat[: m * n].reshape(m, n)
    if layout == "column":
        return room, flat[: m * n].reshape(n, m).T
    if layout == "padded":
        return room, flat[: m * 40].reshape(m, 40)[:, 3 : 3 + n]
    assert layout == "reversed"
    return room, flat[: m * n].reshape(m, n)[::-1, ::-1]


@pytest.mark.parametrize("layout_y", ["row", "column", "padded", "reversed"])
@pytest.mark.parametrize("layout_x", ["row", "column", "padded", "reversed"])
def test_strides_are_kept_and_only_elements_written(
    cpu: Interpreter, layout_x: str, layout_y: str
) -> None:
    room_x, x = guarded((20, 30), layout_x)
    room_y, y = guarded((20, 30), layout_y)
    x[...] = np.arange(600).reshape(20, 30)
    before = room_x.copy()
    strides = [s // 2 for s in (*x.strides, *y.strides)]
    launch(cpu, "copy_2d", [x, y, 20, 30, *strides], [1], BLOCK=32)
    np.testing.assert_array_equal(bits(y), bits(x))
    np.testing.assert_array_equal(room_x, before)
    y[...] = 0
    expected, view = guarded((20, 30), layout_y)
    view[...] = 0
    np.testing.assert_array_equal(room_y, expected)


def test_a_write_between_the_rows_is_an_error(cpu: Interpreter) -> None:
    room, y = guarded((4, 30), "padded")
    before = room.copy()
    with pytest.raises(LaunchFailed, match="wrote operand 0 between its elements"):
        launch(cpu, "write_row_past_its_end", [y, 30, 40], [0], (4, 1, 1), BLOCK=32)
    np.testing.assert_array_equal(room, before)


def test_a_write_behind_the_last_row_is_an_error(cpu: Interpreter) -> None:
    room, y = guarded((1, 30), "row")
    before = room.copy()
    with pytest.raises(LaunchFailed, match="4 bytes behind operand 0"):
        launch(cpu, "write_row_past_its_end", [y, 30, 0], [0], BLOCK=32)
    np.testing.assert_array_equal(room, before)


def test_a_read_outside_is_an_error(cpu: Interpreter) -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(LaunchFailed, match=r"interp_kernels\.py:\d+: BadAccess: read memory"):
        launch(cpu, "read_outside", [x, 32], BLOCK=64)


def test_a_write_to_an_input_is_an_error(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(LaunchFailed, match="wrote operand 1, which is not an output"):
        launch(cpu, "copy", [x, y, 8], [0], BLOCK=8)


def test_masked_elements_are_neither_read_nor_written(cpu: Interpreter) -> None:
    x, y = np.arange(10, dtype=np.float32), np.full(10, -1, np.float32)
    launch(cpu, "copy", [x, y, 7], [1], BLOCK=16)
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 4, 5, 6, -1, -1, -1])


def test_a_read_only_input_serves_and_a_read_only_output_is_refused(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    x.flags.writeable = False
    launch(cpu, "copy", [x, y, 8], [1], BLOCK=8)
    assert (y == 1).all()
    with pytest.raises(BadArgument, match="read-only"):
        launch(cpu, "copy", [y, x, 8], [1], BLOCK=8)


def test_empty_and_broadcast_operands(cpu: Interpreter) -> None:
    empty = np.zeros(0, np.float32)
    launch(cpu, "copy", [empty, empty.copy(), 0], [1], BLOCK=8)
    x, y = np.broadcast_to(np.float32(3), (4, 5)), np.zeros((4, 5), np.float32)
    launch(cpu, "copy_2d", [x, y, 4, 5, 0, 0, 5, 1], [1], BLOCK=8)
    assert (y == 3).all()


def test_scalars_keep_their_width(cpu: Interpreter) -> None:
    x, y = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    launch(cpu, "scale", [x, y, 4, Scalar("i64", 2**32 + 5)], [1], BLOCK=4)
    np.testing.assert_array_equal(y, x * 5)  # the low half of the 64-bit product
    with pytest.raises(LaunchFailed, match="OverflowError"):
        launch(cpu, "scale", [x, y, 4, Scalar("i32", 2**40)], [1], BLOCK=4)


def test_fp32_atomics_add_up_repeats_too(cpu: Interpreter) -> None:
    x, total = np.arange(100, dtype=np.float32), np.full(4, 1000, np.float32)
    launch(cpu, "atomic_sum", [x, total, 100], [1], (4, 1, 1), BLOCK=32)
    np.testing.assert_array_equal(total, [1000 + x[i::4].sum() for i in range(4)])


def test_bf16_atomics(cpu: Interpreter) -> None:
    x, total = np.full(8, 2, ml_dtypes.bfloat16), np.ones(8, ml_dtypes.bfloat16)
    launch(cpu, "atomic_add", [x, total, 7], [1], (3, 1, 1), BLOCK=8)
    np.testing.assert_array_equal(total.astype(np.float32), [7] * 7 + [1])
    with pytest.raises(LaunchFailed, match="twice"):
        launch(cpu, "atomic_sum", [x, total, 8], [1], BLOCK=8)


def test_a_workspace_lasts_from_launch_to_launch(cpu: Interpreter) -> None:
    x, partial = np.arange(64, dtype=np.float32), np.full(24, 0xFF, np.uint8)
    space = ("fp32", 16, False, partial)
    launch(cpu, "partial_sums", [x, "workspace", 64], (), (4, 1, 1), workspace=space, BLOCK=16)
    np.testing.assert_array_equal(partial.view(np.float32)[:4], x.reshape(4, 16).sum(1))
    assert (partial[16:] == 0xFF).all()
    total = np.zeros(4, np.float32)
    launch(cpu, "copy", ["workspace", total, 4], [0], workspace=space, BLOCK=4)
    np.testing.assert_array_equal(total, partial.view(np.float32)[:4])


def test_a_workspace_starts_with_flags_and_is_zero_only_if_asked(cpu: Interpreter) -> None:
    count = FLAG_BYTES // 4 + 8
    total = np.ones(count, np.float32)

    def read(zeros: bool, given: np.ndarray | None = None) -> None:
        space = ("fp32", 4 * count, zeros, given)
        launch(cpu, "copy", ["workspace", total, count], [0], workspace=space, BLOCK=32768)

    read(zeros=True)
    assert (total == 0).all()
    read(zeros=False)
    assert (total[:-8] == 0).all() and np.isnan(total[-8:]).all()
    given = np.ones(count, np.float32)
    read(zeros=True, given=given)  # which is its caller's to keep zero
    assert (total == 1).all()
    with pytest.raises(BadArgument, match="workspace must be"):
        read(zeros=False, given=given[:-1])


# --- faults -----------------------------------------------------------------------------------


def assert_works(cpu: Interpreter) -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    launch(cpu, "copy", [x, y, 8], [1], BLOCK=8)
    np.testing.assert_array_equal(x, y)


def test_a_kernel_that_raises(cpu: Interpreter) -> None:
    line = KERNELS[: KERNELS.index("no such tile")].count("\n") + 1
    words = (
        rf"'interp_kernels\.fail'.*program \(2, 0, 0\), interp_kernels\.py:{line}: "
        "ValueError: no such tile"
    )
    with pytest.raises(LaunchFailed, match=words):
        launch(cpu, "fail", [np.zeros(1, np.float32)], grid=(4, 1, 1))
    assert_works(cpu)


@pytest.mark.parametrize(
    ("how", "words"),
    [("SIGABRT", "killed by SIGABRT"), ("SIGSEGV", "killed by SIGSEGV"), ("exit", "code 7")],
)
def test_a_kernel_that_kills_its_process(cpu: Interpreter, how: str, words: str) -> None:
    with pytest.raises(LaunchFailed, match=words):
        launch(cpu, "die", [np.zeros(1, np.float32)], HOW=how)
    assert_works(cpu)


def test_a_kernel_that_hangs(cpu: Interpreter) -> None:
    with pytest.raises(LaunchFailed, match=r"no answer within 0\.5 s"):
        launch(cpu, "hang", [np.zeros(1, np.float32)], timeout=0.5)
    assert_works(cpu)


def test_printing_does_not_disturb_the_answer(cpu: Interpreter) -> None:
    x = np.zeros(4, np.float32)
    launch(cpu, "chatty", [x, 4], [0], BLOCK=4)
    assert (x == 3).all()


def test_an_interrupt_does_not_shift_the_answers(
    cpu: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright import child

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    assert_works(cpu)
    with monkeypatch.context() as patch:
        patch.setattr(child, "read_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            assert_works(cpu)
    assert_works(cpu)


def test_modules_and_functions_that_may_not_run(
    cpu: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(module: str, function: str) -> None:
        cpu.run(KernelSource(module, function, (), ()), Launch((1, 1, 1), ()), [], [])

    with pytest.raises(LaunchFailed, match="'os' may not be run"):
        run("os", "abort")
    with pytest.raises(LaunchFailed, match="may not be run"):
        run("interp_kernels_more", "copy")
    with pytest.raises(LaunchFailed, match=r"'interp_kernels\.not_a_kernel' is not a Triton"):
        run("interp_kernels", "not_a_kernel")
    with pytest.raises(LaunchFailed, match="ModuleNotFoundError"):
        run("tilewright.no_such_module", "f")


def test_arguments_that_do_not_fit(cpu: Interpreter) -> None:
    source = KernelSource("interp_kernels", "fail", (("x", "*fp32"),), ())
    x = np.zeros(1, np.float32)
    with pytest.raises(BadArgument, match="has 1 arguments, the launch has 0"):
        cpu.run(source, Launch((1, 1, 1), ()), [x], [])
    with pytest.raises(BadArgument, match="no such operand"):
        cpu.run(source, Launch((1, 1, 1), (Pointer(1),)), [x], [])
    with pytest.raises(BadArgument, match="no such operand"):
        cpu.run(source, Launch((1, 1, 1), (Pointer(WORKSPACE),)), [x], [])
    with pytest.raises(BadArgument, match="output 1 is not among the 1"):
        cpu.run(source, Launch((1, 1, 1), (Pointer(0),)), [x], [1])


def test_four_threads_share_one_interpreter(cpu: Interpreter) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(5):
                x = np.random.default_rng([seed, i]).standard_normal(500 + seed)
                x = x.astype(np.float32)
                y = np.zeros_like(x)
                launch(cpu, "copy", [x, y, x.size], [1], BLOCK=1024)
                np.testing.assert_array_equal(x, y)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@contextlib.contextmanager
def run_python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, ended with all that it forked when the test is over."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


START = """
import os, sys, time
import numpy as np
from tilewright.ops.nouns import *
from tilewright.runtime.interpreter import interpreter
def run(function, timeout=None):
    x = np.zeros(4, np.float32)
    signature = (("x", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr"))
    if function == "hang":
        signature = (("x", "*fp32"),)
    constants = (("BLOCK", 4),) if len(signature) == 3 else ()
    arguments = (Pointer(0), Scalar("i32", 4))[: len(signature)]
    source = KernelSource("interp_kernels", function, signature, constants)
    interpreter().run(source, Launch((1, 1, 1), arguments), [x], [0], timeout=timeout)
    assert function == "hang" or (x == 3).all()
run("chatty")
print(interpreter()._child.pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_the_child_dies_with_its_parent() -> None:
    with run_python(START + "run('hang')") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        before = processor_seconds(child)
        until(lambda: processor_seconds(child) > before + 0.1)  # in the endless loop
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until(lambda: not runs(child))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_shared_interpreter_closes_at_exit_and_leaves_a_fork_alone() -> None:
    # The forked process, in which the lock stays held, gets a child of its own and, when it
    # exits, spares its parent's.
    code = (
        START
        + """
inherited = interpreter()
inherited._lock.acquire()  # as if another thread were running something
if os.fork() == 0:
    run("chatty")
    inherited.close()
    sys.exit(0)
inherited._lock.release()
assert os.wait()[1] == 0
os.kill(inherited._child.pid, 0)
run("chatty")
print("well", flush=True)
"""
    )
    with run_python(code) as parent:
        text, _ = parent.communicate(timeout=LIMIT_SECONDS)
    child, _, rest = text.partition("\n")
    assert rest == "well\n" and parent.returncode == 0
    until(lambda: not runs(int(child)))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_closing_ends_the_child_and_the_next_run_starts_one(
    cpu: Interpreter,
) -> None:
    assert_works(cpu)
    assert cpu._child is not None
    first = cpu._child.pid
    cpu.close()
    assert not runs(first)
    cpu.close()
    assert_works(cpu)


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
    launch(cpu, "dot_scaled", [a, b, c, codes_a, codes_b], [2], **constants)
    scales_a, scales_b = (
        np.exp2(codes.astype(np.float64) - 127).repeat(32, 1) for codes in (codes_a, codes_b)
    )
    exact = (wide_a * scales_a) @ (wide_b * scales_b.T) + 1
    np.testing.assert_allclose(c, exact, rtol=1e-6)
    codes_b[5, 1] = 255
    launch(cpu, "dot_scaled", [a, b, c, codes_a, codes_b], [2], **constants)
    assert np.isnan(c[:, 5]).all() and np.isfinite(np.delete(c, 5, 1)).all()


def test_the_child_imports_no_torch() -> None:
    code = """
        import sys
        import tilewright.runtime.interpreter_worker
        assert not {"torch", "triton"} & set(sys.modules)
        from tilewright.runtime import interpreter_patch
        interpreter_patch.install()
        assert "torch" not in sys.modules
    """
    with run_python(code) as process:
        assert process.wait() == 0


def test_a_triton_out_of_range_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "triton-9.9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))  # a child imports from where its parent does
    with Interpreter() as cpu, pytest.raises(LaunchFailed, match=r"9\.9\.9 is .* 3\.6 to 3\.9"):
        assert_works(cpu)
