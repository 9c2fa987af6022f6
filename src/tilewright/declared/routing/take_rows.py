"""Rows by a map: y[i] = x[order[i] // per_row]; zeros where the map means no row of x.

With `order` of `sort_by_expert`, and k as `per_row`, tokens in the order of their experts. Grouped
GEMM gathers them itself; a copy is for gradients, and for kernels that take rows in order. The
gradient of x is `sum_of_experts` of `places`, so that it repeats bit for bit.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.routing import _pieces, _references, _tiles
from tilewright.dtypes import DTYPES


def reference(x: Any, order: Any, problem: Any) -> Any:
    f, count = functions(x), len(x)
    there = (order >= 0) & (order < count * problem.per_row)
    none = _references.filled(x, x.shape[1], 0).reshape(1, -1)
    at = f.where(there, order // problem.per_row, 0 * order + count)
    return f.concatenate([x, none])[at]


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    if problem.per_row < 1:
        return f"per_row = {problem.per_row}; at least 1 number of the map means a row"
    if problem.tokens * problem.per_row >= 2**31:
        return f"{problem.tokens} rows, {problem.per_row} times; the map is int32"
    return ""


def least(problem: Any) -> int:
    """The fewest bytes: each row of x once, the map and the result."""
    p = problem
    row = p.width * DTYPES[p.dtype].bytes
    return int((min(p.tokens, p.slots) + p.slots) * row + 4 * p.slots)


def drawn(problem: Any, rng: Any) -> Any:
    """Any rows, and one in sixteen that is none, on either side."""
    last = problem.tokens * problem.per_row
    return rng.integers(-(last // 16), last + last // 16 + 1, problem.slots)


def gradients(problem: Any) -> tuple[Gradient, ...] | str:
    if not problem.has_places:
        return "gradients need places=, as sort_by_expert makes them"
    return (Gradient("x", "sum_of_experts", ("grad y", "places")),)


declare(
    Declaration(
        name="take_rows",
        module=__name__,
        operands={
            "x": In("tokens", "width", strides=("x_stride", 1)),
            "order": In("slots", dtype="int32", values=drawn),
            "places": In("tokens", "k", dtype="int32", optional=True, read=False),
            "y": Out("slots", "width"),
        },
        options={"per_row": 1},
        axes=_pieces.AXES,
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.take_rows:take_rows",
                lambda p, c: (p.slots, -(-p.width // c.BLOCK)),
            ),
        ),
        refuses=refused,
        supports=_pieces.fits,
        narrows=_pieces.narrows,
        prefers=_pieces.prefers,
        multiples=("width", "x_stride"),
        least=least,
        reference=reference,
        gradients=gradients,
        problems=tuple(
            {"tokens": tokens, "per_row": k, "slots": tokens * k, "width": width}
            # Mixtral, Qwen3, gpt-oss, DeepSeek-V3.
            for k, width in ((2, 4096), (8, 2048), (4, 2880), (8, 7168))
            for tokens in _tiles.TOKENS
        ),
    )
)
