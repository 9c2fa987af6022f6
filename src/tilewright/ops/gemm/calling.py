"""From a call of GEMM to its problem: the options that a call takes, the layout from the strides,
and the output to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues, keywords
from tilewright.ops.epilogues import KINDS, Takes
from tilewright.ops.gemm import batch as batches
from tilewright.ops.gemm import contraction, lowbit, pre, ranks, scales, shuffle
from tilewright.ops.gemm.batch import PACKED
from tilewright.ops.gemm.operands import SCALES, names_of
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.nouns import Call, Operand, View
from tilewright.ops.products import OUTPUTS, natural_alignment, outputs

_SCALED = "the block that shares a scale, as in '1x128'; the array of scales follows A and B"

TOLD = {
    "precision": keywords.option("str", "ieee"),
    "epilogue": keywords.option("str", ""),
    "scale_a": keywords.option("str", "", _SCALED),
    "scale_b": keywords.option("str", "", _SCALED),
    "pre_a": keywords.option("str", ""),
    "pre_b": keywords.option("str", ""),
    "dtype_a": keywords.option("dtype"),
    "dtype_b": keywords.option("dtype"),
}
"""Options of a call that are fields of its problem."""

OPTIONS = {
    **TOLD,
    "equation": keywords.option("str"),
    "batching": keywords.option("str"),
    "constant_b": keywords.option("bool", False),
}
"""Keyword options of a GEMM call besides its operands."""

_INSTEAD = {
    "alpha": "pass epilogue='scale', scale=alpha",
    "beta": "pass beta·D as the matrix of epilogue='add', behind scale=alpha with 'scale+add'",
    **dict.fromkeys(
        ("zero_point", "zero_points", "zeros"),
        "int4 is signed: pack q - 8, and add the row sums of A times (8 - zero)·scale afterwards",
    ),
    "transpose_a": "pass A.T, which is read in place",
    "transpose_b": "pass B.T, which is read in place",
}
"""Words of other libraries that are said differently here."""


def problem_of(call: Call, prefer: str = "rcr", batching: str = "") -> GemmProblem:
    """The problem of a GEMM call: A [m, k] and B [k, n], or a shuffled B, and the operands of its
    chains, into C [m, n] if the call passes it; or a batch of them, with one more dimension in
    front.

    An array is row-major if its last stride is 1, column-major if its first is 1. If both are 1 (a
    dimension of size 1), the letter of `prefer` decides; its default is the layout that most
    kernels are for.

    Vectors may be matrices of one row or column, scalars arrays of one element. A chain's matrices
    have the layout of the matrix that the chain is applied to, and share one leading dimension.

    In a batch, all share a single matrix, a batch of 1, and a batch of stride 0; C cannot be
    shared. A batch that can be folded (see `batch.fold`) is folded, unless `batching`, or the
    option of that name, is ``strided``. Under ``summed``, C is one matrix, the sum of all products.

    A vector, and a batch of several dimensions, are taken as ``matmul`` takes them (see `ranks`).

    With an `equation`, operands have its dimensions (see `contraction`). Two dimensions of the
    batch that every operand walks as one become one, unless `batching` or the option is ``nested``.
    """
    call = ranks.as_contraction(call)
    options = call.options
    epilogue = options.get("epilogue", "")
    taken = epilogues.takes(epilogue)
    given = _given(call)
    matrices = [t.kind == "d" for t in taken]
    b = _as_matrix(given.b) if given.shuffled else given.b
    named = [("A", given.a), ("B", b), ("out", given.c)]
    named += [(t.name, x) for t, x, is_d in zip(taken, given.extras, matrices, strict=True) if is_d]
    vectors = [t.kind for t in taken if t.kind in ("m", "n")]
    outer, summed = None, options.get("batching", batching) == "summed"
    if "equation" in options:
        nested = options.get("batching", batching) == "nested"
        found, outer = contraction.matrices(options["equation"], named, vectors, nested)
        named = [(name, view) for (name, _), view in zip(named, found, strict=True)]
        summed = max(len(view.shape) for view in found[:2]) > len(found[2].shape)
    parts = [(name, batches.matrices(name, view)) for name, view in named]
    if summed:
        form, batch = "summed", batches.sum_of(parts)
    else:
        form, batch = batches.batch_of(parts)
    if outer is not None:
        form = "nested"
    if form != "none" and given.scales:
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
    strides_of = scales.read(given.scales, blocks, m, n, k)
    columns = n // epilogues.fold(epilogue)
    if c.shape != (m, columns):
        made = f"A·B after {epilogue}" if epilogue else "A·B"
        raise BadArgument(f"out is {c.shape[0]}×{c.shape[1]} but {made} is {m}×{columns}")
    (layout_a, lda), (layout_b, ldb), (layout_c, ldc) = (
        _layout(name, x.first, letter) for (name, x), letter in zip(parts[:3], prefer, strict=True)
    )
    if given.shuffled:
        layout_b, ldb = "s", _row_of_blocks(given.b)
    left = iter(x.first for _, x in parts[3:])
    widths = epilogues.columns(epilogue, n)
    of_c = _Beside("C", layout_c, c.dtype)
    ldds = [
        _extra(t, next(left) if is_d else view, (m, width), of_c)
        for t, view, is_d, width in zip(taken, given.extras, matrices, widths, strict=True)
    ]
    pre_a, pre_b = options.get("pre_a", ""), options.get("pre_b", "")
    pre.check(layout_a + layout_b, a.dtype, pre_a, pre_b, epilogue)
    ldpa, from_a = _pre(pre_a, given.extras_a, (m, k), _Beside("A", layout_a, a.dtype))
    ldpb, from_b = _pre(pre_b, given.extras_b, (k, n), _Beside("B", layout_b, b.dtype))
    strides = [_stride(x, form, batch) for _, x in parts]
    others = [name for name, _ in parts[3:]]
    outer_d = 0
    if outer is not None:
        outer_d = _common("batch stride", "the epilogue", others, outer.strides[3:])
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
        ldd=_common("leading dimension", "the epilogue", others, [ld for ld in ldds if ld]),
        batch=batch * (1 if outer is None else outer.size),
        batching=form,
        stride_a=strides[0],
        stride_b=strides[1],
        stride_c=strides[2],
        stride_d=_common("batch stride", "the epilogue", others, strides[3:]),
        **blocks,
        strides_sa=strides_of["scale_a"],
        strides_sb=strides_of["scale_b"],
        pre_a=pre_a,
        pre_b=pre_b,
        ldpa=ldpa,
        ldpb=ldpb,
        batch_inner=0 if outer is None else max(1, batch),
        outer_strides=() if outer is None else (*outer.strides[:3], outer_d),
        constant_b=options.get("constant_b", False),
    )
    addresses = [x.first.pointers or x.first.address for _, x in parts]
    known = natural_alignment((problem.alignment, *addresses, *from_a, *from_b))
    return replace(problem, alignment=known)


@dataclass(frozen=True, slots=True)
class _Given:
    """The operands of a call by their kind. If the call passes no output, its view is made up."""

    a: View
    b: View
    c: View
    shuffled: bool
    extras_a: Sequence[View]
    extras_b: Sequence[View]
    scales: Sequence[View]
    extras: Sequence[View]


def _given(call: Call) -> _Given:
    options = call.options
    for option in options:
        if option in _INSTEAD:
            raise BadArgument(f"gemm has no option '{option}'; {_INSTEAD[option]}")
        if option not in OPTIONS:
            raise BadArgument(
                f"gemm has no option '{option}'{nearest(option, OPTIONS)}; it has "
                f"{', '.join(OPTIONS)}; the dtype of C is that of out"
            )
    said = (options.get(name, "") for name in ("pre_a", "pre_b", "epilogue"))
    found = names_of(*said, *(bool(options.get(name)) for name in SCALES))
    inputs = check_count("gemm", found.inputs, call)
    of_a, of_b, of_c = found.chains
    scaled = found.scales
    if "equation" in options and epilogues.fold(options.get("epilogue", "")) != 1:
        raise BadArgument("an epilogue that halves columns has no equation; call it on matrices")
    if "equation" in options and scaled:
        raise BadArgument("block scales belong to matrices, so a call with them has no equation")
    a, b = lowbit.read(inputs[0], inputs[1], options)
    if call.outputs == ():
        raise BadArgument("out holds no array; pass the one that gemm writes")
    c = _output(a, b, options) if call.outputs is None else call.outputs[0]
    rest = iter(inputs[2:])
    groups = ([next(rest) for _ in group] for group in (of_a, of_b, scaled, of_c))
    return _Given(a, b, c, _is_shuffled(a, b, options), *groups)


def check_count(op: str, names: Sequence[str], call: Call) -> tuple[View, ...]:
    """The inputs of a call of `op`, one for each of `names`. Raises `BadArgument` for any other
    number."""
    for name in call.named:
        if name not in names[2:]:
            way = _INSTEAD.get(name, "name the operation that reads it, as in epilogue='bias'")
            raise BadArgument(f"{op} has no operand '{name}'{nearest(name, names[2:])}; {way}")
    count = len(call.inputs) + len(call.named)
    if count != len(names):
        raise BadArgument(
            f"{op} takes {len(names)} operands ({', '.join(names)}) and was given {count}; pass "
            "the output as out=, and name the operation that reads a further operand, as in "
            "epilogue='add'"
        )
    by_position = iter(call.inputs)
    return tuple(call.named[n] if n in call.named else next(by_position) for n in names)


def _output(a: View, b: View, options: Mapping[str, Any]) -> View:
    """The output if the caller passes none: row-major and packed, of the usual dtype."""
    epilogue = options.get("epilogue", "")
    if "equation" in options:
        shape = contraction.output_shape(options["equation"], a, b)
    else:
        b = _as_matrix(b) if _is_shuffled(a, b, options) else b
        x, y = batches.matrices("A", a), batches.matrices("B", b)
        counts = [part.count for part in (x, y) if part.count is not None]
        if len(counts) == 2 and 1 not in counts and counts[0] != counts[1]:
            raise BadArgument(
                f"the batch's sizes differ: A {counts[0]}, B {counts[1]}; a batch of 1 is shared"
            )
        batch = next((count for count in counts if count != 1), 1)
        columns = y.first.shape[1] // epilogues.fold(epilogue)
        several = counts and options.get("batching") != "summed"
        shape = (*((batch,) if several else ()), x.first.shape[0], columns)
    scaled = any(options.get(name) for name in SCALES)
    dtype_c, strides = default_output(a.dtype, epilogue, scaled), batches.packed(shape)
    return View(shape, strides, dtype_c, 0, a.device, a.pointers and 16)


def output(call: Call) -> Operand:
    """The output to make for a call that passes none."""
    c = _given(ranks.as_contraction(call)).c
    return Operand("C", c.shape, c.strides, c.dtype, "out", pointers=bool(c.pointers))


def _stride(x: batches.Matrices, form: str, batch: int) -> int:
    """A batch stride as a field of the problem: packed for a single matrix, and for pointers."""
    if form == "none" or x.first.pointers:
        return 0
    return PACKED if batch < 2 and x.count is not None else x.stride


def _is_shuffled(a: View, b: View, options: Mapping[str, Any]) -> bool:
    return len(a.shape) == 2 and len(b.shape) == 4 and "equation" not in options


def _as_matrix(shuffled: View) -> View:
    """A view with the sizes of a shuffled B's matrix, as if it were column-major."""
    k, n = shuffle.sizes(shuffled.shape, shuffled.dtype)
    return replace(shuffled, shape=(k, n), strides=(1, k))


