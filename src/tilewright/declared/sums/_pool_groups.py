"""Groups of windows that lanes of `pool` go through together, and the vectors that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.declared.sums import _windows
from tilewright.dtypes import DTYPES
from tilewright.ops.powers import power_of_two

AXES: dict[str, tuple[Any, ...]] = {
    **_windows.AXES,
    "VECTOR": (1, 2, 4, 8, 16),
    "PIECE": (1, 2, 4, 8, 16),
    "LEFT": tuple(range(9)),
    "STORED": (1, 2, 4, 8, 16),
    "DOWN": (1, 2, 4),
    "ACROSS": (1, 2, 4, 8, 16),
}
"""VECTOR: neighbours that a lane reads together: pixels of a line where channels come first, else
channels. PIECE: as many pixels of it as are read at once, fewer than VECTOR where lines are no
whole number of vectors; 1 where channels are last. LEFT: `pad_w` of kernels that read vectors of
pixels. STORED: pixels of a line of results that are written at once. DOWN and ACROSS: lines and
pixels of the windows that a lane makes together. ROWS and FAST count such groups."""

Fast = Callable[[Any, Any], tuple[int, int, bool]]
"""Of a problem and a config: neighbouring groups in memory, how many of them there are, and whether
channels come first."""

VECTOR_BYTES = 16
"""Bytes of the widest load of a lane, on every architecture here."""
LINE_BYTES = 128
"""Bytes of a line of the cache, which narrow tiles of channels fill at least."""
SEGMENT_BYTES = 64
"""Neighbouring bytes that narrow tiles of pixels read at least: two sectors of a line."""
UNROLLED = 32
"""Elements of a window, at most, that a lane with one window reads without a loop, as the kernel
has it."""
MOST_READ = 128
"""Elements that a lane reads for a group, at most: none of these reads is in a loop, so each is
instructions of its own."""
LANES = 128
"""Lanes of a workgroup of four warps, for which sizes of tiles are listed."""
MOST_OF_LINE = 64
"""Elements of a line that a lane reads for a group, at most, where a loop goes through lines."""
LANE_RESULTS = 32
"""Results of a lane, at most: each is in a register of its own."""


def fast(problem: Any, config: Any) -> tuple[int, int, bool]:
    """Neighbouring groups in memory of the output, how many of them there are, and whether channels
    come first."""
    depth, height, width = (_windows.count(problem, one) for one in _windows.DIMENSIONS)
    groups = -(-width // config.ACROSS)
    lines = problem.images * depth * -(-height // config.DOWN)
    if problem.channels == 1:
        return groups, lines, True
    return problem.channels, lines * groups, False


def dividing(count: int, most: int) -> int:
    """The largest power of two, at most `most`, that divides `count`."""
    return min(most, count & -count) if count else most


def vector_of(problem: Any, pixels: int) -> tuple[int, int]:
    """VECTOR and PIECE of images. Pixels are read together, at most so many of a line, where a
    vector has the beginnings of whole windows, and where the padding is one of the axis; else one
    by one."""
    most = VECTOR_BYTES * 8 // DTYPES[problem.dtype].bits
    aligned = problem.alignment >= VECTOR_BYTES
    if problem.channels > 1:
        return dividing(problem.channels, most) if aligned else 1, 1
    while most > 1 and (most % problem.stride_w or most > pixels):
        most //= 2
    piece = dividing(problem.width, most) if aligned else 1
    if most == 1 or piece == 1 or problem.pad_w not in AXES["LEFT"]:
        return 1, 1
    return most, piece


def _read(problem: Any, dimension: str, count: int) -> int:
    """How many elements along a dimension `count` neighbouring windows have."""
    kernel, stride, dilation, _, _ = _windows.stated(problem, dimension)
    return _different(count, kernel, stride, dilation)


@lru_cache(256)
def _different(count: int, kernel: int, stride: int, dilation: int) -> int:
    """As `_read`; every config of a problem asks again."""
    return len({one * stride + tap * dilation for one in range(count) for tap in range(kernel)})


def reads(problem: Any, down: int, across: int) -> int:
    """Elements of the windows of a group."""
    lines = problem.kernel_d * _read(problem, "height", down)
    return int(lines * _read(problem, "width", across))


def _looped(problem: Any, down: int, across: int) -> bool:
    """Whether a group is one window that is read in a loop."""
    return down * across == 1 and reads(problem, 1, 1) > UNROLLED


def _sharing(problem: Any, dimension: str) -> list[int]:
    """1, and how many neighbouring windows share elements, if there are so many."""
    several = [n for n in (2, 4) if n <= _windows.count(problem, dimension)]
    alone = _read(problem, dimension, 1)
    return [1, *(n for n in several if _read(problem, dimension, n) < n * alone)]


def forms(problem: Any) -> list[dict[str, int]]:
    """The groups that a problem is served with, without their tiles."""
    vector, piece = vector_of(problem, _windows.count(problem, "width") * problem.stride_w)
    if problem.channels == 1 and vector > 1:
        across = vector // problem.stride_w
        stored = dividing(_windows.count(problem, "width"), across)
        pixels = {"VECTOR": vector, "PIECE": piece, "LEFT": problem.pad_w, "STORED": stored}
        made = [{**pixels, "ACROSS": across, "DOWN": down} for down in _sharing(problem, "height")]
        if found := [one for one in made if _readable(problem, one["DOWN"], across)]:
            return found
    first, results = problem.channels == 1, _windows.count(problem, "width")
    downs, acrosses = _sharing(problem, "height"), _sharing(problem, "width")
    # Groups as high as they are wide share the most, where both dimensions are shared.
    square = [(n, n) for n in downs if n in acrosses]
    several = dict.fromkeys([*square, *((n, 1) for n in downs), *((1, n) for n in acrosses)])
    return [
        {
            "VECTOR": 1 if first else vector,
            "PIECE": 1,
            "LEFT": 0,
            "STORED": dividing(results, across) if first else 1,
            "DOWN": down,
            "ACROSS": across,
        }
        for down, across in several
        if _readable(problem, down, across) or down * across == 1
    ]


def _readable(problem: Any, down: int, across: int) -> bool:
    """Whether lines of a group can be read without a loop: all of them, or each of a group with
    results of one line."""
    if _looped(problem, down, across):
        return False
    many = reads(problem, down, across)
    line = down == 1 and across > 1 and _read(problem, "width", across) <= MOST_OF_LINE
    return many <= MOST_READ or line


def together(problem: Any, arch: Arch) -> list[dict[str, Any]]:
    """Groups, with tiles of each."""
    return tiled(problem, forms(problem), fast)


def tiled(problem: Any, forms: Sequence[Mapping[str, int]], fast: Fast) -> list[dict[str, Any]]:
    """Forms of groups, with two or three tiles of each: of the usual size, of half and of twice as
    many groups."""
    found = []
    for form in forms:
        neighbours, rows, first = fast(problem, SimpleNamespace(**form))
        widest = min(256, power_of_two(neighbours))
        several = (widest, widest // 2) if widest == 256 else (widest,)
        most = min(128, power_of_two(rows))
        usual = int(_usual(first, form["VECTOR"], form["DOWN"] * form["ACROSS"]))
        sizes = [LANES * each // 2 for each in (usual, 2 * usual, 4 * usual)]
        size = DTYPES[problem.dtype].bits // 8
        least = LINE_BYTES // size
        if first:
            least = min(16, max(1, SEGMENT_BYTES // size // max(form["VECTOR"], form["ACROSS"])))
        for wide, lanes in product((*several, _filled(neighbours, least)), sizes):
            deep = max(1, min(most, lanes // (widest if wide in several else wide)))
            found.append({**form, "FIRST": first, "FAST": wide, "ROWS": deep})
    return [dict(pairs) for pairs in dict.fromkeys(tuple(one.items()) for one in found)]


def _usual(first: bool, vector: int, results: int) -> float:
    """Groups of so many results that are preferred for each lane of a tile: a vector of channels,
    and no fewer results than of groups of one."""
    return max(1 if first else vector, _windows.USUAL_ELEMENTS / results)


def _filled(neighbours: int, least: int) -> int:
    """The width of tiles, at least `least`, of which the fewest lanes have no neighbour."""
    widths: list[int] = [n for n in AXES["FAST"] if least <= n <= power_of_two(neighbours)] or [
        power_of_two(neighbours)
    ]
    return min(widths, key=lambda one: (-(-neighbours // one) * one, -one))


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's groups and tile are for a problem."""
    first, vector = problem.channels == 1, config.VECTOR
    if refused := refuses_vector(problem, config):
        return refused
    if first and vector > 1:
        if config.ACROSS * problem.stride_w != vector:
            return f"ACROSS = {config.ACROSS} by {problem.stride_w} are not VECTOR = {vector}"
        if problem.pad_w != config.LEFT:
            return f"LEFT = {config.LEFT}, the padding is {problem.pad_w}"
    if _windows.count(problem, "width") % config.STORED or config.ACROSS % config.STORED:
        return f"STORED = {config.STORED} does not divide the results of a line and of a group"
    groups = config.DOWN, config.ACROSS
    if not _readable(problem, *groups) and not _looped(problem, *groups):
        return f"{reads(problem, *groups)} elements for each group, at most {MOST_READ}"
    return fitting(config, *fast(problem, config))


