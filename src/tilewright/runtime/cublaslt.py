"""NVIDIA's cuBLASLt, by ctypes: which algorithms it offers for a product, and a product made ready.

A product that is ready is a `Prepared`: memory in which the launcher (`matmul.h`, or its twin in
`python_launcher`) finds the library's function, its descriptions of the product and the algorithm.
A launch hands it addresses and a stream. Nothing is allocated and nothing waits in a call, so it
can be captured in a CUDA graph.

The numbers are those of cublasLt.h and library_types.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import LibraryRefused
from tilewright.ops.library import MEETINGS, Algorithm, Found, Matmul, Matrix, library_name, major
from tilewright.runtime.driver import Driver, address_of

MAJORS = (13, 12)
"""The major versions whose numbers are those here, the preferred one first."""

ALGORITHMS = 8
"""How many algorithms the library is asked for, by default. `torch.mm` takes the first."""

_TYPES = {"fp32": 0, "fp16": 2, "bf16": 14, "e4m3fn": 28}
_FP32 = _TYPES["fp32"]
_COMPUTE = {"ieee": 68, "tf32": 77}  # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
_CHAINS = {"": 1, "scale": 1, "bias": 4}

# cublasLtMatmulDescAttributes_t
_TRANSPOSE_FIRST, _TRANSPOSE_SECOND, _CHAIN, _FAST_ACCUMULATION = 3, 4, 7, 25
_EXTRA = {"": -1, "bias": 8, "scale": 17}  # the bias; the scale of the first matrix
# cublasLtMatrixLayoutAttribute_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
# cublasLtMatmulPreferenceAttributes_t
_MOST_WORKSPACE, _REDUCTION_MASK, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)

# cublasLtMatmulAlgoConfigAttributes_t: number and C type, by `Algorithm`'s fields.
_NUMBER = 0
_SETTABLE: dict[str, tuple[int, Any]] = {
    "tile": (1, ctypes.c_uint32),
    "parts": (2, ctypes.c_int32),
    "meeting": (3, ctypes.c_uint32),
    "swizzle": (4, ctypes.c_uint32),
    "custom": (5, ctypes.c_uint32),
    "stages": (6, ctypes.c_uint32),
    "inner": (7, ctypes.c_uint16),
    "cluster": (8, ctypes.c_uint16),
}

_UNLIKELY = 1 << 40
"""An address whose lowest bits can be chosen: the library reads the alignment of a bias off it, and
nothing else before a launch."""

STATUS = 1 << 20
"""Added to a status of the library, which is then no status of the driver; as in matmul.h."""


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Context(ctypes.Structure):
    """What a call needs besides addresses and a stream; `Matmul` of matmul.h.

    attribute: of the operand beside the matrices whose address is set before each call; -1 for
        none.
    busy: held while such a call is made.
    """

    _fields_ = (
        ("matmul", ctypes.c_void_p),
        ("set", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("description", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_uint64),
        ("one", ctypes.c_float),
        ("zero", ctypes.c_float),
        ("attribute", ctypes.c_int),
        ("busy", ctypes.c_int),
    )


class Prepared:
    """A product with its algorithm, ready on one device. What it describes to the library lives as
    long as it does.

    name: what messages call it.
    error: the library's name for a status.
    """

    def __init__(
        self, name: str, error: Callable[[int], str], context: Context, descriptions: ExitStack
    ) -> None:
        self.name, self.error, self._context = name, error, context
        weakref.finalize(self, descriptions.close).atexit = False

    @property
    def address(self) -> int:
        """Of the `Context`."""
        return ctypes.addressof(self._context)


class CublasLt:
    """The library of one major version. Thread-safe.

    Raises `LibraryRefused` if `lib` is of another version than `name` says.
    """

    def __init__(self, lib: Any, name: str) -> None:
        self._lib, self.name = lib, name
        lib.cublasLtGetVersion.restype = ctypes.c_size_t
        lib.cublasLtGetStatusName.restype = ctypes.c_char_p
        self.version: int = lib.cublasLtGetVersion()
        if self.version // 10000 != major(name):
            raise LibraryRefused(
                f"the library that loads as {file_name(name)} is version {self.version}, not "
                f"{major(name)}: install nvidia-cublas {major(name)}, or tune for this one"
            )
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def offered(self, driver: Driver, device: int, asked: Matmul, count: int) -> list[Found]:
        """The first algorithms that the library's heuristic offers for a product, best guess first,
        at most `count`. Raises `LibraryRefused` if it offers none."""
        found = self._results(driver, device, asked, count)
        return [Found(self._read(one.algorithm), one.workspace) for one in found]

    def _results(self, driver: Driver, device: int, asked: Matmul, count: int) -> list[_Result]:
        """The same as the library has it."""
        with ExitStack() as stack, driver.current(device), driver.capture_allowed():
            described = self._describe(stack, asked)
            preference = self._created(stack, "MatmulPreference")
            wanted: list[tuple[int, Any]] = [
                (_MOST_WORKSPACE, ctypes.c_size_t(asked.workspace)),
                (_REDUCTION_MASK, ctypes.c_uint32(_meetings(asked))),
                *((attribute, ctypes.c_uint32(asked.alignment)) for attribute in _ALIGNMENTS),
            ]
            for attribute, value in wanted:
                self._set("MatmulPreference", preference, attribute, value)
            results, found = (_Result * count)(), ctypes.c_int()
            status = self._lib.cublasLtMatmulAlgoGetHeuristic(
                self._handle(device), *described, preference, count, results, ctypes.byref(found)
            )
            self._check(status, f"offer an algorithm for {_said(asked)}")
            return [results[i] for i in range(found.value) if not results[i].state]

    def prepared(self, driver: Driver, device: int, asked: Matmul) -> Prepared:
        """A product with its algorithm, made ready on a device. Raises `LibraryRefused` if the
        library does not take the algorithm there."""
        assert asked.algorithm is not None
        with ExitStack() as stack, driver.current(device), driver.capture_allowed():
            described = self._describe(stack, asked)
            handle, algorithm = self._handle(device), _Algorithm()
            types = [_TYPES[m.dtype] for m in (asked.first, asked.second, *[asked.result] * 2)]
            status = self._lib.cublasLtMatmulAlgoInit(
                handle, _COMPUTE[asked.precision], _FP32, *types, asked.algorithm.number,
                ctypes.byref(algorithm),
            )  # fmt: skip
            doing = f"compute {_said(asked)} by {asked.algorithm}"
            self._check(status, doing)
            for field, (attribute, kind) in _SETTABLE.items():
                value = kind(_number(asked.algorithm, field))
                status = self._lib.cublasLtMatmulAlgoConfigSetAttribute(
                    ctypes.byref(algorithm), attribute, ctypes.byref(value), _size(value)
                )
                self._check(status, f"{doing}: {field}")
            result = _Result()
            status = self._lib.cublasLtMatmulAlgoCheck(
                handle, *described, ctypes.byref(algorithm), ctypes.byref(result)
            )
            self._check(status, doing)
            if result.workspace > asked.workspace:
                raise LibraryRefused(
                    f"{self.name} needs {result.workspace} bytes of workspace to {doing}, over "
                    f"{asked.workspace}, those in the kernel's name"
                )
            description, first, second, out, _ = described
            context = Context(
                address_of(self._lib.cublasLtMatmul),
                address_of(self._lib.cublasLtMatmulDescSetAttribute),
                handle, description, first, second, out, algorithm, asked.workspace,
                1.0, 0.0, _EXTRA[asked.chain], 0,
            )  # fmt: skip
            name = f"{self.name} for {_said(asked)}"
            return Prepared(name, self.error, context, stack.pop_all())

    def error(self, status: int) -> str:
        """The library's name for a status."""
        said = self._lib.cublasLtGetStatusName(status)
        return f"{(said or b'unknown status').decode()} ({status})"

    def _check(self, status: int, doing: str) -> None:
        if status:
            raise LibraryRefused(f"{self.name} refused to {doing}: {self.error(status)}")

    def _handle(self, device: int) -> ctypes.c_void_p:
        """The library's handle of a device, which is current."""
        with self._lock:
            if device not in self._handles:
                handle = ctypes.c_void_p()
                self._check(self._lib.cublasLtCreate(ctypes.byref(handle)), f"open GPU {device}")
                self._handles[device] = handle
            return self._handles[device]

    def _describe(self, stack: ExitStack, asked: Matmul) -> tuple[ctypes.c_void_p, ...]:
        """The product and its four matrices (the result twice), as the library's functions take
        them; destroyed with `stack`."""
        made = self._created(stack, "MatmulDesc", _COMPUTE[asked.precision], _FP32)
        first, second = map(int, asked.transposed)
        wanted: list[tuple[int, Any]] = [
            (_TRANSPOSE_FIRST, ctypes.c_int32(first)),
            (_TRANSPOSE_SECOND, ctypes.c_int32(second)),
            (_CHAIN, ctypes.c_uint32(_CHAINS[asked.chain])),
        ]
        if DTYPES[asked.first.dtype].bits == 8:  # as kernels here, and as torch by default
            wanted.append((_FAST_ACCUMULATION, ctypes.c_int8(1)))
        if asked.chain:
            element = 4 if asked.chain == "scale" else DTYPES[asked.result.dtype].bytes
            wanted.append((_EXTRA[asked.chain], ctypes.c_void_p(_UNLIKELY + element)))
        for attribute, value in wanted:
            self._set("MatmulDesc", made, attribute, value)
        matrices = (asked.first, asked.second, asked.result)
        first_, second_, result = (self._matrix(stack, m, asked.count) for m in matrices)
        return made, first_, second_, result, result

    def _matrix(self, stack: ExitStack, matrix: Matrix, count: int) -> ctypes.c_void_p:
        sizes = (ctypes.c_uint64(matrix.rows), ctypes.c_uint64(matrix.columns))
        ld = ctypes.c_int64(matrix.ld)
        made = self._created(stack, "MatrixLayout", _TYPES[matrix.dtype], *sizes, ld)
        if count > 1:
            self._set("MatrixLayout", made, _BATCH_COUNT, ctypes.c_int32(count))
            self._set("MatrixLayout", made, _BATCH_STRIDE, ctypes.c_int64(matrix.stride))
        return made

    def _created(self, stack: ExitStack, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """A description of the library's, destroyed with `stack`."""
        made = ctypes.c_void_p()
        status = getattr(self._lib, f"cublasLt{kind}Create")(ctypes.byref(made), *arguments)
        self._check(status, f"make a {kind}")
        stack.callback(getattr(self._lib, f"cublasLt{kind}Destroy"), made)
        return made

    def _set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        call = getattr(self._lib, f"cublasLt{kind}SetAttribute")
        status = call(made, attribute, ctypes.byref(value), _size(value))
        self._check(status, f"set attribute {attribute} of a {kind}")

    def _read(self, algorithm: _Algorithm) -> Algorithm:
        """An algorithm's attributes."""

        def read(attribute: int, kind: Any) -> int:
            value, written = kind(), ctypes.c_size_t()
            status = self._lib.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.byref(algorithm), attribute, ctypes.byref(value), _size(value),
                ctypes.byref(written),
            )  # fmt: skip
            self._check(status, f"say attribute {attribute} of an algorithm")
            found: int = value.value
            return found

        said: dict[str, Any] = {field: read(*one) for field, one in _SETTABLE.items()}
        numbers = {number: word for word, number in MEETINGS.items()}
        said["meeting"] = numbers.get(said["meeting"], str(said["meeting"]))
        return Algorithm(number=read(_NUMBER, ctypes.c_int32), **said)


