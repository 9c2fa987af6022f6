"""Between arrays and GEMM problems: layouts from strides, and what an output looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.family import Operand, View
from tilewright.ops.gemm import epilogues, pre, shuffle
from tilewright.ops.gemm.epilogues import KINDS, Takes
from tilewright.ops.gemm.problem import OUTPUTS, GemmProblem, natural_alignment, outputs

OPTIONS = ("precision", "epilogue", "pre_a", "pre_b")
"""Keyword options of a GEMM call besides its operands."""


def operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """A, B, the operands of `pre_a`, of `pre_b` and of the epilogue, and C, as they lie in
    memory."""
    p = problem
    shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.columns))
    types = (p.dtype_a, p.dtype_b, p.dtype_c)
    a, b, c = (
        Operand(name, shape, (ld, 1) if row == "r" else (1, ld), d, is_output=name == "C")
        for name, shape, row, ld, d in zip(
            "ABC", shapes, p.layout, (p.lda, p.ldb, p.ldc), types, strict=True
        )
    )
    if p.layout[1] == "s":
        blocks = shuffle.shape(p.n, p.k, p.dtype_b)
        b = replace(b, shape=blocks, strides=(p.ldb, blocks[2] * blocks[3], blocks[3], 1))
    # Sums of k products are about as large as the root of k, their operands about as large as 1;
    # two scales of 1/64 bring int8's, near 5000, down there.
    usual, down = math.sqrt(p.k), 1 / 64 if p.dtype_acc == "int32" else 1.0
    chains = (
        (p.pre_a, p.pre_a_shapes, p.layout[0], p.ldpa, _made_up(1.0)),
        (p.pre_b, p.pre_b_shapes, p.layout[1], p.ldpb, _made_up(1.0)),
        (p.epilogue, p.extra_shapes, p.layout[2], p.ldd, _made_up(usual, down)),
    )
    extra = []
    for chain, found, row, ld, values in chains:
        for t, (shape, d) in zip(epilogues.takes(chain), found, strict=True):
            strides = (1,) if len(shape) == 1 else (ld, 1) if row == "r" else (1, ld)
            extra.append(Operand(t.name, shape, strides, d, values=values[t.values]))
    return a, b, *extra, c


def _made_up(usual: float, down: float = 1.0) -> dict[str, tuple[float, float] | None]:
    """Between which values made-up operands of operations lie, by what `Takes.values` says, where
    values of about `usual` are operated on: scales near `down`, bounds about where values end."""
    return {
        "normal": None,
        "scale": (0.5 * down, 2.0 * down),
        "below": (-1.5 * usual, -0.5 * usual),
        "above": (0.5 * usual, 1.5 * usual),
    }


def problem_of(
    views: Sequence[View], options: Mapping[str, Any], prefer: str = "rcr"
) -> GemmProblem:
    """The GEMM of A [m, k] and B [k, n], or a shuffled B, and the operands of `pre_a`, `pre_b` and
    the epilogue, into C [m, n] if it is there.

    An array is row-major if its last stride is 1, column-major if its first is. Where both hold
    (a dimension of size 1), it has the letter that `prefer` has, which by default is that of the
    layout most kernels are for. Vectors may be matrices of one row or column, scalars arrays
    of one element. A chain's matrices lie as what it is applied to, with one leading dimension.
    """
    for option in options:
        if option not in OPTIONS:
            raise BadArgument(f"gemm has no option '{option}'{nearest(option, OPTIONS)}")
    pre_a, pre_b, epilogue = (options.get(name, "") for name in ("pre_a", "pre_b", "epilogue"))
    taken = [t for chain in (pre_a, pre_b, epilogue) for t in epilogues.takes(chain)]
    count = 2 + len(taken)
    if len(views) not in (count, count + 1):
        names = ", ".join(("A", "B", *(t.name for t in taken)))
        raise BadArgument(
            f"gemm takes {names} and optionally out; {len(views)} operands were given"
        )
    matrices = (views[0], views[1], *views[count:])
    for name, view in zip("ABC", matrices, strict=False):
        shuffled = name == "B" and len(view.shape) == 4
        if len(view.shape) != 2 and not shuffled:
            raise BadArgument(f"{name} has shape {view.shape}; gemm takes matrices [rows, columns]")
        if 0 in view.shape:
            raise BadArgument(f"{name} has shape {view.shape}; every size must be 1 or more")
    a, b = views[0], views[1]
    m, k = a.shape
    layout_a, lda = _layout("A", a, prefer[0])
    if len(b.shape) == 4:
        k_b, n = shuffle.sizes(b.shape, b.dtype)
        layout_b, ldb = "s", _row_of_blocks(b)
    else:
        k_b, n = b.shape
        layout_b, ldb = _layout("B", b, prefer[1])
    if k != k_b:
        raise BadArgument(f"A is {m}×{k} but B is {k_b}×{n}: A's columns must equal B's rows")
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
        dtype_c, layout_c, ldc = _default_output(a.dtype, epilogue), "r", columns
        addresses = (a.address, b.address)
    pre.check(layout_a + layout_b, a.dtype, pre_a, pre_b, epilogue)
    given = iter(views[2:count])
    beside = (
        _Beside("A", pre_a, [(m, k)] * len(epilogues.takes(pre_a)), layout_a, a.dtype),
        _Beside("B", pre_b, [(k, n)] * len(epilogues.takes(pre_b)), layout_b, b.dtype),
        _Beside("C", epilogue, [(m, w) for w in epilogues.columns(epilogue, n)], layout_c, dtype_c),
    )
    found = [_extras(each, [next(given) for _ in each.sizes]) for each in beside]
    ldpa, ldpb, ldd = (ld for ld, _ in found)
    addresses += tuple(address for _, those in found for address in those)
    types = [a.dtype, b.dtype, dtype_c]
    lds = [lda, ldb, ldc, *(ld for ld, _ in found)]
    types += [epilogues.operand_dtype(Takes("", "d"), each.dtype) for each in beside]
    rows = (ld * DTYPES[d].bytes for ld, d in zip(lds, types, strict=True))
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
        pre_a=pre_a,
        pre_b=pre_b,
        ldpa=ldpa,
        ldpb=ldpb,
    )


@dataclass(frozen=True, slots=True)
class _Beside:
    """A chain, and what it is applied to: A, B or C, of `sizes` (rows, columns) when each of the
    chain's operands comes to it."""

    matrix: str
    chain: str
    sizes: Sequence[tuple[int, int]]
    layout: str
    dtype: str


