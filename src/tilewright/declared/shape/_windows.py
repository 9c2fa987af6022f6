"""Windows of images: which pixels a filter reads, in up to three dimensions.

Words, each with ``_d``, ``_h`` and ``_w`` behind it: filter, stride, pad, after (zeros behind the
image), dilation, out (windows). Columns are ordered [group, filter_d, filter_h, filter_w, channel].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright import checks
from tilewright.declared._arrays import zeros
from tilewright.declared.shape import _tiles
from tilewright.errors import BadArgument, shown
from tilewright.ops.powers import power_of_two

AXES = ("d", "h", "w")
SPATIAL = ("depth", "height", "width")
SAID = ("filter", "stride", "pad", "dilation")
NUMBERS = {f"{word}_{axis}": int(word != "pad") for word in SAID for axis in AXES}
"""What a call states of its windows, with the defaults."""
COLUMNS = 128
"""Most columns of a tile: what is worked out for each is used for many rows."""


def said(problem: Any, word: str) -> tuple[int, ...]:
    """A word's number for each dimension."""
    return tuple(getattr(problem, f"{word}_{axis}") for axis in AXES)


def spatial(problem: Any) -> tuple[int, ...]:
    return tuple(getattr(problem, name) for name in SPATIAL)


def taps(problem: Any) -> int:
    return math.prod(said(problem, "filter"))


def reach(taps: int, dilation: int) -> int:
    """Pixels from a filter's first to its last, with both."""
    return (taps - 1) * dilation + 1


def size_of_out(axis: str) -> str:
    """How many windows there are along a dimension."""
    name = SPATIAL[AXES.index(axis)]
    return (
        f"({name} + pad_{axis} + after_{axis} - (filter_{axis} - 1) * dilation_{axis} - 1)"
        f" // stride_{axis} + 1"
    )


def outs(size: int, filter: int, stride: int, pad: int, after: int, dilation: int) -> int:
    """The same, as a number."""
    return (size + pad + after - reach(filter, dilation)) // stride + 1


def after(out: int, size: int, filter: int, stride: int, pad: int, dilation: int) -> int:
    """The fewest zeros behind an image with which it has `out` windows along a dimension."""
    return max(0, (out - 1) * stride + reach(filter, dilation) - pad - size)


def refused(problem: Any, channels: int, after: Sequence[int]) -> str:
    """Why windows have no meaning; "" if they have one."""
    for word in ("filter", "stride", "dilation"):
        if 0 in said(problem, word):
            return f"{word} = {said(problem, word)} has a 0"
    if problem.groups < 1 or channels % problem.groups:
        return f"{channels} channels are not in {problem.groups} groups"
    sides = (said(problem, word) for word in ("filter", "dilation", "pad"))
    for size, taps, dilation, before, behind in zip(spatial(problem), *sides, after, strict=True):
        if size and size + before + behind < reach(taps, dilation):
            return (
                f"a filter that reaches over {reach(taps, dilation)} pixels, of {size} with "
                f"{before} and {behind} zeros around"
            )
    return ""


def field(name: str) -> Callable[[Any, Any], int]:
    return lambda problem, config: int(getattr(problem, name))


def tiles(rows: int, columns: int, most: int = COLUMNS) -> set[tuple[int, int]]:
    """ROWS and COLUMNS of tiles, of at most `most` columns."""
    across = min(power_of_two(columns), most)
    return {(min(tile // across, power_of_two(rows)), across) for tile in _tiles.TILES}


def padded(x: Any, sizes: Sequence[int], before: Sequence[int]) -> tuple[Any, tuple[slice, ...]]:
    """Zeros [n, sizes…, channels] like x [n, pixels…, channels], and where x is in them."""
    made = zeros((x.shape[0], *sizes, x.shape[-1]), x)
    inner = (slice(b, b + n) for b, n in zip(before, x.shape[1:-1], strict=True))
    return made, (slice(None), *inner)


def slices(problem: Any, counts: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """For each tap, which pixels of a padded image the windows read."""
    stride, dilation = said(problem, "stride"), said(problem, "dilation")
    for tap in itertools.product(*map(range, said(problem, "filter"))):
        first = [t * d for t, d in zip(tap, dilation, strict=True)]
        walked = zip(first, stride, counts, strict=True)
        yield (slice(None), *(slice(f, f + (n - 1) * s + 1, s) for f, s, n in walked))


# --- arguments of the functions -------------------------------------------------------------------


def each(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A number for each dimension. Raises `BadArgument`."""
    found = checks.plain(name, value)
    if type(found) is int:
        found = (found,) * rank
    if not isinstance(found, tuple) or len(found) != rank or any(type(n) is not int for n in found):
        raise BadArgument(f"{name} = {shown(value)} is no whole number, nor {rank} of them")
    return found


def three(values: Sequence[int], usual: int) -> tuple[int, ...]:
    """Numbers for depth, height and width."""
    return (*(usual,) * (len(AXES) - len(values)), *values)


def stated(rank: int, filter: Any, stride: Any, pad: Any, dilation: Any) -> dict[str, int]:
    """What a call states of its windows, from numbers for each of `rank` dimensions."""
    given = {"filter": filter, "stride": stride, "pad": pad, "dilation": dilation}
    return {
        f"{word}_{axis}": n
        for word, value in given.items()
        for axis, n in zip(AXES, three(each(word, value, rank), int(word != "pad")), strict=True)
    }
