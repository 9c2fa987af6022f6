"""Running kernels without a GPU: Triton's interpreter, in a process of its own.

The interpreter must be switched on before Triton is imported and a wrong kernel can end the
process it runs in, so kernels run in a child. Operands go there as bytes and outputs come back.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Collection, Mapping, Sequence
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
from tilewright.ops import MODULES_VARIABLE
from tilewright.ops.nouns import (
    Descriptor,
    Given,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
    Step,
    Temporary,
)
from tilewright.pointer_array import Pointers
from tilewright.runtime.interpreter_spans import MOST, Array, Span

_FAILURES: dict[str, type[LaunchFailed]] = {
    "access": IllegalAccess,
    "memory": OutOfMemory,
    "raised": KernelCrashed,
}
"""The exceptions for the child's kinds of errors."""


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
        self._modules = ""

    def run(
        self,
        sources: Mapping[str, KernelSource],
        launch: Launch,
        operands: Mapping[str, Array | Pointers],
        written: Collection[str],
        *,
        scalars: Mapping[str, int | float] | None = None,
        temporaries: Mapping[str, Array] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Run the whole grid of every step, and write the operands named in `written` back in
        place.

        sources: the kernels, by part.
        operands: by name, NumPy arrays (ml_dtypes for bf16 and fp8) of any strides, or `Pointers`
            to such. The kernels see these strides. Only elements are written back, never bytes
            between them. Operands that share memory are separate copies to the kernels.
        scalars: the values of those that a call gives.
        temporaries: arrays for the launch's temporaries, by name, written back too, so that the
            next launch of a plan finds them; without them the kernels get arrays of their own.
        timeout: seconds for each step, starting the child included.

        Raises `BadArgument` for operands that do not fit the launch, `KernelCrashed` if a kernel
        raises, kills its process, or leaves a temporary changed that it must leave zero,
        `IllegalAccess` if it touches memory that is not its own or writes an operand that is not
        in `written`, `OutOfMemory` (for operands of more than `MOST` bytes; gaps of a page and more
        between elements do not count), and `LaunchFailed` if it cannot be run or does not end in
        time; the operands are then unchanged.
        """
        memory = _Memory(launch, operands, written, temporaries)
        for step in launch.steps:
            source = sources.get(step.part)
            if source is None:
                raise BadArgument(f"the launch has a step '{step.part}' without a kernel")
            names = memory.used(step)
            returned = [name for name in names if name in memory.writable]
            message: Message = {
                "module": source.module,
                "function": source.function,
                "constants": dict(source.constants),
                "functions": dict(source.functions),
                "tuples": _tuples(source),
                "grid": step.grid,
                "arguments": _arguments(source, step, names, scalars or {}),
                "pointed": [
                    (names.index(name), [names.index(each) for each in listed])
                    for name, listed in memory.pointed.items()
                    if name in names
                ],
                "operands": [
                    {
                        **memory.spans[name].described,
                        "name": memory.called(name),
                        "writable": name in memory.writable,
                    }
                    for name in names
                ],
                "return": [names.index(name) for name in returned],
            }
            kernel = f"'{source.module}.{source.function}'"
            blobs = self._request(kernel, message, [memory.images[n] for n in names], timeout)
            memory.images.update(zip(returned, blobs, strict=True))
        memory.check_kept()
        memory.write_back()

    def close(self) -> None:
        """End the child. A later `run` starts a new one."""
        # After a fork, the child belongs to the parent, and the lock may be held.
        if self._owner == os.getpid():
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
        modules = os.environ.get(MODULES_VARIABLE, "")
        if modules != self._modules:  # an operation was registered since
            self._drop()
            self._modules = modules
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


class _Memory:
    """The arrays of one launch by name: operands, temporaries, and arrays behind pointers.

    images: the bytes of each that the next step sees.
    """

    def __init__(
        self,
        launch: Launch,
        operands: Mapping[str, Array | Pointers],
        written: Collection[str],
        temporaries: Mapping[str, Array] | None,
    ) -> None:
        self._launch, self._given = launch, temporaries is not None
        arrays: dict[str, Array] = {}
        self.pointed: dict[str, list[str]] = {}
        for name, x in operands.items():
            arrays[name] = x.addresses if isinstance(x, Pointers) else x
            if isinstance(x, Pointers):  # the child puts its own addresses in
                self.pointed[name] = [f"{name}[{i}]" for i in range(len(x.arrays))]
                arrays |= zip(self.pointed[name], x.arrays, strict=True)
        for name in written:
            if name not in operands:
                raise BadArgument(f"'{name}' is to be written but is none of the operands")
        self._outputs = [each for name in written for each in self.pointed.get(name, [name])]
        for name in self._outputs:
            if not arrays[name].flags.writeable:
                raise BadArgument(f"operand {name} is an output but a read-only array")
        self._temporaries = {one.name: one for one in launch.temporaries}
        for name, one in self._temporaries.items():
            if name in operands:
                raise BadArgument(f"'{name}' names an operand and a temporary")
            arrays[name] = _temporary(one, (temporaries or {}).get(name))
        self.writable = {*self._outputs, *self._temporaries}
        self.spans = {name: Span(array) for name, array in arrays.items()}
        self._refuse_too_large()
        self.images: dict[str, Any] = {name: span.image for name, span in self.spans.items()}
        self._begun = dict(self.images)

    def _refuse_too_large(self) -> None:
        """Raise `OutOfMemory` for operands that take more than `MOST` bytes."""
        taken = {name: span.resident for name, span in self.spans.items()}
        if sum(taken.values()) > MOST:
            largest = max(taken, key=lambda name: taken[name])
            raise OutOfMemory(
                f"the operands take {sum(taken.values())} bytes in the interpreter's process "
                f"({largest} alone {taken[largest]}), which takes {MOST}: run a smaller problem, "
                "or on a GPU"
            )

    def used(self, step: Step) -> list[str]:
        """The names that a step's arguments refer to, and the names behind their pointers."""
        names: list[str] = []
        for one in step.arguments:
            if isinstance(one, Pointer | Descriptor) and one.operand not in names:
                if one.operand not in self.spans:
                    raise BadArgument(
                        f"a step of the launch takes '{one.operand}', which is none of its "
                        f"operands and temporaries: {', '.join(self.spans)}"
                    )
                names.append(one.operand)
        return [*names, *(each for name in names for each in self.pointed.get(name, ()))]

    def called(self, name: str) -> str:
        return f"temporary {name}" if name in self._temporaries else f"operand {name}"

    def check_kept(self) -> None:
        """Raise `KernelCrashed` if a temporary that every launch must leave zero is not zero."""
        for one in self._launch.temporaries:
            if one.initial == "kept_zero" and any(self.images[one.name]):
                raise KernelCrashed(
                    f"the launch leaves temporary '{one.name}' changed, which each launch must "
                    "leave zero"
                )

    def write_back(self) -> None:
        for name in (*self._outputs, *(self._temporaries if self._given else ())):
            if self.images[name] is not self._begun[name]:
                self.spans[name].write_back(self.images[name])


def _temporary(one: Temporary, given: Array | None) -> Array:
    """The memory of a temporary: the caller's, or an array in a state in which a launch may find
    it."""
    if given is None:
        # All ones is NaN in every float type, which shows a read of unwritten memory.
        return np.full(one.bytes, 0xFF if one.initial == "anything" else 0, np.uint8)
    if not given.flags.c_contiguous or not given.flags.writeable or given.nbytes != one.bytes:
        raise BadArgument(f"temporary '{one.name}' is {one.bytes} contiguous writable bytes")
    if one.initial == "zero":
        given[...] = 0
    return given


def _arguments(
    source: KernelSource, step: Step, names: Sequence[str], scalars: Mapping[str, int | float]
) -> list[dict[str, Any]]:
    """The step's arguments, with the kernel's names and types for them."""
    declared = source.arguments
    if len(declared) != len(step.arguments):
        raise BadArgument(
            f"kernel '{source.function}' has {len(declared)} arguments, "
            f"the launch has {len(step.arguments)}"
        )
    described = []
    for (name, kind), argument in zip(declared, step.arguments, strict=True):
        if isinstance(argument, Scalar):
            described.append({"name": name, "type": argument.type, "value": argument.value})
        elif isinstance(argument, Given):
            if argument.name not in scalars:
                raise BadArgument(f"the launch needs the scalar '{argument.name}'")
            value = scalars[argument.name]
            described.append({"name": name, "type": argument.type, "value": value})
        else:
            number = names.index(argument.operand)
            described.append({"name": name, "operand": number, **_view(kind, argument)})
    return described


def _tuples(source: KernelSource) -> list[str]:
    """Names of the kernel's tuple arguments."""
    elements = (name.partition(".") for name, _ in source.arguments)
    empty = (name for name, kind in source.signature if kind == "()")
    return list(dict.fromkeys((*(whole for whole, dot, _ in elements if dot), *empty)))


def _view(kind: str, argument: Pointer | Descriptor) -> dict[str, Any]:
    if isinstance(argument, Pointer):
        return {"type": kind}
    element = dtypes.dtype(argument.dtype)
    return {
        "type": "*" + element.triton,
        "shape": argument.shape,
        "strides": argument.strides,
        "block": argument.block,
        "offset": argument.offset * element.bytes,
        "element_strides": argument.element_strides,
    }
