"""NVIDIA's cuDNN by ctypes: the engines that it offers for a convolution or an attention, and one
made ready.

cuDNN describes everything by descriptors with attributes (its backend API, cudnn_graph.h of
version 9, whose numbers are those here): tensors and operations, which make a graph
(`cudnn_graphs`), an engine with its knobs, and a plan of execution. An engine and its knobs are all
that fixes an algorithm, so a plan can be made of a kernel's name again.

A graph that is ready is a `Prepared` with a `Context`: memory in which the launcher (`graph.h`, or
its twin in `python_launcher`) finds the library's functions and the plan.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, ClassVar

from tilewright.errors import LibraryRefused
from tilewright.ops.library import major
from tilewright.ops.library_attention import Attention
from tilewright.ops.library_convolution import Convolution
from tilewright.ops.library_engine import Engine, Offered
from tilewright.runtime.cudnn_graphs import (
    BOOL,
    DESCRIPTOR,
    DTYPE,
    FLOAT,
    INT64,
    MODE,
    POINTWISE,
    REDUCTION,
    Graph,
    graph_of,
)
from tilewright.runtime.driver import Driver, address_of
from tilewright.runtime.prepared import Prepared

Asked = Convolution | Attention

# cudnnBackendDescriptorType_t
_ENGINE, _CONFIG, _HEURISTIC, _PLAN, _KNOB, _GRAPH = 2, 3, 4, 5, 7, 15
PACK = 16
"""The descriptor that hands a plan its addresses."""

# cudnnBackendAttributeType_t
_HANDLE, _HEURISTIC_MODE, _KNOB_TYPE, _NOTE = 0, 8, 9, 11
POINTERS = 6
"""Addresses, as attributes of a `PACK`."""
_C: dict[int, Any] = {
    _HANDLE: ctypes.c_void_p,
    BOOL: ctypes.c_bool,
    INT64: ctypes.c_int64,
    FLOAT: ctypes.c_float,
    DESCRIPTOR: ctypes.c_void_p,
    **dict.fromkeys(
        (DTYPE, MODE, _HEURISTIC_MODE, _KNOB_TYPE, _NOTE, POINTWISE, REDUCTION), ctypes.c_int
    ),
}
"""C's type of an attribute."""

_MODES = (3, 2)
"""cudnnBackendHeurMode_t: the library's best heuristic, then what works where that has nothing."""

_REDUCED = frozenset((1, 2, 3, 5, 6, 7, 8))
"""cudnnBackendNumericalNote_t: operands or sums in fewer bits, and transforms (Fourier's,
Winograd's) whose rounding grows with the operands: results may be further off than ours may be."""
_MATRIX_UNITS, _VARIES = 0, 4

_ATTENTION = 91100
"""The version from which on the library is asked for attention: releases before it had faults."""
_OF_FP8 = 91300
"""The one from which on it is asked for attention in fp8 whose output has more bits."""

_KNOBS = 64
"""Room for the knobs of an engine, more than there are kinds of knobs."""


class Shared(ctypes.Structure):
    """A device's handle, and whether a call uses it; `Shared` of graph.h."""

    _fields_ = (("handle", ctypes.c_void_p), ("busy", ctypes.c_int))


