"""Layout steps: arrays whose channels lie outside of their pixels are turned into temporaries with
the channels side by side, which a kernel takes in their place; a result is turned back.

A config names the arrays that it turns (`ConvConfig.turned`, ``turn-xwy`` in names). ``p`` stands
for x that is cut into patches, or put together from them (`patches`), and ``o`` for x that is cut
into windows that overlap, or is the sum of them; w beside either is a copy in longer rows. After
``r``, all are copies in longer rows (`longer`). ``s``: x and y are exchanged, which leaves a step
for w alone (`swapping`). Everything else about a config is that of the kernels for the problem that
is left (`inside`): rules, sources, estimates, launches. What the steps compile and launch is in
`turning_steps`. `max_workspace=0` forbids layout steps, as they need memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import folding, longer, patches, swapping, tapping
from tilewright.ops.conv.catalogue import made_of
from tilewright.ops.conv.config import (
    ARRAYS,
    LONGER,
    PATCHES,
    SUMS,
    SWAPPED,
    TAPS,
    WINDOWS,
    ConvConfig,
)
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.physics import memory_us

TILES = {"x": (64, 64), "y": (64, 64), "w": (64, 16)}
"""Channels and pixels of a workgroup's tile; filters have few."""
MANY = 16
"""Channels from which on an image is put together from patches more slowly, where they are
innermost (`CONV.BACK_SHARE`)."""
FEW, MOST_COUNTED = 16, 2**30
"""Channels up to which tiles are of pixels with all channels; elements of an image, which are
counted in 32 bits then."""
MOST_TILES = 2**31 - 1

CUT = (PATCHES, WINDOWS)
"""What `ConvConfig.turned` begins with where x is cut into rows."""

TURNING = "layout steps"
"""What turning arrays takes, in estimates."""


def turnable(p: ConvProblem) -> str:
    """The arrays of `p` that a layout step can turn, as `ConvConfig.turned` has them: of x, w and y
    those whose channels are no neighbours and whose pixels are."""
    return "".join(name for name in ARRAYS if _apart(p, name))


def _apart(p: ConvProblem, name: str) -> bool:
    (_, channels, *sizes), (_, along, *strides) = p.shape_of(name), p.strides_of(name)
    if channels == 1 or math.prod(sizes) == 1 or along == 1 or 0 in p.shape_of(name):
        return False
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return along >= step


def inside(p: ConvProblem, turned: str) -> ConvProblem:
    """The problem that a kernel computes between layout steps, with a folded width."""
    return folding.folded(unfolded(p, turned))


def unfolded(p: ConvProblem, turned: str) -> ConvProblem:
    if turned == SWAPPED:
        return swapping.inside(p)
    if turned.startswith(TAPS):
        return tapping.inside(p)
    if turned.startswith(LONGER):
        return _longer(p, turned.removeprefix(LONGER))
    if turned.startswith(CUT):
        p = patches.inside(p, "w" in turned, turned.startswith(WINDOWS))
        turned = turned.strip(PATCHES + WINDOWS + "w")
    return _channels_last(p, turned) if turned else p


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def _channels_last(p: ConvProblem, turned: str) -> ConvProblem:
    strides: dict[str, Any] = {f"{name}_strides": () for name in turned}
    return replace(p, **strides)


_longer = lru_cache(maxsize=1024)(longer.inside)  # of each problem for hundreds of kernels


def refusal(turned: str, p: ConvProblem) -> str | None:
    """Why these arrays, as in `ConvConfig.turned`, cannot be turned, or None."""
    if turned == SWAPPED:
        return swapping.refusal(p)
    if turned.startswith(TAPS) and (reason := tapping.refusal(p, "w" in turned)) is not None:
        return reason
    can = p.once(turnable) if turned else ""
    for word, refuses in ((PATCHES, patches.refusal), (WINDOWS, patches.windows_refusal)):
        if turned.startswith(word) and (reason := refuses(p, padded="w" in turned)) is not None:
            return reason
    for name, step in steps(turned):
        if step == LONGER and (reason := longer.refusal(p, name)) is not None:
            return reason
        if step == "turn" and name not in can:
            return f"{name} does not lie as rows of pixels, one for each channel, to be turned"
        if tiles(turned, p, name) > MOST_TILES:
            return f"{name} has more tiles to be turned than a grid can have"
    if p.output_name in dict(steps(turned)) and epilogues.has_matrix(p.epilogue):
        return f"epilogue '{p.epilogue}' reads an array that lies as the result, which is turned"
    return None


