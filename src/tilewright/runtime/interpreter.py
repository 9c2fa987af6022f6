"""Running kernels without a GPU: Triton's interpreter, in a process of its own.

The interpreter must be switched on before Triton is imported and a wrong kernel can end the
process it runs in, so kernels run in a child. Operands go there as bytes and outputs come back.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.child import Child, ChildDied, ChildTimeout, Message
from tilewright.errors import (
    BadArgument,
    IllegalAccess,
    KernelCrashed,
    LaunchFailed,
    OutOfMemory,
)
from tilewright.ops.nouns import (
    FLAG_BYTES,
    WORKSPACE,
    Argument,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
)
from tilewright.pointer_array import Pointers

Array = np.ndarray[Any, np.dtype[Any]]

_FAILURES: dict[str, type[LaunchFailed]] = {
    "access": IllegalAccess,
    "memory": OutOfMemory,
    "raised": KernelCrashed,
}
"""What the child says of an error, as an exception."""


class Interpreter:
    """Runs launches on the CPU, one at a time, in a child process started when first needed.

    Safe to use from several threads. A child that died or was killed is replaced. Kernels come
    from modules of `tilewright`, and from those that TILEWRIGHT_KERNEL_MODULES names (separated
    by colons, with all below them) when the child starts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._owner = 0

    def run(
        self,
        source: KernelSource,
        launch: Launch,
        operands: Sequence[Array | Pointers],
        outputs: Sequence[int],
        workspace: Array | None = None,
        timeout: float | None = None,
    ) -> None:
        """Run the whole grid and write the operands numbered in `outputs` back in place.

        `operands` are NumPy arrays (ml_dtypes for bf16 and fp8) of any strides, or `Pointers` to
        such; the kernel sees those strides. Only elements are written back, never bytes between
        them. Operands that share memory are separate copies to the kernel. `workspace`, of at least
        ``launch.workspace_bytes`` contiguous bytes, is written back too, so that the next launch
        of a plan finds it; without it the kernel gets a scratch one. `timeout` is in seconds and
        includes starting the child.

        Raises `BadArgument` for operands that do not fit the launch, `KernelCrashed` if the kernel
        raises or kills its process, `IllegalAccess` if it touches memory that is not its own or
        writes an operand that is not in `outputs`, `OutOfMemory`, and `LaunchFailed` if it cannot
        be run or does not end in time; the outputs are then unchanged.
        """
        scratch = _workspace(launch, workspace)
        arrays = [x.addresses if isinstance(x, Pointers) else x for x in operands]
        names = [f"operand {i}" for i in range(len(operands))]
        if scratch is not None:
            arrays.append(scratch)
            names.append("the workspace")
        in_place = len(arrays)
        # Behind them, what pointers point to; the child puts its own addresses in.
        pointed: dict[int, list[int]] = {}
        for i, x in enumerate(operands):
            if isinstance(x, Pointers):
                pointed[i] = [*range(len(arrays), len(arrays) + len(x.arrays))]
                names += [f"array {j} of operand {i}" for j in range(len(x.arrays))]
                arrays += x.arrays
        changed = [j for i in outputs for j in pointed.get(i, [i])]
        _check_outputs(arrays, changed)
        writable = {*changed} if scratch is None else {*changed, len(operands)}
        returned = sorted(changed if workspace is None else writable)
        spans = [_Span(a) for a in arrays]
        message: Message = {
            "module": source.module,
            "function": source.function,
            "constants": dict(source.constants),
            "functions": dict(source.functions),
            "tuples": _tuples(source),
            "grid": launch.grid,
            "arguments": _arguments(source, launch, len(operands), in_place),
            "pointed": [*pointed.items()],
            "operands": [
                {**span.layout, "name": name, "writable": i in writable}
                for i, (span, name) in enumerate(zip(spans, names, strict=True))
            ],
            "return": returned,
        }
        kernel = f"'{source.module}.{source.function}'"
        blobs = self._request(kernel, message, [s.memory for s in spans], timeout)
        for i, blob in zip(returned, blobs, strict=True):
            spans[i].write_back(blob)

    def close(self) -> None:
        """End the child. A later `run` starts a new one."""
        if self._owner == os.getpid():  # a fork's child is its parent's, its lock perhaps held
            with self._lock:
                self._drop()

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _request(
        self, kernel: str, message: Message, blobs: Sequence[memoryview], timeout: float | None
    ) -> list[bytes]:
        with self._lock:
            try:
                answer, returned = self._started().request(message, blobs, timeout)
            except ChildDied as died:
                self._drop()
                words = died.stderr_tail.strip().rpartition("\n")[2]
                raise KernelCrashed(
                    f"kernel {kernel}: the interpreter's process was {died}"
                    if died.returncode < 0
                    else f"kernel {kernel}: the interpreter's process {died}: {words}"
                ) from None
            except ChildTimeout as late:
                self._drop()
                raise LaunchFailed(f"kernel {kernel}: {late} from the interpreter") from None
            except BaseException:
                # An interrupted request would leave its answer for the next one to read.
                self._drop()
                raise
        if "error" in answer:
            kind = _FAILURES.get(answer["kind"], LaunchFailed)
            raise kind(f"kernel {kernel}, interpreted: {answer['error']}")
        return returned

    def _started(self) -> Child:
        if self._owner != os.getpid():
            self._owner, self._child = os.getpid(), None
        if self._child is None:
            self._child = Child("tilewright.runtime.interpreter_worker", {"TRITON_INTERPRET": "1"})
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None


