"""Rows of the spaces for pipelines that copy boxes of pixels (`boxed`). Each row has the fields of
`record.ALGORITHM`.

Tiles of the default space that are powers of two are a list. Columns that are none are there where
they fit the channels better: 320 channels are two tiles of 160 columns, but two and a half of 128.
What a tile has beyond the last channel is not only multiplied for nothing: the copy engine takes
longer for a row of zeros from outside an array than for a row that it reads (see
`DEVICE.OUTSIDE_ROW_US`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import boxes
from tilewright.ops.conv.catalogue import channels_in, channels_out
from tilewright.ops.conv.config import SHARING, ConvConfig, usual_reduction
from tilewright.ops.conv.pipelines.boxed import shape
from tilewright.ops.conv.pipelines.record import Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.limits import MAX_STAGES
from tilewright.ops.powers import power_of_two


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of a pipeline's spaces.

    whole: pixels of a box, columns, warps, stages of steps of `_STEP_BYTES`.
    odd: pixels of a box and warps of tiles whose columns are no power of two. They have as many
        stages as fit, `LEAST_STAGES` or more.
    of_weights: whether it makes gradients of weights.
    """

    pipeline: str
    whole: Sequence[tuple[int, int, int, int]]
    odd: Sequence[tuple[int, int]]
    of_weights: bool


LEAST_OF_GROUP = 64
"""Channels and filters of a group, at least, for which the default space has kernels by boxes. No
GPU has run those of fewer yet. A tuning tries them, since it checks what it times."""

LEAST_STAGES = 3
"""A ring with fewer hides too little of a load."""

_FEW_WIDTHS, _MANY_WIDTHS = 2, 4
"""Such widths in the default space and in a tuning's: those with the least columns past the last
channel, the widest first."""

_WHOLE = 128
"""The most columns of the tile that a width may not waste more than."""

_OF_WEIGHTS: tuple[tuple[int, int, int, int], ...] = (
    (64, 256, 8, 4), (128, 128, 8, 3), (64, 128, 8, 4), (64, 64, 8, 6), (64, 64, 4, 8),
    (64, 32, 4, 8),
)  # fmt: skip
"""Tiles for gradients of weights: filters of a group, channels, warps, stages."""

_SPREAD: tuple[tuple[int, int, int], ...] = (
    (64, 192, 4), (64, 256, 4), (128, 192, 8), (128, 256, 8), (192, 128, 12), (192, 192, 12),
    (256, 192, 8),
)  # fmt: skip
"""Filters, columns and warps of their tiles whose columns are boxes of several taps."""

_SCHEDULERS = ("persistent", *SHARING)

_PIXELS = (64, 32, 16)
"""Pixels of a step there, the most that boxes divide exactly first."""

_BEGIN = (
    "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "pipeline", "scheduler", "group_m",
    "merged", "alignment", "alignment_out", "box",
)  # fmt: skip
"""The fields of a row up to its box."""

_STEP_BYTES = 128
"""Bytes of a step's products of one pixel: rows of a swizzle's span, or as few as hold all
channels."""

_FEW_BOXES, _MANY_BOXES = 1, 3
"""Boxes of a number of pixels in the default space and in a tuning's: those that waste the fewest
pixels."""


