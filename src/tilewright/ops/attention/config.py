"""`AttentionConfig`: one attention kernel, or the kernels of one plan, and its name.

    attention_bf16_bf16_bf16_d128x128_causal_128x64_w4_s2_basic_tile_al16
                Q   KV   O    |        |     tile   |  |  |     |    +- bytes of alignment
        head dims, of V too --+      mask   warps --+  |  |     +- scheduler
                                             stages ---+  +- pipeline

Other fields follow only where they differ from the default, in this order:

    page16                   rows of a page
    pack                     the query heads of a head of keys are rows of one tile
    f-lse-softcap            features (``lse+softcap``), always last

An engine of the vendor's library (`library`) has the library's words behind the mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.attention import features
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.library import CUDNN
from tilewright.ops.library_attention import FP8
from tilewright.ops.library_engine import PATTERN, said
from tilewright.ops.names import choice, number, read

SCHEDULERS = ("tile", "persistent", "split")
ALIGNMENTS = (1, 2, 4, 8, 16)

VENDOR = "vendor"
"""The pipeline of the engines of the vendor's library (`library`)."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """How to compute attention. The signature is the fields up to `mask`, `page_size` and
    `features`; the others are the algorithm.

    dtype, dtype_kv, dtype_o, head_dim, head_dim_v, page_size, features: as in `AttentionProblem`.
    mask: the kind of mask (`mask.MASKS`).
    tile_q, tile_kv: rows of Q that a workgroup computes, and rows of K and V of a step.
    num_warps: warps (waves) of a workgroup. Kernels in Gluon for sm_90 count those that multiply.
    num_stages: steps whose K and V are in shared memory at once.
    pipeline: the kernel; each has a record in `pipelines`, but `VENDOR`.
    scheduler: ``tile`` (a workgroup for each tile of Q, long ones first), ``persistent`` (a
        workgroup for each compute unit, which takes tiles in turn), or ``split`` (several
        workgroups for each tile, which share its keys; a second kernel combines their results).
    split_len: under ``split``, the keys of a split, whatever else is computed; 0: each sequence's
        keys in equal parts, of which the launch chooses the number.
    pack: whether rows of a tile are the query heads that share a head of keys, for each query.
    alignment: bytes that addresses and strides are multiples of.
    library_engine: of pipeline `VENDOR`, the library, its engine and the workspace
        (`library_engine.said`); ``""`` of the others. Tile, warps and stages are 0.
    """

    family: ClassVar[str] = "attention"

    dtype: str
    dtype_kv: str
    dtype_o: str
    head_dim: int
    head_dim_v: int
    mask: str
    tile_q: int
    tile_kv: int
    num_warps: int
    num_stages: int
    pipeline: str
    scheduler: str
    split_len: int = 0
    alignment: int = 16
    page_size: int = 0
    pack: bool = False
    features: str = ""
    library_engine: str = ""

    @property
    def library(self) -> str:
        """The library that computes it (`ops.library.library_of`); ``""`` where a kernel is built
        here."""
        return said(self.library_engine).library if self.library_engine else ""

    @property
    def words(self) -> frozenset[str]:
        """Its features, as a set."""
        return features.split(self.features)

    @property
    def name(self) -> str:
        """The kernel's name; `parse` is its exact inverse."""
        name = (
            f"attention_{self.dtype}_{self.dtype_kv}_{self.dtype_o}"
            f"_d{self.head_dim}x{self.head_dim_v}_{self.mask}"
        )
        if self.library_engine:
            name += f"_{VENDOR}_{self.library_engine}"
        else:
            name += (
                f"_{self.tile_q}x{self.tile_kv}_w{self.num_warps}_s{self.num_stages}"
                f"_{self.pipeline}_{self.scheduler}{self.split_len or ''}_al{self.alignment}"
            )
        if self.page_size:
            name += f"_page{self.page_size}"
        if self.pack:
            name += "_pack"
        if self.features:
            name += "_f-" + self.features.replace("+", "-")
        return name


def of_engine(
    dtype: str, dtype_o: str, head_dim: int, head_dim_v: int, mask: str, features: str, words: str
) -> AttentionConfig:
    """The config of an engine of a library. words: see `AttentionConfig.library_engine`."""
    return AttentionConfig(
        dtype, dtype, dtype_o, head_dim, head_dim_v, mask, 0, 0, 0, 0, VENDOR, "tile",
        features=features, library_engine=words,
    )  # fmt: skip


