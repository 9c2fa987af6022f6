"""Between arrays and GEMM problems: layouts from strides, and what an output looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.family import Operand, View
from tilewright.ops.gemm import batch as batches
from tilewright.ops.gemm import contraction, epilogues, lowbit, scales
from tilewright.ops.gemm.batch import PACKED
from tilewright.ops.gemm.epilogues import KINDS, Takes
from tilewright.ops.gemm.problem import OUTPUTS, GemmProblem, natural_alignment, outputs

TOLD = ("precision", "epilogue", "scale_a", "scale_b", "dtype_a", "dtype_b")
"""Options of a call that are fields of its problem."""

OPTIONS = (*TOLD, "equation", "batching")
"""Keyword options of a GEMM call besides its operands."""

SCALES = ("scale_a", "scale_b")
"""Options that come with an array of scales each."""


def operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """A, B, their scales, the epilogue's operands and C, as they lie in memory."""
    p = problem
    shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.columns))
    types, lds = (p.dtype_a, p.dtype_b, p.dtype_c), (p.lda, p.ldb, p.ldc)
    a, b, c = (
        lowbit.stored(name, shape, ld, row, d)
        if DTYPES[d].packed > 1
        else _in_batch(
            Operand(name, shape, (ld, 1) if row == "r" else (1, ld), d, is_output=name == "C"),
            p,
            stride,
            p.batching == "pointers",
        )
        for name, shape, row, ld, d, stride in zip(
            "ABC", shapes, p.layout, lds, types, p.batch_strides[:3], strict=True
        )
    )
    extra = [s.operand for s in scales.of(p)]
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
    views: Sequence[View],
    options: Mapping[str, Any],
    prefer: str = "rcr",
    batching: str = "",
) -> GemmProblem:
    """The GEMM of A [m, k] and B [k, n], their scales and the operands of its epilogue, into
    C [m, n] if it is there; or a batch of them, with one more dimension in front.

    An array is row-major if its last stride is 1, column-major if its first is. Where both hold
    (a dimension of size 1), it has the letter that `prefer` has, which by default is that of the
    layout most kernels are for. Vectors may be matrices of one row or column, scalars arrays
    of one element. The epilogue's matrices lie as C does, with one leading dimension. In a batch,
    a matrix, or a batch of 1 or of stride 0, is shared by all, C excepted; and where it can be
    folded (see `batch.fold`) it is, unless `batching`, or the option of that name, is ``strided``.
    With an `equation`, operands have its dimensions (see `contraction`).
    """
    epilogue = options.get("epilogue", "")
    taken = epilogues.takes(epilogue)
    call = _call(views, options)
    matrices = [t.kind == "d" for t in taken]
    named = [("A", call.a), ("B", call.b), ("out", call.c)]
    named += [(t.name, x) for t, x, is_d in zip(taken, call.extras, matrices, strict=True) if is_d]
    vectors = [t.kind for t in taken if t.kind in ("m", "n")]
    if "equation" in options:
        found = contraction.matrices(options["equation"], named, vectors)
        named = [(name, view) for (name, _), view in zip(named, found, strict=True)]
    parts = [(name, batches.matrices(name, view)) for name, view in named]
    form, batch = batches.batch_of(parts)
    if form != "none" and call.scales:
        raise BadArgument("operands with block scales have no batches; call for each")
    if options.get("batching", form) != form:
        raise BadArgument(f"batching is {options['batching']}, but the operands are {form}")
    if form == "strided" and options.get("batching", batching) != form:
        folded = batches.fold(parts, batch, vectors)
        if folded is not None:
            parts, form, batch = folded, "none", 1

    a, b, c = (x.first for _, x in parts[:3])
    (m, k), (k_b, n) = a.shape, b.shape
    if k != k_b:
        raise BadArgument(f"A is {m}×{k} but B is {k_b}×{n}: A's columns must equal B's rows")
    blocks = {name: options.get(name, "") for name in SCALES}
    strides_of = scales.read(call.scales, blocks, m, n, k)
    columns = n // epilogues.fold(epilogue)
    if c.shape != (m, columns):
        made = f"A·B after {epilogue}" if epilogue else "A·B"
        raise BadArgument(f"out is {c.shape[0]}×{c.shape[1]} but {made} is {m}×{columns}")
    (layout_a, lda), (layout_b, ldb), (layout_c, ldc) = (
        _layout(name, x.first, letter) for (name, x), letter in zip(parts[:3], prefer, strict=True)
    )
    left = iter(x.first for _, x in parts[3:])
    widths = epilogues.columns(epilogue, n)
    ldds = [
        _extra(t, next(left) if is_d else view, (m, width), layout_c, c.dtype)
        for t, view, is_d, width in zip(taken, call.extras, matrices, widths, strict=True)
    ]
    strides = [_stride(x, form, batch) for _, x in parts]
    others = [name for name, _ in parts[3:]]
    problem = GemmProblem(
        m,
        n,
        k,
        dtype_a=a.dtype,
        dtype_b=b.dtype,
        dtype_c=c.dtype,
        layout=layout_a + layout_b + layout_c,
        lda=lda,
        ldb=ldb,
        ldc=ldc,
        precision=options.get("precision", "ieee"),
        epilogue=epilogue,
        ldd=_common("leading dimension", others, [ld for ld in ldds if ld]),
        batch=batch,
        batching=form,
        stride_a=strides[0],
        stride_b=strides[1],
        stride_c=strides[2],
        stride_d=_common("batch stride", others, strides[3:]),
        **blocks,
        strides_sa=strides_of["scale_a"],
        strides_sb=strides_of["scale_b"],
    )
    addresses = (x.first.pointers or x.first.address for _, x in parts)
    return replace(problem, alignment=natural_alignment((problem.alignment, *addresses)))


