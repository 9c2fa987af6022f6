"""AMD's hipBLASLt: its numbers, and how it fixes an algorithm, by the number of a solution.

The numbers are those of hipblaslt.h, hipblas-common.h and library_types.h (hipBLASLt 1.1 of ROCm
7.1).

The C interface makes no algorithm of a number and checks none. Functions of the C++ interface do,
which the library exports too: they are called by their names in the Itanium C++ ABI, with
`std::vector` and `std::string` as libstdc++ lays them out. No AMD GPU has run this;
f1dfe4c6:benchmarks/hipblaslt_offers.py and hipblaslt_emulated.py drove the real library without
one.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any

from tilewright.errors import LibraryRefused
from tilewright.ops.library import Algorithm, Matmul, Solution, major
from tilewright.runtime.blaslt import Attributes, BlasLt, Numbers, offer_of

_NUMBERS = Numbers(
    prefix="hipblasLt",
    # hipDataType
    types={"fp32": 0, "fp16": 2, "bf16": 14, "e4m3fn": 28, "e4m3fnuz": 1000},
    compute={"ieee": 2, "tf32": 6},  # HIPBLAS_COMPUTE_32F, HIPBLAS_COMPUTE_32F_FAST_TF32
    operations=(111, 112),
    # hipblasLtMatmulDescAttributes_t
    transposes=(0, 1),
    chain=2,
    chains={"": 1, "scale": 1, "bias": 4},
    extra={"": (), "bias": (3,), "scale": (5,)},  # the bias; the scale of the first matrix
    # hipblasLtMatrixLayoutAttribute_t
    batch_count=0,
    batch_stride=1,
    # hipblasLtMatmulPreferenceAttributes_t
    most_workspace=1,
)
_BIAS_TYPE = 4  # of a description

_VERSION = 100_000
"""What a major version counts in the library's own number for a version."""

_STATUSES = (
    "SUCCESS", "NOT_INITIALIZED", "ALLOC_FAILED", "INVALID_VALUE", "MAPPING_ERROR",
    "EXECUTION_FAILED", "INTERNAL_ERROR", "NOT_SUPPORTED", "ARCH_MISMATCH", "HANDLE_IS_NULLPTR",
    "INVALID_ENUM", "UNKNOWN",
)  # fmt: skip
"""hipblasStatus_t, in order."""

_OF_INDEX = (
    "_ZN13hipblaslt_ext17getAlgosFromIndexEPvRSt6vectorIiSaIiEERS1_I33_hipblasLtMatmulHeuristicResult"
    "_tSaIS5_EE"
)
_SUPPORTED = (
    "_ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrix"
    "LayoutOpaque_tS6_S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm"
)
_NAME = "_ZN13hipblaslt_ext23getSolutionNameFromAlgoB5cxx11EPvR22_hipblasLtMatmulAlgo_t"


class _Algorithm(ctypes.Structure):
    """hipblasLtMatmulAlgo_t.

    most_workspace: bytes that the algorithm may use. A call refuses one that needs more. It does
        not compare the need with the workspace that the call is given.
    """

    _fields_ = (
        ("index", ctypes.c_int32),
        ("rest", ctypes.c_ubyte * 12),
        ("most_workspace", ctypes.c_size_t),
    )


Result = offer_of(_Algorithm)


