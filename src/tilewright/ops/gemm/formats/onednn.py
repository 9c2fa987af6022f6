"""Problems as oneDNN's benchdnn writes them, of its driver matmul.

    --dt=bf16 --wtag=ba 30x40:40x50                 m=30 n=50 k=40 layout=rcr
    --matmul --dt=f16 3x8x30x40:3x1x40x50           a batch of 3·8, the weights for each 8

Arrays without a tag are row-major, and with ``any`` as they are best here: weights column-major.
Dimensions of a batch that one stride walks become one; two that remain are a nested batch. The
words are those of a GEMM problem.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, shown
from tilewright.ops.gemm.formats import attributes, benchdnn

DRIVERS = ("matmul",)

_SIZES = re.compile(r"(\d+(?:x\d+)+):(\d+(?:x\d+)+)(?::(\d+(?:x\d+)+))?(?:_?n.*)?", re.ASCII)
_TAGS = ("stag", "wtag", "dtag")
_MOST_LEVELS = 2


@dataclass(frozen=True, slots=True)
class _Matrix:
    """How an array's matrices lie: the layout's letter, the leading dimension, and the strides of
    the batch's dimensions."""

    letter: str
    ld: int
    batch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Level:
    """A dimension of a batch, with the strides of A, B and C."""

    count: int
    steps: tuple[int, int, int]


def read(line: str) -> dict[str, str]:
    """The words of a line. Raises `BadArgument`."""
    problem = benchdnn.one(line, DRIVERS)
    options = dict(problem.options)
    if options.pop("grouped", ""):
        raise BadArgument("onednn: --grouped states a problem of grouped_gemm, which reads it")
    a, b, c = _shapes(problem.sizes)
    types = benchdnn.dtypes(options.pop("dt", "f32"))
    m, k, n = *a[-2:], b[-1]
    words = {"m": str(m), "n": str(n), "k": str(k), "dtype": types[0]}
    if types[1] != types[0]:
        words["dtype_b"] = types[1]
    words["dtype_c"] = types[2]
    shapes = zip((a, b, c), types, strict=True)
    lies = [_matrix(options, at, *each, c) for at, each in enumerate(shapes)]
    words["layout"] = "".join(one.letter for one in lies)
    words |= {f"ld{name}": str(one.ld) for name, one in zip("abc", lies, strict=True)}
    for name in (*_TAGS, "strides"):
        options.pop(name, None)
    said = attributes.read(options, _dims(c), _bias(options), types[0], types[2])
    for name, value in options.items():
        if value:
            raise BadArgument(f"onednn: --{name}={shown(value)} is not known to say a problem")
    return words | said.words | _batch(c, lies, said)


