"""What layout steps (`turning`) compile and launch: a kernel for each kind of step, with its
catalogue. In a launch, steps that turn the inputs come first, then the kernels that compute, then
the step that turns the result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.ops import binder
from tilewright.ops.binder import Array, Catalogue, Context, Numbers, Part
from tilewright.ops.conv import longer, patches, swapping, tapping, turning
from tilewright.ops.conv.catalogue import (
    CATALOGUE,
    made_of,
    own_options,
    strides,
    strides_of,
    three,
)
from tilewright.ops.conv.config import LONGER, SUMS, SWAPPED, TAPS, ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.division import dividing
from tilewright.ops.nouns import KernelSource, Launch, renamed


def _temporary(name: str) -> str:
    return f"turned_{name}"


def _ends(c: ConvConfig, name: str, aligned: int = 1) -> dict[str, Array]:
    """`source` and `made` of a step that moves an array to its temporary, or the result back.

    aligned: bytes that the array is promised to be aligned to.
    """
    back = name == made_of(c)
    dtype = c.dtype_out if back else c.dtype
    given = Array(dtype, lambda x: name, aligned=lambda config: aligned)
    turned = Array(dtype, lambda x: _temporary(name), aligned=lambda config: binder.ALLOCATED)
    source, made = (turned, given) if back else (given, turned)
    return {"source": source, "made": made}


def _cutting(c: ConvConfig, name: str) -> Part:
    """The step that cuts an array into rows, or puts it together from them."""
    back = name == made_of(c)

    def cut(x: Context) -> patches.Cut:
        return turning.cut_of(c.turned, x.problem, name)

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
            **_ends(c, name),
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

    def number(field: str, x: Context) -> Any:
        return getattr(longer.rows(x.problem, name), field)

    kinds = {"rows": ("i64", "count"), "columns": ("i32", "columns"), "length": ("i32", "length")}
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.longer:longer",
        grid=lambda x: turning.tiles(c.turned, x.problem, name),
        options=own_options,
        own={
            **_ends(c, name, c.alignment),  # an aligned product's operands are aligned themselves
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
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.swap:swap",
        grid=lambda x: swapping.blocks(x.problem),
        options=own_options,
        own={
            **_ends(c, name),
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
    return turning.whole_channels(config, name) if of_channels else 1


def _turning(c: ConvConfig, name: str) -> Part:
    """The step that turns an array."""
    back = name == made_of(c)

    def size(place: int, x: Context) -> int:
        """Rows, columns, source's plane and row, made's plane and row."""
        m = turning.matrices(x.problem, name)
        whole = m.channels * m.pixels
        there, turned = (m.plane, m.row), (whole, m.channels)
        if back:
            return (m.pixels, m.channels, *turned, *there)[place]
        return (m.channels, m.pixels, *there, *turned)[place]

    words = ("rows", "columns", "source_plane", "source_row", "made_plane", "made_row")
    kinds = ("i32", "i32", "i64", "i64", "i64", "i64")
    channels = ("columns", "source_plane", "source_row") if back else ("rows", *words[4:])
    return Part(
        name=f"turn_{name}",
        kernel="tilewright.ops.conv.kernels.turn:turn",
        grid=lambda x: turning.tiles(c.turned, x.problem, name),
        options=own_options,
        own={
            **_ends(c, name),
            **{
                word: Numbers(
                    kind,
                    partial(size, place),
                    multiples=partial(_promised, name, word in channels),
                )
                for place, (word, kind) in enumerate(zip(words, kinds, strict=True))
            },
            "few": Numbers("i32", lambda x: int(turning.matrices(x.problem, name).few)),
            "channels_by": Numbers(
                ("i32",) * 2, lambda x: dividing(turning.matrices(x.problem, name).channels)
            ),
            "ROWS": lambda config, arch: turning.TILES[name][back],
            "COLUMNS": lambda config, arch: turning.TILES[name][not back],
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
        count, channels, *sizes = turning.unfolded(x.problem, c.turned).shape_of(name)
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
        for name, how in turning.steps(c.turned)
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
    for name, how in turning.steps(c.turned):
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
    names = {name: _temporary(name) for name, _ in turning.steps(c.turned)}
    own = renamed(between, names | (swapping.OPERANDS if c.turned == SWAPPED else {}))
    found = (*before.temporaries, *own.temporaries, *after.temporaries)
    steps = (*before.steps, *own.steps, *after.steps)
    return Launch(steps, tuple(dict.fromkeys(found)), own.capturable)
