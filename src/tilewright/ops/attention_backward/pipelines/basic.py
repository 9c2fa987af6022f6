"""`basic`: from plain pointers, in Triton, on every architecture. dK with dV, and dQ, each have a
kernel whose workgroups own their sums, so results repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.pipelines.common import wide
from tilewright.ops.attention.rules import LEAST_TILE, MOST_TILE, OVERHEAD_REGISTERS
from tilewright.ops.attention_backward.arguments import OWN_LENGTHS
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.record import (
    Part,
    Pipeline,
    row_options,
    tile_options,
)
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem

SUMMED_ROWS = 32
"""Rows of a workgroup of `row_sums` and of `logarithms`; a constant of the kernels'."""

ORDERED_SEQUENCES = 32
"""Sequences of a workgroup of `sequences_by_length`; a constant of the kernel's."""

TILES: dict[str, tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...]] = {
    "async": (
        (64, ((64, 32, 4), (64, 32, 8), (128, 32, 8))),
        (128, ((64, 16, 8), (32, 32, 8), (32, 32, 4))),
        (256, ((32, 32, 8), (32, 16, 4), (16, 16, 4))),
    ),
    "sync": (
        (64, ((64, 32, 4), (64, 32, 8), (128, 32, 8))),
        (128, ((64, 32, 8), (32, 32, 4))),
        (256, ((32, 32, 8), (32, 16, 4))),
    ),
    "cdna": (
        (64, ((64, 32, 4), (64, 64, 4), (128, 32, 8))),
        (128, ((64, 32, 4), (32, 32, 4))),
        (256, ((32, 16, 8), (32, 16, 4), (16, 16, 4))),
    ),
    "rdna": (
        (64, ((64, 32, 8), (32, 32, 8), (32, 16, 4))),
        (128, ((32, 16, 8), (16, 16, 8))),
        (256, ((32, 16, 8), (16, 16, 8))),
    ),
    "vector": (
        (64, ((32, 32, 8), (32, 16, 4))),
        (128, ((32, 16, 8), (16, 16, 4))),
        (256, ((32, 16, 8), (16, 16, 8))),
    ),
    "rdna fp32": (
        (128, ((32, 16, 8), (16, 16, 8))),
        (256, ((16, 16, 8),)),
    ),
}
"""By how an architecture multiplies and up to a head dim: rows that a workgroup owns, rows of a
step, warps. None was timed. A head dim of fp32 counts twice. In bf16 under a causal mask none
spills. Which tiles do: docs/notes/attention_backward-basic.md."""

LEAST = ((16, 16, 4),)
"""For longer head dims."""