@dataclass(frozen=True, slots=True)
class _Call:
    """The operands of a call by what they are; an output that is not given is made up."""

    a: View
    b: View
    c: View
    scales: Sequence[View]
    extras: Sequence[View]


def _call(views: Sequence[View], options: Mapping[str, Any]) -> _Call:
    for option in options:
        if option not in OPTIONS:
            raise BadArgument(f"gemm has no option '{option}'{nearest(option, OPTIONS)}")
    taken = epilogues.takes(options.get("epilogue", ""))
    scaled = [name for name in SCALES if options.get(name)]
    behind = 2 + len(scaled)
    count = behind + len(taken)
    if len(views) not in (count, count + 1):
        names = ", ".join(("A", "B", *scaled, *(t.name for t in taken)))
        raise BadArgument(
            f"gemm takes {names} and optionally out; {len(views)} operands were given"
        )
    if "equation" in options and epilogues.fold(options.get("epilogue", "")) != 1:
        raise BadArgument("an epilogue that halves columns has no equation; call it on matrices")
    if "equation" in options and scaled:
        raise BadArgument("block scales are of matrices, so a call with them has no equation")
    a, b = lowbit.read(views[0], views[1], options)
    c = views[count] if len(views) > count else _output(a, b, options)
    return _Call(a, b, c, views[2:behind], views[behind:count])


def _output(a: View, b: View, options: Mapping[str, Any]) -> View:
    """The output where the caller gives none: row-major and packed, of the usual dtype."""
    epilogue = options.get("epilogue", "")
    if "equation" in options:
        shape = contraction.output_shape(options["equation"], a, b)
    else:
        x, y = batches.matrices("A", a), batches.matrices("B", b)
        counts = [part.count for part in (x, y) if part.count is not None]
        batch = next((count for count in counts if count != 1), 1)
        columns = y.first.shape[1] // epilogues.fold(epilogue)
        shape = (*((batch,) if counts else ()), x.first.shape[0], columns)
    scaled = any(options.get(name) for name in SCALES)
    dtype_c, strides = _default_output(a.dtype, epilogue, scaled), batches.packed(shape)
    return View(shape, strides, dtype_c, 0, a.device, a.pointers and 16)


def output(views: Sequence[View], options: Mapping[str, Any]) -> Operand:
    """The output of a call, where the caller gives none."""
    c = _call(views, options).c
    return Operand("C", c.shape, c.strides, c.dtype, is_output=True, pointers=bool(c.pointers))


def _stride(x: batches.Matrices, form: str, batch: int) -> int:
    """A batch stride as a problem says it: nothing for one matrix, or by pointers."""
    if form == "none" or x.first.pointers:
        return 0
    return PACKED if batch < 2 and x.count is not None else x.stride


def _common(what: str, names: Sequence[str], values: Sequence[int]) -> int:
    """The value that all of an epilogue's matrices have; 0 without matrices."""
    if len(set(values)) > 1:
        listed = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        raise BadArgument(
            f"the epilogue's matrices must share one {what}, not {listed}; pass contiguous copies"
        )
    return values[0] if values else 0


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
