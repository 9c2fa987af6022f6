"""Pipeline ``implicit``: an implicit GEMM on the matrix units, through pointers, for every
architecture (kernels/gather.py, weights.py). Its spaces have tiles of one group, of several groups
of few channels, and of runs.

Figures of its estimate were fitted: the instructions that loads and the places of pixels take
(`GATHERED_INSTRUCTIONS`, `LOAD_INSTRUCTIONS`, `PLACE_INSTRUCTIONS`), and the factor on gradients of
the data (`DATA_FACTOR`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv import runs, sharing
from tilewright.ops.conv.catalogue import (
    SUM,
    SUMS,
    channels_in,
    channels_out,
    integer,
    outer,
    pointer,
    read,
    strides_of,
    written,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Columns, Each, each, either, least, most
from tilewright.ops.powers import power_of_two

# --- kernels ------------------------------------------------------------------------------------


@lru_cache(maxsize=64)  # of each problem for the rules and for the estimate
def _tiles(c: Any, p: ConvProblem) -> Each:
    if p.direction == "weights":
        return _weight_tiles(c, p)
    columns = cdiv(channels_out(p) * c.merged_groups, c.tile_n)
    return cdiv(p.walked_pixels, c.tile_m) * columns * cdiv(p.groups, c.merged_groups) * p.classes


def _weight_tiles(c: Any, p: ConvProblem) -> Each:
    channels, filters = p.group_c * c.merged_groups, p.group_k * c.merged_groups
    of_runs = p.taps // p.filter[-1] * runs.sizes(p, c.alignment)[0]
    several = cdiv(either(c.runs, of_runs, p.taps * channels), c.tile_n)
    columns = either(c.merged | c.runs, several, p.taps * cdiv(channels, c.tile_n))
    return cdiv(filters, c.tile_m) * columns * cdiv(p.groups, c.merged_groups)


_RUNS = Numbers(
    lambda c: ("i32",) * 5 if c.runs else (),
    lambda x: runs.sizes(x.problem, x.config.alignment) if x.config.runs else (),
    multiples=lambda c: (*(read(c),) * 4, 1) if c.runs else 1,
)
"""Elements of a run with those before its first tap, from the first run of a row to the next, from
the row's begin to the first, and of a row; and of those before a run's first tap."""


def of_weights(of: ConvConfig | ConvProblem, read: int, made: int) -> int:
    """Bytes that weights are aligned to where what is read is to `read`, and what is made to
    `made`. In the gradient of the data, rows of weights are of the channels that are made: of a
    stem's three, pixels are still read in vectors."""
    same = DTYPES[of.dtype].bytes == DTYPES[of.dtype_out].bytes
    return min(read, made) if of.direction == "data" and same and made > 1 else read


def aligned_weights(c: ConvConfig) -> int:
    """Bytes that a config's weights are aligned to; rows of runs are of any length."""
    return 1 if c.runs else of_weights(c, c.alignment, c.alignment_out)


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of what is read and made. Weights may have one of their own, and each
    group's channels are read and stored alone, also those of depthwise filters."""
    first, second, made = (
        math.gcd(p.rows_alignment(name), DTYPES[p.dtype_of(name)].bytes)
        if p.depthwise
        else p.rows_alignment(name)
        for name in DIRECTIONS[p.direction]
    )
    if second > 1 and of_weights(p, first, made) <= second:
        return first, made
    return min(first, second), made