class _Vector(ctypes.Structure):
    """std::vector."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p))


class _String(ctypes.Structure):
    """std::string. A short text lies in `inside`."""

    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("inside", ctypes.c_ubyte * 16),
    )


_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = (ctypes.c_void_p,), None
"""Frees what the library allocated by C++'s ``new``, whose memory is C's."""


class HipblasLt(BlasLt):
    """The library of one major version.

    Raises `LibraryRefused` if `lib` lacks a function; a handle, if it is of another version than
    `name` says: the library states its version through a handle only.
    """

    numbers = _NUMBERS
    result = Result
    each_stream = True  # a handle has memory on the device that kernels of one stream may use
    majors = (1,)
    folders = ("torch/lib", "_rocm_sdk_libraries*/lib")
    install = "ROCm 7, whose hipBLASLt is {}"

    def __init__(self, lib: Any, name: str) -> None:
        super().__init__(lib, name)
        try:
            self._of_index, self._supported, self._name_of = (
                getattr(lib, symbol) for symbol in (_OF_INDEX, _SUPPORTED, _NAME)
            )
        except AttributeError as error:
            raise LibraryRefused(
                f"{name} is not of a build that is known here ({error}): install "
                f"{self.install.format(major(name))}"
            ) from None
        self._name_of.restype = None

    @staticmethod
    def files(version: int) -> tuple[str, ...]:
        return (f"libhipblaslt.so.{version}", "libhipblaslt.so")  # torch's has no version

    def error(self, status: int) -> str:
        known = 0 <= status < len(_STATUSES)
        return f"{f'HIPBLAS_STATUS_{_STATUSES[status]}' if known else 'unknown status'} ({status})"

    def _created_handle(self, device: int) -> int:
        handle = super()._created_handle(device)
        version, wanted = ctypes.c_int(), major(self.name)
        status = self._lib.hipblasLtGetVersion(ctypes.c_void_p(handle), ctypes.byref(version))
        self._check(status, "say its version")
        if version.value // _VERSION != wanted:
            raise LibraryRefused(
                f"the library that loads as {self.files(wanted)[0]} is version {version.value}, "
                f"not {wanted}: install {self.install.format(wanted)}, or tune for this one"
            )
        return handle

    def _beside(self, asked: Matmul) -> Attributes:
        if asked.chain != "bias":
            return []
        return [(_BIAS_TYPE, ctypes.c_int32(self.numbers.types[asked.result.dtype]))]

    def _read(self, handle: int, offer: Any) -> Algorithm | Solution:
        return Solution(offer.algorithm.index, self._digest(handle, offer.algorithm))

    def _made(
        self, handle: int, described: Sequence[Any], asked: Matmul, doing: str
    ) -> tuple[bytes, int]:
        assert isinstance(asked.algorithm, Solution)
        made = self._indexed(handle, asked.algorithm.index, doing)
        found = self._digest(handle, made)
        if found != asked.algorithm.digest:
            raise LibraryRefused(
                f"{self.name} has another algorithm {asked.algorithm.index} here ({found}) than "
                f"{asked.algorithm.digest}, which was tuned with another build of it: tune anew"
            )
        made.most_workspace = asked.workspace
        one, zero, need = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_size_t()
        description, first, second, out, same = described
        status = self._supported(
            ctypes.c_void_p(handle), description, ctypes.byref(one), first, second,
            ctypes.byref(zero), out, same, ctypes.byref(made), ctypes.byref(need),
        )  # fmt: skip
        self._check(status, doing)
        return bytes(made), need.value

    def _indexed(self, handle: int, index: int, doing: str) -> _Algorithm:
        """The algorithm of a number."""
        wanted, made = (ctypes.c_int32 * 1)(index), _Vector()
        begin = ctypes.addressof(wanted)
        end = begin + ctypes.sizeof(wanted)
        status = self._of_index(
            ctypes.c_void_p(handle), ctypes.byref(_Vector(begin, end, end)), ctypes.byref(made)
        )
        try:
            self._check(status, doing)
            size = (made.end or 0) - (made.begin or 0)
            if size != ctypes.sizeof(Result):
                raise LibraryRefused(
                    f"{self.name} describes an algorithm in {size} bytes, not "
                    f"{ctypes.sizeof(Result)}: it is of a build that is not known here"
                )
            copied = ctypes.string_at(made.begin, size)
            found: _Algorithm = Result.from_buffer_copy(copied).algorithm
        finally:
            _free(made.begin)
        return found

    def _digest(self, handle: int, algorithm: _Algorithm) -> str:
        """What `Solution.digest` is."""
        said = _String()
        self._name_of(ctypes.byref(said), ctypes.c_void_p(handle), ctypes.byref(algorithm))
        try:
            name = ctypes.string_at(said.begin, said.length)
        finally:
            if said.begin != ctypes.addressof(said) + _String.inside.offset:
                _free(said.begin)
        return hashlib.sha256(name).hexdigest()[:8]
