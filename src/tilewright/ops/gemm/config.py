"""`GemmConfig`: one GEMM kernel, and its name.

The name says every field, so that the same bytes stand in the store, the registry, the table,
the log line and the report:

    gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_split_padmnk_al16
         |   A    B    C    acc  tile       |  |  |   |          |  |     |      bytes of alignment
         layout                     warps --+  |  |   |          |  |     +- padded dimensions
                                     stages ---+  |   |          |  +- store
                                        pipeline -+   +-scheduler+- tiles grouped along M

A scheduler that shares tiles says how: ``split_k4_linear``, ``stream_k_tree``. Behind all that,
only where they differ from the default: ``tf32``, ``mma32x32x8`` (the matrix
instruction; the compiler's choice when absent), ``i64`` (64-bit indices), ``swapab`` (the kernel
computes the transpose), ``batch-strided`` or
``batch-pointers``, what A and B go through before the product (``prea-add-row.scale`` for
``add+row_scale``; ``preb-…``), ``sa1x128`` and ``sb128x128`` (blocks of A's and B's scales) and,
always last, the epilogue: ``epi-bias-gelu`` for ``bias+gelu``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from tilewright import blocks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.gemm import epilogues, pre, scales
from tilewright.ops.gemm.batch import BATCHINGS, check_batching
from tilewright.ops.gemm.problem import LAYOUTS, SHUFFLED_LAYOUTS, check_layout, check_types

PIPELINES = (
    "basic",
    "tma",
    "tma_ws",
    "gluon_ws",
    "gluon_pingpong",
    "gluon_cdna",
    "small_m",
    "small_m_tma",
    "gluon_scaled",
    "weights",
    "mx",
    "preshuffle",
    "gluon_weights",
)
POINTERS = ("basic", "small_m", "gluon_cdna", "weights", "mx", "preshuffle")
"""Pipelines that read A and B through pointers, not tensor descriptors."""

MASKING = ("basic", "small_m", "weights", "mx", "preshuffle")
"""Pipelines that take padding, alignment and width of index as they are declared."""

SMALL_M = ("small_m", "small_m_tma")
"""Pipelines for few rows of A."""

SPECIALISED = ("gluon_ws", "gluon_pingpong")
"""Pipelines with the warps' roles written out: one loads, groups of four multiply."""

SCHEDULERS = ("tile", "persistent", "split_k", "stream_k")
SHARING = ("split_k", "stream_k")
"""Schedulers under which several workgroups sum parts of one tile's K."""

