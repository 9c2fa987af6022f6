"""Pipeline ``implicit``: an implicit GEMM on the matrix units, through pointers, for every
architecture (kernels/gather.py, weights.py). Its spaces have tiles of one group, of several groups
of few channels, and of runs (`implicit_rows`).

Of its estimate, only what gathering few channels takes and what gradients of the data take were
fitted (`GATHERED_INSTRUCTIONS`, `DATA_FACTOR`).
"""

from __future__ import annotations

import math

from tilewright.arch import arch as arch_called
from tilewright.arch import peak_tflops
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv import runs, sharing
from tilewright.ops.conv.catalogue import SUM, SUMS, channels_in, channels_out, read
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, implicit_rows, pointers
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate

# --- kernels ------------------------------------------------------------------------------------


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    if p.direction == "weights":
        return _weight_tiles(c, p)
    columns = cdiv(channels_out(p) * c.merged_groups, c.tile_n)
    return cdiv(p.walked_pixels, c.tile_m) * columns * cdiv(p.groups, c.merged_groups) * p.classes


def _weight_tiles(c: ConvConfig, p: ConvProblem) -> int:
    channels, filters = p.group_c * c.merged_groups, p.group_k * c.merged_groups
    if c.runs:
        columns = cdiv(p.taps // p.filter[-1] * runs.sizes(p, c.alignment)[0], c.tile_n)
    elif c.merged:
        columns = cdiv(p.taps * channels, c.tile_n)
    else:
        columns = p.taps * cdiv(channels, c.tile_n)
    return cdiv(filters, c.tile_m) * columns * cdiv(p.groups, c.merged_groups)


_RUNS = Numbers(
    lambda c: ("i32",) * 5 if c.runs else (),
    lambda x: runs.sizes(x.problem, x.config.alignment) if x.config.runs else (),
    multiples=lambda c: (*(read(c),) * 4, 1) if c.runs else 1,
)
"""Elements of a run with those before its first tap, from the first run of a row to the next, from
the row's begin to the first, and of a row; and of those before a run's first tap."""

_OWN: Catalogue = {"runs": _RUNS, "BUNDLE": lambda c, _: c.merged_groups}

_GATHER = pointers.kernel("gather", "conv_gather", own=_OWN)
_WEIGHTS = pointers.kernel(
    "weights",
    "conv_weights",
    own={
        **_OWN,
        **SUMS,
        # How stores are waited for before workgroups meet.
        "DONE": lambda c, arch: arch.stores_done if c.parts_meet else "",
    },
)

# --- how long they take -------------------------------------------------------------------------

SHARE = 0.6
"""Share of the published matrix rate that products reach: a guess, under that of GEMM's kernel
through pointers (`DEVICE.BASIC`), as every step finds its pixels anew."""

DATA_FACTOR = 1.4
"""What gradients of the data on the matrix units take of the time that their terms say: fitted to
2,200 kernels for the layers of benchmarks/results/conv_tuned_h200.json. In the other directions a
factor ranks no better."""

EDGE = 32
"""Rows of a warp's part of a tile."""

GATHERED = 4.0
"""Factor on the time of a load where elements are read one by one."""

GATHERED_INSTRUCTIONS, FINISHED_INSTRUCTIONS = 70, 50
"""Instructions of a lane for each load of a merged step, whose place is found by divisions, with
its share of waiting, and for each sum of the result that is stored. Fitted to 16 kernels for two
stems on an H200 (docs/notes/conv-gather.md)."""

SECTOR = 32
"""Bytes that a memory moves at least: of a group's channels alone, fewer may be wanted."""


def _estimate(x: Context) -> Estimate:
    c, p, device, this = x.config, x.problem, x.device, arch_called(x.device.arch)
    size, steps = DTYPES[c.dtype].bytes, _steps(c, p, sharing.parts(x))
    of_pixels, others = (
        (c.tile_m + c.tile_n, 0) if c.direction == "weights" else (c.tile_m, c.tile_n)
    )
    work = pointers.Work(
        steps=steps,
        read=(of_pixels * _sectors(c, p) + others) * c.tile_k * size,
        slower=_slower(c),
        shared=_shared_bytes(c),
        products=_products(c, this, device),
        gathered=_gathered(c, p, steps, device) if c.merged and p.groups == 1 else 0.0,
        factor=DATA_FACTOR if c.direction == "data" else 1.0,
    )
    return pointers.estimate(x, work, c.tile_m * c.tile_n, pointers.shared_memory(c, this))


def _steps(c: ConvConfig, p: ConvProblem, splits: int) -> float:
    if c.direction == "weights":
        return max(1.0, p.n * math.prod(p.out_sizes) / c.tile_k / splits)
    taps = p.taps / math.prod(p.stride) if c.direction == "data" else p.taps
    channels = channels_in(p) * c.merged_groups
    return max(1.0, taps * (channels / c.tile_k if c.merged else cdiv(channels, c.tile_k)))


def _slower(c: ConvConfig) -> float:
    """Factor on the time of loads where elements are read one by one, or a few at once."""
    if c.alignment >= 16:
        return 1.0
    # Of runs, y is read in whole vectors.
    narrow = c.tile_n / (c.tile_m + c.tile_n) if c.runs and c.direction == "weights" else 1.0
    return float(1 + narrow * (min(GATHERED, 16 / c.alignment) - 1))


def _sectors(c: ConvConfig, p: ConvProblem) -> float:
    """Bytes that memory moves for each byte of a pixel's channels that a tile reads."""
    if p.groups == 1:
        return 1.0
    channels = min(p.group_c, p.group_k) if c.direction == "weights" else channels_in(p)
    return max(1.0, SECTOR / max(1, channels * c.merged_groups * DTYPES[c.dtype].bytes))


def _shared_bytes(c: ConvConfig) -> float:
    """Bytes that the warps of a workgroup read from shared memory in a step: each those of its part
    of the tile, of `EDGE` rows or more."""
    down = min(c.num_warps, max(1, c.tile_m // EDGE))
    across = max(1, c.num_warps // down)
    return float((c.tile_m * across + c.tile_n * down) * c.tile_k * DTYPES[c.dtype].bytes)


def _products(c: ConvConfig, this: Arch, device: Device) -> float:
    """Microseconds that a step's products take on a compute unit."""
    count = c.tile_m * c.tile_n * c.tile_k
    if common.on_vectors(c, this):
        return common.lanes_us(count, device)
    word = "tf32" if c.precision == "tf32" else c.dtype
    return 2 * count / (peak_tflops(this, device, word) * 1e6 / device.compute_units * SHARE)


def _gathered(c: ConvConfig, p: ConvProblem, steps: float, device: Device) -> float:
    """Microseconds in which a compute unit gathers the operands of merged steps, and stores a tile
    of the result."""
    size = DTYPES[c.dtype].bytes
    first, second = c.tile_m * c.tile_k * size, c.tile_n * c.tile_k * size
    width = max(c.alignment, size)
    finished = c.tile_m * c.tile_n * FINISHED_INSTRUCTIONS
    if c.direction == "weights":
        loads = first / (runs.READ if c.runs else width) + second / width
        finished = 0
    else:
        loads = (first + second) / width
    if c.direction == "forward":
        row = runs.sizes(p, c.alignment)[0] if c.runs else p.filter[-1] * p.c
        steps = cdiv(p.taps // p.filter[-1] * row, c.tile_k)
    return common.lanes_us(steps * loads * GATHERED_INSTRUCTIONS + finished, device)


IMPLICIT = Pipeline(
    name="implicit",
    parts=pointers.either(_GATHER, _WEIGHTS),
    totals=SUM,
    words=frozenset({"merges_groups"}),
    objection=pointers.objection,
    tile=common.least_of_8_bits,
    shared_memory=pointers.shared_memory,
    alignments=common.implicit_alignments,
    tiles=_tiles,
    steps=common.steps_of_pixels,
    splits=pointers.filling(_tiles),
    rows=implicit_rows.rows,
    estimate=_estimate,
)