def _row_of_blocks(b: View) -> int:
    """Elements between rows of blocks of a shuffled B."""
    rows, blocks, lanes, vector = b.shape
    if 0 not in b.shape and (
        b.strides[2:] != (vector, 1) or (blocks > 1 and b.strides[1] != lanes * vector)
    ):
        raise BadArgument(
            f"a shuffled B of shape {b.shape} has strides {b.strides}; its blocks must be "
            "contiguous and follow one another along K"
        )
    return b.strides[0] if rows > 1 else max(1, blocks * lanes * vector)


def _common(what: str, of: str, names: Sequence[str], values: Sequence[int]) -> int:
    """The value that all matrices of a chain share; 0 without matrices."""
    if len(set(values)) > 1:
        listed = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        raise BadArgument(
            f"the matrices of {of} must share one {what}, not {listed}; pass contiguous copies"
        )
    return values[0] if values else 0


@dataclass(frozen=True, slots=True)
class _Beside:
    """The matrix that a chain is applied to: A, B or C, with its letter of the layout and its
    dtype."""

    matrix: str
    layout: str
    dtype: str


def _pre(
    chain: str, views: Sequence[View], size: tuple[int, int], beside: _Beside
) -> tuple[int, list[int]]:
    """Check the operands of `pre_a` or `pre_b`. Returns their matrices' leading dimension (0
    without matrices) and addresses."""
    taken = epilogues.takes(chain)
    lds = [_extra(t, view, size, beside) for t, view in zip(taken, views, strict=True)]
    found = [(t.name, ld, v.address) for t, ld, v in zip(taken, lds, views, strict=True) if ld]
    names, matrices = [name for name, _, _ in found], [ld for _, ld, _ in found]
    ld = _common("leading dimension", f"'{chain}'", names, matrices)
    return ld, [address for _, _, address in found]