REDUCTIONS = ("none", "atomic", "linear", "tree")
STORES = ("direct", "split")
ALIGNMENTS = (1, 2, 4, 8, 16)
INDEX_BITS = (32, 64)


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How to compute a GEMM. Fields up to `precision`, and from `epilogue` on, are the signature,
    the rest the algorithm.

    layout, dtype_a/b/c/acc, precision, epilogue, batching, scale_a, scale_b, pre_a, pre_b: as in
    `GemmProblem`.
    tile_m, tile_n, tile_k: the tile one workgroup computes, in elements.
    num_warps: warps (waves) in a workgroup. num_stages: depth of the software pipeline.
    pipeline: ``basic`` (pointers), ``tma`` (tensor descriptors), ``tma_ws`` (those, with a warp
    group of their own for the copies), ``gluon_ws`` (those, with the warps' roles written out in
    Gluon; num_warps counts the warps that multiply), ``gluon_pingpong`` (the same, each group of
    warps with tiles of its own), ``gluon_scaled`` (``gluon_ws`` for operands with block scales),
    ``gluon_cdna`` (pointers, with CDNA's instructions written out in Gluon; num_stages counts tiles
    in shared memory), ``small_m`` and ``small_m_tma`` (few rows of A, through pointers or
    descriptors: see kernels/small_m.py), ``weights`` (pointers; 4-bit operands unpacked in
    registers), ``gluon_weights`` (descriptors; the same for few rows of 16-bit A, in Gluon), ``mx``
    (pointers; block-scaled matrix instructions), ``preshuffle`` (pointers, B shuffled). scheduler:
    ``tile`` (a workgroup a tile), ``persistent`` (a workgroup a compute unit, walking tiles),
    ``split_k`` (`split_k` workgroups a tile) or ``stream_k`` (equal shares of all K steps); see
    kernels/schedule.py.
    reduction: how the parts of a tile meet under the last two, ``none`` under the others:
    ``atomic``, or ``linear`` and ``tree``, which repeat bit for bit; see kernels/reduce.py.
    group_m: rows of tiles walked together for L2 reuse. store: ``direct``, or ``split`` (C leaves
    in two halves). pad_m, pad_n, pad_k: whether that dimension may be other than a multiple of its
    tile where it is an operand's innermost. alignment: bytes that base addresses, leading
    dimensions and (except for ``tma`` and its kin) innermost extents are multiples of. mma: matrix
    instruction (m, n, k), or (0, 0, 0) for the compiler's choice. index_bits: 32 when every operand
    spans under 2 GiB. swap_ab: the kernel computes the transpose of C, with B's columns as rows
    (see `swap`); tile_m and tile_n stay those of C.

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
    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    pipeline: str
    scheduler: str
    split_k: int
    reduction: str
    group_m: int
    store: str
    pad_m: bool
    pad_n: bool
    pad_k: bool
    alignment: int
    mma: tuple[int, int, int]
    index_bits: int
    epilogue: str = ""
    batching: str = "none"
    scale_a: str = ""
    scale_b: str = ""
    pre_a: str = ""
    pre_b: str = ""
    swap_ab: bool = False

    @property
    def _sharing(self) -> str:
        """How workgroups share a tile, in the name: ``4_linear`` behind ``split_k``."""
        if self.scheduler == "split_k":
            return f"{self.split_k}_{self.reduction}"
        return f"_{self.reduction}" if self.scheduler == "stream_k" else ""

    @property
    def name(self) -> str:
        """The kernel's name; `parse` is its exact inverse."""
        pads = "".join(
            d for d, on in zip("mnk", (self.pad_m, self.pad_n, self.pad_k), strict=True) if on
        )
        name = (
            f"gemm_{self.layout}_{self.dtype_a}_{self.dtype_b}_{self.dtype_c}_{self.dtype_acc}"
            f"_{self.tile_m}x{self.tile_n}x{self.tile_k}_w{self.num_warps}_s{self.num_stages}"
            f"_{self.pipeline}_{self.scheduler}{self._sharing}_g{self.group_m}_{self.store}"
            f"_pad{pads or '0'}_al{self.alignment}"
        )
        if self.precision != "ieee":
            name += f"_{self.precision}"
        if self.mma != (0, 0, 0):
            name += "_mma{}x{}x{}".format(*self.mma)
        if self.index_bits != 32:
            name += f"_i{self.index_bits}"
        if self.swap_ab:
            name += "_swapab"
        if self.batching != "none":
            name += f"_batch-{self.batching}"
        for side, chain in (("a", self.pre_a), ("b", self.pre_b)):
            if chain:  # a dot for an underscore, which would be where the next part begins
                name += f"_pre{side}-" + chain.replace("+", "-").replace("_", ".")
        name += scales.names(self)
        if self.epilogue:
            name += "_epi-" + self.epilogue.replace("+", "-")
        return name


_CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("pipeline", PIPELINES),
    ("scheduler", SCHEDULERS),
    ("reduction", REDUCTIONS),
    ("store", STORES),
    ("alignment", ALIGNMENTS),
    ("index_bits", INDEX_BITS),
)


@lru_cache(maxsize=256)  # a space has thousands of algorithms for each signature
def _check_signature(
    layout: str, a: str, b: str, c: str, acc: str, precision: str, epilogue: str,
    pre_a: str, pre_b: str, scaled: bool,
) -> None:  # fmt: skip
    check_layout(layout)
    check_types(a, b, c, acc, precision, epilogue, scaled)
    pre.check(layout, a, pre_a, pre_b, epilogue)


