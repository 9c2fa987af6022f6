"""`basic`: from plain pointers, in Triton, on every architecture. dK with dV, and dQ, each have a
kernel whose workgroups own their sums, so results repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.catalogue import having
from tilewright.ops.attention.parts import LIST_BLOCKS
from tilewright.ops.attention.pipelines.common import wide
from tilewright.ops.attention.rules import LEAST_TILE, MOST_TILE, OVERHEAD_REGISTERS
from tilewright.ops.attention_backward.catalogue import OWN_LENGTHS
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.record import (
    KERNELS,
    Pace,
    Pipeline,
    row_options,
    tile_options,
)
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.binder import Context, Part

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


def _multiplier(dtype: str, arch: Arch) -> str:
    """The key of `TILES`."""
    if arch.backend == "cuda":
        return "async" if arch.async_mma else "sync"
    if arch.warp_size == 64:
        return "cdna"
    if dtype == "fp32":
        return "rdna fp32"
    return "vector" if arch.dot == "vector" else "rdna"


def _by_summed_rows(x: Context) -> int:
    return _up(x.problem.q_len, SUMMED_ROWS) * int(x.problem.heads * x.problem.batch)


def _by_keys(x: Context) -> int:
    return _up(x.problem.kv_len, x.config.tile_rows) * int(x.problem.kv_heads * x.problem.batch)


def _by_queries(x: Context) -> int:
    return _up(x.problem.q_len, x.config.tile_rows) * int(x.problem.heads * x.problem.batch)


def _by_columns(x: Context) -> int:
    """Columns of the mask of blocks, of all sequences."""
    p = x.problem
    return int(p.batch * p.blocks_shape[1] * p.block_counts[1])


def _by_biases(x: Context) -> int:
    c, p = x.config, x.problem
    tiles = _up(p.q_len, c.tile_rows) * _up(p.kv_len, c.step_rows)
    return tiles * int(math.prod(p.bias_shape))


LOGARITHMS = Part(
    name="logarithms",
    kernel=f"{KERNELS}.logarithms:logarithms",
    there=having("bias"),
    grid=_by_summed_rows,
    options=row_options,
)  # fmt: skip

PARTS = (
    Part(
        name="sequences_by_length",
        kernel=f"{KERNELS}.order:sequences_by_length",
        there=lambda c: having("dq", "dk", "dv", "dslopes")(c) and having(*OWN_LENGTHS)(c),
        grid=lambda x: _up(x.problem.batch, ORDERED_SEQUENCES),
        options=row_options,
    ),
    Part(
        name="row_sums",
        kernel=f"{KERNELS}.rows:row_sums",
        there=having("dq", "dk", "dbias", "dsinks", "dslopes"),
        grid=_by_summed_rows,
        options=row_options,
    ),
    LOGARITHMS,
    Part(
        name="list_queries",
        kernel=f"{KERNELS}.blocks:list_queries",
        there=lambda c: having("blocks")(c) and having("dk", "dv")(c),
        grid=_by_columns,
        options=lambda c, arch: (("num_warps", 4), ("num_stages", 1)),
    ),
    Part(
        name="gradients_of_keys",
        kernel=f"{KERNELS}.keys_values:gradients_of_keys",
        there=having("dk", "dv"),
        grid=_by_keys,
        options=tile_options,
    ),
    replace(
        LIST_BLOCKS,
        there=lambda c: having("blocks")(c) and having("dq", "dslopes")(c),
        own={"PAGE": lambda c, arch: 0},
    ),
    Part(
        name="gradients_of_queries",
        kernel=f"{KERNELS}.queries:gradients_of_queries",
        there=having("dq", "dslopes"),
        grid=_by_queries,
        options=tile_options,
    ),
    Part(
        name="gradients_of_bias",
        kernel=f"{KERNELS}.bias:gradients_of_bias",
        there=having("dbias"),
        grid=_by_biases,
        options=tile_options,
    ),
    Part(
        name="row_totals",
        kernel=f"{KERNELS}.rows:row_totals",
        there=having("dsinks", "dslopes"),
        grid=lambda x: x.problem.heads * (x.problem.batch if x.problem.slopes_batched else 1),
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


def tiles_of(dtype: str, most: int, arch: Arch) -> tuple[tuple[int, int, int], ...]:
    """The tiles for head dims of at most `most`."""
    size = most * (2 if dtype == "fp32" else 1)
    return next((found for up_to, found in TILES[_multiplier(dtype, arch)] if size <= up_to), LEAST)


def _algorithms(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    tiles = tiles_of(p.dtype, max(p.head_dim, p.head_dim_v), arch)
    if p.block_size:  # tiles and steps lie within blocks
        found = ((math.gcd(t, p.block_size), math.gcd(s, p.block_size), w) for t, s, w in tiles)
        tiles = tuple(dict.fromkeys(found))
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


def mask_blocks(c: AttentionBackwardConfig, p: AttentionBackwardProblem) -> str | None:
    """A tile has one row or column of the mask of blocks, and a step one block of it."""
    if p.block_size and (p.block_size % c.tile_rows or p.block_size % c.step_rows):
        return f"blocks of {p.block_size} rows are no multiple of tiles {c.tile_rows}x{c.step_rows}"
    return None


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
    supports={"mask_blocks": mask_blocks},
    # A guess, somewhat under the forward kernel's: each step waits for two products.
    pace=Pace(one_pass=False, share=0.45, ordered=1.0),
    repeats=lambda c: True,
    algorithms=_algorithms,
    tuned=_tuned,
)
