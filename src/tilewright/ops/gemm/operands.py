"""Between arrays and GEMM problems: layouts from strides, and what an output looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.family import Operand, View
from tilewright.ops.gemm.problem import OUTPUTS, GemmProblem, natural_alignment

OPTIONS = ("precision",)
"""Keyword options of a GEMM call besides its operands."""


def operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """A, B and C as they lie in memory."""
    p = problem
    shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.n))
    types = (p.dtype_a, p.dtype_b, p.dtype_c)
    return tuple(
        Operand(name, shape, (ld, 1) if row == "r" else (1, ld), d, is_output=name == "C")
        for name, shape, row, ld, d in zip(
            "ABC", shapes, p.layout, (p.lda, p.ldb, p.ldc), types, strict=True
        )
    )


def problem_of(
    views: Sequence[View], options: Mapping[str, Any], prefer: str = "rcr"
) -> GemmProblem:
    """The GEMM of A [m, k] and B [k, n], into C [m, n] if it is there.

    An array is row-major if its last stride is 1, column-major if its first is. Where both hold
    (a dimension of size 1), it has the letter that `prefer` has, which by default is that of the
    layout most kernels are for.
    """
    for option in options:
        if option not in OPTIONS:
            raise BadArgument(f"gemm has no option '{option}'{nearest(option, OPTIONS)}")
    if len(views) not in (2, 3):
        raise BadArgument(f"gemm takes A, B and optionally out; {len(views)} operands were given")
    for name, view in zip("ABC", views, strict=False):
        if len(view.shape) != 2:
            raise BadArgument(f"{name} has shape {view.shape}; gemm takes matrices [rows, columns]")
        if 0 in view.shape:
            raise BadArgument(f"{name} has shape {view.shape}; every size must be 1 or more")
    a, b = views[0], views[1]
    (m, k), (k_b, n) = a.shape, b.shape
    if k != k_b:
        raise BadArgument(f"A is {m}×{k} but B is {k_b}×{n}: A's columns must equal B's rows")
    layout_a, lda = _layout("A", a, prefer[0])
    layout_b, ldb = _layout("B", b, prefer[1])
    addresses: tuple[int, ...]
    if len(views) == 3:
        c = views[2]
        if c.shape != (m, n):
            raise BadArgument(f"out is {c.shape[0]}×{c.shape[1]} but A·B is {m}×{n}")
        layout_c, ldc = _layout("out", c, prefer[2])
        dtype_c, addresses = c.dtype, (a.address, b.address, c.address)
    else:
        dtype_c, layout_c, ldc = _default_output(a.dtype), "r", n
        addresses = (a.address, b.address)
    types = (a.dtype, b.dtype, dtype_c)
    rows = (ld * DTYPES[d].bytes for ld, d in zip((lda, ldb, ldc), types, strict=True))
    return GemmProblem(
        m,
        n,
        k,
        dtype_a=a.dtype,
        dtype_b=b.dtype,
        dtype_c=dtype_c,
        layout=layout_a + layout_b + layout_c,
        lda=lda,
        ldb=ldb,
        ldc=ldc,
        alignment=natural_alignment((*addresses, *rows)),
        precision=options.get("precision", "ieee"),
    )


def _default_output(dtype_a: str) -> str:
    if dtype_a not in OUTPUTS:
        raise BadArgument(f"no GEMM takes {dtype_a} operands; these do: {', '.join(OUTPUTS)}")
    return OUTPUTS[dtype_a][0]


def _layout(name: str, view: View, prefer: str) -> tuple[str, int]:
    """``r`` or ``c``, and the leading dimension in elements."""
    (rows, columns), (row_stride, column_stride) = view.shape, view.strides
    found = {}
    if column_stride == 1 or columns == 1:
        found["r"] = row_stride if rows > 1 else columns
    if row_stride == 1 or rows == 1:
        found["c"] = column_stride if columns > 1 else rows
    usable = {"r": columns, "c": rows}
    found = {order: ld for order, ld in found.items() if ld >= usable[order]}
    if not found:
        raise BadArgument(
            f"{name} of shape {view.shape} has strides {view.strides}: neither its rows nor its "
            "columns are contiguous and apart, which no kernel reads; pass a contiguous copy"
        )
    order = prefer if prefer in found else next(iter(found))
    return order, found[order]
