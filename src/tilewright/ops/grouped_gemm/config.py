"""`GroupedGemmConfig`: one grouped GEMM kernel, and its name.

The name is that of the GEMM kernel it runs for each group (see `tilewright.ops.gemm.config`),
with the family and the form in front:

    grouped_gemm_contiguous_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_direct_…

Every kernel is persistent: a workgroup a compute unit, walking the tiles of all groups.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tilewright.errors import BadArgument, UnknownName, nearest, shown
from tilewright.ops.gemm import config as gemm
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.grouped_gemm.problem import FORMS

PIPELINES = ("basic", "tma", "gluon_ws")
PREFIX = "grouped_gemm_"


@dataclass(frozen=True, slots=True)
class GroupedGemmConfig:
    """How to compute a grouped GEMM. `form` is as in `GroupedGemmProblem`, the other fields as in
    `GemmConfig`; fields up to `precision`, and `epilogue`, are the signature.

    What `GemmConfig` has beyond them is the same for every kernel here: scheduler ``persistent``,
    and rows padded, since groups end anywhere.
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

    @property
    def one(self) -> GemmConfig:
        """The GEMM kernel of one group."""
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "form"}
        return GemmConfig(**shared, scheduler="persistent", split_k=1, reduction="none", pad_m=True)

    @property
    def name(self) -> str:
        """The kernel's name; `parse` is its exact inverse."""
        return f"{PREFIX}{self.form}_{self.one.name.removeprefix('gemm_')}"


def check(config: GroupedGemmConfig) -> GroupedGemmConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    if config.form not in FORMS:
        known = ", ".join(FORMS)
        raise BadArgument(
            f"form = {config.form!r}{nearest(str(config.form), FORMS)} is not one of {known}"
        )
    gemm.check(config.one)
    if config.dtype_b != config.dtype_a:
        raise BadArgument(f"dtype_b = {config.dtype_b!r} is not dtype_a, {config.dtype_a}")
    if config.pipeline not in PIPELINES:
        raise BadArgument(
            f"pipeline = {config.pipeline!r} does not walk groups; {', '.join(PIPELINES)} do"
        )
    return config


def parse(name: str) -> GroupedGemmConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and
    for one whose fields contradict each other."""
    form, _, rest = name.removeprefix(PREFIX).partition("_")
    try:
        one = gemm.parse(f"gemm_{rest}")
        own = {f.name for f in fields(GroupedGemmConfig)}
        same: dict[str, Any] = {f.name: getattr(one, f.name) for f in fields(one) if f.name in own}
        config = check(GroupedGemmConfig(form=form, **same))
    except BadArgument as error:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a grouped GEMM kernel: {error}"
        ) from None
    if config.name != name:
        raise UnknownName(
            f"'{name}' is not the name of a grouped GEMM kernel; near it is '{config.name}'"
        )
    return config
