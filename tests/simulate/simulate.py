"""Run a launch of kernels, in Gluon or Triton, in the simulation: see `sim_world`.

    outputs = simulated_run(config, problem, arch_name, inputs, seed)

The simulation executes what a kernel says: partitions with their barriers, copies and products in
flight, in an order by chance. It knows nothing of threads and of the compiler: a kernel that is
right here may still be compiled wrongly.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import sim_language as language
import sim_names
from sim_shared import View
from sim_values import Fault, Int, Memory, Pointer, numpy_of, scalar
from sim_world import Message, World
from triton.experimental.gluon import language as gl

from tilewright import arrays, ops, verify
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Device
from tilewright.ops.nouns import Descriptor, Given, KernelSource, Launch, Scalar
from tilewright.ops.nouns import Pointer as Address

_TYPES = {
    "fp32": gl.float32, "fp16": gl.float16, "bf16": gl.bfloat16, "e4m3fn": gl.float8e4nv,
    "e5m2": gl.float8e5, "e8m0": gl.uint8, "int32": gl.int32, "int64": gl.int64,
    "uint8": gl.uint8, "int8": gl.int8, "bool": gl.int8,
}  # fmt: skip


def simulated_run(
    config: Any, problem: Any, device: Device, inputs: Mapping[str, Any], seed: int = 0
) -> dict[str, Any]:
    """The outputs of a config for a problem, by name.

    inputs: operands as NumPy arrays of their dtypes, of contiguous memory; scalars as numbers.
    """
    family = ops.family(problem.family)
    launch: Launch = family.launch(config, problem, device)
    sources = family.sources(config, arch_called(device.arch))
    memories: dict[str, Memory] = {}
    shapes: dict[str, Any] = {}
    for one in family.operands(problem):
        kind = _TYPES[one.dtype]
        if one.read:
            array = np.asarray(inputs[one.name])
            flat = np.ascontiguousarray(array).reshape(-1).astype(numpy_of(kind))
        else:
            count = 1 + sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True))
            flat = np.empty(count if 0 not in one.shape else 0, numpy_of(kind))
            _poison(flat)
        memories[one.name], shapes[one.name] = Memory(one.name, flat, kind), one
    for temporary in launch.temporaries:
        flat = np.empty(math.prod(temporary.shape), numpy_of(_TYPES[temporary.dtype]))
        _poison(flat)
        if temporary.initial != "anything":
            flat[...] = 0
        memories[temporary.name] = Memory(temporary.name, flat, _TYPES[temporary.dtype])
    constant = frozenset({"B"} if getattr(problem, "constant_b", False) else ())
    for number, step in enumerate(launch.steps):
        _step(sources[step.part], step, memories, inputs, seed + 1000 * number, constant)
    for temporary in launch.temporaries:
        if temporary.initial == "kept_zero" and memories[temporary.name].flat.any():
            raise Fault(f"{temporary.name} is not zero when the launch has ended")
    found = {}
    for one in family.operands(problem):
        if one.written:
            flat = memories[one.name].flat
            strides = [s * flat.itemsize for s in one.strides]
            found[one.name] = np.ndarray(one.shape, flat.dtype, flat, 0, strides)
    return found


def worst_error(
    config: Any, problem: Any, device: Device, seed: int = 0,
    given: Mapping[str, Any] | None = None,
) -> float:  # fmt: skip
    """The largest error of the simulated outputs on fresh data (or on the `given`), as a multiple
    of what the family tolerates; infinite where there is NaN and should not be."""
    family = ops.family(problem.family)
    inputs = dict(given or verify.operands_of(problem, seed).inputs)
    wanted = verify.reference(problem, inputs)
    for one in family.operands(problem):
        if one.read:
            inputs[one.name] = _laid_out(one, arrays.to_numpy(inputs[one.name]))
    found = simulated_run(config, problem, device, inputs, seed)
    worst = 0.0
    tolerances = family.tolerances(problem, config)
    for name, value in wanted.items():
        check = verify.compare(found[name], np.asarray(value, np.float64), tolerances[name])
        # NaN in a wrong place is no error of any size.
        worst = max(worst, check.worst if check.ok or check.worst > 1.0 else math.inf)
    return worst


def _laid_out(one: Any, values: Any) -> Any:
    """The elements of an operand's memory, flat."""
    reach = sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True))
    flat = np.empty(1 + reach if 0 not in one.shape else 0, values.dtype)
    if flat.size:
        strides = [s * flat.itemsize for s in one.strides]
        np.ndarray(one.shape, flat.dtype, flat, 0, strides)[...] = values
    return flat


