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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from patience import LIMIT_SECONDS, processor_seconds, runs, until
from tilewright import dtypes, packing
from tilewright.dtypes import DTYPES, dtype, numpy_dtype
from tilewright.errors import BadArgument, KernelCrashed, LaunchFailed
from tilewright.ops.nouns import (
    MAIN,
    Argument,
    Descriptor,
    Given,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
    Step,
    Temporary,
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
    written: Collection[str] = (),
    grid: tuple[int, int, int] = (1, 1, 1),
    timeout: float | None = LIMIT_SECONDS,
    **constants: Any,
) -> None:
    """Run a kernel of interp_kernels: arrays, descriptors of arrays (pairs) and scalars, in the
    order of its parameters. Operands are called as the parameters are."""
    operands: dict[str, np.ndarray] = {}
    described: list[Argument] = []
    for name, argument in zip(PARAMETERS[function], arguments, strict=True):
        if isinstance(argument, int):
            described.append(Scalar("i32", argument))
        elif isinstance(argument, Scalar):
            described.append(argument)
        elif isinstance(argument, np.ndarray):
            described.append(Pointer(name))
            operands[name] = argument
        else:
            operands[name], block = argument
            described.append(whole(name, operands[name], block))
    run(cpu, [(function, described, grid, constants)], operands, written, timeout=timeout)