def _shapes(text: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The sizes of source, weights and destination."""
    match = _SIZES.fullmatch(text)
    if match is None:
        raise BadArgument(
            f"onednn: {shown(text)} is not of the form MxK:KxN, with sizes of a batch"
        )
    a, b = benchdnn.by(match[1], "a size"), benchdnn.by(match[2], "a size")
    if len(a) != len(b) or a[-1] != b[-2]:
        raise BadArgument(f"onednn: {shown(text)}: the sizes of source and weights do not agree")
    batch = [max(pair) if 0 not in pair else 0 for pair in zip(a[:-2], b[:-2], strict=True)]
    for one in (a, b):
        if any(size not in (1, whole) for size, whole in zip(one, batch, strict=False)):
            raise BadArgument(f"onednn: {shown(text)}: sizes of the batch differ, and none is 1")
    c = (*batch, a[-2], b[-1])
    if match[3] and benchdnn.by(match[3], "a size") != c:
        raise BadArgument(f"onednn: {shown(text)}: the destination is {'x'.join(map(str, c))}")
    return a, b, c


def _matrix(
    options: dict[str, str], at: int, sizes: tuple[int, ...], dtype: str, c: tuple[int, ...]
) -> _Matrix:
    """How an array lies: source, weights or destination (0, 1, 2)."""
    rows, columns = sizes[-2:]
    found = benchdnn.strides(options, at, sizes)
    if found is None:
        turned = at == 1 and (options.get("wtag") == "any" or DTYPES[dtype].packed > 1)
        steps = (1, max(1, rows)) if turned else (max(1, columns), 1)
        found, step = steps, max(1, rows) * max(1, columns)
        for size in reversed(sizes[:-2]):
            found, step = (step, *found), step * max(1, size)
    down, across = found[-2:]
    fits = {
        "r": (columns <= 1 or across == 1) and (rows <= 1 or down >= max(1, columns)),
        "c": (rows <= 1 or down == 1) and (columns <= 1 or across >= max(1, rows)),
    }
    # A matrix of one row or column is both. 4-bit elements are packed along K.
    order = "cr" if at == 1 and DTYPES[dtype].packed > 1 else "rc"
    letter = next((one for one in order if fits[one]), "")
    if not letter:
        raise BadArgument(
            f"onednn: a matrix {rows}x{columns} with strides {down} and {across} is neither row- "
            "nor column-major"
        )
    outer, stride, inner = (rows, down, columns) if letter == "r" else (columns, across, rows)
    batch = zip(found[:-2], sizes[:-2], c[:-2], strict=True)
    return _Matrix(
        letter,
        stride if outer > 1 else max(1, inner),
        tuple(step if size == whole else 0 for step, size, whole in batch),
    )


def _dims(c: tuple[int, ...]) -> attributes.Dims:
    column, row = 1 << (len(c) - 1), 1 << (len(c) - 2)
    named = {
        **attributes.POLICIES, "per_oc": column, "per_dim_1": column, "per_ocic": row + column
    }  # fmt: skip
    return attributes.Dims(c, column, row, column, named, named)


def _bias(options: dict[str, str]) -> int | None:
    mask = checks.parse_whole("onednn: --bia_mask", options.pop("bia_mask", "2"))
    return mask if options.pop("bia-dt", "undef") not in ("", "undef") else None


def _batch(c: tuple[int, ...], lies: list[_Matrix], said: attributes.Attributes) -> dict[str, str]:
    """Words for the batch, and for how the epilogue's matrix lies."""
    matrix = {"add", "mul"} & {*said.words.get("epilogue", "").split("+")}
    if matrix and not said.old and lies[2].letter != "r":
        raise BadArgument("onednn: the epilogue's matrix is row-major, and the result is not")
    ldd = lies[2].ld if said.old else max(1, c[-1])
    words: dict[str, Any] = {"ldd": ldd} if matrix else {}
    levels = _levels(c, lies)
    if len(levels) > _MOST_LEVELS:
        raise BadArgument(
            f"onednn: {len(levels)} dimensions of the batch are walked apart, over {_MOST_LEVELS}"
        )
    if not levels:
        return {name: str(value) for name, value in words.items()}
    inner = levels[-1]
    words["batch"] = math.prod(level.count for level in levels)
    words |= {f"stride_{name}": step for name, step in zip("abc", inner.steps, strict=True)}
    each = max(1, c[-2]) * max(1, c[-1])
    if matrix:
        words["stride_d"] = inner.steps[2] if said.old else each
    if len(levels) == _MOST_LEVELS:
        outer = levels[0].steps
        last = (outer[2] if said.old else inner.count * each) if matrix else 0
        words |= {"batching": "nested", "batch_inner": inner.count}
        words["outer_strides"] = ",".join(map(str, (*outer, last)))
    return {name: str(value) for name, value in words.items()}


def _levels(c: tuple[int, ...], lies: list[_Matrix]) -> list[_Level]:
    """The batch's dimensions, outermost first; neighbours that one stride walks are one."""
    found: list[_Level] = []
    steps = zip(*(one.batch for one in lies), strict=True)
    for count, (a, b, to) in zip(c[:-2], steps, strict=True):
        if count == 1:
            continue
        own = _Level(count, (a, b, to))
        outer = found[-1] if found else None
        if outer and outer.steps == tuple(step * count for step in own.steps):
            found[-1] = _Level(outer.count * count, own.steps)
        else:
            found.append(own)
    return found
