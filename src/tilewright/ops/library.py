"""Products that the vendor's library computes, as data: what a step of a launch says in place of a
kernel, and what a library is asked for its algorithms with.

The library is NVIDIA's cuBLASLt or AMD's hipBLASLt. A matrix is column-major, as both have it; a
family turns its own layouts into these. `tilewright.runtime.libraries` hands them to the library.
The libraries for convolutions are NVIDIA's cuDNN and AMD's MIOpen (`ops.library_convolution`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from tilewright.errors import BadArgument
from tilewright.version import installed

CUBLASLT, HIPBLASLT, CUDNN, MIOPEN = "cublaslt", "hipblaslt", "cudnn", "miopen"

LIBRARIES = {"cuda": (CUBLASLT, CUDNN), "hip": (HIPBLASLT, MIOPEN)}
"""The vendor's libraries of each backend."""

COMPILING = (MIOPEN,)
"""Libraries that may compile for seconds before an algorithm's first call."""

NO_AXES = "pipeline vendor has no axes: name its kernels, or have tune ask the library"
"""Why a space cannot have the vendor's algorithms."""

_LIBRARY = re.compile(rf"({CUBLASLT}|{HIPBLASLT}|{CUDNN}|{MIOPEN})([1-9]\d?)", re.ASCII)
_PACKAGES = {
    CUBLASLT: ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    CUDNN: ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}


def library_of(config: Any) -> str:
    """The library that computes what `config` says, with its major version (``cublaslt13``,
    ``hipblaslt1``); ``""`` for a kernel that is built here."""
    found: str = getattr(config, "library", "")
    return found


def kind(library: str) -> str:
    """Which library a name is of, ``cublaslt`` for ``cublaslt13``; ``""`` for another word."""
    found = _LIBRARY.fullmatch(library)
    return found[1] if found else ""


def major(library: str) -> int:
    """The major version in a library's name, 13 for ``cublaslt13``; 0 for another word."""
    found = _LIBRARY.fullmatch(library)
    return int(found[2]) if found else 0


def library_name(kind: str, version: int) -> str:
    """The name of the library of a major version."""
    return f"{kind}{version}"


@cache
def package(kind: str) -> str:
    """What is installed here of a library, with its version: NVIDIA's package, or the release of
    ROCm that AMD's are part of; ``""`` if neither says so, as where torch brings its own."""
    return _INSTALLED[kind](kind) if kind else ""


def _nvidias(kind: str) -> str:
    for name in _PACKAGES[kind]:
        if found := installed(name):
            return f"{name} {found}"
    return ""


def _rocm(_: str) -> str:
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    with suppress(OSError, UnicodeDecodeError):
        return f"rocm {(root / '.info' / 'version').read_text().strip()}"
    return ""


_INSTALLED = {CUBLASLT: _nvidias, CUDNN: _nvidias, HIPBLASLT: _rocm, MIOPEN: _rocm}


def library_key(config: Any) -> str:
    """What stands in place of a binary's key where a library computes `config`: which library is
    installed here."""
    library = library_of(config)
    return f"{library} {package(kind(library))}".strip()


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


_LARGEST = 2**32 - 1
_LARGEST_INDEX = 2**31 - 1
_DIGEST = "[0-9a-f]{8}"


def _count(field: str) -> str:
    return rf"(?P<{field}>0|[1-9]\d{{0,9}})"


