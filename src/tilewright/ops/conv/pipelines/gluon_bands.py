"""Pipeline ``gluon_bands``: depthwise filters as bands of matrices, on the matrix units
(kernels/gluon_bands.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Array, Box, Catalogue, Context, Numbers, Part
from tilewright.ops.conv import boxes, maps, sharing, windows
from tilewright.ops.conv.catalogue import (
    FEW_SUM,
    KERNELS,
    integer,
    made_of,
    pointer,
    source_of,
    strides_of,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common, cuts
from tilewright.ops.conv.pipelines.cuts import Cut
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.nouns import MAIN
from tilewright.ops.pool import Each, Objections, because, each, either, most

PIPELINE = "gluon_bands"
LINES, STRIP = 16, 8
"""Strips that one instruction multiplies, and pixels of a strip."""

MOST_WIDTH = 9
"""Taps along the width: a strip's products are with 16 pixels."""

IN_THREAD = (2, 4, 8)
"""Neighbouring channels of a thread."""

SCHEDULERS = {"forward": "persistent", "data": "persistent", "weights": "split"}

OVERHEAD_BYTES = 256
"""Shared memory beside tiles: barriers, and what a sum over threads takes."""

# --- shape and rules ----------------------------------------------------------------------------


def images(c: ConvConfig) -> int:
    """Whose rows a workgroup reads at once."""
    return boxes.sizes(c.box)[0]


def strips(c: ConvConfig) -> int:
    """Beside each other, of a row of an image."""
    return LINES // images(c)


def in_thread(c: ConvConfig) -> int:
    """Channels of a thread."""
    return c.tile_n // c.num_warps


def taps(c: ConvConfig) -> tuple[int, int]:
    """Along the height and the width."""
    _, height, width = windows.held(c).taps
    return height, width


def _height(c: ConvConfig) -> int:
    return taps(c)[0]


def registers(c: ConvConfig) -> int:
    """Registers of a thread: for each channel sums and bands (or rows of dY) of all rows of the
    filter, and a row of pixels."""
    return in_thread(c) * (6 * taps(c)[0] + 4)


def shared_memory(c: ConvConfig) -> int:
    """Bytes of the ring, of that of dY or of the staging buffers, and a little more."""
    atom = STRIP * images(c) * c.tile_n * DTYPES[c.dtype].bytes
    others = c.num_stages if c.direction == "weights" else 2
    return (c.num_stages * (strips(c) + 1) + others * strips(c)) * atom + OVERHEAD_BYTES


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.spatial_dims != 2:
        return f"pipeline {c.pipeline} is for 2 dimensions, not for {c.spatial_dims}"
    if DTYPES[c.dtype].bytes != 2 or c.dtype_out != c.dtype:
        return f"pipeline {c.pipeline} is for 16-bit types, not for {c.dtype} to {c.dtype_out}"
    if c.epilogue:
        return f"pipeline {c.pipeline} has no epilogue, not {c.epilogue}"
    if c.scheduler != SCHEDULERS[c.direction]:
        return f"{c.direction} has scheduler {SCHEDULERS[c.direction]}, not {c.scheduler}"
    if c.alignment != 16 or (c.direction != "weights" and c.alignment_out != 16):
        return (
            f"the copy engine takes pixels aligned to 16 bytes, not {c.alignment} and "
            f"{c.alignment_out}"
        )
    return _tile(c)


def _tile(c: ConvConfig) -> str | None:
    if c.tile_m != LINES or c.tile_k != 1:
        return f"tile {c.tile_m}x{c.tile_n}x{c.tile_k} does not have {LINES} strips, of one step"
    if in_thread(c) not in IN_THREAD or c.tile_n % c.num_warps or c.tile_n < 16:
        return f"{c.tile_n} channels of {c.num_warps} warps are not 2, 4 or 8 for each, or under 16"
    if c.box not in {f"{n}x1x{LINES // n * STRIP}" for n in (1, 2, 4, 8, 16)}:
        return f"box '{c.box}' is not {LINES} strips of {STRIP} pixels, such as 2x1x64"
    if "x" not in c.held or windows.held(c).step_h != 1 or windows.held(c).step_w != 1:
        return f"held = '{c.held}' is not a filter with strides of 1"
    if taps(c)[1] > MOST_WIDTH:
        return f"{taps(c)[1]} taps along the width, over {MOST_WIDTH}"
    return None


def _refusal(c: Any, p: ConvProblem) -> Objections:
    word = windows.word(p)
    said = "is for filters {c.held} without dilation, not for {} with {p.dilation}"
    other = (c.held != word) | (p.stride != (1, 1)) | (p.dilation != (1, 1))
    yield other, partial(said.format, word)
    if reason := maps.refusal(p, "xy"):
        yield True, because(reason)


def _sibling(c: ConvConfig) -> ConvConfig:
    weights = c.direction == "weights"
    return replace(
        c, pipeline="depthwise", scheduler="split" if weights else "tile", box="", held="",
        tile_m=16, tile_n=64, tile_k=8 if weights else 1, num_warps=4, num_stages=1,
    )  # fmt: skip


