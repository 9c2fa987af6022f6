"""`gluon_decode`: decoding over a cache, in Gluon, with specialised warps, on Hopper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.catalogue import q_strides
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.operands import strides_of
from tilewright.ops.attention.parts import KERNELS
from tilewright.ops.attention.pipelines import common
from tilewright.ops.attention.pipelines.record import Pace, Pipeline
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.binder import Box, Context, Described, Part, Value
from tilewright.ops.nouns import MAIN

ROWS = 64
"""Rows of a tile: what one wgmma multiplies at least."""

LINE = 128
"""Bytes of a box's rows at most: the widest that the copy engine swizzles."""

LEAST_LINES = 8
"""Rows of a box: fewer would end inside the pattern of the swizzle."""

MOST_ROWS = 512
"""Rows of a sequence and a head of keys up to which this is decoding: with more tiles, each of
which reads all keys, a kernel with more rows is better."""

DIMS = (64, 128, 256)

SMALL_BYTES = 1024
"""Shared memory beside the tiles: barriers, and what the compiler hands to the warps."""


def lines(c: AttentionConfig) -> int:
    """Rows of one box: those that a page and a step have in common."""
    return math.gcd(c.page_size, c.tile_kv) if c.page_size else c.tile_kv


def _shared_memory(c: AttentionConfig, arch: Arch) -> int:
    block = c.tile_kv * (c.head_dim + c.head_dim_v)
    wide = ROWS * c.head_dim + block * (c.dtype_kv != c.dtype)
    ring = c.num_stages * block * DTYPES[c.dtype_kv].bytes
    return wide * DTYPES[c.dtype].bytes + ring + SMALL_BYTES