def _check_number(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise BadArgument(f"{name} = {value!r} is outside 0 … {most}")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of cuBLASLt, by all attributes that the library lets a caller set
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

    pattern: ClassVar[str] = (
        f"{_count('number')}_t{_count('tile')}_s{_count('stages')}_k{_count('parts')}"
        f"_(?P<meeting>{'|'.join(get_args(Meeting))})_z{_count('swizzle')}_o{_count('custom')}"
        f"_i{_count('inner')}_c{_count('cluster')}"
    )
    """What `word` looks like: a regular expression with a group for each field."""

    @property
    def word(self) -> str:
        """All fields, as a kernel's name has them."""
        return (
            f"{self.number}_t{self.tile}_s{self.stages}_k{self.parts}_{self.meeting}"
            f"_z{self.swizzle}_o{self.custom}_i{self.inner}_c{self.cluster}"
        )

    @classmethod
    def of_words(cls, said: Mapping[str, str]) -> Algorithm:
        """The algorithm with these fields."""
        numbers: dict[str, Any] = {field: int(said[field]) for field in _NUMBERS}
        return cls(**numbers, meeting=said["meeting"])  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `BadArgument` if no name can say it."""
        for name in _NUMBERS:
            _check_number(name, getattr(self, name), _LARGEST)
        if self.meeting not in get_args(Meeting):
            listed = ", ".join(get_args(Meeting))
            raise BadArgument(f"meeting '{self.meeting}' is not one of {listed}")

    @property
    def summed(self) -> int:
        """Parts of a sum that are summed on their own, as far as the library says."""
        return max(1, self.parts)

    @property
    def rounds(self) -> bool:
        """Whether parts of a sum are kept in the result's dtype."""
        return self.meeting in ("inplace", "output")

    @property
    def varies(self) -> str:
        """Why two runs may give other bits; ``""`` if they give the same. A second kernel adds
        parts up in the same order each time; in which order parts are added in place, the library
        does not state."""
        if self.meeting == "inplace" or (self.meeting == "none" and self.parts > 1):
            return "adds parts of sums in an order that the library does not state"
        return ""


_NUMBERS = ("number", "tile", "stages", "parts", "swizzle", "custom", "inner", "cluster")


@dataclass(frozen=True, slots=True)
class Solution:
    """One algorithm of hipBLASLt, which calls it a solution.

    index: its number, which means it within one build of the library alone.
    digest: of the library's own name for it, which says its tile, its instructions and how it
        splits sums: the first 8 hexadecimal digits of the name's SHA-256. A build that has another
        algorithm under this number has another name.
    """

    index: int
    digest: str

    pattern: ClassVar[str] = f"n{_count('index')}_h(?P<digest>{_DIGEST})"
    summed: ClassVar[int] = 1
    rounds: ClassVar[bool] = False
    """The library does not say how parts of a sum meet. A verification finds results that are too
    far off."""
    varies: ClassVar[str] = "hipBLASLt does not say that its sums repeat bit for bit"

    @property
    def word(self) -> str:
        return f"n{self.index}_h{self.digest}"

    @classmethod
    def of_words(cls, said: Mapping[str, str]) -> Solution:
        return cls(int(said["index"]), said["digest"])

    def check(self) -> None:
        _check_number("index", self.index, _LARGEST_INDEX)
        if not re.fullmatch(_DIGEST, self.digest, re.ASCII):
            raise BadArgument(f"digest '{self.digest}' is not 8 hexadecimal digits")


Fixed = Algorithm | Solution
"""What fixes an algorithm of a library. Each class says the same of it: `word`, `pattern`,
`of_words`, `check`, `summed`, `rounds`, `varies` (see `Algorithm`)."""

Chain = Literal["", "bias", "scale", "scales", "blocks"]
"""What the library does to the sums before it stores them: it adds a bias, multiplies by one
factor, or by one for each column of the result and one for each row. Or to the operands: blocks of
128×128 of the first matrix and of 128 of each column of the second have a factor each. The library
takes all of them by their addresses on the device."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """result = first · second, each perhaps transposed, with sums in fp32, or in int32 where the
    result is.

    library: with its major version, as ``cublaslt13`` or ``hipblaslt1``.
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
    algorithm: Fixed | None = None
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """An algorithm that a library offers for a product, and the bytes of scratch memory that it
    needs there."""

    algorithm: Fixed
    workspace: int
