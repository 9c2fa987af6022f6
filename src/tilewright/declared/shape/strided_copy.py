"""An array with any strides, copied into a contiguous one, perhaps in another element type.

    y[i…] = x[i…], or x[i…] / scale rounded to 8 bits

It is what permutations of dimensions, transposes of matrices and casts come to: `permute`,
`batched_transpose` and `cast` state it with the fewest dimensions that walk the same elements. CK
has operations of the first two names; torch has ``x.permute(dims).contiguous()`` and ``x.to``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared import _views
from tilewright.declared._arrays import clipped
from tilewright.declared._quotients import divisors
from tilewright.declared.shape import _ck, _forms, _problems, _tiles, _windows
from tilewright.dtypes import DTYPES, named
from tilewright.errors import BadArgument
from tilewright.tolerance import Tolerance, tolerance

SIZES = tuple(f"n{i}" for i in range(_forms.DIMENSIONS))
STRIDES = tuple(f"s{i}" for i in range(_forms.DIMENSIONS))
LAST = _forms.DIMENSIONS - 1
VECTOR = 16
"""Most bytes that a lane moves at once."""
FEW = 16
"""Elements up to which a side of a matrix is few."""

COUNTED = ("both", "ends")
"""PACKED of kernels that count elements over the ends of rows: one by one, or vectors that lie in
two rows at most."""


def sizes(problem: Any) -> tuple[int, ...]:
    return tuple(getattr(problem, name) for name in SIZES)


def strides(problem: Any) -> tuple[int, ...]:
    return tuple(getattr(problem, name) for name in STRIDES)


def form(problem: Any) -> dict[str, Any]:
    """ACROSS, DIMS, UNIT, READS, WRITES and PACKED of the kernels for a problem."""
    n, s = sizes(problem), strides(problem)
    long = [i for i in range(len(n)) if n[i] > 1] or [LAST]
    across = min(long, key=lambda i: (s[i], -i))
    unit = s[across] == 1
    apart = [s[i] for i in range(len(s)) if i != across]
    reads = math.gcd(_tiles.MOST_AT_ONCE, n[across], *apart) if unit else 1
    writes = math.gcd(_tiles.MOST_AT_ONCE, n[LAST])
    packed = ""
    if across == LAST - 1 and unit:
        if reads > writes and n[LAST] <= FEW:
            packed = "y"
        lies = s[LAST] == n[across] and all(value % writes == 0 for value in s[:across])
        if writes > reads and n[across] <= FEW and lies:
            packed = "x"
    if across == LAST and counted(problem, len(n) - long[0], reads):
        long_enough = n[LAST] * DTYPES[problem.out_dtype].bytes >= VECTOR
        packed = "ends" if long_enough else "both"
    return {
        "ACROSS": across,
        "DIMS": len(n) - long[0],
        "UNIT": unit,
        "READS": reads,
        "WRITES": writes,
        "PACKED": packed,
    }


def counted(problem: Any, dims: int, reads: int) -> bool:
    """Whether rows are too odd for vectors, and elements are counted over the ends of rows: of an
    array that is contiguous wherever vectors are short, of others where rows would have none."""
    n, s = sizes(problem), strides(problem)
    if s[LAST] != 1 or reads * DTYPES[problem.dtype].bytes >= VECTOR:
        return False
    far = sum(size * step for size, step in zip(n, s, strict=True))
    return (dims == 1 or reads == 1) and max(far, math.prod(n)) <= _tiles.MOST_ROWS


def pairs(problem: Any) -> set[tuple[int, int]]:
    """ROWS and COLUMNS of the tiles for a problem."""
    n, across = sizes(problem), problem.once(form)["ACROSS"]
    if problem.once(form)["PACKED"] in COUNTED:
        return {(1, tile) for tile in _tiles.TILES}
    if across == LAST:
        return _tiles.of_rows(math.prod(n[:LAST]), n[LAST])
    return _tiles.turned(n[across], n[LAST])


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    return _tiles.narrowed(problem.once(form), problem.once(pairs))


def supports(problem: Any, config: Any) -> bool | str:
    (count,) = programs(problem, config)
    return _tiles.fits(config, problem.once(form), problem.once(pairs), count)


def rows(problem: Any, config: Any) -> int:
    return math.prod(sizes(problem)[:LAST])


def count(problem: Any, config: Any) -> int:
    return math.prod(sizes(problem))


def programs(problem: Any, config: Any) -> tuple[int]:
    n = sizes(problem)
    if config.PACKED in COUNTED:
        return (_tiles.programs((count(problem, config),), (config.COLUMNS,)),)
    tile = (config.ROWS, config.COLUMNS)
    if config.ACROSS == LAST:
        return (_tiles.programs((rows(problem, config), n[LAST]), tile),)
    others = math.prod(n[i] for i in range(LAST) if i != config.ACROSS)
    return (others * _tiles.programs((n[config.ACROSS], n[LAST]), tile),)


def tiles_across(problem: Any, config: Any) -> int:
    return int(-(-sizes(problem)[LAST] // config.COLUMNS))


def tiles_down(problem: Any, config: Any) -> int:
    return int(-(-sizes(problem)[config.ACROSS] // config.ROWS))


def prefers(problem: Any, config: Any) -> float:
    n = sizes(problem)
    down = min(config.ROWS, n[config.ACROSS]) if config.ACROSS != LAST else _tiles.LINE_BYTES
    across = min(config.COLUMNS, n[LAST]) if config.ACROSS != LAST else _tiles.LINE_BYTES
    return _tiles.far(
        config.ROWS * config.COLUMNS, config.num_warps, problem.out_dtype,
        (max(1, down), problem.dtype), (max(1, across), problem.out_dtype),
    )  # fmt: skip


def refuses(problem: Any) -> str:
    x, y = DTYPES[problem.dtype], DTYPES[problem.out_dtype]
    if x.bits < 8 or y.bits < 8:
        return f"elements of 4 bits share bytes: {problem.dtype} to {problem.out_dtype}"
    if x is not y and "e8m0" in (x.name, y.name):
        return "e8m0 is copied and not cast"
    if problem.has_scale and (y.range is None or x.kind != "float"):
        return f"scale= rounds floats to 8 bits, not {problem.dtype} to {problem.out_dtype}"
    if not problem.has_scale and x is not y and y.kind == "int":
        return f"{problem.dtype} is not cast to {problem.out_dtype} without scale="
    if math.prod(sizes(problem)[:LAST]) > _tiles.MOST_ROWS:
        return f"over {_tiles.MOST_ROWS} rows"
    return ""


def reference(x: Any, scale: Any, problem: Any) -> Any:
    if scale is not None:
        return clipped(x / scale, problem.out_dtype)
    return x if problem.dtype == problem.out_dtype else clipped(x, problem.out_dtype)


def tolerances(problem: Any, config: Any) -> Mapping[str, Tolerance]:
    if problem.dtype == problem.out_dtype and not problem.has_scale:
        return {"y": Tolerance(0.0, 0.0)}
    read = problem.dtype if DTYPES[problem.dtype].kind == "float" else "fp32"
    return {"y": tolerance(read, problem.out_dtype, 1, amplified=1.0)}


def gradients(problem: Any) -> Sequence[Gradient] | str:
    if problem.has_scale:
        return "values that are rounded to 8 bits have none"
    if problem.dtype == problem.out_dtype:
        return (Gradient("x", lambda dy: dy, ("grad y",)),)
    return (Gradient("x", "strided_copy", ("grad y",), options={"out_dtype": problem.dtype}),)


# --- functions ----------------------------------------------------------------------------------

Operation = Callable[..., Any]


def _moved(run: Operation, x: Any, dims: Sequence[int], dtype: Any, **said: Any) -> Any:
    """x with its dimensions in the order `dims`, contiguous."""
    if dtype is not None:
        said["out_dtype"] = named(dtype)
    moved = _views.permuted(x, dims)
    shape = tuple(moved.shape)
    few, _ = _forms.canonical(shape, _views.strides(moved))
    return run(moved.reshape(few), **said).reshape(shape)


def _permute(run: Operation) -> Operation:
    def permute(x: Any, dims: Sequence[int], *, out_dtype: Any = None) -> Any:
        """The dimensions of x in the order `dims`, contiguous: ``x.permute(dims).contiguous()``."""
        _views.shape_of("x", x)
        return _moved(run, x, _forms.order(x, dims), out_dtype)

    return permute


def _batched_transpose(run: Operation) -> Operation:
    def batched_transpose(x: Any, *, out_dtype: Any = None) -> Any:
        """x [..., rows, columns] as [..., columns, rows], contiguous."""
        rank = len(_views.shape_of("x", x))
        if rank < 2:
            raise BadArgument(f"batched_transpose takes matrices, not {rank} dimensions")
        dims = (*range(rank - 2), rank - 1, rank - 2)
        return _moved(run, x, dims, out_dtype)

    return batched_transpose


def _cast(run: Operation) -> Operation:
    def cast(x: Any, dtype: Any, *, scale: Any = None) -> Any:
        """x in another element type, its dimensions in the order in which x has them in memory.

        scale: what values are divided by that are rounded to 8 bits: one number.
        """
        _views.shape_of("x", x)
        dims = _forms.by_memory(x)
        y = _moved(run, x, dims, dtype, scale=scale)
        return _views.permuted(y, _forms.inverse(dims))

    return cast


declare(
    Declaration(
        name="strided_copy",
        module=__name__,
        operands={
            "x": In(*SIZES, strides=STRIDES),
            "scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
            "y": Out(*SIZES, dtype="out_dtype"),
        },
        axes={
            "ACROSS": tuple(reversed(range(_forms.DIMENSIONS))),
            "DIMS": tuple(range(1, _forms.DIMENSIONS + 1)),
            "UNIT": (True, False),
            "READS": _tiles.AT_ONCE,
            "WRITES": _tiles.AT_ONCE,
            "PACKED": ("", "x", "y", *COUNTED),
            "ROWS": tuple(1 << i for i in range(14)),
            "COLUMNS": tuple(1 << i for i in range(14)),
            "num_warps": (4, 8),
            "num_stages": (1,),
        },
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.strided_copy:strided_copy",
                programs,
                lambda config: config.PACKED not in COUNTED,
            ),
            kernel(
                "runs",
                f"{__package__}.kernels.strided_runs:strided_runs",
                programs,
                lambda config: config.PACKED in COUNTED,
            ),
        ),
        values={
            "rows": rows,
            "count": count,
            **divisors(
                few=_windows.field(SIZES[LAST]),
                across=tiles_across,
                down=tiles_down,
                **{name: _windows.field(name) for name in SIZES[1:LAST]},
            ),
        },
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        refuses=refuses,
        reference=reference,
        tolerances=tolerances,
        gradients=gradients,
        functions={
            "permute": _permute,
            "batched_transpose": _batched_transpose,
            "cast": _cast,
        },
        drivers=(_ck.DRIVER,),
        problems=(*_problems.PERMUTED, *_problems.CAST),
    )
)