def rows(of: Tiles, p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    """Rows of the default space, or of a tuning's, for one of the pipelines."""
    if p.groups == 1:
        yield from _dense(of, p, arch, tuned=tuned)
    elif tuned or min(p.group_c, p.group_k) >= LEAST_OF_GROUP:
        for row in _dense(of, p, arch, tuned=tuned):
            if _within_groups(p, row):
                yield (*row, True)


def _dense(of: Tiles, p: ConvProblem, arch: Arch, *, tuned: bool) -> Iterator[Row]:
    """Rows up to `classes`, as for one group."""
    if p.direction == "weights":
        if of.of_weights:
            yield from _of_weights(p, arch, tuned=tuned)
        return
    for depth in _depths(p):
        yield from _of_depth(of, p, arch, depth, tuned=tuned)


def _within_groups(p: ConvProblem, row: Row) -> bool:
    """Whether tiles stay within groups (`shape.refusal`)."""
    of, tile = (p.group_k, row[0]) if p.direction == "weights" else (channels_out(p), row[1])
    return of % int(tile) == 0


def _of_depth(of: Tiles, p: ConvProblem, arch: Arch, depth: int, *, tuned: bool) -> Iterator[Row]:
    """Rows whose steps have `depth` products."""
    times = _depth(p) // depth  # as many more steps in as much memory
    tiles = [
        (pixels, n, warps, min(MAX_STAGES, times * stages))
        for pixels, n, warps, stages in of.whole
        if n <= max(32, power_of_two(channels_out(p)))
    ]
    for n, (pixels, warps) in itertools.product(odd_widths(channels_out(p), tuned), of.odd):
        tile_m = pixels * _readers(of.pipeline, warps)
        row = (tile_m, n, depth, warps, 1, of.pipeline, "persistent", 8, False, 16, 16)
        stages = deepest(p, arch, (*row, _some_box(p, pixels)), classes=boxes.together(p))
        if stages >= LEAST_STAGES:
            tiles.append((pixels, n, warps, stages))
    for pixels, n, warps, stages in tiles:
        tile_m = pixels * _readers(of.pipeline, warps)
        for box in boxes.best(p, pixels, _MANY_BOXES if tuned else _FEW_BOXES):
            for count, group_m, classes in itertools.product(
                (stages - 1, stages) if tuned else (stages,),
                (1, 8, 16) if tuned else (8,),
                dict.fromkeys((boxes.together(p), 1)) if tuned else (boxes.together(p),),
            ):
                yield (tile_m, n, depth, warps, count, of.pipeline, "persistent", group_m, False,
                       16, 16, box, "", 1, False, 0, classes)  # fmt: skip


def odd_widths(channels: int, tuned: bool = False) -> list[int]:
    """Columns that are no power of two, of tiles for so many channels: those that waste no more
    than tiles of a power of two up to `_WHOLE` columns do, the least wasteful first. In a default
    space those that are as good as the first, and more than half as wide."""

    def padded(n: int) -> int:
        return -(-channels // n) * n

    most = padded(min(_WHOLE, power_of_two(channels)))
    fit = sorted((n for n in shape.ODD_COLUMNS if padded(n) <= most), key=lambda n: (padded(n), -n))
    if tuned:
        return fit[:_MANY_WIDTHS]
    best = (n for n in fit if 2 * n > fit[0] and padded(n) == padded(fit[0]))
    return [*itertools.islice(best, _FEW_WIDTHS)]


def deepest(p: ConvProblem, arch: Arch, row: Row, spread: int = 0, classes: int = 1) -> int:
    """As many stages as fit into shared memory, up to the most there may be, of the algorithm of
    this row, which has a box; 0 if it is not for `arch`."""
    said = dict(zip(_BEGIN, row, strict=True))
    c = ConvConfig(
        p.direction, len(p.spatial), p.dtype, p.dtype_out, p.precision, epilogue=p.epilogue,
        reduction=usual_reduction(said["scheduler"]), spread=spread, classes=classes, **said,
    )  # fmt: skip
    if shape.objection(c, arch):
        return 0
    left = arch.shared_memory - shape.beside(c)
    return min(MAX_STAGES, left // shape.stage_bytes(c))


def _readers(pipeline: str, warps: int) -> int:
    return 1 if pipeline == shape.PINGPONG else warps // 4


HALF_STEPS = 3
"""Whole steps, at most, of the channels for which there are half ones too."""


def _depth(p: ConvProblem) -> int:
    """Products of a step of `_STEP_BYTES`, or of as few as hold all channels."""
    size = DTYPES[p.dtype].bytes
    return min(_STEP_BYTES, max(32, power_of_two(channels_in(p) * size))) // size


def _depths(p: ConvProblem) -> tuple[int, ...]:
    """Products of a step; and half as many where a tap's last step would be half empty, as with 96
    and 160 channels. A row of zeros from outside takes the copy engine longer than one that it
    reads (`DEVICE.OUTSIDE_ROW_US`). With one tap, or more channels, half steps do not pay
    (docs/notes/conv-gluon_ws.md). Of groups, as many as divide the channels."""
    channels, depth = channels_in(p), _depth(p)
    if p.groups != 1:
        return (math.gcd(channels, depth),)
    half, rest = depth // 2, channels % depth
    few = depth < channels <= HALF_STEPS * depth and half // 2 < rest <= half
    return (depth, half) if few and p.taps > 1 else (depth,)


def _some_box(p: ConvProblem, pixels: int) -> str:
    return "x".join(map(str, (pixels, *(1,) * len(p.spatial))))


def _of_weights(p: ConvProblem, arch: Arch, *, tuned: bool) -> Iterator[Row]:
    steps = [pixels for pixels in _PIXELS if boxes.best(p, pixels, 1)]
    for pixels in steps if tuned else steps[:1]:
        tiles = [
            (filters * warps // 4, n, warps, dict.fromkeys(_SCHEDULERS, stages), 0)
            for filters, n, warps, stages in _OF_WEIGHTS
            if n <= max(32, power_of_two(p.group_c))
            and filters * warps // 4 <= max(64, power_of_two(p.group_k))
        ]
        for filters, n, warps, spread in _fitting(p, tuned):
            row = (filters, n, pixels, warps, 1, "gluon_ws")
            rest = (8, False, 16, 16, _some_box(p, pixels))
            each = {one: deepest(p, arch, (*row, one, *rest), spread) for one in _SCHEDULERS}
            deep = {one: stages for one, stages in each.items() if stages >= LEAST_STAGES}
            tiles.append((filters, n, warps, deep, spread))
        for (tile_m, n, warps, deep, spread), box in itertools.product(
            tiles, boxes.best(p, pixels, _MANY_BOXES if tuned else _FEW_BOXES)
        ):
            for (scheduler, stages), group_m in itertools.product(
                deep.items(), (1, 8) if tuned else (8,)
            ):
                yield (tile_m, n, pixels, warps, stages, "gluon_ws", scheduler, group_m, False,
                       16, 16, box, "", 1, False, spread, 1)  # fmt: skip


def _fitting(p: ConvProblem, tuned: bool) -> Iterator[tuple[int, int, int, int]]:
    """Filters, columns, warps and spread of tiles that fit a gradient of weights better than those
    of one tap and a power of two: columns of several taps side by side, and odd columns of one."""
    span = shape.SPAN // DTYPES[p.dtype].bytes
    every = p.taps * -(-p.group_c // span) * span
    for filters, n, warps in _SPREAD:
        wide = p.group_c > span // 2 and p.group_c % n
        if wide and n <= every and _rows_fit(p.group_k, filters):
            yield filters, n, warps, span
    for n, warps in itertools.product(odd_widths(p.group_c, tuned), (4, 8, 12)):
        if n % span and _rows_fit(p.group_k, 16 * warps):
            yield 16 * warps, n, warps, 0


def _rows_fit(filters: int, rows: int) -> bool:
    """Whether tiles of so many rows waste no more than those of `_WHOLE`, or as few as hold all
    filters, and have a reason to be narrower."""
    whole = min(_WHOLE, max(64, power_of_two(filters)))
    return whole <= rows and -(-filters // rows) * rows <= -(-filters // whole) * whole