class Context(ctypes.Structure):
    """What a call needs besides what it is given and a stream; `Graph` of graph.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "set_stream", "create", "set", "finalize", "execute", "destroy", "shared", "plan",
        )),
        ("workspace", ctypes.c_uint64),
        ("given", ctypes.c_int),
        ("values", ctypes.c_int),
        ("positive", ctypes.c_int),
    )  # fmt: skip


_FUNCTIONS = (
    "cudnnSetStream", "cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
    "cudnnBackendFinalize", "cudnnBackendExecute", "cudnnBackendDestroyDescriptor",
)  # fmt: skip
"""Those that a `Context` begins with."""


class Cudnn:
    """The library of one major version, opened. Thread-safe.

    lib: the library's functions. name: with the major version, as ``cudnn9``.

    Raises `LibraryRefused` if `lib` is of another version than `name` says.
    """

    step: ClassVar[str] = "graph_step"
    majors: ClassVar[tuple[int, ...]] = (9,)
    folders: ClassVar[tuple[str, ...]] = ("nvidia/cudnn/lib",)
    install: ClassVar[str] = "nvidia-cudnn-cu13 {}"

    def __init__(self, lib: Any, name: str) -> None:
        self._lib, self.name = lib, name
        lib.cudnnGetVersion.restype = ctypes.c_size_t
        lib.cudnnGetErrorString.restype = ctypes.c_char_p
        self.version: int = lib.cudnnGetVersion()
        if self.version // 10000 != major(name):
            found, wanted = self.files(major(name))[0], major(name)
            raise LibraryRefused(
                f"the library that loads as {found} is version {self.version}, not {wanted}: "
                f"install {self.install.format(wanted)}, or tune for this one"
            )
        self._shared: dict[int, Shared] = {}
        self._lock = threading.RLock()
        """Held while a handle is used to describe or plan."""

    @staticmethod
    def files(version: int) -> tuple[str, ...]:
        """The files that may be the library of a major version."""
        return (f"libcudnn.so.{version}",)

    def error(self, status: int) -> str:
        """The library's name for a status."""
        said = self._lib.cudnnGetErrorString(status)
        return f"{(said or b'unknown status').decode()} ({status})"

    def offered(self, driver: Driver, device: int, asked: Asked, count: int) -> list[Offered]:
        """The first engines that the library's heuristic offers for what is asked and can
        plan, best guess first, at most `count`. Raises `LibraryRefused` if there is none."""
        found: list[Offered] = []
        with self._lock, ExitStack() as stack, driver.current(device), driver.capture_allowed():
            handle = self._handle(device)
            graph, _ = self._graph(stack, handle, asked)
            for engine in self._engines(stack, graph, asked):
                if any(engine == one.engine for one in found):
                    continue
                with suppress(LibraryRefused):
                    _, need = self._plan(stack, handle, graph, engine)
                    if need <= asked.workspace:
                        found.append(Offered(engine, need))
                if len(found) == count:
                    break
        if not found:
            raise LibraryRefused(f"{self.name} has no engine for {asked}")
        return found

    def prepared(self, driver: Driver, device: int, asked: Asked) -> Prepared:
        """What is asked, with its engine, made ready on a device. Raises `LibraryRefused` if the
        library does not take the engine there."""
        assert isinstance(asked.engine, Engine)
        with self._lock, ExitStack() as stack, driver.current(device), driver.capture_allowed():
            handle = self._handle(device)
            graph, of = self._graph(stack, handle, asked)
            plan, need = self._plan(stack, handle, graph, asked.engine)
            if need > asked.workspace:
                raise LibraryRefused(
                    f"{self.name} needs {need} bytes of workspace for {asked} by engine "
                    f"{asked.engine.word}, over {asked.workspace}, those in the kernel's name"
                )
            functions = (address_of(getattr(self._lib, name)) for name in _FUNCTIONS)
            shared = ctypes.addressof(self._shared[device])
            numbers = of.values, of.positive
            context = Context(*functions, shared, plan, asked.workspace, of.given, *numbers)
            said = f"{self.name} for {asked}"
            return Prepared(said, self, driver, context, stack.pop_all())

    def _handle(self, device: int) -> int:
        """The handle of a device, which is current. Raises `LibraryRefused`."""
        if device not in self._shared:
            handle = ctypes.c_void_p()
            self._check(self._lib.cudnnCreate(ctypes.byref(handle)), f"open GPU {device}")
            self._shared[device] = Shared(handle)
        found: int = self._shared[device].handle
        return found

    # --- descriptions --------------------------------------------------------------------------

    def _graph(self, stack: ExitStack, handle: int, asked: Asked) -> tuple[int, Graph]:
        """A graph of operations, and what these are given."""
        if isinstance(asked, Attention):
            least = _OF_FP8 if asked.in_fp8 and asked.o.dtype != asked.q.dtype else _ATTENTION
            if self.version < least:
                raise LibraryRefused(
                    f"{self.name} is version {self.version}, and is asked for {asked}, O in "
                    f"{asked.o.dtype} from {least} on"
                )
        of = graph_of(partial(self._made, stack), asked)
        parts = (800, _HANDLE, (handle,)), (801, DESCRIPTOR, of.operations)
        return self._made(stack, _GRAPH, *parts), of

    def _plan(self, stack: ExitStack, handle: int, graph: int, engine: Engine) -> tuple[int, int]:
        """A plan by an engine, and the bytes of workspace that it needs. Raises
        `LibraryRefused`."""
        made = self._made(
            stack, _ENGINE, (1300, DESCRIPTOR, (graph,)), (1301, INT64, (engine.number,))
        )
        knobs = [
            self._made(stack, _KNOB, (600, _KNOB_TYPE, (kind,)), (601, INT64, (value,)))
            for kind, value in engine.knobs
        ]
        turned = ((302, DESCRIPTOR, knobs),) if knobs else ()
        config = self._made(stack, _CONFIG, (300, DESCRIPTOR, (made,)), *turned)
        plan = self._made(stack, _PLAN, (400, _HANDLE, (handle,)), (401, DESCRIPTOR, (config,)))
        (need,) = self._read(plan, 402, INT64, 1)
        return plan, need

    def _engines(self, stack: ExitStack, graph: int, asked: Asked) -> Iterator[Engine]:
        """The engines that the heuristics name, without those whose results may be too far off."""
        refused = set(_REDUCED)
        if isinstance(asked, Convolution) and (asked.x.dtype, asked.precision) == ("fp32", "ieee"):
            refused.add(_MATRIX_UNITS)  # which multiply fp32 as TF32
        for mode in _MODES:
            with suppress(LibraryRefused):
                heuristic = self._made(
                    stack,
                    _HEURISTIC,
                    (201, DESCRIPTOR, (graph,)),
                    (200, _HEURISTIC_MODE, (mode,)),
                )
                for config in self._read_descriptors(stack, heuristic, 202, _CONFIG):
                    (engine,) = self._read_descriptors(stack, config, 300, _ENGINE)
                    (number,) = self._read(engine, 1301, INT64, 1)
                    notes = set(self._read(engine, 1303, _NOTE, 16))
                    if notes & refused:
                        continue
                    knobs = {
                        self._read(knob, 600, _KNOB_TYPE, 1)[0]: self._read(knob, 601, INT64, 1)[0]
                        for knob in self._read_descriptors(stack, config, 302, _KNOB, _KNOBS)
                    }
                    varies = asked.varies or _VARIES in notes
                    yield Engine(number, tuple(sorted(knobs.items())), varies)

    # --- the library's functions ---------------------------------------------------------------

    def _made(
        self, stack: ExitStack, kind: int, *attributes: tuple[int, int, Sequence[Any]]
    ) -> int:
        """A descriptor with its attributes (number, type, values), finished; destroyed with
        `stack`. Raises `LibraryRefused`."""
        made = self._created(stack, kind)
        for number, of, values in attributes:
            array = (_C[of] * len(values))(*values)
            status = self._lib.cudnnBackendSetAttribute(
                ctypes.c_void_p(made), number, of, ctypes.c_int64(len(values)), array
            )
            self._check(status, f"set attribute {number}")
        self._check(
            self._lib.cudnnBackendFinalize(ctypes.c_void_p(made)), f"finish a descriptor {kind}"
        )
        return made

    def _created(self, stack: ExitStack, kind: int) -> int:
        made = ctypes.c_void_p()
        status = self._lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(made))
        self._check(status, f"make a descriptor {kind}")
        assert made.value is not None
        stack.callback(self._lib.cudnnBackendDestroyDescriptor, made)
        return made.value

    def _read(self, made: int, number: int, of: int, most: int) -> list[Any]:
        """The values of an attribute, at most `most`."""
        array, count = (_C[of] * most)(), ctypes.c_int64()
        status = self._lib.cudnnBackendGetAttribute(
            ctypes.c_void_p(made), number, of, ctypes.c_int64(most), ctypes.byref(count), array
        )
        self._check(status, f"read attribute {number}")
        return list(array[: count.value])

    def _read_descriptors(
        self, stack: ExitStack, made: int, number: int, kind: int, most: int | None = None
    ) -> list[int]:
        """The descriptors that an attribute holds. The library writes into empty ones.

        most: how many there are at most. None: as many as the library counts, which it does not of
        an engine's knobs: asked without room, it says 0.
        """
        count = ctypes.c_int64()
        read, given = self._lib.cudnnBackendGetAttribute, ctypes.c_void_p(made)
        if most is None:
            status = read(given, number, DESCRIPTOR, ctypes.c_int64(0), ctypes.byref(count), None)
            self._check(status, f"count attribute {number}")
            most = count.value
        found = [self._created(stack, kind) for _ in range(most)]
        if found:
            array = (ctypes.c_void_p * most)(*found)
            room = ctypes.c_int64(most)
            status = read(given, number, DESCRIPTOR, room, ctypes.byref(count), array)
            self._check(status, f"read attribute {number}")
        return found[: count.value]

    def _check(self, status: int, doing: str) -> None:
        if status:
            raise LibraryRefused(f"{self.name} refused to {doing}: {self.error(status)}")