@cache
def interpreter() -> Interpreter:
    """The process's shared interpreter, closed at exit."""
    shared = Interpreter()
    atexit.register(shared.close)
    return shared


os.register_at_fork(after_in_child=interpreter.cache_clear)


class _Span:
    """The bytes from an array's lowest element to its highest, seen in place.

    `layout` says how the array lies in them: `origin` is its first element's offset.
    """

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory alive
        steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        low = sum(s for s in steps if s < 0) if array.size else 0
        high = sum(s for s in steps if s > 0) + array.itemsize if array.size else 0
        address = array.__array_interface__["data"][0] + low
        self.memory = memoryview((ctypes.c_ubyte * (high - low)).from_address(address)).cast("B")
        self.layout: Message = {
            "address": address,
            "origin": -low,
            "shape": array.shape,
            "strides": array.strides,
            "itemsize": array.itemsize,
        }

    def write_back(self, blob: bytes) -> None:
        """Copy the elements, and only them, from a changed image of the span."""
        bits = np.dtype(f"u{self.array.itemsize}")  # moves NaN payloads untouched
        changed: Array = np.ndarray(
            self.array.shape, bits, blob, self.layout["origin"], self.array.strides
        )
        np.copyto(self.array.view(bits), changed)


def _workspace(launch: Launch, given: Array | None) -> Array | None:
    """The workspace of a launch as its caller gave it, or a scratch one, or none."""
    size = launch.workspace_bytes
    if given is None:
        # All ones is NaN in every float type: reading what was never written shows.
        made = np.full(size, 0 if launch.zero_workspace else 0xFF, np.uint8)
        made[:FLAG_BYTES] = 0
        return made if size else None
    if not given.flags.c_contiguous or not given.flags.writeable or given.nbytes < size:
        raise BadArgument(f"the workspace must be {size} contiguous writable bytes or more")
    return given


def _check_outputs(operands: Sequence[Array], outputs: Sequence[int]) -> None:
    for i in outputs:
        if not 0 <= i < len(operands):
            raise BadArgument(f"output {i} is not among the {len(operands)} operands")
        if not operands[i].flags.writeable:
            raise BadArgument(f"operand {i} is an output but a read-only array")


def _arguments(
    source: KernelSource, launch: Launch, operands: int, arrays: int
) -> list[dict[str, Any]]:
    """The launch's arguments with the kernel's names and types for them."""
    declared = source.arguments
    if len(declared) != len(launch.arguments):
        raise BadArgument(
            f"kernel '{source.function}' has {len(declared)} arguments, "
            f"the launch has {len(launch.arguments)}"
        )
    described = []
    for (name, kind), argument in zip(declared, launch.arguments, strict=True):
        if isinstance(argument, Scalar):
            described.append({"name": name, "type": argument.type, "value": argument.value})
            continue
        number = operands if argument.operand == WORKSPACE else argument.operand
        if not 0 <= number < (arrays if argument.operand == WORKSPACE else operands):
            raise BadArgument(f"argument '{name}' of '{source.function}': no such operand")
        described.append({"name": name, "operand": number, **_view(kind, argument)})
    return described


def _tuples(source: KernelSource) -> list[str]:
    """Names of the kernel's tuple arguments."""
    elements = (name.partition(".") for name, _ in source.arguments)
    empty = (name for name, kind in source.signature if kind == "()")
    return list(dict.fromkeys((*(whole for whole, dot, _ in elements if dot), *empty)))


def _view(kind: str, argument: Argument) -> dict[str, Any]:
    if isinstance(argument, Pointer):
        return {"type": kind}
    assert not isinstance(argument, Scalar)
    return {
        "type": "*" + dtypes.dtype(argument.dtype).triton,
        "shape": argument.shape,
        "strides": argument.strides,
        "block": argument.block,
    }
