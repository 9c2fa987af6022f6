"""`VendorConfig`: one algorithm of the vendor's library for GEMMs, and its name.

The name says all that fixes the algorithm, in the library's own numbers, so that any later run
takes the same or none:

    gemm_rcr_bf16_bf16_bf16_fp32_vendor_cublaslt13_66_t20_s36_k1_none_z0_o5_i0_c2_ws32_al16
         |   A    B    C    acc         library    |  tile |  |  |    |  |  |  |   |    |
         layout                             number-+  stages  |  |    |  |  |  |   |    bytes of
                                              parts of K and -+--+    |  |  |  |   |    alignment
                                               how they meet  swizzle-+  |  |  |   MiB of workspace
                                                                  custom-+  |  cluster
                                                                      inner-+

of cuBLASLt, and of hipBLASLt its number and the digest of the library's own name for it:

    gemm_rcr_bf16_bf16_bf16_fp32_vendor_hipblaslt1_n66771_h0f9c2a41_ws32_al16

Further words follow only where they differ from the default: ``tf32``, ``batch-strided``, blocks of
scales (``sa1x128_sb128x128``), and last the epilogue (``epi-bias-gelu_tanh``), as in `GemmConfig`'s
names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright import blocks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.gemm import scales
from tilewright.ops.gemm.batch import BATCHINGS, check_batching
from tilewright.ops.gemm.config import ALIGNMENTS
from tilewright.ops.gemm.library_kinds import RECORDS
from tilewright.ops.gemm.problem import LAYOUTS, check_layout, check_types
from tilewright.ops.library import CUBLASLT, HIPBLASLT, Algorithm, Fixed, Solution, kind
from tilewright.ops.names import choice

VENDOR = "vendor"
"""The pipeline of all algorithms of the vendor's library."""

WORKSPACES = (0, 1, 2, 4, 8, 16, 32)
"""MiB of scratch memory that an algorithm may use. The most is what NVIDIA recommends for Hopper,
and torch's own there."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class VendorConfig:
    """How the vendor's library computes a GEMM: nothing is built for it. `vendor_config` makes one,
    of the class of its library.

    layout, dtype_a/b/c/acc, precision, epilogue, batching, scale_a, scale_b: as in `GemmProblem`.
    library: with its major version, ``cublaslt13`` or ``hipblaslt1``; another version numbers its
        algorithms anew.
    algorithm: which of the library's.
    workspace: MiB of scratch memory that it may use, one of `WORKSPACES`.
    alignment: bytes that addresses and leading dimensions are multiples of.

    Raises `BadArgument` for a config that no name can say.
    """

    family: ClassVar[str] = "gemm"
    pipeline: ClassVar[str] = VENDOR
    pre_a: ClassVar[str] = ""
    pre_b: ClassVar[str] = ""

    layout: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_acc: str
    precision: str
    library: str
    algorithm: Fixed
    workspace: int
    alignment: int
    epilogue: str = ""
    batching: str = "none"
    scale_a: str = ""
    scale_b: str = ""

    def __post_init__(self) -> None:
        check_layout(self.layout)
        types = (self.dtype_a, self.dtype_b, self.dtype_c, self.dtype_acc)
        blocks.parse(self.scale_a), blocks.parse(self.scale_b)
        check_types(*types, self.precision, self.epilogue, scales.count(self) > 0)
        check_batching(self.batching)
        if self.layout not in LAYOUTS:
            raise BadArgument(f"layout '{self.layout}' is not one of {', '.join(LAYOUTS)}")
        if not kind(self.library):
            raise BadArgument(f"library '{self.library}' is not one as cublaslt13 or hipblaslt1")
        of = kind(self.library)
        if type(self) is not CLASSES[of] or type(self.algorithm) is not RECORDS[of].algorithm:
            raise BadArgument(f"{self.algorithm} is not an algorithm of {self.library}")
        self.algorithm.check()
        for field, known in (("workspace", WORKSPACES), ("alignment", ALIGNMENTS)):
            if getattr(self, field) not in known:
                listed = ", ".join(map(str, known))
                raise BadArgument(f"{field} = {getattr(self, field)!r} is not one of {listed}")

    @property
    def name(self) -> str:
        """The algorithm's name; `parse` is its exact inverse."""
        name = (
            f"gemm_{self.layout}_{self.dtype_a}_{self.dtype_b}_{self.dtype_c}_{self.dtype_acc}"
            f"_{VENDOR}_{self.library}_{self.algorithm.word}_ws{self.workspace}_al{self.alignment}"
        )
        if self.precision != "ieee":
            name += f"_{self.precision}"
        if self.batching != "none":
            name += f"_batch-{self.batching}"
        name += scales.names(self)
        if self.epilogue:
            name += "_epi-" + self.epilogue.replace("+", "-")
        return name


