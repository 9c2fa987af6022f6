"""`VendorConfig`: one algorithm of the vendor's library for GEMMs, and its name.

The name says every attribute that fixes the algorithm, in the library's own numbers, so that any
later run takes the same:

    gemm_rcr_bf16_bf16_bf16_fp32_vendor_cublaslt13_66_t20_s36_k1_none_z0_o5_i0_c2_ws32_al16
         |   A    B    C    acc         library    |  tile |  |  |    |  |  |  |   |    |
         layout                             number-+  stages  |  |    |  |  |  |   |    bytes of
                                              parts of K and -+--+    |  |  |  |   |    alignment
                                               how they meet  swizzle-+  |  |  |   MiB of workspace
                                                                  custom-+  |  cluster
                                                                      inner-+

Further words follow only where they differ from the default: ``tf32``, ``batch-strided``, and last
the epilogue (``epi-bias-gelu_tanh``), as in `GemmConfig`'s names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.gemm.batch import BATCHINGS, check_batching
from tilewright.ops.gemm.config import ALIGNMENTS
from tilewright.ops.gemm.problem import LAYOUTS, check_layout, check_types
from tilewright.ops.library import Algorithm, Meeting, major

VENDOR = "vendor"
"""The pipeline of all algorithms of the vendor's library."""

WORKSPACES = (0, 1, 2, 4, 8, 16, 32)
"""MiB of scratch memory that an algorithm may use. The most is what NVIDIA recommends for Hopper,
and torch's own there."""

MIB = 1 << 20
_LARGEST = 2**32 - 1
_NUMBERS = ("number", "tile", "stages", "parts", "swizzle", "custom", "inner", "cluster")


@dataclass(frozen=True, slots=True)
class VendorConfig:
    """How the vendor's library computes a GEMM: nothing is built for it.

    layout, dtype_a/b/c/acc, precision, epilogue, batching: as in `GemmProblem`.
    library: with its major version, ``cublaslt13``; another version numbers its algorithms anew.
    algorithm: which of the library's.
    workspace: MiB of scratch memory that it may use, one of `WORKSPACES`.
    alignment: bytes that addresses and leading dimensions are multiples of.

    Raises `BadArgument` for a config that no name can say.
    """

    family: ClassVar[str] = "gemm"
    pipeline: ClassVar[str] = VENDOR
    scale_a: ClassVar[str] = ""
    scale_b: ClassVar[str] = ""
    pre_a: ClassVar[str] = ""
    pre_b: ClassVar[str] = ""

    layout: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_acc: str
    precision: str
    library: str
    algorithm: Algorithm
    workspace: int
    alignment: int
    epilogue: str = ""
    batching: str = "none"

    def __post_init__(self) -> None:
        check_layout(self.layout)
        types = (self.dtype_a, self.dtype_b, self.dtype_c, self.dtype_acc)
        check_types(*types, self.precision, self.epilogue)
        check_batching(self.batching)
        if self.layout not in LAYOUTS:
            raise BadArgument(f"layout '{self.layout}' is not one of {', '.join(LAYOUTS)}")
        if not major(self.library):
            raise BadArgument(f"library '{self.library}' is not one as cublaslt13")
        for name in _NUMBERS:
            value = getattr(self.algorithm, name)
            if type(value) is not int or not 0 <= value <= _LARGEST:
                raise BadArgument(f"{name} = {value!r} is outside 0 … {_LARGEST}")
        if self.algorithm.meeting not in get_args(Meeting):
            listed = ", ".join(get_args(Meeting))
            raise BadArgument(f"meeting '{self.algorithm.meeting}' is not one of {listed}")
        for field, known in (("workspace", WORKSPACES), ("alignment", ALIGNMENTS)):
            if getattr(self, field) not in known:
                listed = ", ".join(map(str, known))
                raise BadArgument(f"{field} = {getattr(self, field)!r} is not one of {listed}")

    @property
    def name(self) -> str:
        """The algorithm's name; `parse` is its exact inverse."""
        a = self.algorithm
        name = (
            f"gemm_{self.layout}_{self.dtype_a}_{self.dtype_b}_{self.dtype_c}_{self.dtype_acc}"
            f"_{VENDOR}_{self.library}_{a.number}_t{a.tile}_s{a.stages}_k{a.parts}_{a.meeting}"
            f"_z{a.swizzle}_o{a.custom}_i{a.inner}_c{a.cluster}_ws{self.workspace}"
            f"_al{self.alignment}"
        )
        if self.precision != "ieee":
            name += f"_{self.precision}"
        if self.batching != "none":
            name += f"_batch-{self.batching}"
        if self.epilogue:
            name += "_epi-" + self.epilogue.replace("+", "-")
        return name


def _one(field: str, words: tuple[object, ...]) -> str:
    return f"(?P<{field}>{'|'.join(sorted(map(str, words), key=len, reverse=True))})"


def _count(field: str) -> str:
    return rf"(?P<{field}>0|[1-9]\d{{0,9}})"


_TYPES = "_".join(_one(f"dtype_{x}", tuple(DTYPES)) for x in ("a", "b", "c", "acc"))
_PATTERN = re.compile(
    f"gemm_{_one('layout', LAYOUTS)}_{_TYPES}_{VENDOR}_(?P<library>[a-z]+[0-9]+)"
    f"_{_count('number')}_t{_count('tile')}_s{_count('stages')}_k{_count('parts')}"
    f"_{_one('meeting', get_args(Meeting))}_z{_count('swizzle')}_o{_count('custom')}"
    f"_i{_count('inner')}_c{_count('cluster')}_ws{_one('workspace', WORKSPACES)}"
    f"_al{_one('alignment', ALIGNMENTS)}(?:_(?P<precision>tf32))?"
    f"(?:_batch-{_one('batching', BATCHINGS[1:])})?(?:_epi-(?P<epilogue>[a-z0-9_-]+))?",
    re.ASCII,
)
_WORDS = ("layout", "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "library")


def is_vendors(name: str) -> bool:
    """Whether a kernel's name is meant to be that of an algorithm of the library."""
    return name.split("_", 7)[6:7] == [VENDOR]  # where other kernels have their tile


def parse(name: str) -> VendorConfig:
    """The config whose name this is. Raises `UnknownName`."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of an algorithm of the vendor's library; one "
            "looks like gemm_rcr_bf16_bf16_bf16_fp32_vendor_cublaslt13_66_t20_s36_k1_none_z0_o5_i0"
            "_c2_ws32_al16"
        )
    said = match.groupdict()
    numbers: dict[str, Any] = {field: int(said[field]) for field in _NUMBERS}
    numbers["meeting"] = said["meeting"]
    try:
        return VendorConfig(
            **{field: said[field] for field in _WORDS},
            precision=said["precision"] or "ieee",
            algorithm=Algorithm(**numbers),
            workspace=int(said["workspace"]),
            alignment=int(said["alignment"]),
            epilogue=(said["epilogue"] or "").replace("-", "+"),
            batching=said["batching"] or "none",
        )
    except BadArgument as error:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of an algorithm of the vendor's library: {error}"
        ) from None
