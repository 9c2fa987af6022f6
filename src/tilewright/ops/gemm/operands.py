"""Between arrays and GEMM problems: layouts from strides, and what an output looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.family import Operand, View
from tilewright.ops.gemm import epilogues, lowbit, scales
from tilewright.ops.gemm.epilogues import KINDS, Takes
from tilewright.ops.gemm.problem import OUTPUTS, GemmProblem, natural_alignment, outputs

OPTIONS = ("precision", "epilogue", "scale_a", "scale_b", "dtype_a", "dtype_b")
"""Keyword options of a GEMM call besides its operands."""


def operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """A, B, their scales, the epilogue's operands and C, as they lie in memory."""
    p = problem
    shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.columns))
    types = (p.dtype_a, p.dtype_b, p.dtype_c)
    a, b, c = (
        lowbit.stored(name, shape, ld, row, d)
        if DTYPES[d].packed > 1
        else Operand(name, shape, (ld, 1) if row == "r" else (1, ld), d, is_output=name == "C")
        for name, shape, row, ld, d in zip(
            "ABC", shapes, p.layout, (p.lda, p.ldb, p.ldc), types, strict=True
        )
    )
    extra = [s.operand for s in scales.of(p)]
    for t, (shape, d) in zip(epilogues.takes(p.epilogue), p.extra_shapes, strict=True):
        strides = (1,) if len(shape) == 1 else (p.ldd, 1) if p.layout[2] == "r" else (1, p.ldd)
        extra.append(Operand(t.name, shape, strides, d, values=_made_up(t, p)))
    return a, b, *extra, c


def _made_up(takes: Takes, problem: GemmProblem) -> tuple[float, float] | None:
    """Between which values a made-up operand lies: scales near 1 (int8 products are near 5000,
    so two scales of 1/64 bring them there), bounds of `clamp` about where the sums end."""
    usual = math.sqrt(problem.k)
    down = 1 / 64 if problem.dtype_acc == "int32" else 1.0
    return {
        "normal": None,
        "scale": (0.5 * down, 2.0 * down),
        "below": (-1.5 * usual, -0.5 * usual),
        "above": (0.5 * usual, 1.5 * usual),
    }[takes.values]