def check(config: AttentionConfig, pipelines: tuple[str, ...]) -> AttentionConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    c = config
    if c.library_engine or c.pipeline == VENDOR:
        return _check_engine(c)
    for field in ("dtype", "dtype_kv", "dtype_o"):
        if getattr(c, field) not in DTYPES:
            raise BadArgument(f"{field} = {getattr(c, field)!r} is no dtype")
    for field, known in (
        ("mask", MASKS),
        ("scheduler", SCHEDULERS),
        ("alignment", ALIGNMENTS),
        ("pipeline", pipelines),
    ):
        if getattr(c, field) not in known:
            listed = ", ".join(map(str, known))
            raise BadArgument(f"{field} = {getattr(c, field)!r} is not one of {listed}")
    for field in ("head_dim", "head_dim_v", "tile_q", "tile_kv", "num_warps", "num_stages"):
        checks.whole(field, getattr(c, field), 1)
    for field in ("split_len", "page_size"):
        checks.whole(field, getattr(c, field))
    if type(c.pack) is not bool:
        raise BadArgument(f"pack = {c.pack!r} is not true or false")
    if c.split_len and c.scheduler != "split":
        raise BadArgument(
            f"split_len = {c.split_len} with scheduler {c.scheduler}; only split has it"
        )
    paged = bool(features.split(c.features) & {"pagetable", "pagelist"})
    if paged != (c.page_size > 0):
        raise BadArgument("page_size, and pagetable or pagelist, are said together")
    return config


def _check_engine(c: AttentionConfig) -> AttentionConfig:
    said(c.library_engine, CUDNN)
    features.split(c.features)
    dims, types = (c.head_dim, c.head_dim_v), (c.dtype, c.dtype_o if c.dtype in FP8 else c.dtype)
    known = of_engine(*types, *dims, c.mask, c.features, c.library_engine)
    for field in fields(c):
        if (value := getattr(c, field.name)) != (of := getattr(known, field.name)):
            raise BadArgument(f"{field.name} = {value!r}: an engine of a library has {of!r}")
    return c


_TYPES = "_".join(choice(field, tuple(DTYPES)) for field in ("dtype", "dtype_kv", "dtype_o"))
_SIGNATURE = (
    f"attention_{_TYPES}_d{number('head_dim')}x{number('head_dim_v')}_{choice('mask', MASKS)}"
)
_FEATURES = "(?:_f-(?P<features>[a-z0-9-]+))?"
_PATTERN = re.compile(
    f"{_SIGNATURE}_{number('tile_q')}x{number('tile_kv')}_w{number('num_warps')}_s{number('num_stages')}"
    f"_(?P<pipeline>[a-z0-9_]+?)_{choice('scheduler', SCHEDULERS)}(?:{number('split_len')})?"
    f"_al{choice('alignment', ALIGNMENTS)}(?:_page{number('page_size')})?(?:_(?P<pack>pack))?"
    f"{_FEATURES}",
    re.ASCII,
)
_ENGINE = re.compile(f"{_SIGNATURE}_{VENDOR}_{PATTERN}{_FEATURES}", re.ASCII)
_COUNTS = (
    "head_dim", "head_dim_v", "tile_q", "tile_kv", "num_warps", "num_stages", "alignment",
)  # fmt: skip
_WORDS = ("dtype", "dtype_kv", "dtype_o", "mask", "pipeline", "scheduler")


def parse(name: str, pipelines: tuple[str, ...]) -> AttentionConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and for
    one whose fields contradict each other."""
    if of := _ENGINE.fullmatch(name):
        words = (of["features"] or "").replace("-", "+")
        dims = int(of["head_dim"]), int(of["head_dim_v"])
        types = of["dtype"], of["dtype_o"]
        engine = of_engine(*types, *dims, of["mask"], words, of["engine"])
        return read(name, "an engine of the vendor's library", lambda: check(engine, pipelines))
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of an attention kernel; one looks like "
            "attention_bf16_bf16_bf16_d128x128_causal_128x64_w4_s2_basic_tile_al16"
        )
    said = match.groupdict()
    fields: dict[str, Any] = {field: said[field] for field in _WORDS}
    fields |= {field: int(said[field]) for field in _COUNTS}
    fields |= {field: int(said[field] or 0) for field in ("split_len", "page_size")}
    words = (said["features"] or "").replace("-", "+")
    pack = said["pack"] is not None

    def made() -> AttentionConfig:
        return check(AttentionConfig(**fields, pack=pack, features=words), pipelines)

    return read(name, "an attention kernel", made)