def steps(turned: str) -> list[tuple[str, str]]:
    """The arrays that have a step, each with its kind: ``turn``, ``patches``, ``windows``,
    ``swap``, ``taps`` or `LONGER`."""
    if turned == SWAPPED:
        return [("w", "swap")]
    if turned.startswith(TAPS):
        return [*(("w", "turn") for _ in turned.removeprefix(TAPS)), ("y", "taps")]
    if turned.startswith(LONGER):
        return [(name, LONGER) for name in turned.removeprefix(LONGER)]
    cut = turned.startswith(CUT)
    found = [("x", "windows" if turned.startswith(WINDOWS) else "patches")] if cut else []
    rest = turned[1:] if cut else turned
    return found + [(name, "patches" if cut and name == "w" else "turn") for name in rest]


def turned_arrays(turned: str) -> list[str]:
    """The arrays that are turned, of those that have a step."""
    return [name for name, how in steps(turned) if how == "turn"]


def us(p: ConvProblem, turned: str, device: Device) -> float:
    """Microseconds of the layout steps: each array is read and written once, in a kernel that
    another follows without a gap. Windows are as many elements as all of them have."""
    total = 0.0
    for name, how in steps(turned):
        moved = 2 * math.prod(p.shape_of(name)) * DTYPES[p.dtype_of(name)].bytes
        if how == "windows":
            rows = DTYPES[SUMS if p.direction == "data" else p.dtype].bytes
            moved = moved // 2 + patches.grown(p) * rows
        elif how == "taps":
            moved = moved // 2 + tapping.elements(p) * DTYPES[SUMS].bytes
        total += memory_us(moved, device) / _share(p, name, how)
    return total + len(steps(turned)) * DEVICE.SECOND_US


def _share(p: ConvProblem, name: str, how: str) -> float:
    """Share of the memory's bandwidth that a step reaches."""
    if how == LONGER:
        return CONV.LONGER_SHARE
    made = name == p.output_name
    if how == "taps" or (how == "windows" and made):
        return CONV.ADDED_SHARE
    if how == "windows":
        return CONV.WINDOWS_SHARE
    if how == "patches" and made and p.c >= MANY and p.strides_of(name)[1] == 1:
        return CONV.BACK_SHARE
    return CONV.TURN_SHARE


OTHER_ROWS = ("packed", "subpixel", "direct", "askew", "planes")
"""Pipelines whose alignment is not of an image's channels."""


def whole_channels(c: ConvConfig, name: str) -> int:
    """Elements that the channels of a turned array are multiples of, as the kernel between the
    steps was promised: so many lie side by side in every pixel of the temporary."""
    if name == "w" or c.runs or c.pipeline in OTHER_ROWS:
        return 1
    aligned, dtype = (
        (c.alignment, c.dtype) if name != made_of(c) else (c.alignment_out, c.dtype_out)
    )
    return max(1, aligned // DTYPES[dtype].bytes)


# --- sizes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrices:
    """The caller's array as matrices [channels, pixels].

    plane: elements from one matrix to the next. row: from one row to the next.
    """

    count: int
    channels: int
    pixels: int
    plane: int
    row: int

    @property
    def few(self) -> bool:
        """Whether tiles are of pixels with all channels."""
        return self.channels <= FEW and self.channels * self.pixels < MOST_COUNTED


def matrices(p: ConvProblem, name: str) -> Matrices:
    count, channels, *sizes = p.shape_of(name)
    plane, row, *_ = p.strides_of(name)
    return Matrices(count, channels, math.prod(sizes), plane, row)


def tiles(turned: str, p: ConvProblem, name: str) -> int:
    """Workgroups that turn an array."""
    how = dict(steps(turned))[name]
    if how == "windows" and p.output_name == name:
        return patches.overlap(p).workgroups
    if how == "windows":
        return patches.windows_workgroups(p, "w" in turned)
    if how == "patches":
        cut = cut_of(turned, p, name)
        return cut.blocks * cut.parts
    if how == "swap":
        return swapping.blocks(p)
    if how == "taps":
        return tapping.workgroups(p)
    if how == LONGER:
        return cdiv(math.prod(p.shape_of(name)), longer.BLOCK)
    m = matrices(p, name)
    channels, pixels = TILES[name]
    if m.few:
        return m.count * cdiv(m.channels * m.pixels, channels * pixels)
    return m.count * cdiv(m.channels, channels) * cdiv(m.pixels, pixels)


def cut_of(turned: str, p: ConvProblem, name: str) -> patches.Cut:
    return patches.cut(p, name, "w" in turned, name == p.output_name)