@dataclass(frozen=True, slots=True)
class CublasLtConfig(VendorConfig):
    """An algorithm of NVIDIA's library."""

    algorithm: Algorithm


@dataclass(frozen=True, slots=True)
class HipblasLtConfig(VendorConfig):
    """An algorithm of AMD's library."""

    algorithm: Solution


CLASSES: dict[str, type[VendorConfig]] = {CUBLASLT: CublasLtConfig, HIPBLASLT: HipblasLtConfig}
"""The class of a library's configs: files of configs are read by the types of their fields."""


def vendor_config(library: str, **fields: Any) -> VendorConfig:
    """A config with these fields, of the class of `library`. Raises `BadArgument`."""
    return CLASSES.get(kind(library), VendorConfig)(library=library, **fields)


_TYPES = "_".join(choice(f"dtype_{x}", tuple(DTYPES)) for x in ("a", "b", "c", "acc"))
_PATTERN = re.compile(
    f"gemm_{choice('layout', LAYOUTS)}_{_TYPES}_{VENDOR}_(?P<library>[a-z]+[0-9]+)"
    f"_(?P<algorithm>[a-z0-9_]+)_ws{choice('workspace', WORKSPACES)}"
    f"_al{choice('alignment', ALIGNMENTS)}(?:_(?P<precision>tf32))?"
    f"(?:_batch-{choice('batching', BATCHINGS[1:])})?{scales.PATTERN}"
    "(?:_epi-(?P<epilogue>[a-z0-9_-]+))?",
    re.ASCII,
)
_WORDS = ("layout", "dtype_a", "dtype_b", "dtype_c", "dtype_acc")


def is_vendors(name: str) -> bool:
    """Whether a kernel's name is meant to be that of an algorithm of the library."""
    return name.split("_", 7)[6:7] == [VENDOR]  # where other kernels have their tile


def parse(name: str) -> VendorConfig:
    """The config whose name this is. Raises `UnknownName`."""
    match = _PATTERN.fullmatch(name)
    said = match.groupdict() if match else {}
    of = RECORDS.get(kind(said.get("library", "")))
    fixed = re.fullmatch(of.algorithm.pattern, said["algorithm"], re.ASCII) if of else None
    if of is None or fixed is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of an algorithm of the vendor's library; one "
            "looks like gemm_rcr_bf16_bf16_bf16_fp32_vendor_cublaslt13_66_t20_s36_k1_none_z0_o5_i0"
            "_c2_ws32_al16 or "
            "gemm_rcr_bf16_bf16_bf16_fp32_vendor_hipblaslt1_n66771_h0f9c2a41_ws32_al16"
        )
    try:
        return vendor_config(
            said["library"],
            **{field: said[field] for field in _WORDS},
            precision=said["precision"] or "ieee",
            algorithm=of.algorithm.of_words(fixed.groupdict()),
            workspace=int(said["workspace"]),
            alignment=int(said["alignment"]),
            epilogue=(said["epilogue"] or "").replace("-", "+"),
            batching=said["batching"] or "none",
            scale_a=said["scale_a"] or "",
            scale_b=said["scale_b"] or "",
        )
    except BadArgument as error:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of an algorithm of the vendor's library: {error}"
        ) from None