def refuses_vector(problem: Any, config: Any) -> str:
    """Why a config's vectors are not of a problem's rows; "" if they are."""
    vector, piece = config.VECTOR, config.PIECE
    if problem.channels > 1:
        if problem.channels % vector:
            return f"VECTOR = {vector} does not divide the channels of a pixel"
        return f"PIECE = {piece} belongs to lines of pixels" if piece > 1 else ""
    if problem.width % piece:
        return f"PIECE = {piece} does not divide the pixels of a line"
    return f"vectors of {vector} are not read in pieces of {piece}" if vector % piece else ""


def fitting(config: Any, neighbours: int, rows: int, first: bool) -> bool | str:
    """Whether a tile is one for so many groups, and has no more results than lanes have registers
    for."""
    if (results := _windows.each(config) * config.DOWN * config.ACROSS) > LANE_RESULTS:
        return f"{results:.0f} results for each lane"
    return _windows.fits(neighbours, rows, first, config)


def prefers(problem: Any, config: Any) -> float:
    """What is preferred of tiles, times the elements that are read for each result."""
    windows = config.DOWN * config.ACROSS
    share = reads(problem, config.DOWN, config.ACROSS) / (windows * reads(problem, 1, 1))
    return float(share) * preferred(config, *fast(problem, config))


def preferred(config: Any, neighbours: int, rows: int, first: bool) -> float:
    """What is preferred of tiles of so many groups, times the lanes for each that has one."""
    usual = _usual(first, config.VECTOR, config.DOWN * config.ACROSS)
    lanes = -(-neighbours // config.FAST) * config.FAST / max(1, neighbours)
    return float(lanes * _windows.prefers(neighbours, rows, first, config, usual))