def whole(name: str, array: np.ndarray, block: tuple[int, ...]) -> Descriptor:
    """A descriptor of all of an array."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return Descriptor(name, dtypes.of(array).name, array.shape, strides, block)


ONE = (1, 1, 1)
_Steps = Sequence[tuple[str, Sequence[Argument], tuple[int, int, int], dict[str, Any]]]


def run(
    cpu: Interpreter,
    steps: _Steps,
    operands: Mapping[str, np.ndarray],
    written: Collection[str] = (),
    temporaries: Sequence[Temporary] = (),
    kept: Mapping[str, np.ndarray] | None = None,
    scalars: Mapping[str, int | float] | None = None,
    timeout: float | None = LIMIT_SECONDS,
) -> None:
    """Run steps, each a function of interp_kernels with its arguments, grid and constants. kept:
    arrays for the temporaries."""
    types = {name: dtypes.of(array).triton for name, array in operands.items()}
    types |= {one.name: dtype(one.dtype).triton for one in temporaries}
    sources, made = {}, []
    for number, (function, arguments, grid, constants) in enumerate(steps):
        part = f"part {number}"
        kinds = [_kind(argument, types) for argument in arguments]
        names = [*PARAMETERS[function], *constants]
        signature = zip(names, [*kinds, *["constexpr"] * len(constants)], strict=True)
        sources[part] = KernelSource(
            "interp_kernels", function, tuple(signature), tuple(constants.items())
        )
        made.append(Step(grid, tuple(arguments), part))
    plan = Launch(tuple(made), tuple(temporaries))
    cpu.run(sources, plan, operands, written, scalars=scalars, temporaries=kept, timeout=timeout)


def _kind(argument: Argument, types: Mapping[str, str]) -> str:
    if isinstance(argument, Pointer):
        return f"*{types.get(argument.operand, 'fp32')}"
    return "tensordesc" if isinstance(argument, Descriptor) else argument.type


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
        cpu, "gemm", arguments, ["c"], (programs, 1, 1), BM=tile[0], BN=tile[1], BK=tile[2],
        PRECISION=precision, INTEGER=a.dtype == np.int8, RELU=bias is not None,
    )  # fmt: skip


@pytest.mark.grid(10)
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
    launch(cpu, "copy_2d", [x, y, 20, 30, *strides], ["y"], BLOCK=32)
    np.testing.assert_array_equal(bits(y), bits(x))
    np.testing.assert_array_equal(room_x, before)
    y[...] = 0
    expected, view = guarded((20, 30), layout_y)
    view[...] = 0
    np.testing.assert_array_equal(room_y, expected)


def test_a_write_between_the_rows_is_an_error(cpu: Interpreter) -> None:
    room, y = guarded((4, 30), "padded")
    before = room.copy()
    with pytest.raises(LaunchFailed, match="wrote operand y between its elements"):
        launch(cpu, "write_row_past_its_end", [y, 30, 40], ["y"], (4, 1, 1), BLOCK=32)
    np.testing.assert_array_equal(room, before)


def test_a_write_behind_the_last_row_is_an_error(cpu: Interpreter) -> None:
    room, y = guarded((1, 30), "row")
    before = room.copy()
    with pytest.raises(LaunchFailed, match="4 bytes behind operand y"):
        launch(cpu, "write_row_past_its_end", [y, 30, 0], ["y"], BLOCK=32)
    np.testing.assert_array_equal(room, before)


def test_the_operand_that_an_access_goes_beyond_is_named(cpu: Interpreter) -> None:
    x, y = np.zeros(64, np.float32), np.zeros(8, np.float32)
    with pytest.raises(LaunchFailed, match="0 bytes before and 16 bytes behind operand y"):
        launch(cpu, "copy", [x, y, 12], ["y"], BLOCK=16)


def test_a_read_outside_is_an_error(cpu: Interpreter) -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(LaunchFailed, match=r"interp_kernels\.py:\d+: BadAccess: read memory"):
        launch(cpu, "read_outside", [x, 32], BLOCK=64)


def test_a_write_to_an_input_is_an_error(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(LaunchFailed, match="wrote operand y, which is not an output"):
        launch(cpu, "copy", [x, y, 8], ["x"], BLOCK=8)


def test_masked_elements_are_neither_read_nor_written(cpu: Interpreter) -> None:
    x, y = np.arange(10, dtype=np.float32), np.full(10, -1, np.float32)
    launch(cpu, "copy", [x, y, 7], ["y"], BLOCK=16)
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 4, 5, 6, -1, -1, -1])


def test_a_read_only_input_serves_and_a_read_only_output_is_refused(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    x.flags.writeable = False
    launch(cpu, "copy", [x, y, 8], ["y"], BLOCK=8)
    assert (y == 1).all()
    with pytest.raises(BadArgument, match="read-only"):
        launch(cpu, "copy", [y, x, 8], ["y"], BLOCK=8)


def test_empty_and_broadcast_operands(cpu: Interpreter) -> None:
    empty = np.zeros(0, np.float32)
    launch(cpu, "copy", [empty, empty.copy(), 0], ["y"], BLOCK=8)
    x, y = np.broadcast_to(np.float32(3), (4, 5)), np.zeros((4, 5), np.float32)
    launch(cpu, "copy_2d", [x, y, 4, 5, 0, 0, 5, 1], ["y"], BLOCK=8)
    assert (y == 3).all()


def test_scalars_keep_their_width(cpu: Interpreter) -> None:
    x, y = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    launch(cpu, "scale", [x, y, 4, Scalar("i64", 2**32 + 5)], ["y"], BLOCK=4)
    np.testing.assert_array_equal(y, x * 5)  # the low half of the 64-bit product
    with pytest.raises(LaunchFailed, match="OverflowError"):
        launch(cpu, "scale", [x, y, 4, Scalar("i32", 2**40)], ["y"], BLOCK=4)


def test_fp32_atomics_add_up_repeats_too(cpu: Interpreter) -> None:
    x, total = np.arange(100, dtype=np.float32), np.full(4, 1000, np.float32)
    launch(cpu, "atomic_sum", [x, total, 100], ["total"], (4, 1, 1), BLOCK=32)
    np.testing.assert_array_equal(total, [1000 + x[i::4].sum() for i in range(4)])


def test_bf16_atomics(cpu: Interpreter) -> None:
    x, total = np.full(8, 2, ml_dtypes.bfloat16), np.ones(8, ml_dtypes.bfloat16)
    launch(cpu, "atomic_add", [x, total, 7], ["total"], (3, 1, 1), BLOCK=8)
    np.testing.assert_array_equal(total.astype(np.float32), [7] * 7 + [1])
    with pytest.raises(LaunchFailed, match="twice"):
        launch(cpu, "atomic_sum", [x, total, 8], ["total"], BLOCK=8)


# --- steps, temporaries, scalars of a call ----------------------------------------------------


def i32(value: int) -> Scalar:
    return Scalar("i32", value)


def test_a_step_sees_what_the_one_before_it_wrote(cpu: Interpreter) -> None:
    """In an output, in an operand that is read and written, and in a temporary."""
    x = np.arange(1, 9, dtype=np.float32)
    y, z = np.zeros(8, np.float32), np.zeros(8, np.float32)
    between = Temporary("between", (8,), "fp32")
    block = {"BLOCK": 8}
    steps: _Steps = [
        ("copy", [Pointer("x"), Pointer("between"), i32(8)], ONE, block),
        ("atomic_add", [Pointer("between"), Pointer("x"), i32(8)], ONE, block),
        ("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, block),
        ("copy", [Pointer("y"), Pointer("z"), i32(8)], ONE, block),
    ]
    run(cpu, steps, {"x": x, "y": y, "z": z}, ["x", "y", "z"], [between])
    twice = np.arange(2, 18, 2)
    for array in (x, y, z):
        np.testing.assert_array_equal(array, twice)


def test_steps_have_grids_of_their_own(cpu: Interpreter) -> None:
    x, total = np.arange(64, dtype=np.float32), np.zeros(4, np.float32)
    sums = Temporary("sums", (4,), "fp32")
    steps: _Steps = [
        ("partial_sums", [Pointer("x"), Pointer("sums"), i32(64)], (4, 1, 1), {"BLOCK": 16}),
        ("copy", [Pointer("sums"), Pointer("total"), i32(4)], ONE, {"BLOCK": 4}),
    ]
    run(cpu, steps, {"x": x, "total": total}, ["total"], [sums])
    np.testing.assert_array_equal(total, x.reshape(4, 16).sum(1))


def test_what_a_step_wrote_is_not_given_back_if_a_later_one_fails(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    steps: _Steps = [
        ("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, {"BLOCK": 8}),
        ("fail", [Pointer("x")], (4, 1, 1), {}),
    ]
    with pytest.raises(KernelCrashed, match="no such tile"):
        run(cpu, steps, {"x": x, "y": y}, ["y"])
    assert (y == 0).all()


def read_temporary(cpu: Interpreter, one: Temporary, kept: np.ndarray | None = None) -> np.ndarray:
    """What a launch finds in a temporary of fp32, to which it then adds ones in place if it need
    not leave it as it was."""
    found, count = np.zeros(one.shape, np.float32), one.shape[0]
    ones = np.ones(count, np.float32)
    steps = [("copy", [Pointer(one.name), Pointer("y"), i32(count)], ONE, {"BLOCK": 8})]
    if one.initial != "kept_zero":
        arguments = [Pointer("x"), Pointer(one.name), i32(count)]
        steps.append(("atomic_add", arguments, ONE, {"BLOCK": 8}))
    given = None if kept is None else {one.name: kept}
    run(cpu, steps, {"x": ones, "y": found}, ["y"], [one], given)
    return found


def test_temporaries_begin_as_they_say(cpu: Interpreter) -> None:
    assert np.isnan(read_temporary(cpu, Temporary("t", (8,), "fp32"))).all()
    assert (read_temporary(cpu, Temporary("t", (8,), "fp32", "zero")) == 0).all()
    assert (read_temporary(cpu, Temporary("t", (8,), "fp32", "kept_zero")) == 0).all()


def test_a_temporary_lasts_from_launch_to_launch_and_zero_is_zeroed_by_each(
    cpu: Interpreter,
) -> None:
    kept = np.full(8, 5, np.float32)
    for expected in (5, 6, 7):
        found = read_temporary(cpu, Temporary("t", (8,), "fp32"), kept)
        assert (found == expected).all() and (kept == expected + 1).all()
    for _ in range(2):
        found = read_temporary(cpu, Temporary("t", (8,), "fp32", "zero"), kept)
        assert (found == 0).all() and (kept == 1).all()


def test_a_temporarys_array_has_its_bytes_in_a_row(cpu: Interpreter) -> None:
    one = Temporary("t", (8,), "fp32")
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    for wrong in (np.zeros(7, np.float32), np.zeros(16, np.float32)[::2], read_only):
        with pytest.raises(BadArgument, match="'t' is 32 contiguous writable bytes"):
            read_temporary(cpu, one, wrong)


def test_a_launch_must_leave_zero_what_it_found_zero(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    one = Temporary("flags", (8,), "fp32", "kept_zero")
    used = ("copy", [Pointer("x"), Pointer("flags"), i32(8)], ONE, {"BLOCK": 8})
    back = ("copy", [Pointer("z"), Pointer("flags"), i32(8)], ONE, {"BLOCK": 8})
    told = ("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, {"BLOCK": 8})
    operands = {"x": x, "y": y, "z": np.zeros(8, np.float32)}
    with pytest.raises(KernelCrashed, match="leaves temporary 'flags' changed"):
        run(cpu, [told, used], operands, ["y"], [one])
    assert (y == 0).all()
    run(cpu, [told, used, back], operands, ["y"], [one])
    assert (y == 1).all()


def test_a_write_outside_a_temporary_is_an_error(cpu: Interpreter) -> None:
    y = Temporary("space", (30,), "bf16")
    arguments = [Pointer("space"), i32(30), i32(0)]
    with pytest.raises(LaunchFailed, match="behind temporary space"):
        run(cpu, [("write_row_past_its_end", arguments, ONE, {"BLOCK": 32})], {}, (), [y])


def test_an_operand_and_a_temporary_of_one_name_are_refused(cpu: Interpreter) -> None:
    x = np.zeros(8, np.float32)
    steps: _Steps = [("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, {"BLOCK": 8})]
    with pytest.raises(BadArgument, match="'y' names an operand and a temporary"):
        run(cpu, steps, {"x": x, "y": x.copy()}, ["y"], [Temporary("y", (8,), "fp32")])


def test_a_call_gives_scalars(cpu: Interpreter) -> None:
    x, y = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    arguments = [Pointer("x"), Pointer("y"), i32(4), Given("i64", "factor")]
    steps: _Steps = [("scale", arguments, ONE, {"BLOCK": 4})]
    for factor in (3, 2**32 + 5):
        run(cpu, steps, {"x": x, "y": y}, ["y"], scalars={"factor": factor})
        np.testing.assert_array_equal(y, x * (factor % 2**32))
    for given in (None, {}, {"other": 3}):
        with pytest.raises(BadArgument, match="needs the scalar 'factor'"):
            run(cpu, steps, {"x": x, "y": y}, ["y"], scalars=given)


# --- descriptors ------------------------------------------------------------------------------


def tile_of(view: Descriptor, memory: np.ndarray, at: Sequence[int]) -> np.ndarray:
    """What a copy of the tile at these coordinates moves, with zeros outside of the view."""
    tile = np.zeros(view.block, memory.dtype)
    for place in np.ndindex(*view.block):
        steps = view.element_strides or (1,) * len(place)
        index = [a + s * p for a, s, p in zip(at, steps, place, strict=True)]
        if all(0 <= i < n for i, n in zip(index, view.shape, strict=True)):
            where = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
            tile[place] = memory.reshape(-1)[where]
    return tile


VIEWS = {
    "offset": Descriptor("x", "fp32", (6, 8), (20, 1), (4, 8), offset=24),
    "steps": Descriptor("x", "fp32", (12, 16), (20, 1), (4, 8), element_strides=(3, 1)),
    "both": Descriptor("x", "fp32", (10, 8), (20, 1), (4, 8), 44, (2, 1)),
    "rank 4": Descriptor("x", "fp32", (2, 3, 5, 6), (140, 44, 8, 1), (1, 2, 4, 4), 4),
    "rank 4 in steps": Descriptor(
        "x", "fp32", (2, 3, 5, 6), (140, 44, 8, 1), (1, 2, 4, 4), element_strides=(1, 2, 2, 1)
    ),
    "rank 5": Descriptor("x", "fp32", (2, 2, 2, 3, 5), (116, 56, 28, 8, 1), (1, 2, 2, 2, 4), 8),
    "rank 5 in steps": Descriptor(
        "x", "fp32", (2, 2, 4, 3, 4), (116, 56, 12, 4, 1), (2, 1, 2, 2, 4), 0, (1, 1, 2, 2, 1)
    ),
}
"""As the hardware asks, whole 16 bytes from row to row; and so Triton asks of coordinates."""


def coordinates(at: Sequence[int]) -> list[Argument]:
    return [i32(i) for i in (*at, *[0] * (5 - len(at)))]


@pytest.mark.parametrize("kind", VIEWS)
def test_a_descriptors_tile_is_what_numpy_has_there(cpu: Interpreter, kind: str) -> None:
    """From the view's first element, from elsewhere in it, from before it, and past its end."""
    view = VIEWS[kind]
    x = np.arange(1, 301, dtype=np.float32)
    rank, size = len(view.shape), int(np.prod(view.block))
    constants = {"RANK": rank, "SIZE": size}
    outer, last = [0] * (rank - 1), [n - 1 for n in view.shape[:-1]]
    for at in ([*outer, 0], [1] * (rank - 1) + [4], [*outer, -4], [-1, *outer], [*last, 0]):
        y = np.zeros(size, np.float32)
        arguments = [view, Pointer("y"), *coordinates(at)]
        run(cpu, [("load_tile", arguments, ONE, constants)], {"x": x, "y": y}, ["y"])
        np.testing.assert_array_equal(y.reshape(view.block), tile_of(view, x, at), str(at))


