"""Kernels of interp_kernels, run by the interpreter."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patience import LIMIT_SECONDS
from tilewright import dtypes
from tilewright.dtypes import dtype, numpy_dtype
from tilewright.ops.nouns import (
    Argument,
    Descriptor,
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
Steps = Sequence[tuple[str, Sequence[Argument], tuple[int, int, int], dict[str, Any]]]


def run(
    cpu: Interpreter,
    steps: Steps,
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
