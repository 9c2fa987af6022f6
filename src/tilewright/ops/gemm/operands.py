"""Between arrays and GEMM problems: layouts from strides, and what an output looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops.family import Operand, View
from tilewright.ops.gemm import batch as batches
from tilewright.ops.gemm import contraction, epilogues
from tilewright.ops.gemm.batch import PACKED
from tilewright.ops.gemm.epilogues import KINDS, Takes
from tilewright.ops.gemm.problem import OUTPUTS, GemmProblem, natural_alignment, outputs

OPTIONS = ("precision", "epilogue", "equation")
"""Keyword options of a GEMM call besides its operands."""


def operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """A, B, the epilogue's operands and C, as they lie in memory."""
    p = problem
    shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.columns))
    types, lds = (p.dtype_a, p.dtype_b, p.dtype_c), (p.lda, p.ldb, p.ldc)
    a, b, c = (
        _in_batch(
            Operand(name, shape, (ld, 1) if row == "r" else (1, ld), d, is_output=name == "C"),
            p,
            stride,
            p.batching == "pointers",
        )
        for name, shape, row, ld, d, stride in zip(
            "ABC", shapes, p.layout, lds, types, p.batch_strides[:3], strict=True
        )
    )
    extra = []
    for t, (shape, d) in zip(epilogues.takes(p.epilogue), p.extra_shapes, strict=True):
        strides = (1,) if len(shape) == 1 else (p.ldd, 1) if p.layout[2] == "r" else (1, p.ldd)
        one = Operand(t.name, shape, strides, d, values=_made_up(t, p))
        extra.append(_in_batch(one, p, p.stride_d) if t.kind == "d" else one)
    return a, b, *extra, c


def _in_batch(
    one: Operand, problem: GemmProblem, stride: int, by_pointers: bool = False
) -> Operand:
    """A matrix of `problem` as its whole batch lies: itself, where it is everyone's."""
    if not stride and not by_pointers:
        return one
    shape, strides = (problem.batch, *one.shape), (stride, *one.strides)
    return replace(one, shape=shape, strides=strides, pointers=by_pointers)


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
    """The GEMM of A [m, k] and B [k, n] and the operands of its epilogue, into C [m, n] if it
    is there; or a batch of them, with one more dimension in front.

    An array is row-major if its last stride is 1, column-major if its first is. Where both hold
    (a dimension of size 1), it has the letter that `prefer` has, which by default is that of the
    layout most kernels are for. Vectors may be matrices of one row or column, scalars arrays
    of one element. The epilogue's matrices lie as C does, with one leading dimension. In a batch,
    a matrix, or a batch of 1 or of stride 0, is shared by all, C excepted. With an `equation`,
    operands have its dimensions (see `contraction`).
    """
    for option in options:
        if option not in OPTIONS:
            raise BadArgument(f"gemm has no option '{option}'{nearest(option, OPTIONS)}")
    epilogue = options.get("epilogue", "")
    taken = epilogues.takes(epilogue)
    count = 2 + len(taken)
    if len(views) not in (count, count + 1):
        names = ", ".join(("A", "B", *(t.name for t in taken)))
        raise BadArgument(
            f"gemm takes {names} and optionally out; {len(views)} operands were given"
        )
    if "equation" in options:
        views = _contracted(views, options["equation"], epilogue)
    named = zip(("A", "B", "out"), (views[0], views[1], *views[count:]), strict=False)
    parts = [(name, batches.matrices(name, view)) for name, view in named]
    batching, batch = batches.batch_of(parts)
    a, b = (x.first for _, x in parts[:2])
    (m, k), (k_b, n) = a.shape, b.shape
    if k != k_b:
        raise BadArgument(f"A is {m}×{k} but B is {k_b}×{n}: A's columns must equal B's rows")
    layout_a, lda = _layout("A", a, prefer[0])
    layout_b, ldb = _layout("B", b, prefer[1])
    columns = n // epilogues.fold(epilogue)
    if len(views) > count:
        c = parts[2][1].first
        if c.shape != (m, columns):
            made = f"A·B after {epilogue}" if epilogue else "A·B"
            raise BadArgument(f"out is {c.shape[0]}×{c.shape[1]} but {made} is {m}×{columns}")
        layout_c, ldc = _layout("out", c, prefer[2])
        dtype_c = c.dtype
    else:
        dtype_c, layout_c, ldc = _default_output(a.dtype, epilogue), "r", columns
    widths = epilogues.columns(epilogue, n)
    extras = [
        (t, batches.matrices(t.name, view) if t.kind == "d" else batches.Matrices(None, 0, view))
        for t, view in zip(taken, views[2:count], strict=True)
    ]
    found = [
        _extra(t, x.first, (m, width), layout_c, dtype_c)
        for (t, x), width in zip(extras, widths, strict=True)
    ]
    ldd = _common("leading dimension", [(t, ld) for t, ld in zip(taken, found, strict=True) if ld])
    stride_d = _common("batch stride", _strides_of_matrices(extras, batching, batch))
    made_of = [x for _, x in parts] + [x for t, x in extras if t.kind == "d"]
    strides = [x.stride for _, x in parts] if batching == "strided" else []
    if batch < 2:  # then they say nothing
        strides = [PACKED if x.count is not None else 0 for _, x in parts]
    stride_a, stride_b, stride_c = (*strides, *[PACKED] * (3 - len(strides)))
    problem = GemmProblem(
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
        precision=options.get("precision", "ieee"),
        epilogue=epilogue,
        ldd=ldd,
        batch=batch,
        batching=batching,
        stride_a=stride_a,
        stride_b=stride_b,
        stride_c=stride_c,
        stride_d=stride_d,
    )
    addresses = (x.first.pointers or x.first.address for x in made_of)
    return replace(problem, alignment=natural_alignment((problem.alignment, *addresses)))