def _up(size: int, by: int) -> int:
    return -(-size // by)


def rolled(c: AttentionBackwardConfig, arch: Arch) -> bool:
    """Whether products along the head dim are loops (`kernels.steps.products_of`): on AMD's waves
    of 32, whose matrix instructions take whole rows of both operands from each wave's registers."""
    return arch.backend == "hip" and arch.warp_size == 32


def _multiplier(dtype: str, arch: Arch) -> str:
    """The key of `TILES`."""
    if arch.backend == "cuda":
        return "async" if arch.async_mma else "sync"
    if arch.warp_size == 64:
        return "cdna"
    if dtype == "fp32":
        return "rdna fp32"
    return "vector" if arch.dot == "vector" else "rdna"


_SHAPE = ("TILE", "STEP", "HEAD_DIM", "HEAD_DIM_V", "MASK", "SOFTCAP")
_LENGTHS = ("PACKEDQ", "PACKEDKV", "USEDQ", "USEDKV")
_SAID = ("left", "right", "first", "bottom_right", "softcap", "dropped", "scale", "seed", "offset")

LOGARITHMS = Part(
    name="logarithms",
    module="logarithms",
    makes=(),
    features=("bias",),
    grid=lambda c, p: _up(p.q_len, SUMMED_ROWS) * p.heads * p.batch,
    arguments=(
        "q", "k", "lse", "tops", "logs", "bias", "sinks", "q_offsets", "kv_offsets", "q_used",
        "kv_used", "q_strides", "k_strides", "bias_strides", "heads", "group", "q_len", "kv_len",
        "total_q", "total_kv", "left", "right", "first", "bottom_right", "softcap", "scale",
    ),
    constants=("HEAD_DIM", "MASK", "SOFTCAP", "SINKS", *_LENGTHS, "UNIT"),
    options=row_options,
    own_constants={"ROLLED": rolled},
)  # fmt: skip

PARTS = (
    Part(
        name="sequences_by_length",
        module="order",
        makes=("dq", "dk", "dv", "dslopes"),
        features=OWN_LENGTHS,
        grid=lambda c, p: _up(p.batch, ORDERED_SEQUENCES),
        arguments=(
            "order", "q_offsets", "kv_offsets", "q_used", "kv_used", "batch", "q_len", "kv_len",
            "total_q", "total_kv",
        ),
        constants=("TILE", *_LENGTHS),
        options=row_options,
    ),
    Part(
        name="row_sums",
        module="rows",
        makes=("dq", "dk", "dbias", "dsinks", "dslopes"),
        grid=lambda c, p: _up(p.q_len, SUMMED_ROWS) * p.heads * p.batch,
        arguments=(
            "q", "o", "do", "lse", "dlse", "delta", "q_offsets", "q_used", "o_strides",
            "do_strides", "heads", "q_len", "total_q",
        ),
        constants=("HEAD_DIM_V", "PACKEDQ", "USEDQ", "DLSE", "UNIT"),
        options=row_options,
    ),
    LOGARITHMS,
    Part(
        name="gradients_of_keys",
        module="keys_values",
        makes=("dk", "dv"),
        grid=lambda c, p: _up(p.kv_len, c.tile_rows) * p.kv_heads * p.batch,
        arguments=(
            "q", "k", "v", "do", "logs", "tops", "delta", "order", "dk", "dv", "bias", "slopes",
            "q_offsets", "kv_offsets", "q_used", "kv_used", "q_strides", "k_strides", "v_strides",
            "do_strides", "dk_strides", "dv_strides", "bias_strides", "batch", "heads", "kv_heads",
            "group",
            "q_len", "kv_len", "total_q", "total_kv", "slopes_stride", "accumulate", *_SAID,
        ),
        constants=(*_SHAPE, "BIAS", "ALIBI", "DROPOUT", *_LENGTHS, "DK", "DV", "UNIT", "BY_LENGTH"),
        options=tile_options,
        own_constants={"ROLLED": rolled},
    ),
    Part(
        name="gradients_of_queries",
        module="queries",
        makes=("dq", "dslopes"),
        grid=lambda c, p: _up(p.q_len, c.tile_rows) * p.heads * p.batch,
        arguments=(
            "q", "k", "v", "do", "logs", "tops", "delta", "order", "dq", "distances", "bias",
            "slopes", "q_offsets", "kv_offsets", "q_used", "kv_used", "q_strides", "k_strides",
            "v_strides", "do_strides", "dq_strides", "bias_strides", "batch", "heads", "group",
            "q_len", "kv_len", "total_q", "total_kv", "slopes_stride", "accumulate", *_SAID,
        ),
        constants=(
            *_SHAPE, "BIAS", "ALIBI", "DROPOUT", *_LENGTHS, "DQ", "DSLOPES", "UNIT", "BY_LENGTH",
        ),
        options=tile_options,
        own_constants={"ROLLED": rolled},
    ),
    Part(
        name="gradients_of_bias",
        module="bias",
        makes=("dbias",),
        grid=lambda c, p: (
            _up(p.q_len, c.tile_rows) * _up(p.kv_len, c.step_rows) * math.prod(p.bias_shape)
        ),
        arguments=(
            "q", "k", "v", "do", "logs", "tops", "delta", "dbias", "bias", "q_offsets",
            "kv_offsets", "q_used", "kv_used", "q_strides", "k_strides", "v_strides", "do_strides",
            "bias_strides", "bias_batch", "bias_heads", "batch", "heads", "group", "q_len",
            "kv_len", "total_q", "total_kv", "accumulate", *_SAID,
        ),
        constants=(*_SHAPE, "DROPOUT", *_LENGTHS, "UNIT"),
        options=tile_options,
        own_constants={"ROLLED": rolled},
    ),
    Part(
        name="row_totals",
        module="rows",
        makes=("dsinks", "dslopes"),
        grid=lambda c, p: p.heads * (p.batch if p.slopes_batched else 1),
        arguments=(
            "logs", "tops", "delta", "distances", "sinks", "dsinks", "dslopes", "q_offsets",
            "q_used", "batch", "heads", "q_len", "total_q", "slopes_stride", "accumulate",
        ),
        constants=("BIAS", "PACKEDQ", "USEDQ", "DSINKS", "DSLOPES"),
        options=row_options,
    ),
)  # fmt: skip


def _tile(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    for field, size in (("tile_rows", c.tile_rows), ("step_rows", c.step_rows)):
        if size & (size - 1) or not LEAST_TILE <= size <= MOST_TILE:
            return f"{field} = {size} is no power of two from {LEAST_TILE} to {MOST_TILE}"
    return None


def sums(c: AttentionBackwardConfig) -> int:
    """Elements of the sums that a workgroup holds, and of a tile of weights and their gradients."""
    of_keys = wide(c.head_dim) * ("dk" in c.words) + wide(c.head_dim_v) * ("dv" in c.words)
    of_queries = wide(c.head_dim) * ("dq" in c.words)
    return c.tile_rows * (max(of_keys, of_queries) + 2 * c.step_rows)


def _registers(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    need = sums(c) // (c.num_warps * arch.warp_size) + OVERHEAD_REGISTERS
    if need > arch.max_registers:
        return f"a thread needs about {need} registers, over {arch.max_registers}"
    return None


def _shared_memory(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    """What passes by, in stages: two tiles, of the step's rows."""
    row = (wide(c.head_dim) + wide(c.head_dim_v)) * DTYPES[c.dtype].bytes
    need = c.num_stages * c.step_rows * row
    if need > arch.shared_memory:
        return f"at least {need} bytes of shared memory, over {arch.shared_memory}"
    return None


def _algorithms(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    size = max(p.head_dim, p.head_dim_v) * (2 if p.dtype == "fp32" else 1)
    known = TILES[_multiplier(p.dtype, arch)]
    tiles = next((found for most, found in known if size <= most), LEAST)
    return [_fields(*tile, 1) for tile in tiles]


def _tuned(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    if arch.backend != "cuda":
        return ()
    return [{**one, "num_stages": 2} for one in _algorithms(p, arch)]


def _fields(tile_rows: int, step_rows: int, num_warps: int, num_stages: int) -> dict[str, Any]:
    return {
        "tile_rows": tile_rows,
        "step_rows": step_rows,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _ordered(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    return "no two workgroups of pipeline basic add to the same sum" if c.ordered else None


BASIC = Pipeline(
    name="basic",
    parts=PARTS,
    needs=(),
    rules={
        "ordered": _ordered,
        "tile": _tile,
        "registers": _registers,
        "shared_memory": _shared_memory,
    },
    supports={},
    temporaries=lambda c, p: (),
    repeats=lambda c: True,
    algorithms=_algorithms,
    tuned=_tuned,
)
