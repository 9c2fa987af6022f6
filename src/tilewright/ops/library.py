"""Products that the vendor's library computes, as data: what a step of a launch says in place of a
kernel, and what a library is asked for its algorithms with.

The library is NVIDIA's cuBLASLt. A matrix is column-major, as the library has it; a family turns
its own layouts into these. `tilewright.runtime.cublaslt` hands them to the library.
"""

from __future__ import annotations

import importlib.metadata
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

CUBLASLT = "cublaslt"
_LIBRARY = re.compile(rf"{CUBLASLT}([1-9]\d?)", re.ASCII)
_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")


def library_of(config: Any) -> str:
    """The library that computes what `config` says, with its major version (``cublaslt13``); ``""``
    for a kernel that is built here."""
    found: str = getattr(config, "library", "")
    return found


def major(library: str) -> int:
    """The major version in a library's name, 13 for ``cublaslt13``; 0 for another word."""
    found = _LIBRARY.fullmatch(library)
    return int(found[1]) if found else 0


def library_name(version: int) -> str:
    """The name of the library of a major version."""
    return f"{CUBLASLT}{version}"


@cache
def package() -> str:
    """NVIDIA's package of the library that is installed here, with its version; ``""`` if there is
    none, as with AMD's, which is part of torch."""
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


def library_key(config: Any) -> str:
    """What stands in place of a binary's key where a library computes `config`: which library is
    installed here."""
    return f"{library_of(config)} {package()}".strip()


@dataclass(frozen=True, slots=True)
class Matrix:
    """A column-major matrix, or a batch of them.

    dtype: Tilewright's name.
    ld: elements from one column to the next.
    stride: elements from one matrix of a batch to the next; 0 if the batch shares one.
    """

    dtype: str
    rows: int
    columns: int
    ld: int
    stride: int = 0


Meeting = Literal["none", "inplace", "compute", "output"]
"""How the parts of a split sum meet. inplace: each is added to the result, in the result's dtype.
compute: all are kept in the accumulator's dtype, and a second kernel adds them. output: the same
in the result's dtype."""

MEETINGS: dict[Meeting, int] = {"none": 0, "inplace": 1, "compute": 2, "output": 4}
"""The numbers of cublasLtReductionScheme_t."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of the library, by all attributes that the library lets a caller set
    (cublasLtMatmulAlgoConfigAttributes_t), in the library's own numbers.

    number: which algorithm; it can be read and, when one is made, set.
    tile, stages, inner, cluster: numbers of the library's lists of such shapes.
    parts: of K, each summed on its own. meeting: how they meet.
    swizzle: how workgroups map to tiles.
    custom: an option of its own.
    """

    number: int
    tile: int
    stages: int
    parts: int
    meeting: Meeting
    swizzle: int
    custom: int
    inner: int
    cluster: int


Chain = Literal["", "bias", "scale"]
"""What the library does to the sums before it stores them: it adds a bias, or multiplies by one
factor. The library takes either by its address on the device."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """result = first · second, each perhaps transposed, with sums in fp32.

    library: with its major version, as ``cublaslt13``.
    count: number of products.
    precision: ``ieee``, or ``tf32`` for fp32 operands.
    chain: see `Chain`. A bias has a value for each row of the result, in the result's dtype.
    alignment: bytes that the addresses of the matrices are multiples of.
    algorithm: how it is computed; None in a question for algorithms.
    workspace: bytes of scratch memory that the algorithm may use; in a question, the most that it
        may use.
    """

    library: str
    first: Matrix
    second: Matrix
    result: Matrix
    transposed: tuple[bool, bool]
    count: int = 1
    precision: str = "ieee"
    chain: Chain = ""
    alignment: int = 16
    algorithm: Algorithm | None = None
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """An algorithm that a library offers for a product, and the bytes of scratch memory that it
    needs there."""

    algorithm: Algorithm
    workspace: int