def _size(value: Any) -> ctypes.c_size_t:
    return ctypes.c_size_t(ctypes.sizeof(value))


def _number(algorithm: Algorithm, field: str) -> int:
    value = getattr(algorithm, field)
    return MEETINGS[algorithm.meeting] if field == "meeting" else int(value)


def _meetings(asked: Matmul) -> int:
    """The meetings that may be offered, as the library's mask: parts of a sum are not rounded to
    fewer bits than the sum."""
    allowed = ("none", "compute") if asked.result.dtype != "fp32" else tuple(MEETINGS)
    return sum(MEETINGS[word] for word in allowed)


def _said(asked: Matmul) -> str:
    """A product for people, in the library's terms."""
    out, inner = asked.result, asked.first.rows if asked.transposed[0] else asked.first.columns
    many = f"{asked.count} of " if asked.count > 1 else ""
    chain = f" {asked.chain}" if asked.chain else ""
    return f"{many}{out.rows}×{out.columns}×{inner} {asked.first.dtype}→{out.dtype}{chain}"


# --- finding the library -------------------------------------------------------------------------


def file_name(name: str) -> str:
    """The file of the library of a major version."""
    return f"libcublasLt.so.{major(name)}"


@cache
def opened(name: str) -> CublasLt:
    """The library called `name` (``cublaslt13``), opened once: the one that this process has
    loaded, as torch does; else that of NVIDIA's package; else the system's. Raises
    `LibraryRefused`."""
    if major(name) not in MAJORS:
        known = " and ".join(map(library_name, sorted(MAJORS)))
        raise LibraryRefused(f"{name} is not known here, which knows {known}")
    file, loaded = file_name(name), ctypes.DEFAULT_MODE | os.RTLD_NOLOAD
    places = [(file, loaded), *((path, ctypes.DEFAULT_MODE) for path in _packaged(file))]
    for place, mode in (*places, (file, ctypes.DEFAULT_MODE)):
        with suppress(OSError):
            return CublasLt(ctypes.CDLL(place, mode), name)
    raise LibraryRefused(
        f"{file} is not on this machine: install nvidia-cublas {major(name)}, or tune for the "
        "library that is there"
    )


def present() -> CublasLt:
    """The library that is here, the newest that is known. Raises `LibraryRefused`."""
    first, *others = map(library_name, MAJORS)
    for name in others:
        with suppress(LibraryRefused):
            return opened(first)
        first = name
    return opened(first)


def _packaged(file: str) -> Iterator[str]:
    """Where NVIDIA's packages have a file, in the folders that pip installs into."""
    kinds = ("site-packages", "dist-packages")
    for folder in (Path(p).absolute() for p in sys.path if Path(p).name in kinds):
        yield from map(str, sorted(folder.glob(f"nvidia/*/lib/{file}")))