@pytest.mark.parametrize("kind", VIEWS)
def test_a_descriptors_store_writes_its_tile_and_nothing_else(cpu: Interpreter, kind: str) -> None:
    view = replace(VIEWS[kind], operand="y")
    rank, size = len(view.shape), int(np.prod(view.block))
    x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(300, np.float32)
    at = [*(n - 1 for n in view.shape[:-1]), 0]
    arguments = [Pointer("x"), view, *coordinates(at)]
    constants = {"RANK": rank, "SIZE": size, "BLOCK": view.block}
    run(cpu, [("store_tile", arguments, ONE, constants)], {"x": x, "y": y}, ["y"])
    stored = tile_of(view, y, at)
    inside = tile_of(view, np.ones_like(y), at) == 1
    assert 0 < inside.sum() < size
    np.testing.assert_array_equal(stored[inside], x.reshape(view.block)[inside])
    assert np.count_nonzero(y) == inside.sum()


def test_a_descriptor_of_a_temporary(cpu: Interpreter) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    view = Descriptor("between", "fp32", (4, 8), (16, 1), (4, 8), offset=8)
    steps: _Steps = [
        ("copy", [Pointer("x"), Pointer("between"), i32(64)], ONE, {"BLOCK": 64}),
        ("load_tile", [view, Pointer("y"), *coordinates([0, 0])], ONE, {"RANK": 2, "SIZE": 32}),
    ]
    run(cpu, steps, {"x": x, "y": y}, ["y"], [Temporary("between", (64,), "fp32")])
    np.testing.assert_array_equal(y.reshape(4, 8), x.reshape(4, 16)[:, 8:])