def problem_of(
    views: Sequence[View], options: Mapping[str, Any], prefer: str = "rcr"
) -> GemmProblem:
    """The GEMM of A [m, k] and B [k, n], their scales and the operands of its epilogue, into
    C [m, n] if it is there.

    An array is row-major if its last stride is 1, column-major if its first is. Where both hold
    (a dimension of size 1), it has the letter that `prefer` has, which by default is that of the
    layout most kernels are for. Vectors may be matrices of one row or column, scalars arrays
    of one element. The epilogue's matrices lie as C does, with one leading dimension.
    """
    for option in options:
        if option not in OPTIONS:
            raise BadArgument(f"gemm has no option '{option}'{nearest(option, OPTIONS)}")
    epilogue = options.get("epilogue", "")
    blocks = {name: options.get(name, "") for name in ("scale_a", "scale_b")}
    scaled = [name for name, word in blocks.items() if word]
    taken = epilogues.takes(epilogue)
    behind = 2 + len(scaled)
    count = behind + len(taken)
    if len(views) not in (count, count + 1):
        names = ", ".join(("A", "B", *scaled, *(t.name for t in taken)))
        raise BadArgument(
            f"gemm takes {names} and optionally out; {len(views)} operands were given"
        )
    matrices = (views[0], views[1], *views[count:])
    for name, view in zip("ABC", matrices, strict=False):
        if len(view.shape) != 2:
            raise BadArgument(f"{name} has shape {view.shape}; gemm takes matrices [rows, columns]")
        if 0 in view.shape:
            raise BadArgument(f"{name} has shape {view.shape}; every size must be 1 or more")
    a, b = lowbit.read(views[0], views[1], options)
    (m, k), (k_b, n) = a.shape, b.shape
    if k != k_b:
        raise BadArgument(f"A is {m}×{k} but B is {k_b}×{n}: A's columns must equal B's rows")
    strides = scales.read(views[2:behind], blocks, m, n, k)
    layout_a, lda = _layout("A", a, prefer[0])
    layout_b, ldb = _layout("B", b, prefer[1])
    addresses: tuple[int, ...]
    columns = n // epilogues.fold(epilogue)
    if len(views) > count:
        c = views[-1]
        if c.shape != (m, columns):
            made = f"A·B after {epilogue}" if epilogue else "A·B"
            raise BadArgument(f"out is {c.shape[0]}×{c.shape[1]} but {made} is {m}×{columns}")
        layout_c, ldc = _layout("out", c, prefer[2])
        dtype_c, addresses = c.dtype, (a.address, b.address, c.address)
    else:
        dtype_c = _default_output(a.dtype, epilogue, bool(scaled))
        layout_c, ldc = "r", columns
        addresses = (a.address, b.address)
    widths = epilogues.columns(epilogue, n)
    found = [
        _extra(t, view, (m, width), layout_c, dtype_c)
        for t, view, width in zip(taken, views[behind:count], widths, strict=True)
    ]
    leading = {t.name: ld for t, ld in zip(taken, found, strict=True) if ld}
    if len(set(leading.values())) > 1:
        listed = ", ".join(f"{name} {ld}" for name, ld in leading.items())
        raise BadArgument(
            f"the epilogue's matrices must share one leading dimension, not {listed}; pass "
            "contiguous copies"
        )
    ldd = next(iter(leading.values()), 0)
    addresses += tuple(v.address for v, ld in zip(views[behind:count], found, strict=True) if ld)
    types = (a.dtype, b.dtype, dtype_c, epilogues.operand_dtype(Takes("", "d"), dtype_c))
    rows = (DTYPES[d].size(ld) for ld, d in zip((lda, ldb, ldc, ldd), types, strict=True))
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
        epilogue=epilogue,
        ldd=ldd,
        scale_a=blocks["scale_a"],
        scale_b=blocks["scale_b"],
        strides_sa=strides["scale_a"],
        strides_sb=strides["scale_b"],
    )


def _extra(takes: Takes, view: View, c: tuple[int, int], layout_c: str, dtype_c: str) -> int:
    """Check an operand of an epilogue, beside a tile of `c` (rows, columns); the leading
    dimension if it is a matrix, else 0."""
    what = f"{takes.name} of shape {view.shape}"
    rows, columns = c
    wanted = epilogues.operand_dtype(takes, dtype_c)
    if view.dtype != wanted:
        raise BadArgument(f"{takes.name} is {view.dtype}; with C as {dtype_c} it must be {wanted}")
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "n": ((columns,), (1, columns)),
        "m": ((rows,), (rows, 1)),
        "d": ((rows, columns),),
        "s": ((), (1,), (1, 1)),
    }
    if view.shape not in shapes[takes.kind]:
        raise BadArgument(f"{what} is not a {KINDS[takes.kind]}, which is {rows}×{columns}")
    if takes.kind == "d":
        letter, ld = _layout(takes.name, view, layout_c)
        if letter != layout_c:
            order = {"r": "row", "c": "column"}
            raise BadArgument(f"{what} is {order[letter]}-major, out is {order[layout_c]}-major")
        return ld
    if any(s != 1 for n, s in zip(view.shape, view.strides, strict=True) if n > 1):
        raise BadArgument(f"{what} has strides {view.strides}; pass a contiguous copy")
    return 0


def _default_output(dtype_a: str, epilogue: str, scaled: bool) -> str:
    if dtype_a not in OUTPUTS:
        raise BadArgument(f"no GEMM takes {dtype_a} operands; these do: {', '.join(OUTPUTS)}")
    return outputs(dtype_a, epilogue, scaled)[0]


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
