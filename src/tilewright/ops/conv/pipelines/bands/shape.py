"""Pipeline ``gluon_bands``: depthwise filters as bands of matrices (kernels/gluon_bands.py). What
it needs of an architecture and a problem, and which configs of it spaces have."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import boxes, maps, windows
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.problem import ConvProblem

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


def registers(c: ConvConfig) -> int:
    """Registers of a thread: for each channel sums and bands (or rows of dY) of all rows of the
    filter, and a row of pixels."""
    return in_thread(c) * (6 * taps(c)[0] + 4)


def shared_memory(c: ConvConfig) -> int:
    """Bytes of the ring, of that of dY or of the staging buffers, and a little more."""
    atom = STRIP * images(c) * c.tile_n * DTYPES[c.dtype].bytes
    others = c.num_stages if c.direction == "weights" else 2
    return (c.num_stages * (strips(c) + 1) + others * strips(c)) * atom + OVERHEAD_BYTES


def objection(c: ConvConfig, arch: Arch) -> str | None:
    """Why `arch` cannot build a config of this pipeline, if so."""
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


def refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    """Why a config of this pipeline cannot compute `p`, if so."""
    if p.stride != (1, 1) or p.dilation != (1, 1) or windows.word(p) != c.held:
        return (
            f"is for filters {c.held} without dilation, not for {windows.word(p)} with {p.dilation}"
        )
    return maps.refusal(p, "xy")


def sibling(c: ConvConfig) -> ConvConfig:
    """A config in Triton that computes the same, for the interpreter."""
    weights = c.direction == "weights"
    return replace(
        c, pipeline="depthwise", scheduler="split" if weights else "tile", box="", held="",
        tile_m=16, tile_n=64, tile_k=8 if weights else 1, num_warps=4, num_stages=1,
    )  # fmt: skip


def box(p: ConvProblem) -> str:
    """The box that covers the result with the fewest pixels read; of equals the widest."""
    width = p.three[2].size if p.direction == "data" else p.out_sizes[-1]

    def cost(count: int) -> int:
        wide = LINES // count * STRIP
        return cdiv(width, wide) * (wide + STRIP) * cdiv(p.n, count) * count

    best = min((1, 2, 4, 8, 16), key=cost)
    return f"{best}x1x{LINES // best * STRIP}"