def _elements(c: ConvConfig) -> int:
    return max(1, aligned_weights(c) // DTYPES[c.dtype].bytes)


def _made_channels(c: ConvConfig) -> int:
    """Weights have c innermost, which the data's gradient makes."""
    return max(written(c), _elements(c) if c.direction == "data" else 1)


_OWN: Catalogue = {
    "weights": pointer(lambda _: "w", aligned_weights),
    "weight_strides": strides_of(lambda _: "w", lambda c: outer(_elements(c))),
    "channels_out": integer(channels_out, _made_channels),
    "runs": _RUNS,
    "BUNDLE": lambda c, _: c.merged_groups,
}

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

# --- spaces -------------------------------------------------------------------------------------

FEW = 32
"""Channels of a group up to which steps of several taps are in the default space."""

COPIED = 4
"""Least bytes of an asynchronous copy on NVIDIA GPUs; fewer pass through registers."""

LEAST_STEP_BYTES = 32
"""Least bytes of a step's products, for matrix instructions of 8-bit operands."""

Tile = tuple[int, int, int, int]
"""tile_m, tile_n, bytes of tile_k, warps."""

_TILES: dict[str, tuple[Tile, ...]] = {
    "cuda": ((128, 128, 128, 8), (128, 64, 128, 4), (64, 128, 128, 4), (64, 64, 128, 4),
             (128, 32, 128, 4), (64, 32, 128, 4), (128, 16, 128, 4)),
    "hip": ((128, 128, 64, 8), (128, 64, 64, 4), (64, 128, 64, 4), (64, 64, 64, 4),
            (128, 32, 64, 4), (64, 32, 64, 4), (64, 16, 64, 4)),
    "single": ((128, 64, 64, 8), (64, 128, 128, 8), (64, 64, 128, 8), (128, 32, 128, 8),
               (64, 32, 128, 4), (128, 16, 128, 8)),
    "merged": ((128, 64, 64, 8), (128, 32, 64, 8), (64, 64, 64, 4), (64, 32, 64, 4),
               (128, 16, 64, 8), (64, 16, 64, 4)),
    "vector": ((64, 64, 32, 8), (64, 32, 32, 4), (32, 32, 32, 4), (64, 16, 32, 4)),
}  # fmt: skip
"""By the GPU's maker; ``single`` for cuda where channels are aligned to fewer bytes than `COPIED`,
so that elements move one by one (most of the other tiles spill then: docs/notes/conv-gather.md);
``merged`` where a step's products are of several taps, whose loads of one element pass through
registers; ``vector`` where fp32 has no matrix instruction."""

_SIDES, _DEPTHS, _WARPS, _STAGES = (32, 64, 128, 256), (64, 128), (4, 8), (1, 2, 3, 4)
"""A tuning's rows and columns of a tile (columns also 16), bytes of a step, warps, stages."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Rows of the default space, or of a tuning's."""
    yield from _tuned(p, arch) if tuned else _default(p, arch)
    yield from _of_groups(p, arch, tuned)
    yield from _of_runs(p, arch)


# --- spaces: tiles of one group -------------------------------------------------------------------


def _default(p: ConvProblem, arch: Arch) -> Iterator[Row]:
    if p.depthwise and p.precision == "ieee":
        return  # nothing for matrix units
    word = "tf32" if p.precision == "tf32" else p.dtype
    on_vectors = arch.dot == "vector" or getattr(arch.dtypes.get(word), "via", "") == "fma"
    few = p.group_k if p.direction == "data" else p.group_c
    merged = (False, True) if few <= FEW else (False,)
    if few <= FEW // 4:
        merged = (True,)
    single = min(alignments(p)) < COPIED
    for form, scheduler in itertools.product(merged, pointers.schedulers(p)):
        usual = "single" if arch.backend == "cuda" and single else arch.backend
        tiles = _TILES["vector" if on_vectors else "merged" if form else usual]
        stages = 1 if on_vectors or arch.backend == "hip" else 2 if form else 3
        for m, n, k, warps in tiles:
            if n <= max(16, power_of_two(_columns(p, form))):
                depth = max(16, k // DTYPES[p.dtype].bytes)
                if not form and p.direction != "weights":
                    depth = min(depth, _whole_step(p, few))
                yield (m, n, depth, warps, stages, "implicit", scheduler, 8, form, *alignments(p))


def _whole_step(p: ConvProblem, channels: int) -> int:
    """Channels of the least step that holds so many."""
    return max(16, LEAST_STEP_BYTES // DTYPES[p.dtype].bytes, power_of_two(channels))


def _columns(p: ConvProblem, merged: bool) -> int:
    """Columns that tiles are cut from."""
    if p.direction == "weights":
        return p.group_c * (p.taps if merged else 1)
    return p.group_c if p.direction == "data" else p.group_k


def _tuned(p: ConvProblem, arch: Arch) -> Iterator[Row]:
    stages = [n for n in _STAGES if n in arch.num_stages]
    for m, n, k, warps, count, form, scheduler in itertools.product(
        _SIDES, (16, *_SIDES), _DEPTHS, _WARPS, stages, (False, True), pointers.schedulers(p)
    ):
        depth = max(16, k // DTYPES[p.dtype].bytes)
        yield (m, n, depth, warps, count, "implicit", scheduler, 8, form, *alignments(p))


# --- spaces: several groups of few channels -------------------------------------------------------

MOST_CHANNELS = 32
"""Channels, or filters, of a group up to which groups are merged."""

_WIDTHS, _MORE_WIDTHS = (32, 64), (16, 32, 64, 128)
"""Channels of a tile, of all its groups."""

_STEP_BYTES = {"cuda": 128, "hip": 64}
"""Most bytes of a step's products, by the GPU's maker."""

_FORMS: Sequence[tuple[int, int]] = ((128, 4),)
_MORE_FORMS: Sequence[tuple[int, int]] = ((64, 4), (128, 4), (128, 8), (256, 8))
"""Pixels of a tile, and warps. Of weights, `_PIXELS` of a step."""

_PIXELS, _MORE_PIXELS = (64,), (32, 64, 128)

_SPREAD = 128
"""Columns of a tile of weights whose columns are several taps."""


def _of_groups(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    counts = _merged_groups(p, _MORE_WIDTHS if tuned else _WIDTHS)
    stages = 1 if arch.backend == "hip" else 3 if alignments(p)[0] >= COPIED else 2
    if p.direction == "weights":
        for count, depth, merged, scheduler in itertools.product(
            counts, _MORE_PIXELS if tuned else _PIXELS, (False, True), ("tile", "split")
        ):
            m, n = (max(16, power_of_two(each * count)) for each in (p.group_k, p.group_c))
            yield (m, max(n, _SPREAD) if merged else n, depth, 4, stages, "implicit", scheduler, 8,
                   merged, *alignments(p), "", "", count)  # fmt: skip
        return
    read, made = (p.group_c, p.group_k) if p.direction == "forward" else (p.group_k, p.group_c)
    most = _STEP_BYTES[arch.backend] // DTYPES[p.dtype].bytes
    for count, (m, warps), merged in itertools.product(
        counts, _MORE_FORMS if tuned else _FORMS, (False, True) if tuned else (False,)
    ):
        n = max(16, power_of_two(made * count))
        k = max(16, min(most, power_of_two(read * count)))
        yield (m, n, k, warps, stages, "implicit", "tile", 8, merged, *alignments(p), "", "", count)


def _merged_groups(p: ConvProblem, widths: Sequence[int]) -> list[int]:
    """How many groups make tiles of these widths: more than one, and not twice as many as there
    are."""
    most = max(p.group_c, p.group_k)
    if p.groups == 1 or p.depthwise or not 0 < most <= MOST_CHANNELS:
        return []
    counts = (_floor(min(width // most, 2 * p.groups - 1)) for width in widths if width >= most)
    return [count for count in dict.fromkeys(counts) if count > 1]


def _floor(size: int) -> int:
    """The largest power of two up to `size`; 0 of 0."""
    return 1 << size.bit_length() >> 1


# --- spaces: runs ---------------------------------------------------------------------------------

MOST_RUN_CHANNELS = 4
"""Up to which runs are in the spaces."""

_RUN_TILES: dict[str, tuple[tuple[int, int, int, int, str], ...]] = {
    "forward": ((128, 64, 32, 4, "tile"), (256, 64, 32, 8, "tile"), (128, 32, 32, 4, "tile"),
                (128, 64, 64, 8, "tile"), (128, 128, 64, 8, "tile")),
    "weights": ((64, 256, 64, 8, "split"), (64, 128, 64, 8, "split"), (64, 64, 64, 4, "split"),
                (32, 128, 64, 4, "split"), (32, 64, 64, 4, "split"), (128, 128, 64, 8, "split")),
}  # fmt: skip
"""Tile, warps and scheduler, by direction."""

_RUN_STAGES = {"cuda": (2, 3), "hip": (1, 2)}
"""By the GPU's maker."""


def _of_runs(p: ConvProblem, arch: Arch) -> Iterator[Row]:
    if not 0 < p.c <= MOST_RUN_CHANNELS or p.direction == "data" or runs.refusal(p):
        return
    for m, n, k, warps, scheduler in _RUN_TILES[p.direction]:
        for stages in _RUN_STAGES[arch.backend]:
            yield (m, n, k, warps, stages, "implicit", scheduler, 8, True, *runs.alignments(p), "",
                   "", 1, True)  # fmt: skip


# --- how long they take -------------------------------------------------------------------------

EDGE = 32
"""Rows of a warp's part of a tile."""

SECTOR = 32
"""Bytes that a memory moves at least: of a group's channels alone, fewer may be wanted."""


def _estimates(x: Context) -> Estimates:
    c, p, device = x.config, x.problem, x.device
    of_pixels, others = (
        (c.tile_m + c.tile_n, 0) if p.direction == "weights" else (c.tile_m, c.tile_n)
    )
    steps = _steps(x)
    work = pointers.Work(
        steps=steps,
        read=(of_pixels * _sectors(c, p) + others) * c.tile_k * DTYPES[p.dtype].bytes,
        slower=each(c, _slower),
        shared=each(c, _shared_bytes),
        products=each(c, pointers.products_us, device),
        gathered=_gathered(c, p, steps, device),
        factor=CONV.DATA_FACTOR if p.direction == "data" else 1.0,
        resident=each(c, _resident, arch_called(device.arch)),
    )
    return pointers.estimates(x, work)


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, c.tile_m * c.tile_n, pointers.shared_memory(c, this))


def _steps(x: Context) -> Each:
    import numpy as np

    c, p = x.config, x.problem
    if p.direction == "weights":
        pixels = p.n * math.prod(p.out_sizes)
        return np.maximum(1.0, pixels / c.tile_k / sharing.parts(x))
    taps = p.taps / math.prod(p.stride) if p.direction == "data" else p.taps
    if p.direction == "data":  # all at once, the class with the most taps takes the longest
        longest = math.prod(cdiv(d.filter, d.period) for d in p.three)
        taps = np.where(x.case.tiles <= x.device.compute_units, longest, taps)
    filled = channels_in(p) * c.merged_groups / c.tile_k
    return np.maximum(1.0, taps * np.where(c.merged, filled, np.ceil(filled)))


def _slower(c: ConvConfig) -> float:
    """Factor on the time of loads where elements are read one by one, or a few at once."""
    if c.alignment >= 16:
        return 1.0
    # Of runs, y is read in whole vectors.
    narrow = c.tile_n / (c.tile_m + c.tile_n) if c.runs and c.direction == "weights" else 1.0
    return float(1 + narrow * (min(CONV.GATHERED, 16 / c.alignment) - 1))


def _sectors(c: Columns, p: ConvProblem) -> Each:
    """Bytes that memory moves for each byte of a pixel's channels that a tile reads."""
    import numpy as np

    if p.groups == 1:
        return 1.0
    channels = min(p.group_c, p.group_k) if p.direction == "weights" else channels_in(p)
    wanted = channels * c.merged_groups * DTYPES[p.dtype].bytes
    return np.maximum(1.0, SECTOR / np.maximum(1, wanted))


def _shared_bytes(c: ConvConfig) -> float:
    """Bytes that the warps of a workgroup read from shared memory in a step: each those of its part
    of the tile, of `EDGE` rows or more."""
    down = min(c.num_warps, max(1, c.tile_m // EDGE))
    across = max(1, c.num_warps // down)
    return float((c.tile_m * across + c.tile_n * down) * c.tile_k * DTYPES[c.dtype].bytes)


def _gathered(c: Columns, p: ConvProblem, steps: Each, device: Device) -> Each:
    """Microseconds in which the lanes of a compute unit gather the operands of a tile's steps, and
    store a tile of the result."""
    size, warp = DTYPES[p.dtype].bytes, arch_called(device.arch).warp_size
    first, second = c.tile_m * c.tile_k * size, c.tile_n * c.tile_k * size
    width = most(c.alignment, size)
    if p.direction == "weights":
        # Where the pixels of a step lie is worked out by the lanes of each row of both operands.
        of_first = either(c.runs, runs.READ, width)
        lanes = least(warp, c.tile_m * size / of_first) + least(warp, c.tile_n * size / width)
        places, once, finished = c.tile_k * lanes * CONV.PLACE_INSTRUCTIONS, 0.0, 0.0
    else:
        of_first = width
        lanes = least(warp, c.tile_n / each(c, written)) + least(warp, c.tile_k * size / width)
        places, once = 0.0, c.tile_m * lanes * CONV.PLACE_INSTRUCTIONS
        finished = c.tile_m * c.tile_n * CONV.FINISHED_INSTRUCTIONS
    loads, of_load = first / of_first + second / width, CONV.LOAD_INSTRUCTIONS
    if c.merged.any():
        # A division for each dimension and for the channel; two dimensions were fitted.
        divisions = (len(p.spatial) + 1) / 3
        of_load = either(c.merged, CONV.GATHERED_INSTRUCTIONS * divisions, of_load)
        places, once = either(c.merged, 0.0, places), either(c.merged, finished, once)
        if p.direction == "forward":
            row = p.filter[-1] * p.group_c * c.merged_groups
            row = either(c.runs, runs.sizes(p, c.alignment)[0], row)
            of_rows = cdiv(p.taps // p.filter[-1] * row, c.tile_k)
            steps = either(c.merged, of_rows, steps)
    return physics.lanes_us(steps * (loads * of_load + places) + once, device)


IMPLICIT = Pipeline(
    name="implicit",
    parts=pointers.either(_GATHER, _WEIGHTS),
    totals=SUM,
    words=frozenset({"merges_groups"}),
    objection=pointers.objection,
    tile=common.least_of_8_bits,
    shared_memory=pointers.shared_memory,
    alignments=alignments,
    tiles=_tiles,
    steps=common.steps_of_pixels,
    splits=pointers.filling(_tiles),
    rows=_rows,
    estimates=_estimates,
)
