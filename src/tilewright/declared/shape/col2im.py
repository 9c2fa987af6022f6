"""Rows that windows of images are (`im2col`) summed back into images: its gradient.

x[n, pixel, (group, c)] = Σ y[n, out, (group, tap, c)] over out · stride + tap · dilation - pad
                          = pixel
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared import _views
from tilewright.declared._arrays import functions
from tilewright.declared._quotients import divisors
from tilewright.declared.shape import _problems, _tiles, _windows
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument

DIVIDED = (*_windows.SPATIAL, *(f"stride_{axis}" for axis in _windows.AXES))
OUT = tuple(f"out_{axis}" for axis in _windows.AXES)


def channels(problem: Any, config: Any = None) -> int:
    return int(problem.columns // max(1, _windows.taps(problem)))


def rows(problem: Any, config: Any) -> int:
    return int(problem.n * math.prod(_windows.spatial(problem)))


def after(problem: Any) -> list[int]:
    """The fewest zeros behind the images with which they have these windows."""
    words = (_windows.said(problem, word) for word in _windows.SAID)
    along = zip(_windows.said(problem, "out"), _windows.spatial(problem), *words, strict=True)
    return [_windows.after(*one) for one in along]


def form(problem: Any) -> dict[str, Any]:
    """NEXT and VECTOR of the kernels for a problem."""
    each = channels(problem) // max(1, problem.groups)
    return {
        "NEXT": _windows.said(problem, "stride") == (1, 1, 1),
        "VECTOR": math.gcd(_tiles.MOST_AT_ONCE, each),
    }


def pairs(problem: Any) -> set[tuple[int, int]]:
    return _windows.tiles(rows(problem, None), channels(problem))


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    return _tiles.narrowed(problem.once(form), problem.once(pairs))


def supports(problem: Any, config: Any) -> bool | str:
    (count,) = programs(problem, config)
    return _tiles.fits(config, problem.once(form), problem.once(pairs), count)


def programs(problem: Any, config: Any) -> tuple[int]:
    of = (rows(problem, config), channels(problem))
    return (_tiles.programs(of, (config.ROWS, config.COLUMNS)),)


def prefers(problem: Any, config: Any) -> float:
    return _tiles.far(config.ROWS * config.COLUMNS, config.num_warps, problem.dtype)


def step(axis: str) -> Callable[[Any, Any], int]:
    """From one tap of a pixel to its next, along an axis."""

    def found(problem: Any, config: Any) -> int:
        apart = getattr(problem, f"dilation_{axis}")
        return int(getattr(problem, f"stride_{axis}")) if apart == 1 else 1

    return found


def steps(axis: str) -> Callable[[Any, Any], int]:
    """Most taps of a pixel along an axis."""
    return lambda problem, config: (
        -(-getattr(problem, f"filter_{axis}") // step(axis)(problem, config))
    )


def refuses(problem: Any) -> str:
    if DTYPES[problem.dtype].kind != "float" or DTYPES[problem.dtype].bits < 8:
        return f"sums of {problem.dtype}"
    if problem.columns % max(1, _windows.taps(problem)):
        return f"{problem.columns} columns of {_windows.taps(problem)} taps"
    behind = after(problem)
    why = _windows.refused(problem, channels(problem), behind)
    if why:
        return why
    words = (_windows.said(problem, word) for word in ("filter", "stride", "pad"))
    apart = zip(
        _windows.spatial(problem), *words, behind, _windows.said(problem, "dilation"), strict=True
    )
    found, wanted = _windows.said(problem, "out"), tuple(_windows.outs(*one) for one in apart)
    if found != wanted and 0 not in _windows.spatial(problem):
        return f"images of {_windows.spatial(problem)} pixels have {wanted} windows, not {found}"
    if max(rows(problem, None), problem.columns) > _tiles.MOST_ROWS:
        return f"over {_tiles.MOST_ROWS} rows"
    return ""


def reference(y: Any, problem: Any) -> Any:
    f, n = functions(y), _windows.said(problem, "out")
    taps = _windows.taps(problem)
    grouped = y.reshape(problem.n, *n, problem.groups, taps, -1)
    parts = f.swapaxes(grouped, 4, 5).reshape(problem.n, *n, taps, -1)
    before = _windows.said(problem, "pad")
    around = zip(before, _windows.spatial(problem), after(problem), strict=True)
    one = parts[:, :1, :1, :1, 0]
    wide, _ = _windows.padded(one, [sum(sides) for sides in around], before)
    for tap, where in enumerate(_windows.slices(problem, n)):
        wide[where] += parts[:, :, :, :, tap]
    sides = zip(before, _windows.spatial(problem), strict=True)
    inner = (slice(None), *(slice(b, b + size) for b, size in sides))
    return wide[inner]


def gradients(problem: Any) -> Sequence[Gradient]:
    behind = {f"after_{axis}": n for axis, n in zip(_windows.AXES, after(problem), strict=True)}
    return (
        Gradient("y", "im2col", ("grad x",), options=behind, passes=(*_windows.NUMBERS, "groups")),
    )


# --- the function -------------------------------------------------------------------------------

Operation = Callable[..., Any]


def _column_to_image(run: Operation) -> Operation:
    def column_to_image(
        columns: Any,
        size: Any,
        filter: Any,
        *,
        stride: Any = 1,
        pad: Any = 0,
        pad_after: Any = None,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        """Rows [windows of all images, columns], summed into images [n, pixels…, channels]: the
        gradient of `image_to_column`, with its arguments.

        size: pixels of an image, a number for each dimension.
        """
        shape = _views.shape_of("columns", columns)
        rank = len(size) if isinstance(size, Sequence) else 0
        if len(shape) != 2 or rank not in (1, 2, 3):
            raise BadArgument("column_to_image takes [rows, columns], and 1 to 3 sizes of images")
        pixels = _windows.three(_windows.each("size", tuple(size), rank), 1)
        said = _windows.stated(rank, filter, stride, pad, dilation)
        behind = _windows.each("pad_after", pad if pad_after is None else pad_after, rank)
        counts = []
        for axis, n, more in zip(_windows.AXES, pixels, _windows.three(behind, 0), strict=True):
            filter_, stride_, pad_, apart = (said[f"{word}_{axis}"] for word in _windows.SAID)
            counts.append(_windows.outs(n, filter_, max(1, stride_), pad_, more, apart))
        windows = math.prod(counts)
        if min(counts) < 1 or shape[0] % windows:
            raise BadArgument(f"{shape[0]} rows are not of images with {tuple(counts)} windows")
        of_image = dict(zip(_windows.SPATIAL, pixels, strict=True))
        y = columns.reshape(shape[0] // windows, *counts, shape[1])
        x = run(y, groups=groups, **said, **of_image)
        return x.reshape(x.shape[0], *x.shape[4 - rank :])

    return column_to_image


declare(
    Declaration(
        name="col2im",
        module=__name__,
        operands={
            "y": In("n", *OUT, "columns"),
            "x": Out(
                "n", *_windows.SPATIAL, "columns // (filter_d * filter_h * filter_w)"
            ),
        },
        numbers={**_windows.NUMBERS, **dict.fromkeys(_windows.SPATIAL, 1), "groups": 1},
        axes={
            "NEXT": (True, False),
            "VECTOR": _tiles.AT_ONCE,
            "ROWS": tuple(1 << i for i in range(14)),
            "COLUMNS": tuple(1 << i for i in range(8)),
            "num_warps": (4, 8),
            "num_stages": (1,),
        },
        parts=(kernel("main", f"{__package__}.kernels.col2im:col2im", programs),),
        values={
            "rows": rows,
            "channels": channels,
            **divisors(
                across=lambda problem, config: -(-channels(problem) // config.COLUMNS),
                **{name: _windows.field(name) for name in DIVIDED},
            ),
            **{f"step_{axis}": step(axis) for axis in _windows.AXES},
            **{f"steps_{axis}": steps(axis) for axis in _windows.AXES},
        },
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        refuses=refuses,
        reference=reference,
        terms=64,
        gradients=gradients,
        functions={"column_to_image": _column_to_image},
        problems=_problems.WINDOWS_BACK,
    )
)  # fmt: skip