# --- faults -----------------------------------------------------------------------------------


def assert_works(cpu: Interpreter) -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    launch(cpu, "copy", [x, y, 8], ["y"], BLOCK=8)
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
    launch(cpu, "chatty", [x, 4], ["x"], BLOCK=4)
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
    def start(module: str, function: str) -> None:
        source = KernelSource(module, function, (), ())
        cpu.run({MAIN: source}, Launch((Step(ONE, ()),)), {}, [])

    with pytest.raises(LaunchFailed, match="'os' may not be run"):
        start("os", "abort")
    with pytest.raises(LaunchFailed, match="may not be run"):
        start("interp_kernels_more", "copy")
    with pytest.raises(LaunchFailed, match=r"'interp_kernels\.not_a_kernel' is not a Triton"):
        start("interp_kernels", "not_a_kernel")
    with pytest.raises(LaunchFailed, match="ModuleNotFoundError"):
        start("tilewright.no_such_module", "f")


def test_arguments_that_do_not_fit(cpu: Interpreter) -> None:
    source = KernelSource("interp_kernels", "fail", (("x", "*fp32"),), ())
    x = np.zeros(1, np.float32)

    def start(*arguments: Argument, part: str = MAIN, written: Sequence[str] = ()) -> None:
        cpu.run({MAIN: source}, Launch((Step(ONE, arguments, part),)), {"x": x}, written)

    with pytest.raises(BadArgument, match="has 1 arguments, the launch has 0"):
        start()
    with pytest.raises(BadArgument, match=r"takes 'y', which is none of its operands .*: x$"):
        start(Pointer("y"))
    with pytest.raises(BadArgument, match=r"takes 'y', which is none of its operands .*: x$"):
        start(Descriptor("y", "fp32", (1, 16), (16, 1), (1, 16)))
    with pytest.raises(BadArgument, match="'y' is to be written but is none of the operands"):
        start(Pointer("x"), written=["y"])
    with pytest.raises(BadArgument, match="a step 'second' without a kernel"):
        start(Pointer("x"), part="second")


def test_four_threads_share_one_interpreter(cpu: Interpreter) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(5):
                x = np.random.default_rng([seed, i]).standard_normal(500 + seed)
                x = x.astype(np.float32)
                y = np.zeros_like(x)
                launch(cpu, "copy", [x, y, x.size], ["y"], BLOCK=1024)
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
    arguments = (Pointer("x"), Scalar("i32", 4))[: len(signature)]
    source = KernelSource("interp_kernels", function, signature, constants)
    plan = Launch((Step((1, 1, 1), arguments),))
    interpreter().run({MAIN: source}, plan, {"x": x}, ["x"], timeout=timeout)
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


@pytest.mark.turns(4)
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
    launch(cpu, "dot_scaled", [a, b, c, codes_a, codes_b], ["c"], **constants)
    scales_a, scales_b = (
        np.exp2(codes.astype(np.float64) - 127).repeat(32, 1) for codes in (codes_a, codes_b)
    )
    exact = (wide_a * scales_a) @ (wide_b * scales_b.T) + 1
    np.testing.assert_allclose(c, exact, rtol=1e-6)
    codes_b[5, 1] = 255
    launch(cpu, "dot_scaled", [a, b, c, codes_a, codes_b], ["c"], **constants)
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