def check(config: GemmConfig) -> GemmConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    c = config
    types = (c.dtype_a, c.dtype_b, c.dtype_c, c.dtype_acc)
    for chain in (c.epilogue, c.pre_a, c.pre_b):
        epilogues.parse(chain)
    check_batching(c.batching)
    blocks.parse(c.scale_a), blocks.parse(c.scale_b)
    scaled = scales.count(c) > 0
    _check_signature(c.layout, *types, c.precision, c.epilogue, c.pre_a, c.pre_b, scaled)
    pre.check_alone(c)
    for field in ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "split_k", "group_m"):
        value = getattr(config, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadArgument(f"{field} = {value!r} is not a positive integer")
    for field in ("pad_m", "pad_n", "pad_k", "swap_ab"):
        if not isinstance(getattr(config, field), bool):
            raise BadArgument(f"{field} = {getattr(config, field)!r} is not true or false")
    for field, known in _CHOICES:
        if getattr(config, field) not in known:
            listed = ", ".join(map(str, known))
            raise BadArgument(f"{field} = {getattr(config, field)!r} is not one of {listed}")
    if (c.scheduler == "split_k") != (c.split_k > 1):
        raise BadArgument(
            f"split_k = {c.split_k} with scheduler {c.scheduler}: more than one split is what "
            "scheduler split_k means"
        )
    if (c.scheduler in SHARING) != (c.reduction != "none"):
        raise BadArgument(
            f"reduction {c.reduction} with scheduler {c.scheduler}: partial sums are reduced by "
            f"{' and '.join(SHARING)}, and only there"
        )
    mma = config.mma
    if mma != (0, 0, 0) and not (
        isinstance(mma, tuple) and len(mma) == 3 and all(type(x) is int and x > 0 for x in mma)
    ):
        raise BadArgument(f"mma = {mma!r} is neither (m, n, k) nor (0, 0, 0)")
    return config


def _one(field: str, words: tuple[object, ...]) -> str:
    return f"(?P<{field}>{'|'.join(sorted(map(str, words), key=len, reverse=True))})"


def _count(field: str) -> str:
    return rf"(?P<{field}>[1-9]\d{{0,9}})"  # no name has a larger number


_TYPES = "_".join(_one(f"dtype_{x}", tuple(DTYPES)) for x in ("a", "b", "c", "acc"))
_SCHEDULE = (
    "(?P<scheduler>tile|persistent"
    f"|split_k(?=[1-9])|stream_k(?=_))(?:{_count('split_k')})?(?:_{_one('reduction', REDUCTIONS)})?"
)
_NAME = re.compile(
    f"gemm_{_one('layout', (*LAYOUTS, *SHUFFLED_LAYOUTS))}_{_TYPES}"
    f"_{_count('tile_m')}x{_count('tile_n')}x{_count('tile_k')}"
    f"_w{_count('num_warps')}_s{_count('num_stages')}"
    f"_{_one('pipeline', PIPELINES)}_{_SCHEDULE}_g{_count('group_m')}_{_one('store', STORES)}"
    f"_pad(?P<pads>m?n?k?|0)_al{_one('alignment', ALIGNMENTS)}"
    f"(?:_(?P<precision>tf32))?(?:_mma{_count('mma_m')}x{_count('mma_n')}x{_count('mma_k')})?"
    "(?:_i(?P<index_bits>64))?(?:_(?P<swap_ab>swapab))?"
    f"(?:_batch-{_one('batching', BATCHINGS[1:])})?"
    "(?:_prea-(?P<pre_a>[a-z0-9.-]+))?(?:_preb-(?P<pre_b>[a-z0-9.-]+))?"
    f"{scales.PATTERN}"
    "(?:_epi-(?P<epilogue>[a-z0-9_-]+))?",
    re.ASCII,  # else \d takes the digits of every script, and two names say one config
)
_COUNTS = ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "group_m", "alignment")
_WORDS = ("layout", "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "pipeline", "scheduler", "store")


def _chain(said: str | None) -> str:
    return (said or "").replace("-", "+").replace(".", "_")


def parse(name: str) -> GemmConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and
    for one whose fields contradict each other."""
    match = _NAME.fullmatch(name)
    if match is None or match["pads"] == "":
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a GEMM kernel; one looks like "
            "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s3_basic_tile_g8_direct_padmnk_al16"
        )
    said = match.groupdict()
    fields: dict[str, Any] = {field: said[field] for field in _WORDS}
    fields |= {field: int(said[field]) for field in _COUNTS}
    fields |= {f"pad_{d}": d in said["pads"] for d in "mnk"}
    mma = tuple(int(said[f"mma_{d}"] or 0) for d in "mnk")
    try:
        config = check(
            GemmConfig(
                **fields,
                precision=said["precision"] or "ieee",
                epilogue=_chain(said["epilogue"]),
                split_k=int(said["split_k"] or 1),
                reduction=said["reduction"] or "none",
                mma=(mma[0], mma[1], mma[2]),
                index_bits=int(said["index_bits"] or 32),
                swap_ab=bool(said["swap_ab"]),
                batching=said["batching"] or "none",
                scale_a=said["scale_a"] or "",
                scale_b=said["scale_b"] or "",
                pre_a=_chain(said["pre_a"]),
                pre_b=_chain(said["pre_b"]),
            )
        )
    except BadArgument as error:
        raise UnknownName(f"{shown(name, 300)} is not the name of a GEMM kernel: {error}") from None
    if config.name != name:
        raise UnknownName(f"'{name}' is not the name of a GEMM kernel; near it is '{config.name}'")
    return config
