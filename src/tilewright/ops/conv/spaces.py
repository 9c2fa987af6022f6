"""The default space of a problem and the spaces of a tuning."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.conv import config
from tilewright.ops.conv.config import (
    ALIGNMENTS,
    DEPTHWISE,
    INDEX_BITS,
    PIPELINES,
    SCHEDULERS,
    SHARING,
    ConvConfig,
)
from tilewright.ops.conv.geometry import power_of_two
from tilewright.ops.conv.pipelines import bands, boxed_rows, by_gemm, grouped_rows, runs, windows
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.conv.rules import SIGNATURE, alignments, index_bits
from tilewright.ops.gemm.config import REDUCTIONS
from tilewright.space import KernelSpace

AXES: dict[str, Any] = {
    "direction": "forward",
    "spatial_dims": 2,
    "dtype": "bf16",
    "dtype_out": "",
    "precision": "ieee",
    "tile_m": 128,
    "tile_n": 64,
    "tile_k": 32,
    "num_warps": 4,
    "num_stages": 2,
    "pipeline": "implicit",
    "scheduler": "tile",
    "group_m": 8,
    "merged": False,
    "runs": False,
    "merged_groups": 1,
    "alignment": 16,
    "alignment_out": 16,
    "index_bits": 32,
    "epilogue": "",
    "box": "",
    "held": "",
    "gemm": "",
    "reduction": "",
    "spread": 0,
}
"""Every axis, with its default. An empty dtype_out is the usual one; an empty reduction is linear
under the schedulers that have one."""

ALGORITHM = (
    "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "pipeline", "scheduler", "group_m",
    "merged", "alignment", "alignment_out", "box", "held", "merged_groups", "runs", "spread",
)  # fmt: skip

FEW = 32
"""Channels of a group up to which steps of several taps are in the default space."""

Tile = tuple[int, int, int, int]
"""tile_m, tile_n, bytes of tile_k, warps."""

_TILES: dict[str, tuple[Tile, ...]] = {
    "cuda": ((128, 128, 128, 8), (128, 64, 128, 4), (64, 128, 128, 4), (64, 64, 128, 4),
             (128, 32, 128, 4), (64, 32, 128, 4), (128, 16, 128, 4)),
    "hip": ((128, 128, 64, 8), (128, 64, 64, 4), (64, 128, 64, 4), (64, 64, 64, 4),
            (128, 32, 64, 4), (64, 32, 64, 4), (64, 16, 64, 4)),
    "merged": ((128, 64, 64, 8), (128, 32, 64, 8), (64, 64, 64, 4), (64, 32, 64, 4),
               (128, 16, 64, 8), (64, 16, 64, 4)),
    "vector": ((64, 64, 32, 8), (64, 32, 32, 4), (32, 32, 32, 4), (64, 16, 32, 4)),
}  # fmt: skip
"""By the GPU's maker; ``merged`` where a step's products are of several taps, whose loads of one
element pass through registers; ``vector`` where fp32 has no matrix instruction."""

_DEPTHWISE: tuple[tuple[int, int, int], ...] = ((16, 64, 4), (64, 64, 4), (32, 32, 4), (8, 128, 4))
"""Pixels, channels, warps."""

_HELD = ((2, 16), (4, 16), (8, 16), (1, 16), (2, 4), (4, 4), (8, 4))
"""Of windows that hold their filter: channels in a thread, steps down."""

_SMALL = 49
"""Taps up to which no row is held, but the filter."""

_PIXELS = (8, 16)
"""Pixels of a step of a depthwise gradient of weights."""


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "direction": tuple(DIRECTIONS),
        "spatial_dims": (1, 2, 3),
        "pipeline": PIPELINES,
        "scheduler": SCHEDULERS,
        "reduction": REDUCTIONS,
        "num_warps": arch.num_warps,
        "num_stages": arch.num_stages,
        "merged": (False, True),
        "runs": (False, True),
        "alignment": ALIGNMENTS,
        "alignment_out": ALIGNMENTS,
        "index_bits": INDEX_BITS,
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def default_space(problem: ConvProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured."""
    rows = itertools.chain(
        _implicit(problem, arch),
        _depthwise(problem),
        boxed_rows.rows(problem, arch),
        _held(problem, arch),
        bands.rows(problem, alignments(problem, bands.PIPELINE)),
        grouped_rows.default(problem, arch),
        runs.rows(problem, arch),
    )
    return _space(problem, rows, by_gemm.configs(problem, arch))