def _contracted(views: Sequence[View], equation: str, epilogue: str) -> list[View]:
    """The operands of a contraction, the output among them, as matrices or batches of them."""
    taken, (a, b) = epilogues.takes(epilogue), views[:2]
    if epilogues.fold(epilogue) != 1:
        raise BadArgument(f"epilogue {epilogue} halves columns, which an equation cannot say")
    if len(views) > 2 + len(taken):
        c = views[-1]
    else:
        shape = contraction.output_shape(equation, a, b)
        c = replace(a, shape=shape, strides=contraction.packed(shape), address=0)
        c = replace(c, dtype=_default_output(a.dtype, epilogue))
    extras = list(views[2 : 2 + len(taken)])
    places = [i for i, t in enumerate(taken) if t.kind == "d"]
    named = [("A", a), ("B", b), ("out", c), *((taken[i].name, extras[i]) for i in places)]
    vectors = [t.kind for t in taken if t.kind in ("m", "n")]
    a, b, c, *found = contraction.matrices(equation, named, vectors)
    for i, view in zip(places, found, strict=True):
        extras[i] = view
    return [a, b, *extras, c]


def output(problem: GemmProblem, views: Sequence[View], options: Mapping[str, Any]) -> Operand:
    """The output of the call that states `problem`, where the caller gives none."""
    made = operands(problem)[-1]
    if "equation" not in options:
        return made
    shape = contraction.output_shape(options["equation"], views[0], views[1])
    return replace(made, shape=shape, strides=contraction.packed(shape))


def _strides_of_matrices(
    extras: Sequence[tuple[Takes, batches.Matrices]], batching: str, batch: int
) -> list[tuple[Takes, int]]:
    """The batch stride of each matrix of an epilogue."""
    found = []
    for t, x in extras:
        if t.kind == "d":
            if x.count not in (None, 1, batch) or (x.count is not None and batching == "none"):
                raise BadArgument(f"{t.name} is a batch of {x.count}, the call's is {batch}")
            if x.first.pointers:
                raise BadArgument(f"{t.name} is pointers; the epilogue's matrices are arrays")
            found.append((t, PACKED if batch < 2 and x.count is not None else x.stride))
    return found


def _common(what: str, found: Sequence[tuple[Takes, int]]) -> int:
    """The value that all of an epilogue's matrices have; 0 without matrices."""
    values = {value for _, value in found}
    if len(values) > 1:
        listed = ", ".join(f"{t.name} {value}" for t, value in found)
        raise BadArgument(
            f"the epilogue's matrices must share one {what}, not {listed}; pass contiguous copies"
        )
    return values.pop() if values else 0


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


def _default_output(dtype_a: str, epilogue: str) -> str:
    if dtype_a not in OUTPUTS:
        raise BadArgument(f"no GEMM takes {dtype_a} operands; these do: {', '.join(OUTPUTS)}")
    return outputs(dtype_a, epilogue)[0]


def _layout(name: str, view: View, prefer: str) -> tuple[str, int]:
    """``r`` or ``c``, and the leading dimension in elements."""
    (rows, columns), (row_stride, column_stride) = view.shape, view.strides
    if not rows or not columns:  # strides of nothing say nothing
        return prefer, max(1, columns if prefer == "r" else rows)
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