def _extras(beside: _Beside, views: Sequence[View]) -> tuple[int, tuple[int, ...]]:
    """Check a chain's operands; their matrices' leading dimension (0 without any) and addresses."""
    taken = epilogues.takes(beside.chain)
    found = [
        _extra(t, view, size, beside)
        for t, view, size in zip(taken, views, beside.sizes, strict=True)
    ]
    strides = {t.name: ld for t, ld in zip(taken, found, strict=True) if ld}
    if len(set(strides.values())) > 1:
        listed = ", ".join(f"{name} {ld}" for name, ld in strides.items())
        raise BadArgument(
            f"the matrices of '{beside.chain}' must share one leading dimension, not {listed}; "
            "pass contiguous copies"
        )
    ld = next(iter(strides.values()), 0)
    return ld, tuple(v.address for v, each in zip(views, found, strict=True) if each)


def _extra(takes: Takes, view: View, size: tuple[int, int], beside: _Beside) -> int:
    """Check one operand of a chain; the leading dimension if it is a matrix, else 0."""
    what = f"{takes.name} of shape {view.shape}"
    rows, columns = size
    wanted = epilogues.operand_dtype(takes, beside.dtype)
    if view.dtype != wanted:
        raise BadArgument(
            f"{takes.name} is {view.dtype}; with {beside.matrix} as {beside.dtype} it must be "
            f"{wanted}"
        )
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "n": ((columns,), (1, columns)),
        "m": ((rows,), (rows, 1)),
        "d": ((rows, columns),),
        "s": ((), (1,), (1, 1)),
    }
    if view.shape not in shapes[takes.kind]:
        raise BadArgument(
            f"{what} is not a {KINDS[takes.kind]} {beside.matrix}, which is {rows}×{columns}"
        )
    if takes.kind == "d":
        letter, ld = _layout(takes.name, view, beside.layout)
        if letter != beside.layout:
            order = {"r": "row", "c": "column"}
            raise BadArgument(
                f"{what} is {order[letter]}-major, {beside.matrix} is {order[beside.layout]}-major"
            )
        return ld
    if any(s != 1 for n, s in zip(view.shape, view.strides, strict=True) if n > 1):
        raise BadArgument(f"{what} has strides {view.strides}; pass a contiguous copy")
    return 0


def _default_output(dtype_a: str, epilogue: str) -> str:
    if dtype_a not in OUTPUTS:
        raise BadArgument(f"no GEMM takes {dtype_a} operands; these do: {', '.join(OUTPUTS)}")
    return outputs(dtype_a, epilogue)[0]


def _row_of_blocks(b: View) -> int:
    """Elements between rows of blocks of a shuffled B."""
    rows, blocks, lanes, vector = b.shape
    if b.strides[2:] != (vector, 1) or (blocks > 1 and b.strides[1] != lanes * vector):
        raise BadArgument(
            f"a shuffled B of shape {b.shape} has strides {b.strides}; its blocks must be "
            "contiguous and follow one another along K"
        )
    return b.strides[0] if rows > 1 else blocks * lanes * vector


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