def _registers(c: AttentionConfig, arch: Arch) -> int:
    """Scores and sums in fp32, and weights of half the size."""
    return ROWS * (c.tile_kv + c.tile_kv // 2 + c.head_dim_v) // (4 * arch.warp_size)


def _shape(c: AttentionConfig, arch: Arch) -> str | None:
    for field in ("head_dim", "head_dim_v"):
        if (size := getattr(c, field)) not in DIMS:
            return f"{field} = {size} is not one of {', '.join(map(str, DIMS))}"
    if (c.tile_q, c.num_warps) != (ROWS, 4):
        return f"pipeline gluon_decode has tiles of {ROWS} rows and 4 warps"
    if c.dtype_kv != c.dtype and c.head_dim_v > 128:
        return f"head_dim_v = {c.head_dim_v} and keys of {c.dtype_kv} take too many registers"
    if c.tile_kv > 128:
        return f"tile_kv = {c.tile_kv} is over 128"
    if c.split_len % c.tile_kv:
        return f"split_len = {c.split_len} is no multiple of tile_kv = {c.tile_kv}"
    return common.joins_late(c)


def _copies(c: AttentionConfig, arch: Arch) -> str | None:
    if c.alignment != 16:
        return "the copy engine needs an alignment of 16 bytes"
    if (have := lines(c)) < LEAST_LINES:
        return (
            f"pages of {c.page_size} rows and steps of {c.tile_kv} have {have} in common, under "
            f"{LEAST_LINES}"
        )
    return None


def _views_exist(c: AttentionConfig, p: AttentionProblem) -> str | None:
    for name in ("k", "v"):
        shape, strides = _rows(p, name)
        if 0 in shape:
            return f"{name} has no elements, so there is no descriptor of it"
        if strides[3] != 1:
            return f"elements of a row of {name} are {strides[3]} apart; the copy engine needs 1"
        if any(size > 1 and not stride for size, stride in zip(shape, strides, strict=False)):
            return f"{name} repeats rows (a stride of 0), which the copy engine does not read"
    if q_strides(p)[3] != 1 or strides_of(p, "o")[3] != 1:
        return "elements of a row of q or o are apart"
    return None


def _few_rows(c: AttentionConfig, p: AttentionProblem) -> str | None:
    if (rows := p.q_len * p.group) > MOST_ROWS:
        return f"{rows} rows of a sequence and head of keys are over {MOST_ROWS}"
    return None


def _first(c: AttentionConfig, p: AttentionProblem) -> str | None:
    return f"first = {p.first} keeps keys in front of a window" if p.first else None


def _rows(p: AttentionProblem, name: str) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """(pages or sequences, rows, heads) of K or V, and its strides."""
    if "packedkv" in p.words:
        outer, rows = 1, p.total_kv
    elif p.paged:
        outer, rows = p.pages, p.page_size
    else:
        outer, rows = p.batch, p.kv_len
    return (outer, rows, p.kv_heads), strides_of(p, name)


def _boxes(c: AttentionConfig) -> Mapping[str, Box]:
    most = LINE // DTYPES[c.dtype_kv].bytes
    dims = {"k": c.head_dim, "v": c.head_dim_v}
    return {name: (1, 1, lines(c), min(most, dim)) for name, dim in dims.items()}


def _views(c: AttentionConfig, p: AttentionProblem) -> Mapping[str, Described]:
    """(page or sequence, head, row, element). A dimension of one element may have any stride: it
    gets one that the copy engine takes."""
    found = {}
    for name, dim in (("k", p.head_dim), ("v", p.head_dim_v)):
        shape, strides = _rows(p, name)
        outer, row, head = (s if n > 1 else dim for n, s in zip(shape, strides, strict=False))
        found[name] = Described((shape[0], shape[2], shape[1], dim), (outer, head, row, 1))
    return found


def _grid(x: Context) -> int:
    c, p = x.config, x.problem
    return common.q_tiles(c, p) * int(p.kv_heads * x.splits * p.batch)


def _options(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The compiler counts a second group, of which the producer is one warp. With 128 registers two
    workgroups have room on a compute unit; the sums of 256 columns need more."""
    return ("num_warps", 4), ("maxnreg", 128 if c.head_dim_v <= 128 else 160)


def _fields(tile_kv: int, stages: int, scheduler: str) -> Mapping[str, Any]:
    return {
        "tile_q": ROWS,
        "tile_kv": tile_kv,
        "num_warps": 4,
        "num_stages": stages,
        "scheduler": scheduler,
        "pack": True,
    }


def _algorithms(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    """Rings that leave room for two workgroups, or fill shared memory for one."""
    wide = p.head_dim + p.head_dim_v
    tiles = ((64, 6), (128, 3)) if wide <= 128 else ((64, 3), (128, 3))
    if wide > 256:
        tiles = ((64, 2), (64, 3))
    elif p.dtype_kv != p.dtype and wide > 128:
        tiles = ((64, 4), (128, 4))
    return [_fields(*one, scheduler) for one in tiles for scheduler in ("tile", "split")]


def _tuned(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return [
        _fields(tile_kv, stages, scheduler)
        for tile_kv in (32, 64, 128)
        for stages in (2, 3, 4, 6, 8)
        for scheduler in ("tile", "split")
    ]


GLUON_DECODE = Pipeline(
    name="gluon_decode",
    kernel=Part(
        name=MAIN,
        kernel=f"{KERNELS}.gluon_decode:attention_gluon_decode",
        grid=_grid,
        options=_options,
        own={"LINES": lambda c, _: lines(c)},
        boxes=_boxes,
        views=_views,
    ),
    sibling="basic",
    needs=("tma", "wgmma"),
    features=frozenset(
        {
            "lse", "softcap", "sinks", "oscale", "packedq", "usedq", "packedkv", "usedkv",
            "pagetable", "pagelist", "tscale", "hscale", "append", "rotaryi", "rotaryh",
        }
    ),
    masks=MASKS,
    schedulers=("tile", "split"),
    packs=(True,),
    dtypes=tuple((q, kv) for q in ("bf16", "fp16") for kv in (q, "e4m3fn", "e5m2")),
    odd_rows=(),
    odd_columns=(),
    rules={"decode": _shape, "copies": _copies},
    supports={"descriptors": _views_exist, "few_rows": _few_rows, "first": _first},
    before=(),
    shared_memory=_shared_memory,
    resident=None,
    registers=_registers,
    pace=Pace(share=0.7, share_8_bit=0.7, serial=0.23, tile_us=3.5),
    algorithms=_algorithms,
    tuned=_tuned,
)  # fmt: skip