def tuning_spaces(problem: ConvProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: more tiles, warps and stages, and both forms of a step."""
    rows = itertools.chain(
        _tuned(problem, arch),
        _depthwise(problem, tuned=True),
        boxed_rows.rows(problem, arch, tuned=True),
        _held(problem, arch, tuned=True),
        bands.rows(problem, alignments(problem, bands.PIPELINE), tuned=True),
        grouped_rows.tuned(problem, arch),
        runs.rows(problem, arch),
    )
    products = by_gemm.configs(problem, arch, tuned=True)
    return default_space(problem, arch), _space(problem, rows, products, tuned=True)


def _space(
    p: ConvProblem, rows: Iterable[tuple[Any, ...]], products: Iterable[ConvConfig], *,
    tuned: bool = False,
) -> KernelSpace:  # fmt: skip
    """The space of these algorithms; of a tuning, also with parts of sums that meet in a tree.
    Atomic sums are for users who declare them, as GEMM's are.

    rows: the first fields of `ALGORITHM`; the others are as `AXES` says. products: kernels of GEMM.
    """
    linked = (*ALGORITHM, "reduction", "index_bits", "gemm")
    bits = index_bits(p)
    filled = ((*row, *(AXES[name] for name in ALGORITHM[len(row) :])) for row in rows)
    every = [
        (*row, meet, bits, "")
        for row in filled
        for meet in (("", "tree") if tuned and _meets(row) else ("",))
    ]
    every += [tuple(getattr(c, axis) for axis in linked) for c in products]
    fixed: dict[str, Any] = {name: [getattr(p, name)] for name in SIGNATURE}
    fixed |= {"spatial_dims": [len(p.spatial)]}
    return KernelSpace("conv", fixed, {}, {linked: list(dict.fromkeys(every))})


def _meets(row: tuple[Any, ...]) -> bool:
    """Whether parts of sums can meet in several ways."""
    said = dict(zip(ALGORITHM, row, strict=True))
    whole = said["tile_n"] & (said["tile_n"] - 1) == 0  # in one accumulator
    return said["scheduler"] in SHARING and said["pipeline"] not in DEPTHWISE and whole


def of_gemm(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all axes of a kernel of GEMM. A space need not say more of it than ``gemm``,
    its direction and its dimensions. Raises `BadArgument` for values that the kernel does not
    have."""
    found = config.of_words(values["direction"], values["spatial_dims"], values["gemm"])
    for axis, value in values.items():
        has = getattr(found, axis)
        if value not in (has, AXES[axis]):
            raise BadArgument(f"{axis} = {value!r}, but gemm = {found.gemm} says {has!r}")
    return {axis: getattr(found, axis) for axis in values}


def _schedulers(p: ConvProblem) -> tuple[str, ...]:
    return ("tile", *SHARING) if p.direction == "weights" else ("tile",)


def _few(p: ConvProblem) -> int:
    """Channels that a step, or a tile's columns, of one tap can have."""
    return p.group_k if p.direction == "data" else p.group_c


def _implicit(p: ConvProblem, arch: Arch) -> Iterator[tuple[Any, ...]]:
    if p.depthwise and p.precision == "ieee":
        return  # nothing for matrix units
    word = "tf32" if p.precision == "tf32" else p.dtype
    on_vectors = arch.dot == "vector" or getattr(arch.dtypes.get(word), "via", "") == "fma"
    merged = (False, True) if _few(p) <= FEW else (False,)
    if _few(p) <= FEW // 4:
        merged = (True,)
    for form, scheduler in itertools.product(merged, _schedulers(p)):
        tiles = _TILES["vector" if on_vectors else "merged" if form else arch.backend]
        stages = 1 if on_vectors or arch.backend == "hip" else 2 if form else 3
        for m, n, k, warps in tiles:
            if n <= max(16, power_of_two(_columns(p, form))):
                depth = max(16, k // DTYPES[p.dtype].bytes)
                yield (m, n, depth, warps, stages, "implicit", scheduler, 8, form,
                       *alignments(p, "implicit"))  # fmt: skip


def _columns(p: ConvProblem, merged: bool) -> int:
    """Columns that tiles are cut from."""
    if p.direction == "weights":
        return p.group_c * (p.taps if merged else 1)
    return p.group_c if p.direction == "data" else p.group_k


def _tuned(p: ConvProblem, arch: Arch) -> Iterator[tuple[Any, ...]]:
    size = DTYPES[p.dtype].bytes
    stages = [n for n in (1, 2, 3, 4) if n in arch.num_stages]
    sides = (32, 64, 128, 256)
    for m, n, k, warps, count, form, scheduler in itertools.product(
        sides, (16, *sides), (64, 128), (4, 8), stages, (False, True), _schedulers(p)
    ):
        depth = max(16, k // size)
        yield (m, n, depth, warps, count, "implicit", scheduler, 8, form,
               *alignments(p, "implicit"))  # fmt: skip


def _depthwise(p: ConvProblem, *, tuned: bool = False) -> Iterator[tuple[Any, ...]]:
    if not p.depthwise or p.precision == "tf32":
        return
    tiles: Sequence[tuple[int, int, int]] = _DEPTHWISE
    if tuned:
        tiles = [*itertools.product((8, 16, 32, 64, 128), (32, 64, 128), (1, 2, 4, 8))]
    width = alignments(p, "depthwise")
    if p.direction != "weights":
        for m, n, warps in tiles:
            yield (m, n, 1, warps, 1, "depthwise", "tile", 1, False, *width)
        return
    taps = min(16, power_of_two(p.taps))
    for (_, n, warps), pixels, scheduler in itertools.product(tiles, _PIXELS, ("tile", "split")):
        if n <= 64:
            yield (taps, n, pixels, warps, 1, "depthwise", scheduler, 1, False, *width)


def _widths(p: ConvProblem, tuned: bool) -> Sequence[int]:
    """Channels of a window's tile: in a tuning also half, where the last would be half empty."""
    wide = min(64, max(16, power_of_two(p.c)))
    return (wide, wide // 2) if tuned and 0 < p.c % wide <= wide // 2 else (wide,)


def _held(p: ConvProblem, arch: Arch, *, tuned: bool = False) -> Iterator[tuple[Any, ...]]:
    """Windows that hold a filter, or of a large one a row, where registers do."""
    if not p.depthwise or p.precision == "tf32" or p.taps == 1:
        return
    width = alignments(p, "window")
    for word in windows.words(p):
        row = windows.is_row(word, len(p.spatial))
        if row and p.taps <= _SMALL and not tuned:
            continue
        forms: Sequence[tuple[int, int]] = _HELD
        if tuned:
            forms = [*itertools.product((1, 2, 4, 8), (4, 8, 16, 32, 64))]
        if row:
            forms = [(each, 1) for each in (1, 2, 4)]
        for n, (each, down), warps, scheduler in itertools.product(
            _widths(p, tuned), forms, (2, 4, 8) if tuned else (4,), _schedulers(p)
        ):
            m = max(1, each * warps * arch.warp_size // n)
            yield (m, n, down, warps, 1, "window", scheduler, 1, False, *width, "", word)
