"""Groups of pixels for which lanes of `pool_backward` read what arrives for windows together."""

from __future__ import annotations

from itertools import product
from typing import Any

from tilewright.arch.model import Arch
from tilewright.declared.sums import _pool_groups, _windows

AXES: dict[str, tuple[Any, ...]] = {
    **_windows.AXES,
    "VECTOR": _pool_groups.AXES["VECTOR"],
    "PIECE": _pool_groups.AXES["PIECE"],
    "LEFT": _pool_groups.AXES["LEFT"],
    "DOWN": (1, 2, 3, 4, 8),
    "ACROSS": (1, 2, 3, 4, 8, 16),
    "LOOPED": (False, True),
}
"""VECTOR: neighbours that a lane writes together: pixels of a line where channels come first, else
channels. PIECE: as many pixels of it as are written at once. LEFT: `pad_w` of kernels that write
vectors of pixels. DOWN and ACROSS: lines and pixels of a group: multiples of the windows' strides,
or 1. LOOPED: whether windows are gone through in a loop. ROWS and FAST count groups."""


def _grouped(problem: Any, down: int, across: int) -> bool:
    """Whether groups begin where windows do."""
    return bool(down % problem.stride_h == 0 and across % problem.stride_w == 0)


def fast(problem: Any, config: Any) -> tuple[int, int, bool]:
    """Neighbouring groups in memory of the images, how many of them there are, and whether channels
    come first."""
    first, height, width = problem.channels == 1, problem.height, problem.width
    if _grouped(problem, config.DOWN, config.ACROSS):
        height += problem.pad_h % problem.stride_h
        if not (first and config.VECTOR > 1):
            width += problem.pad_w % problem.stride_w
    groups = -(-width // config.ACROSS)
    lines = problem.images * problem.depth * -(-height // config.DOWN)
    if first:
        return groups, lines, True
    return problem.channels, lines * groups, False


def _windows_of(problem: Any, dimension: str, pixels: int) -> int:
    """How many windows along a dimension have any of so many neighbouring pixels."""
    kernel, stride, dilation, _, _ = _windows.stated(problem, dimension)
    reach = (kernel - 1) * dilation + 1
    if pixels == 1:  # as many as a kernel asks
        return int(kernel if dilation > 1 else -(-kernel // stride))
    return int((reach - 1) // stride + (pixels - 1) // stride + 1)


def looped_reads(problem: Any) -> int:
    """Windows that a loop goes through for a pixel: no more than there are."""
    found = 1
    for one in _windows.DIMENSIONS:
        _, _, dilation, _, _ = _windows.stated(problem, one)
        there = _windows.count(problem, one)
        asked = _windows_of(problem, one, 1)
        found *= asked if dilation > 1 else min(asked, there)
    return found


def reads(problem: Any, down: int, across: int) -> int:
    """Windows of a group."""
    sizes = (("depth", 1), ("height", down), ("width", across))
    depth, lines, pixels = (_windows_of(problem, *one) for one in sizes)
    return depth * lines * pixels


def forms(problem: Any) -> list[dict[str, int]]:
    """The groups that a problem is served with, without their tiles."""
    vector, piece = _pool_groups.vector_of(problem, problem.width)
    first = problem.channels == 1
    lines, pixels = (
        [n for n in AXES[axis] if n in (stride, 2 * stride, 4 * stride)]
        for axis, stride in (("DOWN", problem.stride_h), ("ACROSS", problem.stride_w))
    )
    wide = first and vector > 1
    found = [
        {
            "VECTOR": vector if wide or not first else 1,
            "PIECE": piece if wide else 1,
            "LEFT": problem.pad_w if wide else 0,
            "DOWN": down,
            "ACROSS": across,
            "LOOPED": False,
        }
        for down, across in product(lines, [vector] if wide else pixels)
        if reads(problem, down, across) <= _pool_groups.MOST_READ
        and down * across <= _pool_groups.LANE_RESULTS
    ]
    single = {"VECTOR": 1 if first else vector, "PIECE": 1, "LEFT": 0, "DOWN": 1, "ACROSS": 1}
    alone = [{**single, "LOOPED": looped} for looped in (False, True)]
    # A loop is for more windows than are unrolled, or for fewer than may be asked.
    every = reads(problem, 1, 1)
    some = alone if looped_reads(problem) < every else alone[:1]
    several = alone[1:] if every > _pool_groups.UNROLLED else some
    return found if wide and found else [*found, *(one for one in several if one not in found)]


def together(problem: Any, arch: Arch) -> list[dict[str, Any]]:
    """Groups, with tiles of each."""
    return _pool_groups.tiled(problem, forms(problem), fast)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's groups and tile are for a problem."""
    first, vector = problem.channels == 1, config.VECTOR
    down, across = config.DOWN, config.ACROSS
    if refused := _pool_groups.refuses_vector(problem, config):
        return refused
    if first and vector > 1:
        if across != vector:
            return f"ACROSS = {across} is not VECTOR = {vector}"
        if problem.pad_w != config.LEFT:
            return f"LEFT = {config.LEFT}, the padding is {problem.pad_w}"
    elif config.LEFT:
        return f"LEFT = {config.LEFT} belongs to vectors of pixels"
    if not _grouped(problem, down, across) and down * across > 1:
        return f"{down} by {across} pixels, which are no multiples of the windows' strides"
    many = reads(problem, down, across)
    if config.LOOPED and down * across > 1:
        return f"a loop goes through the windows of one pixel, not of {down * across}"
    if many > _pool_groups.UNROLLED and down * across == 1 and not config.LOOPED:
        return f"{many} windows for each pixel, unrolled at most {_pool_groups.UNROLLED}"
    if many > _pool_groups.MOST_READ and down * across > 1:
        return f"{many} windows for each group, at most {_pool_groups.MOST_READ}"
    return _pool_groups.fitting(config, *fast(problem, config))


def prefers(problem: Any, config: Any) -> float:
    """What is preferred of tiles, times the windows that are read for each result."""
    pixels = config.DOWN * config.ACROSS
    many = looped_reads(problem) if config.LOOPED else reads(problem, config.DOWN, config.ACROSS)
    share = many / (pixels * reads(problem, 1, 1))
    return float(share) * _pool_groups.preferred(config, *fast(problem, config))
