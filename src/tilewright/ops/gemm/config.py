"""`GemmConfig`: one GEMM kernel, and its name.

The name says every field, so that the same bytes stand in the store, the registry, the table,
the log line and the report:

    gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_split_padmnk_al16
         |   A    B    C    acc  tile       |  |  |   |          |  |     |      bytes of alignment
         layout                     warps --+  |  |   |          |  |     +- padded dimensions
                                     stages ---+  |   |          |  +- store
                                        pipeline -+   +-scheduler+- tiles grouped along M

Behind it, only where they differ from the default: ``tf32``, ``mma32x32x8`` (the matrix
instruction; the compiler's choice when absent), ``i64`` (64-bit indices) and, always last, the
epilogue: ``epi-bias-gelu`` for ``bias+gelu``.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import ClassVar

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.gemm import epilogues
from tilewright.ops.gemm.problem import LAYOUTS, check_layout, check_types

PIPELINES = ("basic", "tma", "tma_ws")
SCHEDULERS = ("tile", "persistent")
STORES = ("direct", "split")
ALIGNMENTS = (1, 2, 4, 8, 16)
INDEX_BITS = (32, 64)


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How to compute a GEMM. Fields up to `epilogue` are the signature, the rest the algorithm.

    layout, dtype_a/b/c/acc, precision, epilogue: as in `GemmProblem`.
    tile_m, tile_n, tile_k: the tile one workgroup computes, in elements.
    num_warps: warps (waves) in a workgroup. num_stages: depth of the software pipeline.
    pipeline: ``basic`` (pointers), ``tma`` (tensor descriptors), ``tma_ws`` (those, with a warp
    group of their own for the copies). scheduler: ``tile`` (a workgroup a tile) or
    ``persistent`` (a workgroup a compute unit, walking tiles). group_m: rows of tiles walked
    together for L2 reuse. store: ``direct``, or ``split`` (C leaves in two halves).
    pad_m, pad_n, pad_k: whether that dimension may be other than a multiple of its tile where
    it is an operand's innermost. alignment: bytes that base addresses, leading dimensions and
    (for ``basic``) innermost extents are multiples of. mma: matrix instruction (m, n, k), or
    (0, 0, 0) for the compiler's choice. index_bits: 32 when every operand spans under 2 GiB.

    A config is only checked for being *expressible* (`BadArgument`); whether it is legal on an
    architecture is `rules.judge`'s to say.
    """

    family: ClassVar[str] = "gemm"

    layout: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_acc: str
    precision: str
    _: KW_ONLY
    epilogue: str = ""
    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    pipeline: str
    scheduler: str
    group_m: int
    store: str
    pad_m: bool
    pad_n: bool
    pad_k: bool
    alignment: int
    mma: tuple[int, int, int]
    index_bits: int

    @property
    def name(self) -> str:
        """The kernel's name; `parse` is its exact inverse."""
        pads = "".join(
            d for d, on in zip("mnk", (self.pad_m, self.pad_n, self.pad_k), strict=True) if on
        )
        name = (
            f"gemm_{self.layout}_{self.dtype_a}_{self.dtype_b}_{self.dtype_c}_{self.dtype_acc}"
            f"_{self.tile_m}x{self.tile_n}x{self.tile_k}_w{self.num_warps}_s{self.num_stages}"
            f"_{self.pipeline}_{self.scheduler}_g{self.group_m}_{self.store}"
            f"_pad{pads or '0'}_al{self.alignment}"
        )
        if self.precision != "ieee":
            name += f"_{self.precision}"
        if self.mma != (0, 0, 0):
            name += "_mma{}x{}x{}".format(*self.mma)
        if self.index_bits != 32:
            name += f"_i{self.index_bits}"
        if self.epilogue:
            name += "_epi-" + self.epilogue.replace("+", "-")
        return name


_CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("pipeline", PIPELINES),
    ("scheduler", SCHEDULERS),
    ("store", STORES),
    ("alignment", ALIGNMENTS),
    ("index_bits", INDEX_BITS),
)


@lru_cache(maxsize=256)  # a space has thousands of algorithms for each signature
def _check_signature(
    layout: str, a: str, b: str, c: str, acc: str, precision: str, epilogue: str
) -> None:
    check_layout(layout)
    check_types(a, b, c, acc, precision, epilogue)


def check(config: GemmConfig) -> GemmConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    c = config
    types = (c.dtype_a, c.dtype_b, c.dtype_c, c.dtype_acc)
    epilogues.parse(c.epilogue)
    _check_signature(c.layout, *types, c.precision, c.epilogue)
    for field in ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "group_m"):
        value = getattr(config, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadArgument(f"{field} = {value!r} is not a positive integer")
    for field in ("pad_m", "pad_n", "pad_k"):
        if not isinstance(getattr(config, field), bool):
            raise BadArgument(f"{field} = {getattr(config, field)!r} is not true or false")
    for field, known in _CHOICES:
        if getattr(config, field) not in known:
            listed = ", ".join(map(str, known))
            raise BadArgument(f"{field} = {getattr(config, field)!r} is not one of {listed}")
    mma = config.mma
    if mma != (0, 0, 0) and not (
        isinstance(mma, tuple) and len(mma) == 3 and all(type(x) is int and x > 0 for x in mma)
    ):
        raise BadArgument(f"mma = {mma!r} is neither (m, n, k) nor (0, 0, 0)")
    return config


def _any_of(words: tuple[object, ...]) -> str:
    return "(" + "|".join(sorted(map(str, words), key=len, reverse=True)) + ")"


_TYPE = _any_of(tuple(DTYPES))
_COUNT = r"([1-9]\d*)"
_NAME = re.compile(
    f"gemm_{_any_of(LAYOUTS)}_{_TYPE}_{_TYPE}_{_TYPE}_{_TYPE}"
    f"_{_COUNT}x{_COUNT}x{_COUNT}_w{_COUNT}_s{_COUNT}"
    f"_{_any_of(PIPELINES)}_{_any_of(SCHEDULERS)}_g{_COUNT}_{_any_of(STORES)}"
    f"_pad(m?n?k?|0)_al{_any_of(ALIGNMENTS)}"
    f"(?:_(tf32))?(?:_mma{_COUNT}x{_COUNT}x{_COUNT})?(?:_i(64))?(?:_epi-([a-z0-9_-]+))?",
    re.ASCII,  # else \d takes the digits of every script, and two names say one config
)


def parse(name: str) -> GemmConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and
    for one whose fields contradict each other."""
    match = _NAME.fullmatch(name)
    if match is None or match[15] == "":
        raise UnknownName(
            f"'{name}' is not the name of a GEMM kernel; one looks like "
            "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s3_basic_tile_g8_direct_padmnk_al16"
        )
    g = match.groups()
    pads = g[14]
    config = GemmConfig(
        layout=g[0],
        dtype_a=g[1],
        dtype_b=g[2],
        dtype_c=g[3],
        dtype_acc=g[4],
        precision=g[16] or "ieee",
        epilogue=(g[21] or "").replace("-", "+"),
        tile_m=int(g[5]),
        tile_n=int(g[6]),
        tile_k=int(g[7]),
        num_warps=int(g[8]),
        num_stages=int(g[9]),
        pipeline=g[10],
        scheduler=g[11],
        group_m=int(g[12]),
        store=g[13],
        pad_m="m" in pads,
        pad_n="n" in pads,
        pad_k="k" in pads,
        alignment=int(g[15]),
        mma=(int(g[17]), int(g[18]), int(g[19])) if g[17] else (0, 0, 0),
        index_bits=int(g[20] or 32),
    )
    try:
        return check(config)
    except BadArgument as error:
        raise UnknownName(f"'{name}' is not the name of a GEMM kernel: {error}") from None
