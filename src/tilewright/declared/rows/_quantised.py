"""What operations whose results are rounded to 8 bits have in common."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Out
from tilewright.custom.declaration import Array
from tilewright.declared._arrays import clipped, functions, largest
from tilewright.dtypes import DTYPES

QUANT = ("", "row", "block", "tensor")
"""How results are rounded to 8 bits: not at all; by the largest of each row; by the largest of each
128 elements; by a scale that the caller gives."""
BLOCK = 128

SCALES: dict[str, Array] = {
    "row_scales": Out("*rows", dtype="fp32", when="quant=row", differentiable=False),
    "block_scales": Out(
        "*rows", f"columns // {BLOCK}", dtype="fp32", when="quant=block", differentiable=False
    ),
}
"""The scales that are made: a result is a value times its scale."""


def reference(values: Any, problem: Any, scale: Any) -> tuple[Any, ...]:
    """`values` [rows, columns] as they are stored, with the scales that are made. A NaN is no
    largest value, and zeros have the scale 1."""
    if not problem.quant:
        return (values,)
    if problem.quant == "tensor":
        return (clipped(values / scale, problem.out_dtype),)
    f, top = functions(values), largest(problem.out_dtype)
    rows, columns = values.shape
    shape = (1, columns) if problem.quant == "row" else (columns // BLOCK, BLOCK)
    groups = values.reshape(rows, *shape)
    size = f.where(groups == groups, abs(groups), 0.0 * f.ones_like(groups))
    scales = f.amax(size, axis=-1) / top
    scales = f.where(scales > 0, scales, f.ones_like(scales))
    made = (groups / scales[..., None]).reshape(values.shape)
    return clipped(made, problem.out_dtype), scales[:, 0] if problem.quant == "row" else scales


def refused(problem: Any) -> str:
    """Why a problem's ways of rounding do not fit together; "" if they do."""
    eight = DTYPES[problem.out_dtype].bytes == 1
    if eight != bool(problem.quant):
        return f"quant = '{problem.quant}' does not go with out_dtype = {problem.out_dtype}"
    if problem.quant == "tensor" and not problem.has_scale:
        return "quant = 'tensor' needs scale="
    if problem.has_scale and problem.quant != "tensor":
        return f"scale= belongs to quant = 'tensor', not to '{problem.quant}'"
    if problem.quant == "block" and problem.columns % BLOCK:
        return f"blocks of {BLOCK} in rows of {problem.columns}"
    return ""


def without_gradients(problem: Any) -> str:
    """Why results have no gradients; "" if they have."""
    if problem.quant:
        return f"{problem.family} with quant = '{problem.quant}' has no gradients"
    return f"{problem.family} with smooth= has no gradients" if problem.has_smooth else ""
