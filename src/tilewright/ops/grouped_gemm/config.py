"""`GroupedGemmConfig`: one grouped GEMM kernel, and its name.

The name is that of the GEMM kernel for each group (see `tilewright.ops.gemm.config`), with the
family and the form in front:

    grouped_gemm_contiguous_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_direct_…

Every kernel is persistent: one workgroup for each compute unit walks the tiles of all groups.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.grouped_gemm.problem import of_gemm

PREFIX = "grouped_gemm_"
ZERO = "zb"
"""Behind the form in a name: B has zero points."""
MADE = "qb"
"""Behind that: C is rounded by blocks. The name's last ``scale`` is then the one that is made."""

OWN = ("form", "zero_b", "quant")
"""The fields that a GEMM does not have."""


@dataclass(frozen=True, slots=True)
class GroupedGemmConfig:
    """How to compute a grouped GEMM.

    form, zero_b, quant: as in `GroupedGemmProblem`.

    The other fields are as in `GemmConfig`; those up to `precision`, and from `epilogue` on, are
    the signature. The further fields of `GemmConfig` are the same for every kernel here: scheduler
    ``persistent``, and padded rows, since groups end anywhere.
    """

    family: ClassVar[str] = "grouped_gemm"

    form: str
    layout: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_acc: str
    precision: str
    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    pipeline: str
    group_m: int
    store: str
    pad_n: bool
    pad_k: bool
    alignment: int
    mma: tuple[int, int, int]
    index_bits: int
    epilogue: str = ""
    scale_a: str = ""
    scale_b: str = ""
    zero_b: bool = False
    quant: str = ""

    @property
    def one(self) -> GemmConfig:
        """The GEMM kernel of one group."""
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in OWN}
        shared["epilogue"] = of_gemm(self.epilogue, self.quant)
        return GemmConfig(**shared, scheduler="persistent", split_k=1, reduction="none", pad_m=True)

    @property
    def name(self) -> str:
        """The kernel's name; `names.parse` is its exact inverse."""
        own = f"{ZERO}_" * self.zero_b + f"{MADE}_" * (self.quant != "")
        return f"{PREFIX}{self.form}_{own}{self.one.name.removeprefix('gemm_')}"
