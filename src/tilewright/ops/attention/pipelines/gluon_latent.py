"""`gluon_latent`: latent attention's decode, in Gluon, with specialised warps, on Hopper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.catalogue import q_strides
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.operands import strides_of
from tilewright.ops.attention.parts import KERNELS
from tilewright.ops.attention.pipelines import common
from tilewright.ops.attention.pipelines.record import Pace, Pipeline
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.binder import Box, Context, Described, Part, Value
from tilewright.ops.nouns import MAIN

DIMS = (576, 512)
ROWS, KEYS, HALF, COLUMNS = 64, 64, 32, 256
"""The kernel's own numbers: rows and keys of a tile, and each of two groups' keys and columns."""

MOST_ROWS = 512
"""Rows of a sequence up to which this is decoding: beyond, each block is read by more tiles than
share it in L2."""

_SMALL_BYTES = 2048
"""Shared memory beside the tiles: maxima, barriers, what the compiler hands to the warps."""


def _shared_memory(c: AttentionConfig, arch: Arch) -> int:
    elements = (c.tile_q + c.num_stages * c.tile_kv) * c.head_dim + c.tile_q * c.tile_kv
    return elements * DTYPES[c.dtype].bytes + _SMALL_BYTES


def _registers(c: AttentionConfig, arch: Arch) -> int:
    """Sums, scores, and weights of half the size."""
    return ROWS * (COLUMNS + HALF + HALF // 2) // (4 * arch.warp_size)


def _shape(c: AttentionConfig, arch: Arch) -> str | None:
    if "latent" not in c.words or (c.head_dim, c.head_dim_v) != DIMS:
        return "pipeline gluon_latent is for latent attention with head dims 576 and 512"
    if (c.tile_q, c.tile_kv, c.num_warps) != (ROWS, KEYS, 8):
        return f"pipeline gluon_latent has tiles of {ROWS}x{KEYS} and 8 warps"
    if c.split_len % KEYS:
        return f"split_len = {c.split_len} is no multiple of tile_kv = {KEYS}"
    return common.joins_late(c)


def _copies(c: AttentionConfig, arch: Arch) -> str | None:
    if c.alignment != 16:
        return "the copy engine needs an alignment of 16 bytes"
    if c.page_size % HALF:
        return f"pages of {c.page_size} rows are no multiple of {HALF}, the rows of one copy"
    return None


def _views_exist(c: AttentionConfig, p: AttentionProblem) -> str | None:
    shape, strides = _rows(p)
    if 0 in shape:
        return "k has no elements, so there is no descriptor of it"
    if strides[3] != 1 or q_strides(p)[3] != 1 or strides_of(p, "o")[3] != 1:
        return "elements of a row of q, k or o are apart"
    if any(size > 1 and not stride for size, stride in zip(shape, strides, strict=False)):
        return "k repeats rows (a stride of 0), which the copy engine does not read"
    return None


def _few_rows(c: AttentionConfig, p: AttentionProblem) -> str | None:
    if (rows := p.q_len * p.group) > MOST_ROWS:
        return f"{rows} rows of a sequence are over {MOST_ROWS}"
    return None


def _rows(p: AttentionProblem) -> tuple[tuple[int, int], tuple[int, ...]]:
    """(pages or sequences, rows) of K, and its strides."""
    if "packedkv" in p.words:
        shape = (1, p.total_kv)
    elif p.paged:
        shape = (p.pages, p.page_size)
    else:
        shape = (p.batch, p.kv_len)
    return shape, strides_of(p, "k")


def _boxes(c: AttentionConfig) -> Mapping[str, Box]:
    return {"k": (1, HALF, c.head_dim - c.head_dim_v), "v": (1, HALF, COLUMNS)}


def _views(c: AttentionConfig, p: AttentionProblem) -> Mapping[str, Described]:
    """Both of the same rows. A dimension of one element may have any stride: it gets one that the
    copy engine takes."""
    (outer, rows), strides = _rows(p)
    fit = [s if n > 1 else p.head_dim for n, s in zip((outer, rows), strides, strict=False)]
    one = Described((outer, rows, p.head_dim), (fit[0], fit[1], 1))
    return {"k": one, "v": one}


def _grid(x: Context) -> int:
    c, p = x.config, x.problem
    return common.q_tiles(c, p) * x.splits * int(p.batch)


def _options(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The compiler counts a third group, of which the producer is one warp; the kernel gives most
    of its registers to the others."""
    return ("num_warps", 4), ("maxnreg", 65536 // (32 * 12) // 8 * 8)


def _algorithms(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "tile_q": ROWS,
            "tile_kv": KEYS,
            "num_warps": 8,
            "num_stages": 2,
            "scheduler": scheduler,
            "pack": True,
        }
        for scheduler in ("tile", "split")
    ]


def _no_more(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return ()


GLUON_LATENT = Pipeline(
    name="gluon_latent",
    kernel=Part(
        name=MAIN,
        kernel=f"{KERNELS}.gluon_latent:attention_gluon_latent",
        grid=_grid,
        options=_options,
        boxes=_boxes,
        views=_views,
    ),
    sibling="basic",
    needs=("tma", "wgmma"),
    features=frozenset(
        {
            "latent", "lse", "sinks", "oscale", "packedq", "usedq", "packedkv", "usedkv",
            "pagetable", "pagelist", "append",
        }
    ),
    masks=("none", "causal"),
    schedulers=("tile", "split"),
    packs=(True,),
    dtypes=(("bf16", "bf16"), ("fp16", "fp16")),
    odd_rows=(),
    odd_columns=(),
    rules={"latent": _shape, "copies": _copies},
    supports={"descriptors": _views_exist, "few_rows": _few_rows},
    before=(),
    shared_memory=_shared_memory,
    resident=None,
    registers=_registers,
    pace=Pace(share=0.82, share_8_bit=0.82, serial=0.46),
    algorithms=_algorithms,
    tuned=_no_more,
)  # fmt: skip