def _extra(takes: Takes, view: View, size: tuple[int, int], beside: _Beside) -> int:
    """Check an operand of a chain on a matrix of `size` (rows, columns). Returns the leading
    dimension of a matrix, 0 for other operands."""
    what, whose = f"{takes.name} of shape {view.shape}", beside.matrix
    rows, columns = size
    wanted = epilogues.operand_dtype(takes, beside.dtype)
    if view.dtype != wanted:
        raise BadArgument(
            f"{takes.name} is {view.dtype}; with {whose} as {beside.dtype} it must be {wanted}"
        )
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "n": ((columns,), (1, columns)),
        "m": ((rows,), (rows, 1)),
        "d": ((rows, columns),),
        "s": ((), (1,), (1, 1)),
    }
    if view.shape not in shapes[takes.kind]:
        kind = KINDS[takes.kind].replace("C", whose)
        raise BadArgument(f"{what} is not a {kind}, which is {rows}×{columns}")
    if takes.kind == "d":
        letter, ld = _layout(takes.name, view, beside.layout)
        if letter != beside.layout:
            order = {"r": "row", "c": "column"}
            lies = f"{'out' if whose == 'C' else whose} is {order[beside.layout]}-major"
            raise BadArgument(f"{what} is {order[letter]}-major, {lies}")
        return ld
    if any(s != 1 for n, s in zip(view.shape, view.strides, strict=True) if n > 1):
        raise BadArgument(f"{what} has strides {view.strides}; pass a contiguous copy")
    return 0


def default_output(dtype_a: str, epilogue: str, scaled: bool) -> str:
    """The dtype of C that a call gets which passes none. Raises `BadArgument`."""
    if dtype_a not in OUTPUTS:
        raise BadArgument(f"no GEMM takes {dtype_a} operands; these do: {', '.join(OUTPUTS)}")
    return outputs(dtype_a, epilogue, scaled)[0]


def _layout(name: str, view: View, prefer: str) -> tuple[str, int]:
    """``r`` or ``c``, and the leading dimension in elements."""
    (rows, columns), (row_stride, column_stride) = view.shape, view.strides
    if not rows or not columns:  # strides of an empty matrix say nothing
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
