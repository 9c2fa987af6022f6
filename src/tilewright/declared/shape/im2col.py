"""Windows of images as rows: what turns a convolution into a product (CK's ``image_to_column``).

    y[n, out, (group, tap, c)] = x[n, out · stride + tap · dilation - pad, (group, c)]; 0 outside

Images are channels-last, of any strides: of channels-first images a view with the channels moved
behind. Images of one or two dimensions have a depth (and a height) of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared import _views
from tilewright.declared._arrays import functions
from tilewright.declared._quotients import divisors
from tilewright.declared.shape import _problems, _tiles, _windows
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument

STRIDES = ("x_n", "x_d", "x_h", "x_w", "x_c")
MORE = 2
"""Times what a lane is preferred to have in other copies where its vectors are shorter than 16
bytes: they share some arithmetic. Of whole ones two are enough: on an H200 64 channels took 67.3 µs
with four of them and 65.9 with two, 20 channels 33.7 with eight of 8 bytes and 34.7 with four."""
LEAST_OVER = 4
"""Elements of a vector that is written over the ends of rows, at least."""
LINES = 0
"""READS of kernels that read elements of lines one by one, and write vectors over the ends of
rows."""


def out(axis: int) -> Callable[[Any, Any], int]:
    def count(problem: Any, config: Any) -> int:
        words = ("filter", "stride", "pad", "after", "dilation")
        size = _windows.spatial(problem)[axis]
        return _windows.outs(size, *(_windows.said(problem, word)[axis] for word in words))

    return count


def counts(problem: Any) -> tuple[int, ...]:
    return tuple(out(axis)(problem, None) for axis in range(3))


def rows(problem: Any, config: Any) -> int:
    return int(problem.n * math.prod(problem.once(counts)))


def columns(problem: Any, config: Any) -> int:
    return int(problem.channels * _windows.taps(problem))


def each(problem: Any, config: Any) -> int:
    """Channels of a group; of kernels of lines, elements of a line of a window."""
    if config is not None and config.READS == LINES:
        return int(problem.channels * problem.filter_w)
    return int(problem.channels // max(1, problem.groups))


def lines(problem: Any, writes: int) -> int:
    """WRITES of the kernels that write vectors over the ends of rows, where these serve a problem
    better than vectors of so many columns; else 0. A line of a window lies together in x then,
    columns are odd, and vectors long enough for what is worked out twice for each."""
    pixel = problem.x_w == problem.channels and problem.x_c == 1
    together = pixel and problem.groups == 1 and (problem.dilation_w == 1 or problem.filter_w == 1)
    every = math.gcd(_tiles.MOST_AT_ONCE, rows(problem, None) * columns(problem, None))
    most = min(every, 16 // DTYPES[problem.dtype].bytes)
    serves = together and writes == 1 and LEAST_OVER <= most <= columns(problem, None)
    return every if serves and near(problem) else 0


def dims(problem: Any) -> int:
    """Dimensions of the images, without those of one pixel in front that windows do not leave."""
    plain = zip(*(_windows.said(problem, w) for w in ("filter", "pad", "after")), strict=True)
    said = zip(_windows.spatial(problem), plain, strict=True)
    used = [size != 1 or around != (1, 0, 0) for size, around in said]
    return next((3 - i for i, one in enumerate(used) if one), 1)


def near(problem: Any) -> bool:
    """Whether 32 bits hold every place in x, and around it, and in y."""
    around = zip(_windows.said(problem, "pad"), _windows.said(problem, "after"), strict=True)
    wide = (n + sum(sides) for n, sides in zip(_windows.spatial(problem), around, strict=True))
    counts = (problem.n, *wide, problem.channels)
    far: int = sum(n * getattr(problem, s) for n, s in zip(counts, STRIDES, strict=True))
    return bool(max(far, rows(problem, None) * columns(problem, None)) <= _tiles.MOST_ROWS)


def form(problem: Any) -> dict[str, Any]:
    """UNIT, DIMS, NEAR, GROUPED, READS and WRITES of the kernels for a problem."""
    unit = problem.x_c == 1 or problem.channels == 1
    apart = (each(problem, None), *(getattr(problem, s) for s in STRIDES[:4]))
    writes = math.gcd(_tiles.MOST_AT_ONCE, columns(problem, None))
    over = lines(problem, writes)
    reads = math.gcd(_tiles.MOST_AT_ONCE, *apart) if unit else 1
    return {
        "UNIT": unit,
        "DIMS": dims(problem),
        "NEAR": near(problem),
        "GROUPED": problem.groups > 1,
        "READS": LINES if over else reads,
        "WRITES": over or writes,
    }


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    return {name: (value,) for name, value in problem.once(form).items()}


def supports(problem: Any, config: Any) -> bool | str:
    (count,) = programs(problem, config)
    return _tiles.formed(config, problem.once(form), count)


def programs(problem: Any, config: Any) -> tuple[int]:
    every = rows(problem, config) * columns(problem, config)
    return (_tiles.programs((every,), (config.TILE,)),)


def prefers(problem: Any, config: Any) -> float:
    whole = config.WRITES * DTYPES[problem.dtype].bytes >= 16
    return _tiles.far(config.TILE // (1 if whole else MORE), config.num_warps, problem.dtype)


def refuses(problem: Any) -> str:
    why = _windows.refused(problem, problem.channels, _windows.said(problem, "after"))
    if why:
        return why
    if DTYPES[problem.dtype].bits < 8:
        return f"elements of 4 bits share bytes: {problem.dtype}"
    if max(rows(problem, None), columns(problem, None)) > _tiles.MOST_ROWS:
        return f"over {_tiles.MOST_ROWS} rows"
    return ""


def reference(x: Any, problem: Any) -> Any:
    f, n = functions(x), counts(problem)
    around = zip(
        _windows.spatial(problem), _windows.said(problem, "pad"), _windows.said(problem, "after"),
        strict=True,
    )  # fmt: skip
    wide, inner = _windows.padded(
        x, [sum(sides) for sides in around], _windows.said(problem, "pad")
    )
    wide[inner] = x
    taps = f.stack([wide[one] for one in _windows.slices(problem, n)], axis=4)
    grouped = taps.reshape(problem.n, *n, taps.shape[4], problem.groups, -1)
    return f.swapaxes(grouped, 4, 5).reshape(problem.n, *n, -1)


# --- the function -------------------------------------------------------------------------------

Operation = Callable[..., Any]


def _image_to_column(run: Operation) -> Operation:
    def image_to_column(
        x: Any,
        filter: Any,
        *,
        stride: Any = 1,
        pad: Any = 0,
        pad_after: Any = None,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        """The windows of images x [n, pixels…, channels] as rows [windows of all images, columns].

        filter, stride, pad, pad_after, dilation: a number, or one for each dimension.
        pad_after: zeros behind the image; None for as many as before it.

        Columns are ordered [group, filter…, channel of the group].
        """
        shape = _views.shape_of("x", x)
        rank = len(shape) - 2
        if rank not in (1, 2, 3):
            raise BadArgument(f"images have 3 to 5 dimensions, not {len(shape)}")
        more = (1,) * (3 - rank)
        said = _windows.stated(rank, filter, stride, pad, dilation)
        behind = _windows.each("pad_after", pad if pad_after is None else pad_after, rank)
        for axis, n in zip(_windows.AXES, _windows.three(behind, 0), strict=True):
            said[f"after_{axis}"] = n
        y = run(x.reshape(shape[0], *more, *shape[1:]), groups=groups, **said)
        return y.reshape(-1, y.shape[-1])

    return image_to_column


declare(
    Declaration(
        name="im2col",
        module=__name__,
        operands={
            "x": In("n", *_windows.SPATIAL, "channels", strides=STRIDES),
            "y": Out(
                "n",
                *map(_windows.size_of_out, _windows.AXES),
                "channels * filter_d * filter_h * filter_w",
                exact=True,
            ),
        },
        numbers={**_windows.NUMBERS, **{f"after_{axis}": 0 for axis in _windows.AXES}, "groups": 1},
        axes={
            "UNIT": (True, False),
            "DIMS": (3, 2, 1),
            "NEAR": (True, False),
            "GROUPED": (False, True),
            "READS": (*_tiles.AT_ONCE, LINES),
            "WRITES": _tiles.AT_ONCE,
            "TILE": _tiles.TILES,
            "num_warps": (4, 8),
            "num_stages": (1,),
        },
        parts=(kernel("main", f"{__package__}.kernels.im2col:im2col", programs),),
        values={
            **{f"out_{axis}": out(i) for i, axis in enumerate(_windows.AXES)},
            "each": each,
            "rows": rows,
            "columns": columns,
            **divisors(
                d=out(0),
                h=out(1),
                w=out(2),
                each=each,
                taps=lambda problem, config: _windows.taps(problem),
                filter_h=_windows.field("filter_h"),
                filter_w=_windows.field("filter_w"),
                columns=columns,
            ),
        },
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        refuses=refuses,
        reference=reference,
        gradients=(
            Gradient(
                "x",
                "col2im",
                ("grad y",),
                passes=(*_windows.NUMBERS, *_windows.SPATIAL, "groups"),
            ),
        ),
        functions={"image_to_column": _image_to_column},
        problems=_problems.WINDOWS,
    )
)
