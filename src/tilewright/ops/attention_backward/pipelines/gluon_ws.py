"""`gluon_ws`: in one pass on Hopper, in Gluon, with the warps' roles written out. dK and dV stay in
registers; the copy engine adds dQ up in fp32.

What slopes gain is summed up by `basic`'s kernel for queries, which computes two of its three
products for it: the pass itself has no registers for sums of distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.catalogue import having
from tilewright.ops.attention.operands import bias_of, dense
from tilewright.ops.attention.pipelines.gluon_ws import (
    ANY_STRIDE,
    CHUNK,
    ROWS,
    WARPGROUP,
    bias_copied,
)
from tilewright.ops.attention_backward.catalogue import BLOCK, GROUPS, scores, sums_width, terms
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.basic import LOGARITHMS, mask_blocks
from tilewright.ops.attention_backward.pipelines.basic import PARTS as BASIC_PARTS
from tilewright.ops.attention_backward.pipelines.record import KERNELS, Pace, Pipeline, row_options
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.binder import Box, Context, Described, Part, Value

STAGES = 2
"""Slots for blocks of queries."""

MOST_DIM = 128

SPECIALISATION_BYTES = 1024
"""Shared memory beside the tiles: barriers, and what the compiler hands to the warps."""

MOST_REGISTERS = 216
"""Registers of a thread for sums and tiles of scores: the others are for addresses and the mask.
Known from FlashAttention-4's search for sm_90 (`sm90_config_search.py`)."""

FEATURES = frozenset(
    {"softcap", "alibi", "sinks", "packedq", "packedkv", "usedq", "usedkv", "dlse",
     "dq", "dk", "dv", "dsinks", "dslopes", "ordered"}
)  # fmt: skip

BIAS_ROWS, BIAS_COLUMNS = 8, 256
"""Tile of a workgroup of `bias_sums`."""

MOST_SCORES = 2**34
"""Bytes of memory that gradients of scores may take on their way to the bias's."""

SUMS_BOX = (128, 32)
"""A tile of dQ's sums, 64×64, in the order in which threads hold it."""

MATRICES = {"bias": "bias", "ds": "dbias"}
"""Descriptors of a number for each score, by the words for which there are any."""

TERM_ROWS = 32
"""Rows of a workgroup of `row_terms`; a constant of the kernel's."""