# --- spaces -------------------------------------------------------------------------------------

_FORMS = ((32, 8), (16, 4), (32, 4), (64, 8))
"""Channels and warps of a workgroup."""

_AHEAD, _MORE_AHEAD = (4,), (4, 8)
"""Rows in the ring: of the default space, of a tuning's."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if not p.depthwise or p.precision == "tf32" or len(p.spatial) != 2 or p.stride != (1, 1):
        return
    if p.taps == 1 or p.filter[-1] > MOST_WIDTH or p.taps > windows.MOST_TAPS:
        return
    ahead = _MORE_AHEAD if tuned else _AHEAD
    for (channels, warps), stages in itertools.product(_FORMS, ahead):
        yield (LINES, channels, 1, warps, stages, PIPELINE, SCHEDULERS[p.direction], 1, False,
               *common.pixel_alignments(p), box(p), windows.word(p))  # fmt: skip


def box(p: ConvProblem) -> str:
    """The box that covers the result with the fewest pixels read; of equals the widest."""
    width = p.three[2].size if p.direction == "data" else p.out_sizes[-1]

    def cost(count: int) -> int:
        wide = LINES // count * STRIP
        return cdiv(width, wide) * (wide + STRIP) * cdiv(p.n, count) * count

    best = min((1, 2, 4, 8, 16), key=cost)
    return f"{best}x1x{LINES // best * STRIP}"


# --- kernels ------------------------------------------------------------------------------------

STRIP_ROWS = 2
"""What a strip costs beside its rows, in rows: a guess."""

OTHER_REGISTERS = 40
"""Registers of a thread beside those that `registers` counts: as compiled, 27 to 76."""


def _walked(p: ConvProblem) -> tuple[int, int]:
    """Height and width that are cut: of the result, or of dY."""
    _, height, width = p.three
    return (height.size, width.size) if p.direction == "data" else (height.out, width.out)


def resident(c: ConvConfig, arch: Arch) -> int:
    """Workgroups of a compute unit at once."""
    each = shared_memory(c) + arch.shared_memory_reserved
    file = arch.registers_per_lane * arch.simds_per_cu * arch.warp_size
    held = min(arch.max_registers, registers(c) + OTHER_REGISTERS) * c.num_warps * arch.warp_size
    return max(1, min(arch.shared_memory_per_cu // each, file // held))


@lru_cache(maxsize=256)  # of each problem for its numbers, one by one
def cut(c: Any, p: ConvProblem, device: Device) -> Cut:
    """How the pixels are cut, of a config or of `Columns`."""
    height, width = _walked(p)
    slabs, tiles_w = cdiv(p.c, c.tile_n), cdiv(width, each(c, strips) * STRIP)
    at_once = each(c, resident, arch_called(device.arch))
    beside = each(c, _height) - 1 + STRIP_ROWS
    return cuts.best(
        slabs, tiles_w, cdiv(p.n, each(c, images)), height,
        most(1, device.compute_units * at_once // slabs), lambda n: n + beside,
    )  # fmt: skip


def _cut(x: Context) -> Cut:
    return cut(x.config, x.problem, x.device)


def _steps(c: Any, p: ConvProblem) -> Each:
    """Rows of strips of one slab, without those that segments share."""
    height, width = _walked(p)
    return cdiv(width, each(c, strips) * STRIP) * cdiv(p.n, each(c, images)) * height


def _boxes(c: ConvConfig) -> dict[str, Box]:
    """What one copy moves of a row of strips, and of the pixels behind it."""
    row, edge = (1, strips(c) * STRIP, images(c), c.tile_n), (1, STRIP, images(c), c.tile_n)
    return {"x": row, "edge": edge, "y" if c.direction == "weights" else "made": row}


def _rows_of(name: Callable[[ConvConfig], str]) -> Array:
    return replace(pointer(name), view=lambda x: maps.of_rows(x.problem, name(x.config)))


def _sizes(p: ConvProblem) -> tuple[int, int]:
    """Height and width of what is read."""
    _, height, width = p.three
    return (height.out, width.out) if p.direction == "data" else (height.size, width.size)


def _origin(x: Context, place: int) -> int:
    """The pixel that the first pixel of the result meets first."""
    pad = x.problem.three[1 + place].pad
    if x.problem.direction == "data":  # taps are walked in the reverse order
        return int(pad - (taps(x.config)[place] - 1))
    return int(-pad)


_OWN: Catalogue = {
    "x": _rows_of(source_of),
    "edge": _rows_of(source_of),
    "y": _rows_of(lambda _: "y"),
    "made": _rows_of(made_of),
    "source": pointer(source_of),
    "result": pointer(made_of),
    "source_strides": strides_of(source_of),
    "result_strides": strides_of(made_of),
    "partials": Array("fp32", aligned=lambda _: 1),
    "height": integer(lambda p: p.three[1].out),
    "sizes": Numbers(("i32",) * 2, lambda x: _sizes(x.problem)),
    "full_sizes": Numbers(("i32",) * 2, lambda x: _walked(x.problem)),
    **cuts.numbers(_cut),
    "origin_h": Numbers("i32", lambda x: _origin(x, 0)),
    "origin_w": Numbers("i32", lambda x: _origin(x, 1)),
    "TAPS_H": lambda c, _: taps(c)[0],
    "TAPS_W": lambda c, _: taps(c)[1],
    "STRIPS": lambda c, _: strips(c),
    "IMAGES": lambda c, _: images(c),
    "SLAB": lambda c, _: c.tile_n,
    "WARPS": lambda c, _: c.num_warps,
    "STAGES": lambda c, _: c.num_stages,
}


def _kernel(function: str) -> tuple[Part, ...]:
    return (
        Part(
            name=MAIN,
            kernel=f"{KERNELS}.gluon_bands:{function}",
            grid=lambda x: _cut(x).slabs * _cut(x).programs,
            options=lambda c, _: (("num_warps", c.num_warps),),
            own=_OWN,
            boxes=_boxes,
        ),
    )


_MADE, _WEIGHTS = _kernel("conv_gluon_bands"), _kernel("conv_gluon_bands_weights")

# --- how long they take -------------------------------------------------------------------------
#
# A workgroup walks rows; a row's instructions share the schedulers with those of other workgroups
# on the compute unit, and its barriers are waits that only these fill. The memory moves each array
# once. The two overlap like the legs of a right triangle, as in the other estimates. The start, in
# which the bands are written and the first rows are asked for, and the factor on gradients of
# weights were fitted.

SECTOR_CHANNELS = 32
"""The copy engine moves rows of fewer channels more slowly: by a fourth root, with which tiles are
as wide as those that tuning chose (32 channels for 3×3, 16 for 5×5 and 7×7)."""
SECTOR_BYTES = 32


def _moved(c: Any, p: ConvProblem) -> Each:
    """How much more the copy engine moves than the arrays have: empty channels of the last tile
    take its time as others do; and where pixels begin inside a sector, as some do where a pixel is
    no whole sectors, a tile reads one more, which it shares with its neighbour. The figures of
    narrow tiles were taken with that.
    """
    size = DTYPES[p.dtype].bytes
    inside = 1 - math.gcd(p.c * size, SECTOR_BYTES) / SECTOR_BYTES  # of the pixels
    shared = either(c.tile_n < SECTOR_CHANNELS, 0, inside * SECTOR_BYTES / size)
    return cdiv(p.c, c.tile_n) * (c.tile_n + shared) / p.c


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device = x.config, x.problem, x.device
    this, here, height = arch_called(device.arch), _cut(x), each(c, _height)
    walked = -(-here.each // here.programs) * (here.rows + height - 1)
    workgroups, channels = here.slabs * here.programs, each(c, in_thread)
    held = each(c, resident, this)
    at_once = np.maximum(1.0, np.minimum(held, workgroups / device.compute_units))
    warps = c.num_warps * at_once / this.simds_per_cu
    products = warps * channels * height * CONV.BANDS_PRODUCT_CLOCKS
    issued = warps * (
        channels * (height + CONV.BANDS_CHANNEL_INSTRUCTIONS) + CONV.BANDS_ROW_INSTRUCTIONS
    )
    narrow = np.maximum(1.0, SECTOR_CHANNELS / c.tile_n) ** 0.25
    memory = physics.memory_us(p.min_bytes, device) * narrow * _moved(c, p)
    terms = {
        "products": walked * products / device.clock_mhz,
        "instructions": walked * issued / device.clock_mhz,
        "barriers": walked * (CONV.BANDS_ROW_WAITS + issued / at_once) / device.clock_mhz,
        "memory": memory,
        "start": CONV.BANDS_START_US,
        "launch": common.LAUNCH_US,
    }
    rows = np.maximum(np.maximum(terms["products"], terms["instructions"]), terms["barriers"])
    both = CONV.BANDS_WEIGHTS_FACTOR if p.direction == "weights" else 1.0  # x and dY come by rows
    total = both * physics.together_us(rows, memory) + terms["start"] + terms["launch"]
    if p.direction == "weights":
        terms["sum of parts"] = sharing.totals(x, here.programs)
        total += terms["sum of parts"]
    return common.estimated(total, terms, workgroups)


GLUON_BANDS = Pipeline(
    name=PIPELINE,
    parts=lambda c: _WEIGHTS if c.direction == "weights" else _MADE,
    totals=FEW_SUM,
    words=frozenset({"depthwise", "holds_filter"}),
    needs=("tma", "wgmma"),  # no wgmma, but it was compiled for those that have both
    sibling=_sibling,
    objection=_objection,
    refusal=_refusal,
    sums=lambda c: registers(c) * c.num_warps * windows.LEAST_LANES,
    shared_memory=lambda c, _: shared_memory(c),
    alignments=common.pixel_alignments,
    tiles=lambda c, p: cdiv(p.c, c.tile_n) * _steps(c, p),
    steps=_steps,
    splits=lambda c, p, device: cut(c, p, device).programs,
    rows=_rows,
    estimates=_estimates,
)
