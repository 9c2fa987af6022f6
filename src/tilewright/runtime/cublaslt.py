"""NVIDIA's cuBLASLt: its numbers, and how it fixes an algorithm, by attributes.

The numbers are those of cublasLt.h and library_types.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tilewright.errors import LibraryRefused
from tilewright.ops.library import MEETINGS, Algorithm, Chain, Matmul, Solution, major
from tilewright.runtime.blaslt import (
    ALGORITHM_BYTES,
    Attributes,
    BlasLt,
    Numbers,
    offer_of,
    size_of,
    sums_of,
)

_NUMBERS = Numbers(
    prefix="cublasLt",
    types={"fp32": 0, "fp16": 2, "int8": 3, "int32": 10, "bf16": 14, "e4m3fn": 28},
    # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32I
    compute={"ieee": 68, "tf32": 77, "int32": 72},
    operations=(0, 1),
    # cublasLtMatmulDescAttributes_t
    transposes=(3, 4),
    chain=7,
    chains={"": 1, "scale": 1, "scales": 1, "blocks": 1, "bias": 4},
    # The bias; the scale of the first matrix; scales of the second matrix and of the first.
    extra={"": (), "bias": (8,), "scale": (17,), "scales": (18, 17), "blocks": (18, 17)},
    # cublasLtMatrixLayoutAttribute_t
    batch_count=5,
    batch_stride=6,
    # cublasLtMatmulPreferenceAttributes_t
    most_workspace=1,
)
_FAST_ACCUMULATION = 25  # of a description
_SCALE_MODES: dict[Chain, dict[int, int]] = {"scales": {31: 3, 32: 3}, "blocks": {31: 5, 32: 4}}
"""How the first matrix (31) and the second (32) are scaled, from 12.9 on: a factor for each row or
column (3), for each 128 of a column (4), for each 128×128 (5)."""
_REDUCTION_MASK, _ALIGNMENTS = 3, (5, 6, 7, 8)  # of a preference

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

_Algorithm = ctypes.c_ubyte * ALGORITHM_BYTES
"""cublasLtMatmulAlgo_t."""


Result = offer_of(_Algorithm)


class CublasLt(BlasLt):
    """The library of one major version.

    Raises `LibraryRefused` if `lib` is of another version than `name` says.
    """

    numbers = _NUMBERS
    result = Result
    each_stream = False
    majors = (13, 12)
    folders = ("nvidia/*/lib",)
    install = "nvidia-cublas {}"

    def __init__(self, lib: Any, name: str) -> None:
        super().__init__(lib, name)
        lib.cublasLtGetVersion.restype = ctypes.c_size_t
        lib.cublasLtGetStatusName.restype = ctypes.c_char_p
        self.version: int = lib.cublasLtGetVersion()
        wanted = major(name)
        if self.version // 10000 != wanted:
            raise LibraryRefused(
                f"the library that loads as {self.files(wanted)[0]} is version {self.version}, not "
                f"{wanted}: install nvidia-cublas {wanted}, or tune for this one"
            )

    @staticmethod
    def files(version: int) -> tuple[str, ...]:
        return (f"libcublasLt.so.{version}",)

    def error(self, status: int) -> str:
        said = self._lib.cublasLtGetStatusName(status)
        return f"{(said or b'unknown status').decode()} ({status})"

    def _beside(self, asked: Matmul) -> Attributes:
        # As kernels here, and as torch by default. Sums of blocks are kept in fp32.
        fast = asked.first.dtype == "e4m3fn" and asked.chain != "blocks"
        found: Attributes = [(_FAST_ACCUMULATION, ctypes.c_int8(1))] if fast else []
        modes = _SCALE_MODES.get(asked.chain, {})
        return found + [(attribute, ctypes.c_int32(mode)) for attribute, mode in modes.items()]

    def _preferences(self, asked: Matmul) -> Attributes:
        alignments = ((attribute, ctypes.c_uint32(asked.alignment)) for attribute in _ALIGNMENTS)
        return [(_REDUCTION_MASK, ctypes.c_uint32(_meetings(asked))), *alignments]

    def _made(
        self, handle: int, described: Sequence[Any], asked: Matmul, doing: str
    ) -> tuple[bytes, int]:
        assert isinstance(asked.algorithm, Algorithm)
        made, types = _Algorithm(), self.numbers.types
        status = self._lib.cublasLtMatmulAlgoInit(
            ctypes.c_void_p(handle), *self._sums(asked),
            *(types[m.dtype] for m in (asked.first, asked.second, asked.result, asked.result)),
            asked.algorithm.number, made,
        )  # fmt: skip
        self._check(status, doing)
        for field, (attribute, kind) in _SETTABLE.items():
            value = kind(_number(asked.algorithm, field))
            status = self._lib.cublasLtMatmulAlgoConfigSetAttribute(
                made, attribute, ctypes.byref(value), size_of(value)
            )
            self._check(status, f"{doing}: {field}")
        result = Result()
        status = self._lib.cublasLtMatmulAlgoCheck(
            ctypes.c_void_p(handle), *described, made, ctypes.byref(result)
        )
        self._check(status, doing)
        return bytes(made), result.workspace

    def _read(self, handle: int, offer: Any) -> Algorithm | Solution:
        def read(attribute: int, kind: Any) -> int:
            value, written = kind(), ctypes.c_size_t()
            status = self._lib.cublasLtMatmulAlgoConfigGetAttribute(
                offer.algorithm, attribute, ctypes.byref(value), size_of(value),
                ctypes.byref(written),
            )  # fmt: skip
            self._check(status, f"say attribute {attribute} of an algorithm")
            found: int = value.value
            return found

        said: dict[str, Any] = {field: read(*one) for field, one in _SETTABLE.items()}
        numbers = {number: word for word, number in MEETINGS.items()}
        said["meeting"] = numbers.get(said["meeting"], str(said["meeting"]))
        return Algorithm(number=read(_NUMBER, ctypes.c_int32), **said)


def _number(algorithm: Algorithm, field: str) -> int:
    value = getattr(algorithm, field)
    return MEETINGS[algorithm.meeting] if field == "meeting" else int(value)


def _meetings(asked: Matmul) -> int:
    """The meetings that may be offered, as the library's mask: parts of a sum are not rounded to
    fewer bits than the sum."""
    allowed = tuple(MEETINGS) if asked.result.dtype == sums_of(asked) else ("none", "compute")
    return sum(MEETINGS[word] for word in allowed)