def _poison(flat: Any) -> None:
    flat[...] = np.iinfo(flat.dtype).max if np.dtype(flat.dtype).kind in "iu" else np.nan


def _step(
    source: KernelSource,
    step: Any,
    memories: Mapping[str, Memory],
    inputs: Mapping[str, Any],
    seed: int,
    constant: frozenset[str],
) -> None:
    kernel = sim_names.Function(getattr(importlib.import_module(source.module), source.function))
    passed = iter(step.arguments)
    constants = dict(source.constants)
    arguments: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
    for name, kind in source.signature:
        whole, dot, _ = name.partition(".")
        if kind == "()":
            arguments[name] = ()
        elif kind == "constexpr":
            value = constants[name] if name in constants else dict(source.functions)[name]
            arguments[name] = _constant(value)
        else:
            value = _argument(next(passed), kind, memories, inputs)
            if dot:
                parts.setdefault(whole, []).append(value)
            else:
                arguments[name] = value
    arguments |= {name: tuple(values) for name, values in parts.items()}
    x, y, z = step.grid
    x *= source.cluster
    options = dict(source.options)
    warps, dependent = int(options["num_warps"]), bool(options.get("launch_pdl"))
    programs = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]

    def run(program: Any, inbox: list[Message] | None) -> list[Message]:
        language.world = world = World(
            program, (x, y, z), hash((seed, program)), warps, dependent, constant
        )
        world.inbox = inbox
        for memory in memories.values():
            memory.told = world.access
        kernel(**arguments)
        if inbox is not None:
            world.end(world.partitions[0])
        return world.sent

    for first in range(0, len(programs), source.cluster):
        cluster = programs[first : first + source.cluster]
        sent = [
            one for program in cluster for one in (run(program, None) if source.cluster > 1 else [])
        ]
        for rank, program in enumerate(cluster):
            run(program, [one for one in sent if one.rank == rank])


def _constant(value: Any) -> Any:
    if isinstance(value, tuple):  # functions, as "module:function"
        return tuple(_function(name) for name in value)
    return scalar(value) if isinstance(value, int | float) else value


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return sim_names.simulated(getattr(importlib.import_module(module), function))


def _argument(
    argument: Any, kind: str, memories: Mapping[str, Memory], inputs: Mapping[str, Any]
) -> Any:
    if isinstance(argument, Address):
        return Pointer(memories[argument.operand], Int(0))
    if isinstance(argument, Scalar):
        return scalar(argument.value)
    if isinstance(argument, Given):
        return scalar(
            float(inputs[argument.name]) if argument.type == "fp32" else int(inputs[argument.name])
        )
    assert isinstance(argument, Descriptor)
    memory = memories[argument.operand]
    dtype = _TYPES[argument.dtype]
    if numpy_of(dtype) != memory.flat.dtype:
        memory = Memory(memory.name, memory.flat.view(numpy_of(dtype)), dtype)
    layout = gl.NVMMASharedLayout.get_default_for(list(argument.block), dtype)
    return View(
        memory, argument.shape, argument.strides, argument.block, layout, argument.offset,
        argument.element_strides,
    )  # fmt: skip


__all__ = ["Fault", "simulated_run", "worst_error"]
