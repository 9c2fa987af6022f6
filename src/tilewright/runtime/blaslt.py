"""A vendor's library by ctypes: which algorithms it offers for a product, and a product made ready.

cuBLASLt and hipBLASLt have the same functions, each with its own prefix and numbers, and fix an
algorithm each in its own way: `cublaslt` and `hipblaslt` say how, and this module all else.

A product that is ready is a `Prepared` with a `Context`: memory in which the launcher (`matmul.h`,
or its twin in `python_launcher`) finds the library's function, its descriptions of the product and
the algorithm. A launch hands it addresses and a stream. Nothing is allocated and nothing waits in a
call, so it can be captured in a graph.
"""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tilewright.dtypes import DTYPES
from tilewright.errors import LibraryRefused
from tilewright.ops.library import Algorithm, Chain, Found, Matmul, Matrix, Solution
from tilewright.runtime.driver import Driver, address_of
from tilewright.runtime.prepared import Prepared

STREAMS = 64
"""Streams that a library which wants a handle for each may be used on; as in matmul.h."""

BESIDE = 2
"""Most operands beside the matrices; as in matmul.h."""

ALGORITHM_BYTES = 64
"""Bytes of the largest description of an algorithm, which is cuBLASLt's."""

_UNLIKELY = 1 << 40
"""An address whose lowest bits can be chosen: a library reads the alignment of an operand beside
the matrices off it, and nothing else before a launch."""


class Handles(ctypes.Structure):
    """The library's handles on one device; `Handles` of matmul.h.

    each: whether each stream has a handle of its own. Otherwise the first serves all.
    """

    _fields_ = (
        ("streams", ctypes.c_void_p * STREAMS),
        ("handles", ctypes.c_void_p * STREAMS),
        ("count", ctypes.c_int),
        ("each", ctypes.c_int),
    )

    def on(self, stream: int | None) -> int | None:
        """The handle for a stream; None if it has none yet."""
        found: int | None = None if self.each else self.handles[0]
        for i in range(self.count if self.each else 0):
            if (self.streams[i] or 0) == (stream or 0):
                found = self.handles[i]
        return found

    def check_room(self, library: str) -> None:
        """Raise `LibraryRefused` if no stream may be added. library: its name."""
        if self.count == STREAMS:
            raise LibraryRefused(
                f"{library} needs a handle for each stream, and {STREAMS} streams have one: use "
                "fewer streams"
            )

    def add(self, stream: int, handle: int) -> None:
        """Add the handle of a stream."""
        self.streams[self.count], self.handles[self.count] = stream, handle
        self.count += 1  # last: calls of other threads look meanwhile


