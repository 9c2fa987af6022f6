"""Rows of the spaces for pipeline ``implicit``: tiles of one group, of several groups of few
channels, and of runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import runs
from tilewright.ops.conv.geometry import power_of_two
from tilewright.ops.conv.pipelines.common import implicit_alignments as alignments
from tilewright.ops.conv.pipelines.pointers import schedulers
from tilewright.ops.conv.pipelines.record import Row
from tilewright.ops.conv.problem import ConvProblem

FEW = 32
"""Channels of a group up to which steps of several taps are in the default space."""

COPIED = 4
"""Least bytes of an asynchronous copy on NVIDIA GPUs; fewer pass through registers."""

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


def rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Rows of the default space, or of a tuning's."""
    yield from _tuned(p, arch) if tuned else _default(p, arch)
    yield from _of_groups(p, arch, tuned)
    yield from _of_runs(p, arch)


# --- one group ---------------------------------------------------------------------------------


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
    for form, scheduler in itertools.product(merged, schedulers(p)):
        usual = "single" if arch.backend == "cuda" and single else arch.backend
        tiles = _TILES["vector" if on_vectors else "merged" if form else usual]
        stages = 1 if on_vectors or arch.backend == "hip" else 2 if form else 3
        for m, n, k, warps in tiles:
            if n <= max(16, power_of_two(_columns(p, form))):
                depth = max(16, k // DTYPES[p.dtype].bytes)
                yield (m, n, depth, warps, stages, "implicit", scheduler, 8, form, *alignments(p))


def _columns(p: ConvProblem, merged: bool) -> int:
    """Columns that tiles are cut from."""
    if p.direction == "weights":
        return p.group_c * (p.taps if merged else 1)
    return p.group_c if p.direction == "data" else p.group_k


def _tuned(p: ConvProblem, arch: Arch) -> Iterator[Row]:
    stages = [n for n in _STAGES if n in arch.num_stages]
    for m, n, k, warps, count, form, scheduler in itertools.product(
        _SIDES, (16, *_SIDES), _DEPTHS, _WARPS, stages, (False, True), schedulers(p)
    ):
        depth = max(16, k // DTYPES[p.dtype].bytes)
        yield (m, n, depth, warps, count, "implicit", scheduler, 8, form, *alignments(p))


# --- several groups of few channels ------------------------------------------------------------

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


# --- runs --------------------------------------------------------------------------------------

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
