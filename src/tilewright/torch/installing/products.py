"""aten's products of matrices as calls of ours."""

from __future__ import annotations

from typing import Any

from tilewright.torch.installing.decisions import Asked, Decisions
from tilewright.torch.installing.overrides import Overrides, serving

FAMILIES = ("gemm",)
"""What serves these operators."""


def put(overrides: Overrides, decisions: Decisions) -> None:
    """Serve ``mm``, ``bmm``, ``addmm`` and ``baddbmm``, with and without ``out=``. ``linear``,
    ``matmul`` and ``einsum`` come down to these, as do their gradients."""
    for name, ask in (
        ("mm", _product),
        ("bmm", _product),
        ("addmm", _product_with_sum),
        ("baddbmm", _product_with_sum),
    ):
        for aten in (name, f"{name}.out"):
            overrides.put(aten, serving(decisions, aten, ask, _result, aten == name))


def _result(made: tuple[Any, ...], *_: Any, out: Any = None, **__: Any) -> Any:
    return made[0] if out is None else out


def _product(a: Any, b: Any, *, out: Any = None) -> Asked | str:
    return _why_not(a, b, out) or Asked("gemm", (a, b), {}, None if out is None else (out,))


def _why_not(a: Any, b: Any, out: Any) -> str:
    """Why torch keeps a product; ``""`` if it may be ours."""
    if a.dtype is not b.dtype or (out is not None and out.dtype is not a.dtype):
        return "operands are of several dtypes"
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return "shapes do not fit"  # torch says so
    if 0 in (*a.shape, *b.shape):
        return "an operand is empty"
    if out is not None and out.shape != (*a.shape[:-1], b.shape[-1]):
        return "out= is resized"
    return ""


def _product_with_sum(
    c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Asked | str:
    if why := _why_not(a, b, out):
        return why
    if alpha != 1 or beta not in (0, 1):
        return "the product or what is added to it is scaled"
    outs = None if out is None else (out,)
    if beta == 0:
        return Asked("gemm", (a, b), {}, outs)
    if c.dtype is not a.dtype:
        return "operands are of several dtypes"
    whole = (*a.shape[:-1], b.shape[-1])
    if c.shape == whole and any(c.stride()[:-1]):
        return Asked("gemm", (a, b), {"epilogue": "add", "add": c}, outs)
    if a.dim() == 2 and c.shape in (whole, whole[1:]) and c.stride(-1) == 1:
        row = c if c.dim() == 1 else c[0]
        return Asked("gemm", (a, b), {"epilogue": "bias", "bias": row}, outs)
    return "what is added has another shape than the product, and is no row"