class Context(ctypes.Structure):
    """What a call needs besides addresses and a stream; `Matmul` of matmul.h.

    one, zero: the factors of the sums and of what is there, by the bits of the sums' dtype.
    attributes: of the operands beside the matrices whose addresses are set before each call; -1
        for none.
    busy: held while such a call is made.
    """

    _fields_ = (
        ("matmul", ctypes.c_void_p),
        ("set", ctypes.c_void_p),
        ("handles", ctypes.c_void_p),
        ("description", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("algorithm", ctypes.c_ubyte * ALGORITHM_BYTES),
        ("workspace", ctypes.c_uint64),
        ("one", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
        ("attributes", ctypes.c_int * BESIDE),
        ("busy", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """A library's names and numbers, as its headers have them.

    prefix: of its functions.
    types: by dtype. compute: how products are summed, by precision, and ``int32`` for sums in it.
    operations: for a matrix as it lies, and for its transpose.
    transposes, chain: attributes of a description: the operation on the first and on the second
        matrix, and what is done to the sums. chains: its values.
    extra: the attributes that hold the addresses of the operands beside the matrices, in the
        order in which a launch hands them over.
    batch_count, batch_stride: attributes of a matrix.
    most_workspace: attribute of a preference.
    """

    prefix: str
    types: Mapping[str, int]
    compute: Mapping[str, int]
    operations: tuple[int, int]
    transposes: tuple[int, int]
    chain: int
    chains: Mapping[Chain, int]
    extra: Mapping[Chain, tuple[int, ...]]
    batch_count: int
    batch_stride: int
    most_workspace: int


Attributes = list[tuple[int, Any]]
"""Numbers of attributes, each with its value in C's type."""


def offer_of(algorithm: Any) -> type[ctypes.Structure]:
    """How a library writes down an offer of an algorithm, whose type in C is `algorithm`: the
    libraries' …MatmulHeuristicResult_t."""
    fields = (
        ("algorithm", algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )
    return type("Offer", (ctypes.Structure,), {"_fields_": fields})


class BlasLt(ABC):
    """A vendor's library, opened. Thread-safe.

    lib: the library's functions. name: with the major version, as ``cublaslt13``.
    """

    step: ClassVar[str] = "matmul_step"
    numbers: ClassVar[Numbers]
    result: ClassVar[type[ctypes.Structure]]
    """How the library writes down an offer: its fields `algorithm`, `workspace` in bytes, and
    `state`, 0 for a right one."""
    each_stream: ClassVar[bool]
    """Whether each stream needs a handle of its own."""
    majors: ClassVar[tuple[int, ...]]
    """The major versions whose numbers are those here, the preferred one first."""
    folders: ClassVar[tuple[str, ...]]
    """Where packages have the library, below the folders that pip installs into."""
    install: ClassVar[str]
    """What brings the library, for people; ``{}`` stands for the major version."""

    def __init__(self, lib: Any, name: str) -> None:
        self._lib, self.name = lib, name
        self._handles: dict[int, Handles] = {}
        self._lock = threading.Lock()

    @staticmethod
    @abstractmethod
    def files(version: int) -> tuple[str, ...]:
        """The files that may be the library of a major version."""

    @abstractmethod
    def error(self, status: int) -> str:
        """The library's name for a status."""

    @abstractmethod
    def _read(self, handle: int, offer: Any) -> Algorithm | Solution:
        """What fixes the algorithm of an offer."""

    @abstractmethod
    def _made(
        self, handle: int, described: Sequence[Any], asked: Matmul, doing: str
    ) -> tuple[bytes, int]:
        """The algorithm of `asked` again, as the library has it, and the bytes of workspace that it
        needs. Raises `LibraryRefused`."""

    def _beside(self, asked: Matmul) -> Attributes:
        """Further attributes of a description."""
        return []

    def _preferences(self, asked: Matmul) -> Attributes:
        """Further attributes of a preference."""
        return []

    def offered(self, driver: Driver, device: int, asked: Matmul, count: int) -> list[Found]:
        """The first algorithms that the library's heuristic offers for a product, best guess first,
        at most `count`. Raises `LibraryRefused` if it offers none."""
        found = self._results(driver, device, asked, count)
        with driver.current(device):
            handle = self._handle(device)
            return [Found(self._read(handle, one), one.workspace) for one in found]

    def _results(self, driver: Driver, device: int, asked: Matmul, count: int) -> list[Any]:
        """The offers, as the library writes them down."""
        with ExitStack() as stack, driver.current(device), driver.capture_allowed():
            handle, described = self._handle(device), self._describe(stack, asked)
            preference = self._created(stack, "MatmulPreference")
            most = (self.numbers.most_workspace, ctypes.c_uint64(asked.workspace))
            for attribute, value in (most, *self._preferences(asked)):
                self._set("MatmulPreference", preference, attribute, value)
            results, found = (self.result * count)(), ctypes.c_int()
            status = self._function("MatmulAlgoGetHeuristic")(
                ctypes.c_void_p(handle), *described, preference, count, results,
                ctypes.byref(found),
            )  # fmt: skip
            self._check(status, f"offer an algorithm for {_said(asked)}")
            right: list[Any] = [one for one in results[: found.value] if not one.state]
            if not right:
                raise LibraryRefused(f"{self.name} has no algorithm for {_said(asked)}")
            return right

    def prepared(self, driver: Driver, device: int, asked: Matmul) -> Prepared:
        """A product with its algorithm, made ready on a device. Raises `LibraryRefused` if the
        library does not take the algorithm there."""
        doing = f"compute {_said(asked)} by {asked.algorithm}"
        with ExitStack() as stack, driver.current(device), driver.capture_allowed():
            handle, described = self._handle(device), self._describe(stack, asked)
            algorithm, need = self._made(handle, described, asked, doing)
            if need > asked.workspace:
                raise LibraryRefused(
                    f"{self.name} needs {need} bytes of workspace to {doing}, over "
                    f"{asked.workspace}, those in the kernel's name"
                )
            description, first, second, out, _ = described
            beside = self.numbers.extra[asked.chain]
            beside += (-1,) * (BESIDE - len(beside))
            context = Context(
                address_of(self._function("Matmul")),
                address_of(self._function("MatmulDescSetAttribute")),
                ctypes.addressof(self._handles[device]), description, first, second, out,
                (ctypes.c_ubyte * ALGORITHM_BYTES)(*algorithm), asked.workspace,
                _ONE[sums_of(asked)], 0, (ctypes.c_int * BESIDE)(*beside), 0,
            )  # fmt: skip
            name = f"{self.name} for {_said(asked)}"
            serve = partial(self._serve, device)
            return Prepared(name, self, driver, context, stack.pop_all(), serve)

    def _serve(self, device: int, stream: int) -> None:
        """Make a handle for a stream of a device, which is current, unless there is one. Raises
        `LibraryRefused`."""
        with self._lock:
            table = self._table(device)
            if table.on(stream) is None:
                table.check_room(self.name)
                table.add(stream, self._created_handle(device))

    def _table(self, device: int) -> Handles:
        """The handles of a device, which is current; the first is that of the default stream."""
        table = self._handles.get(device)
        if table is None:
            table = Handles(each=self.each_stream)
            table.add(0, self._created_handle(device))
            self._handles[device] = table
        return table

    def _created_handle(self, device: int) -> int:
        """A new handle. Raises `LibraryRefused`."""
        handle = ctypes.c_void_p()
        self._check(self._function("Create")(ctypes.byref(handle)), f"open GPU {device}")
        assert handle.value is not None
        return handle.value

    def _handle(self, device: int) -> int:
        """A handle of a device, which is current."""
        with self._lock:
            handle: int = self._table(device).handles[0]
            return handle

    def _function(self, name: str) -> Any:
        return getattr(self._lib, self.numbers.prefix + name)

    def _check(self, status: int, doing: str) -> None:
        if status:
            raise LibraryRefused(f"{self.name} refused to {doing}: {self.error(status)}")

    def _describe(self, stack: ExitStack, asked: Matmul) -> tuple[ctypes.c_void_p, ...]:
        """The product and its four matrices (the result twice), as the library's functions take
        them; destroyed with `stack`."""
        numbers = self.numbers
        made = self._created(stack, "MatmulDesc", *self._sums(asked))
        wanted: Attributes = [
            (attribute, ctypes.c_int32(numbers.operations[transposed]))
            for attribute, transposed in zip(numbers.transposes, asked.transposed, strict=True)
        ]
        wanted.append((numbers.chain, ctypes.c_uint32(numbers.chains[asked.chain])))
        wanted += self._beside(asked)
        element = DTYPES[asked.result.dtype].bytes if asked.chain == "bias" else 4
        for attribute in numbers.extra[asked.chain]:
            wanted.append((attribute, ctypes.c_void_p(_UNLIKELY + element)))
        for attribute, value in wanted:
            self._set("MatmulDesc", made, attribute, value)
        matrices = (asked.first, asked.second, asked.result)
        first, second, result = (self._matrix(stack, m, asked.count) for m in matrices)
        return made, first, second, result, result

    def _sums(self, asked: Matmul) -> tuple[int, int]:
        """How products are summed, and the type of the sums' factor."""
        numbers, dtype = self.numbers, sums_of(asked)
        how = asked.precision if dtype == "fp32" else dtype
        return numbers.compute[how], numbers.types[dtype]

    def _matrix(self, stack: ExitStack, matrix: Matrix, count: int) -> ctypes.c_void_p:
        numbers = self.numbers
        sizes = (ctypes.c_uint64(matrix.rows), ctypes.c_uint64(matrix.columns))
        ld = ctypes.c_int64(matrix.ld)
        made = self._created(stack, "MatrixLayout", numbers.types[matrix.dtype], *sizes, ld)
        if count > 1:
            self._set("MatrixLayout", made, numbers.batch_count, ctypes.c_int32(count))
            self._set("MatrixLayout", made, numbers.batch_stride, ctypes.c_int64(matrix.stride))
        return made

    def _created(self, stack: ExitStack, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """A description of the library's, destroyed with `stack`."""
        made = ctypes.c_void_p()
        status = self._function(f"{kind}Create")(ctypes.byref(made), *arguments)
        self._check(status, f"make a {kind}")
        stack.callback(self._function(f"{kind}Destroy"), made)
        return made

    def _set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        status = self._function(f"{kind}SetAttribute")(
            made, attribute, ctypes.byref(value), size_of(value)
        )
        self._check(status, f"set attribute {attribute} of a {kind}")


_ONE = {"fp32": 0x3F800000, "int32": 1}
"""The bits of 1."""


def sums_of(asked: Matmul) -> str:
    """The dtype of a product's sums."""
    return "int32" if asked.result.dtype == "int32" else "fp32"


def size_of(value: Any) -> ctypes.c_size_t:
    """The bytes of a value in C's type."""
    return ctypes.c_size_t(ctypes.sizeof(value))


def _said(asked: Matmul) -> str:
    """A product for people, in the library's terms."""
    out, inner = asked.result, asked.first.rows if asked.transposed[0] else asked.first.columns
    many = f"{asked.count} of " if asked.count > 1 else ""
    chain = f" {asked.chain}" if asked.chain else ""
    return f"{many}{out.rows}×{out.columns}×{inner} {asked.first.dtype}→{out.dtype}{chain}"
