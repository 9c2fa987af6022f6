"""Layout steps: arrays whose channels lie outside of their pixels are turned into temporaries with
the channels side by side, which a kernel takes in their place; a result is turned back.

A config names the arrays that it turns (`ConvConfig.turned`, ``turn-xwy`` in names). ``p`` stands
for x that is cut into patches, or put together from them (`patches`), and ``o`` for x that is cut
into windows that overlap, or is the sum of them; w beside either is a copy in longer rows. After
``r``, all are copies in longer rows (`longer`). ``s``: x and y are exchanged, which leaves a step
for w alone (`swapping`). Everything else about a config is that of the
kernels for the problem that is left (`inside`): rules, sources, estimates, launches. In a launch,
steps that turn the inputs come first, then those kernels, then the step that turns the result.
`max_workspace=0` forbids them, as they need memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import binder, epilogues
from tilewright.ops.binder import Array, Catalogue, Context, Numbers, Part
from tilewright.ops.conv import folding, longer, patches, swapping, tapping
from tilewright.ops.conv.catalogue import (
    CATALOGUE,
    made_of,
    own_options,
    strides,
    strides_of,
    three,
)
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
from tilewright.ops.conv.geometry import MOST_DIMS, cdiv, dividing
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import KernelSource, Launch, renamed
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
    return folding.folded(_inside(p, turned))


def _inside(p: ConvProblem, turned: str) -> ConvProblem:
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
    for name, step in _steps(turned):
        if step == LONGER and (reason := longer.refusal(p, name)) is not None:
            return reason
        if step == "turn" and name not in can:
            return f"{name} does not lie as rows of pixels, one for each channel, to be turned"
        if _tiles(turned, p, name) > MOST_TILES:
            return f"{name} has more tiles to be turned than a grid can have"
    if p.output_name in dict(_steps(turned)) and epilogues.has_matrix(p.epilogue):
        return f"epilogue '{p.epilogue}' reads an array that lies as the result, which is turned"
    return None


def _steps(turned: str) -> list[tuple[str, str]]:
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
    return [name for name, how in _steps(turned) if how == "turn"]


def us(p: ConvProblem, turned: str, device: Device) -> float:
    """Microseconds of the layout steps: each array is read and written once, in a kernel that
    another follows without a gap. Windows are as many elements as all of them have."""
    steps, total = _steps(turned), 0.0
    for name, how in steps:
        moved = 2 * math.prod(p.shape_of(name)) * DTYPES[p.dtype_of(name)].bytes
        if how == "windows":
            rows = DTYPES[SUMS if p.direction == "data" else p.dtype].bytes
            moved = moved // 2 + patches.grown(p) * rows
        elif how == "taps":
            moved = moved // 2 + tapping.elements(p) * DTYPES[SUMS].bytes
        total += memory_us(moved, device) / _share(p, name, how)
    return total + len(steps) * DEVICE.SECOND_US


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


# --- what to compile and to launch --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Matrices:
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


def _matrices(p: ConvProblem, name: str) -> _Matrices:
    count, channels, *sizes = p.shape_of(name)
    plane, row, *_ = p.strides_of(name)
    return _Matrices(count, channels, math.prod(sizes), plane, row)


def _tiles(turned: str, p: ConvProblem, name: str) -> int:
    """Workgroups that turn an array."""
    how = dict(_steps(turned))[name]
    if how == "windows" and p.output_name == name:
        return patches.overlap(p).workgroups
    if how == "windows":
        return patches.windows_workgroups(p, "w" in turned)
    if how == "patches":
        cut = _cut(turned, p, name)
        return cut.blocks * cut.parts
    if how == "swap":
        return swapping.blocks(p)
    if how == "taps":
        return tapping.workgroups(p)
    if how == LONGER:
        return cdiv(math.prod(p.shape_of(name)), longer.BLOCK)
    m = _matrices(p, name)
    channels, pixels = TILES[name]
    if m.few:
        return m.count * cdiv(m.channels * m.pixels, channels * pixels)
    return m.count * cdiv(m.channels, channels) * cdiv(m.pixels, pixels)


def _cut(turned: str, p: ConvProblem, name: str) -> patches.Cut:
    return patches.cut(p, name, "w" in turned, name == p.output_name)


def _temporary(name: str) -> str:
    return f"turned_{name}"


def _cutting(c: ConvConfig, name: str) -> Part:
    """The step that cuts an array into rows, or puts it together from them."""
    dtype = c.dtype_out if name == made_of(c) else c.dtype
    back = name == made_of(c)
    source, made = (_temporary(name), name) if back else (name, _temporary(name))
    of_patches = {True: binder.ALLOCATED, False: 1}

    def cut(x: Context) -> patches.Cut:
        return _cut(c.turned, x.problem, name)

    def number(field: str, x: Context) -> Any:
        return getattr(cut(x), field)

    kinds: dict[str, str | tuple[str, ...]] = {
        "columns": "i32", "levels": ("i32",) * 3, "first": "i32", "across": "i32",
        "walked": ("i32",) * 3, "outs": ("i32",) * 3, "sizes": ("i32",) * 3,
        "steps": ("i32",) * 3, "blocks": "i32", "of_image": "i64", "strides": ("i32",) * 4,
    }  # fmt: skip
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.patches:patches",
        grid=lambda x: cut(x).workgroups(x.device.compute_units),
        options=lambda config, arch: (("num_warps", 2), ("num_stages", 1)),
        own={
            "source": Array(dtype, lambda x: source, aligned=lambda config: of_patches[back]),
            "made": Array(dtype, lambda x: made, aligned=lambda config: of_patches[not back]),
            **{field: Numbers(kind, partial(number, field)) for field, kind in kinds.items()},
            "row": Numbers(
                "i32", partial(number, "row"), multiples=lambda config: patches.whole(config.dtype)
            ),
            "each": Numbers("i32", lambda x: cut(x).each(x.device.compute_units)),
            "BACK": lambda config, arch: back,
            "PATCHES": lambda config, arch: patches.TILE[0],
            "COLUMNS": lambda config, arch: patches.TILE[1],
        },
    )


def _windows(c: ConvConfig, name: str) -> Part:
    """The step that cuts x into windows that overlap, or adds them up."""
    return _adding(c, name) if name == made_of(c) else _cutting_windows(c, name)


def _cutting_windows(c: ConvConfig, name: str) -> Part:
    """The step that cuts x into the rows of all windows."""
    own = ("outs", "outs_by", "before", "NDIM")
    padded = "w" in c.turned
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.windows:windows",
        grid=lambda x: patches.windows_workgroups(x.problem, padded),
        options=own_options,
        own={
            **{word: CATALOGUE[word] for word in own},
            "source": Array(c.dtype, lambda x: name, aligned=lambda config: 1),
            "made": Array(
                c.dtype, lambda x: _temporary(name), aligned=lambda config: binder.ALLOCATED
            ),
            "columns": Numbers("i32", lambda x: patches.columns(x.problem)),
            "rows": Numbers("i32", lambda x: patches.row(x.problem, padded)),
            "plane": Numbers("i32", lambda x: patches.plane(x.problem)),
            "levels": Numbers(("i32",) * 3, lambda x: patches.levels(x.problem)),
            "first": Numbers("i32", lambda x: int(patches.channels_outermost(x.problem))),
            "count": Numbers("i32", lambda x: patches.windows(x.problem)),
            "sizes": three(lambda p: tuple(dim.size for dim in p.three)),
            "steps": CATALOGUE["stride"],
            "apart": CATALOGUE["dilation"],
            "strides": Numbers(
                ("i64", *("i32",) * (1 + MOST_DIMS)), lambda x: strides(x.problem, name)
            ),
            "ROWS": lambda config, arch: patches.WINDOWS_TILE[0],
            "PIXELS": lambda config, arch: patches.WINDOWS_TILE[1],
        },
    )


def _adding(c: ConvConfig, name: str) -> Part:
    """The step that makes x of windows that overlap."""

    def number(field: str, x: Context) -> Any:
        return getattr(patches.overlap(x.problem), field)

    kinds: dict[str, str | tuple[str, ...]] = {
        "channels": "i32", "of_channel": "i32", "of_tap": "i32", "outs": ("i32",) * 3,
        "sizes": ("i32",) * 3, "taps": ("i32",) * 3, "steps": ("i32",) * 3,
        "before": ("i32",) * 3, "of_image": "i64", "strides": ("i32",) * 4,
    }  # fmt: skip
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.overlaps:overlaps",
        grid=lambda x: patches.overlap(x.problem).workgroups,
        options=own_options,
        own={
            "source": Array(
                SUMS, lambda x: _temporary(name), aligned=lambda config: binder.ALLOCATED
            ),
            "made": Array(c.dtype_out, lambda x: name, aligned=lambda config: 1),
            **{field: Numbers(kind, partial(number, field)) for field, kind in kinds.items()},
            "plane": Numbers(
                "i32", partial(number, "plane"), multiples=lambda config: patches.whole(SUMS)
            ),
            "CHANNELS": lambda config, arch: patches.OVERLAP_TILE[0],
            "PIXELS": lambda config, arch: patches.OVERLAP_TILE[1],
        },
    )


def _lengthening(c: ConvConfig, name: str) -> Part:
    """The step that copies an array into longer rows, or out of them."""
    back = name == made_of(c)
    dtype = c.dtype_out if back else c.dtype
    source, made = (_temporary(name), name) if back else (name, _temporary(name))

    def number(field: str, x: Context) -> Any:
        return getattr(longer.rows(x.problem, name), field)

    # An aligned product's operands are aligned themselves.
    alignment = {True: binder.ALLOCATED, False: c.alignment}
    kinds = {"rows": ("i64", "count"), "columns": ("i32", "columns"), "length": ("i32", "length")}
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.longer:longer",
        grid=lambda x: _tiles(c.turned, x.problem, name),
        options=own_options,
        own={
            "source": Array(dtype, lambda x: source, aligned=lambda config: alignment[back]),
            "made": Array(dtype, lambda x: made, aligned=lambda config: alignment[not back]),
            **{
                word: Numbers(kind, partial(number, field)) for word, (kind, field) in kinds.items()
            },
            "columns_by": Numbers(("i32",) * 2, lambda x: dividing(number("columns", x))),
            "BLOCK": lambda config, arch: longer.BLOCK,
            "BACK": lambda config, arch: back,
        },
    )


def _swapping(c: ConvConfig, name: str) -> Part:
    """The step that writes the weights with the last tap first and channels as filters, or writes
    such ones back."""
    back = name == made_of(c)
    dtype = c.dtype_out if back else c.dtype
    source, made = (_temporary(name), name) if back else (name, _temporary(name))
    aligned = {True: binder.ALLOCATED, False: 1}
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.swap:swap",
        grid=lambda x: swapping.blocks(x.problem),
        options=own_options,
        own={
            "source": Array(dtype, lambda x: source, aligned=lambda config: aligned[back]),
            "made": Array(dtype, lambda x: made, aligned=lambda config: aligned[not back]),
            "count": Numbers("i32", lambda x: math.prod(x.problem.shape_of("w"))),
            "filters": Numbers("i32", lambda x: x.problem.k),
            "taps": three(lambda p: tuple(dim.filter for dim in p.three)),
            "strides": strides_of(lambda _: "w"),
            "BACK": lambda config, arch: back,
            "BLOCK": lambda config, arch: swapping.BLOCK,
        },
    )


def _tapping(c: ConvConfig, name: str) -> Part:
    """The step that adds up what the taps of each pixel of y have."""
    own = ("extra", "outs", "stride", "dilation", "before", "CHAIN", "TAKES", "LARGEST")
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.taps:taps",
        grid=lambda x: tapping.workgroups(x.problem),
        options=own_options,
        own={
            **{word: CATALOGUE[word] for word in own},
            "source": Array(
                SUMS, lambda x: _temporary(name), aligned=lambda config: binder.ALLOCATED
            ),
            "made": Array(c.dtype_out, lambda x: name, aligned=lambda config: 1),
            "made_strides": strides_of(lambda _: name),
            "filters": Numbers("i32", lambda x: x.problem.k),
            "plane": Numbers("i32", lambda x: tapping.plane(x.problem)),
            "sizes": three(lambda p: tuple(dim.size for dim in p.three)),
            "filter": three(lambda p: tuple(dim.filter for dim in p.three)),
            "PIXELS": lambda config, arch: tapping.PIXELS,
        },
    )


def _promised(name: str, of_channels: bool, config: ConvConfig) -> int:
    return whole_channels(config, name) if of_channels else 1


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


def _turning(c: ConvConfig, name: str) -> Part:
    """The step that turns an array."""
    back = name == made_of(c)
    dtype = c.dtype_out if back else c.dtype

    def size(place: int, x: Context) -> int:
        """Rows, columns, source's plane and row, made's plane and row."""
        m = _matrices(x.problem, name)
        whole = m.channels * m.pixels
        there, turned = (m.plane, m.row), (whole, m.channels)
        if back:
            return (m.pixels, m.channels, *turned, *there)[place]
        return (m.channels, m.pixels, *there, *turned)[place]

    words = ("rows", "columns", "source_plane", "source_row", "made_plane", "made_row")
    kinds = ("i32", "i32", "i64", "i64", "i64", "i64")
    source, made = (_temporary(name), name) if back else (name, _temporary(name))
    of_turned = {True: binder.ALLOCATED, False: 1}
    channels = ("columns", "source_plane", "source_row") if back else ("rows", *words[4:])
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.turn:turn",
        grid=lambda x: _tiles(c.turned, x.problem, name),
        options=own_options,
        own={
            "source": Array(dtype, lambda x: source, aligned=lambda config: of_turned[back]),
            "made": Array(dtype, lambda x: made, aligned=lambda config: of_turned[not back]),
            **{
                word: Numbers(
                    kind,
                    partial(size, place),
                    multiples=partial(_promised, name, word in channels),
                )
                for place, (word, kind) in enumerate(zip(words, kinds, strict=True))
            },
            "few": Numbers("i32", lambda x: int(_matrices(x.problem, name).few)),
            "channels_by": Numbers(
                ("i32",) * 2, lambda x: dividing(_matrices(x.problem, name).channels)
            ),
            "ROWS": lambda config, arch: TILES[name][back],
            "COLUMNS": lambda config, arch: TILES[name][not back],
            "BACK": lambda config, arch: back,
        },
    )


def _catalogue(c: ConvConfig) -> Catalogue:
    """The temporaries."""

    def shape(name: str, how: str, x: Context) -> tuple[int, ...]:
        if c.turned.startswith(LONGER):
            found = longer.rows(x.problem, name)
            assert found is not None
            return found.count, found.length
        count, channels, *sizes = _inside(x.problem, c.turned).shape_of(name)
        if c.turned.startswith(TAPS):
            if name == "w":  # of the filters, whose taps count as filters between the steps
                return (x.problem.k, *x.problem.filter, x.problem.c)
            return channels, tapping.plane(x.problem)
        if how == "windows":
            return channels, patches.plane(x.problem)
        return (count, *sizes, channels)

    def dtype(name: str, how: str) -> str:
        if name != made_of(c):
            return "dtype"
        return SUMS if how in ("windows", "taps") else "dtype_out"

    return {
        _temporary(name): Array(dtype(name, how), shape=partial(shape, name, how))
        for name, how in _steps(c.turned)
    }


_STEPS = {
    "turn": _turning,
    "patches": _cutting,
    "windows": _windows,
    "swap": _swapping,
    "taps": _tapping,
    LONGER: _lengthening,
}


def _parts(c: ConvConfig, back: bool) -> Iterator[Part]:
    for name, how in _steps(c.turned):
        if (name == made_of(c)) == back:
            yield _STEPS[how](c, name)


def sources(c: ConvConfig, arch: Arch) -> dict[str, KernelSource]:
    """What to compile for the layout steps, by part."""
    parts = (*_parts(c, False), *_parts(c, True))
    return binder.sources(parts, _catalogue(c), c, arch)


def launch(c: ConvConfig, p: ConvProblem, device: Device, between: Launch) -> Launch:
    """The launch of `c`: the layout steps, around the launch of its kernels for `inside`."""
    if not c.turned:
        return between
    before, after = (
        binder.launch(_parts(c, back), _catalogue(c), Context(c, p, device))
        for back in (False, True)
    )
    names = {name: _temporary(name) for name, _ in _steps(c.turned)}
    own = renamed(between, names | (swapping.OPERANDS if c.turned == SWAPPED else {}))
    found = (*before.temporaries, *own.temporaries, *after.temporaries)
    steps = (*before.steps, *own.steps, *after.steps)
    return Launch(steps, tuple(dict.fromkeys(found)), own.capturable)