def _up(size: int, by: int) -> int:
    return -(-size // by)


def columns(dim: int) -> int:
    """Columns of a tile that are computed; those beyond the head dim are zeros."""
    return max(CHUNK, 1 << (dim - 1).bit_length())


def registers(c: AttentionBackwardConfig) -> int:
    """Registers of a thread: sums of dK and dV, and two tiles of scores or one of dQ, in fp32."""
    of_dq = c.step_rows * sums_width(c) // GROUPS
    scores = 2 * ROWS * c.step_rows
    sums = ROWS * (sums_width(c) + columns(c.head_dim_v))
    return (max(scores, of_dq) + sums) // (32 * WARPGROUP)


def _tiles(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if c.num_warps != GROUPS * WARPGROUP or c.tile_rows != GROUPS * ROWS:
        return (
            f"pipeline gluon_ws multiplies with {GROUPS * WARPGROUP} warps and has tiles of "
            f"{GROUPS * ROWS} keys, not {c.num_warps} and {c.tile_rows}"
        )
    if c.num_stages != STAGES:
        return f"pipeline gluon_ws has {STAGES} stages, not {c.num_stages}"
    if c.step_rows not in (ROWS, 2 * ROWS) or sums_width(c) < columns(c.head_dim):
        return f"{GROUPS} groups do not share a tile of dQ of {c.step_rows}x{columns(c.head_dim)}"
    return None


def _dims(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    for field in ("head_dim", "head_dim_v"):
        size = getattr(c, field)
        if size > MOST_DIM:
            return f"{field} = {size} is over {MOST_DIM}"
        if size % 8:
            return f"{field} = {size} is no multiple of 8, the elements of 16 bytes"
    return None


def words(c: AttentionBackwardConfig, arch: Arch, known: frozenset[str] = FEATURES) -> str | None:
    for word in sorted(c.words - known):
        return f"pipeline {c.pipeline} does not know {word}"
    if not c.words >= {"dq", "dk", "dv"}:
        return f"pipeline {c.pipeline} computes dq, dk and dv together"
    return None


def _words(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if c.words >= {"softcap", "dbias"}:
        return "pipeline gluon_ws stores gradients of scores before a soft cap, not behind it"
    if c.words >= {"blocks", "ordered"}:
        return "turns of tiles are counted without masks of blocks"
    return words(c, arch, FEATURES | {"bias", "dbias", "blocks"})


def dtypes(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if c.dtype not in ("bf16", "fp16") or c.dtype_o != c.dtype:
        return f"pipeline {c.pipeline} multiplies bf16 or fp16 by dO of its type, not {c.dtype_o}"
    return None


def copies(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    return None if c.alignment == 16 else "the copy engine needs an alignment of 16 bytes"


def _registers(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if (need := registers(c)) > MOST_REGISTERS:
        return f"a thread needs about {need} registers, over {MOST_REGISTERS}"
    return None


def _shared_memory(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    width = sums_width(c) + columns(c.head_dim_v)
    rows = c.tile_rows + c.num_stages * c.step_rows
    size = DTYPES[c.dtype].bytes
    need = rows * width * size  # K, V; Q, dO
    need += 2 * c.tile_rows * c.step_rows * size  # gradients of scores, twice
    need += c.step_rows * sums_width(c) * 4  # dQ
    need += c.num_stages * c.step_rows * 8 + SPECIALISATION_BYTES
    if "bias" in c.words:
        need += c.tile_rows * c.step_rows * size
    if need > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


def views_exist(c: AttentionBackwardConfig, p: AttentionBackwardProblem) -> str | None:
    for name in ("q", "k", "v", "do"):
        shape, strides = _rows(p, name)
        if 0 in shape:
            return f"{name} has no elements, so there is no descriptor of it"
        if strides[3] != 1:
            return f"elements of a row of {name} are {strides[3]} apart; the copy engine needs 1"
        if any(size > 1 and not stride for size, stride in zip(shape, strides, strict=True)):
            return f"{name} repeats rows (a stride of 0), which the copy engine does not read"
    if (rows := terms(p)) >= 2**31:
        return f"{rows} rows are more than a descriptor has places for"
    return None


def _bias(c: AttentionBackwardConfig, p: AttentionBackwardProblem) -> str | None:
    size = DTYPES[p.dtype].bytes
    if (reason := bias_copied(p)) is not None:
        return reason
    if "dbias" in p.computed and p.kv_len * size % 16:
        return f"rows of dbias are {p.kv_len * size} bytes, no multiple of the copy engine's 16"
    if "dbias" in p.computed and (need := math.prod(scores(p)) * size) > MOST_SCORES:
        return f"gradients of scores take {need} bytes of memory, over {MOST_SCORES}"
    return None


def _rows(p: AttentionBackwardProblem, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand as (sequence, row, head, dim); packed rows are one
    sequence's."""
    of_q = name in ("q", "do")
    packed = ("packedq" if of_q else "packedkv") in p.words
    heads = p.heads if of_q else p.kv_heads
    dim = p.head_dim if name in ("q", "k") else p.head_dim_v
    rows = (p.total_q if of_q else p.total_kv) if packed else (p.q_len if of_q else p.kv_len)
    return (1 if packed else p.batch, rows, heads, dim), p.strides_of(name)


def _boxes(c: AttentionBackwardConfig) -> Mapping[str, Box]:
    return {
        "q": (1, 1, c.step_rows, sums_width(c)),
        "k": (1, 1, ROWS, sums_width(c)),
        "v": (1, 1, ROWS, columns(c.head_dim_v)),
        "do": (1, 1, c.step_rows, columns(c.head_dim_v)),
        "log_sums": (c.step_rows,),
        "deltas": (c.step_rows,),
        "dq_sums": SUMS_BOX,
        **({"row_tops": (c.step_rows,)} if "bias" in c.words else {}),
        **{name: (1, 1, c.step_rows, ROWS) for name in MATRICES if MATRICES[name] in c.words},
    }


def views(c: AttentionBackwardConfig, p: AttentionBackwardProblem) -> Mapping[str, Described]:
    """(sequence, head, row, dim); of rows' terms (row); of dQ's sums all tiles, one behind the
    other. A dimension of one element may have any stride: it gets one that the copy engine
    takes."""
    found: dict[str, Described] = {}
    for name in ("q", "k", "v", "do"):
        (b, row, h, dim), strides = _rows(p, name)
        fit = [s if n > 1 else ANY_STRIDE for n, s in zip((b, row, h, dim), strides, strict=True)]
        found[name] = Described((b, h, row, dim), (fit[0], fit[2], fit[1], 1))
    for name in ("log_sums", "deltas", *(("row_tops",) if "bias" in c.words else ())):
        found[name] = Described((terms(p),), (1,))
    width = SUMS_BOX[1]
    rows = terms(p) * sums_width(c) // width
    found["dq_sums"] = Described((rows, width), (width, 1))
    for name, word in MATRICES.items():
        if word in c.words:
            shape, strides = (scores(p), dense(scores(p))) if name == "ds" else bias_of(p)
            fit = [s if n > 1 else ANY_STRIDE for n, s in zip(shape[:3], strides[:3], strict=True)]
            found[name] = Described(shape, (*fit, 1))
    return found


def _grid(x: Context) -> int:
    """Tiles of keys. Of packed sequences, as many as there can be: lengths lie on the device."""
    c, p = x.config, x.problem
    if "packedkv" in p.words:
        return int((p.total_kv // c.tile_rows + p.batch) * p.kv_heads)
    return _up(p.kv_len, c.tile_rows) * int(p.kv_heads * p.batch)


def options(c: AttentionBackwardConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The kernel has one more group than multiplies, for the warps that copy, with its worth of
    registers; most of these go to the others."""
    each = 65536 // (32 * (c.num_warps + WARPGROUP)) // 8 * 8
    return ("num_warps", WARPGROUP), ("maxnreg", min(each, 255))


def _algorithms(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    # Of 128 queries, sums of dV of 128 columns would leave too few registers.
    most = columns(max(p.head_dim, p.head_dim_v))
    if most > MOST_DIM:
        return []
    fields: dict[str, Any] = {
        "tile_rows": GROUPS * ROWS,
        "step_rows": BLOCK // most,
        "num_warps": GROUPS * WARPGROUP,
        "num_stages": STAGES,
    }
    return [fields | {"ordered": said} for said in (False, True)]


def _bias_tiles(x: Context) -> int:
    p = x.problem
    tiles = _up(p.q_len, BIAS_ROWS) * _up(p.kv_len, BIAS_COLUMNS)
    return tiles * int(math.prod(p.bias_shape))


_BASIC = {part.name: part for part in BASIC_PARTS}

GLUON_WS = Pipeline(
    name="gluon_ws",
    parts=(
        _BASIC["sequences_by_length"],
        replace(_BASIC["row_sums"], there=having("dsinks", "dslopes")),
        LOGARITHMS,
        Part(
            name="row_terms",
            kernel=f"{KERNELS}.around:row_terms",
            grid=lambda x: terms(x.problem) // TERM_ROWS,
            options=row_options,
        ),
        _BASIC["list_queries"],
        Part(
            name="gradients_gluon_ws",
            kernel=f"{KERNELS}.gluon_ws:gradients_gluon_ws",
            grid=_grid,
            options=options,
            boxes=_boxes,
            views=views,
        ),
        Part(
            name="queries_of_sums",
            kernel=f"{KERNELS}.around:queries_of_sums",
            grid=lambda x: terms(x.problem) // ROWS,
            options=row_options,
        ),
        replace(
            _BASIC["list_blocks"],
            there=lambda c: having("blocks")(c) and having("dslopes")(c),
        ),
        replace(
            _BASIC["gradients_of_queries"],
            there=having("dslopes"),
            own={"DQ": lambda c, _: False},
        ),
        _BASIC["row_totals"],
        Part(
            name="bias_sums",
            kernel=f"{KERNELS}.bias_sums:bias_sums",
            there=having("dbias"),
            grid=_bias_tiles,
            options=row_options,
            own={
                "ROWS": lambda c, arch: BIAS_ROWS, "COLUMNS": lambda c, arch: BIAS_COLUMNS,
            },
        ),
    ),
    needs=("tma", "wgmma"),
    rules={
        "words": _words,
        "dtypes": dtypes,
        "head_dim": _dims,
        "copies": copies,
        "tile": _tiles,
        "registers": _registers,
        "shared_memory": _shared_memory,
    },
    supports={"descriptors": views_exist, "bias": _bias, "mask_blocks": mask_blocks},
    pace=Pace(one_pass=True, share=0.55, ordered=1.0),
    repeats=lambda c: c.ordered,
    algorithms=_algorithms,
    tuned=lambda p, arch: (),
)  # fmt: skip
