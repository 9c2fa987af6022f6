"""From a call of grouped_gemm to its problem: the options that each form takes, the form and the
layout, which are read from shapes and strides, and the outputs that a call makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues, keywords
from tilewright.ops.epilogues import KINDS, Takes
from tilewright.ops.gemm import calling as gemm_calling
from tilewright.ops.gemm import lowbit
from tilewright.ops.gemm import operands as gemm
from tilewright.ops.grouped_gemm import scales
from tilewright.ops.grouped_gemm.operands import ROWS, SIZES, block_scales
from tilewright.ops.grouped_gemm.problem import (
    BLOCK,
    STACKED,
    TURNED,
    GroupedGemmProblem,
    Sizes,
)
from tilewright.ops.grouped_gemm.table import orders
from tilewright.ops.nouns import Call, Operand, View
from tilewright.ops.products import QUANTISED, natural_alignment
from tilewright.wording import many

TYPES = ("dtype_a", "dtype_b")
"""Options that say what is packed in bytes."""

_ZEROS = "whether int4 weights have zero points; the array of int8 follows the scales"

_QUANT = "block: the result is rounded to 8 bits, and the scales of 128 columns are a second one"

KEYWORDS = {
    "precision": gemm_calling.OPTIONS["precision"],
    "epilogue": gemm_calling.OPTIONS["epilogue"],
    **{name: gemm_calling.OPTIONS[name] for name in (*gemm.SCALES, *TYPES)},
    scales.ZEROS: keywords.option("bool", False, _ZEROS),
    "sizes": keywords.option("tuple[tuple[int, int, int], ...]"),
    "layout": keywords.option("str"),
    "alignment": keywords.option("int", 1),
    "zero_rest": keywords.option("bool", False),
    "gates_apart": keywords.option("bool", False),
    "per_row": keywords.option("int", 1),
    ROWS: keywords.operand(),
    "bounds": keywords.option("bool", False),
    "quant": keywords.option("str", "", _QUANT),
}
"""Keyword options of a call besides its operands."""

_STACKED = (
    "precision", "epilogue", *gemm.SCALES, scales.ZEROS, *TYPES, "zero_rest", "gates_apart",
    "quant",
)  # fmt: skip
OPTIONS = {
    "contiguous": _STACKED,
    "gathered": (*_STACKED, "per_row"),
    "masked": _STACKED,
    "list": ("precision", "epilogue", "sizes", "layout", "alignment"),
    "weights": ("precision", "epilogue", "bounds"),
    "columns": ("precision", "zero_rest"),
}
"""Those of each form."""

_FORMS: dict[tuple[int, ...], str] = {
    (2, 3): "contiguous",
    (3, 3): "masked",
    (2, 2): "weights",
    (3, 2): "columns",
}
"""The form by the numbers of dimensions of A and B."""


def _behind(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the operands behind the sizes: scales, zero points, those of the epilogue."""
    found = gemm.names_of_call(options)[2:]
    scaled = sum(bool(options.get(name)) for name in gemm.SCALES)
    zeros = (scales.ZEROS,) * bool(options.get(scales.ZEROS))
    return (*found[:scaled], *zeros, *found[scaled:])


def lowered(inputs: int, named: Sequence[str], options: Mapping[str, Any]) -> tuple[int, ...]:
    """See `tilewright.ops.protocols.Differentiation`."""
    epilogue = options.get("epilogue", "")
    names = ("A", "B", "sizes", *_behind(options))
    return gemm.places(names, inputs, named, {"A", "B"} | epilogues.chain_lowered(epilogue))


def problem_of(call: Call, prefer: str = "rcr") -> GroupedGemmProblem:
    """The problem of A, B, the groups' sizes, scales and the operands of the epilogue, into C if
    the call passes it. The numbers of A's and B's dimensions determine the form, and whether there
    is a map of rows; A of one dimension is a ``list``."""
    inputs, options = call.inputs, call.options
    if call.outputs == ():
        raise BadArgument("out holds no array; pass the one that grouped_gemm writes")
    out = None if call.outputs is None else call.outputs[0]
    form = _form(call)
    _check_made(call)
    known = OPTIONS[form]
    for option in options:
        if option not in known:
            raise BadArgument(
                f"a {form} grouped_gemm has no option '{option}'{nearest(option, known)}"
            )
    epilogue = options.get("epilogue", "")
    taken = epilogues.takes(epilogue)
    mapped = (ROWS,) * (form == "gathered")
    names = ("A", "B", SIZES[form], *mapped, *_behind(options))
    inputs = gemm_calling.check_count(f"a {form} grouped_gemm", names, call)
    if form == "list":
        return _of_list(form, inputs, out, taken, options, prefer)
    return _of_stacked(form, inputs, out, taken, options, prefer)


def _check_made(call: Call) -> None:
    """Refuse an `out` that does not hold what a call makes, or scales that lie otherwise."""
    made, outputs = 1 + bool(call.options.get("quant")), call.outputs
    if outputs is None:
        return
    if len(outputs) != made:
        raise BadArgument(
            f"out holds {many(len(outputs), 'array')}; a grouped_gemm makes {made}"
            + ", the result and its scales" * (made > 1)
        )
    for view in outputs[1:]:
        shape = outputs[0].shape
        if not shape:
            raise BadArgument("out holds a number for the result, which has rows and columns")
        wanted = (*shape[:-1], shape[-1] // BLOCK)
        if (view.dtype, view.shape, view.strides) != ("fp32", wanted, scales.packed(wanted)):
            raise BadArgument(
                f"the scales in out are {view.dtype} of shape {view.shape} with strides "
                f"{view.strides}; they are fp32 of shape {wanted}, contiguous"
            )


def _form(call: Call) -> str:
    inputs = call.inputs
    dims = [len(x.shape) for x in inputs[:2]]
    if dims[:1] == [1]:
        return "list"
    if len(dims) == 1:  # the number of operands is refused later
        dims.append(3)
    if (form := _FORMS.get((*dims,))) is not None:
        return "gathered" if form == "contiguous" and ROWS in call.named else form
    shapes = " and B ".join(str(x.shape) for x in inputs[:2])
    got = f"A has shape {shapes}" if inputs else "no operands were given"
    raise BadArgument(
        f"{got}; grouped_gemm takes A as rows sorted by group [m, k], or [groups, capacity, k], "
        "and B as [groups, k, n]; or A as [m, k] or [groups, m, k] and B as [k, n], with groups "
        "along k or n; or packed lists"
    )


def made(call: Call) -> tuple[Operand, ...]:
    """C, and its scales, of a call that passes none; () of a list, whose C is always passed. Sizes
    may be symbols (``torch.compile``), so no problem is stated of them."""
    form = _form(call)
    if form == "list":
        return ()
    a, b = call.inputs[:2]
    options = call.options
    if form in STACKED:
        a, b = lowbit.read(a, b, options)
    m, columns = a.shape[-2], b.shape[-1] // epilogues.fold(options.get("epilogue", ""))
    if form == "gathered":
        m = call.named[ROWS].shape[0]
    shape: tuple[Any, ...] = (m, columns)
    if form == "masked":
        shape = (a.shape[0], *shape)
    elif form == "weights":
        groups = call.inputs[2].shape[0] - (options.get("bounds") is True)
        shape = (groups, *shape)
    strides = (m * columns, columns, 1)[-len(shape) :]
    c = Operand("C", shape, strides, _default_output(a.dtype, options), "out")
    if not options.get("quant"):
        return (c,)
    return c, block_scales((*shape[:-1], columns // BLOCK))


def _of_list(
    form: str,
    inputs: Sequence[View],
    out: View | None,
    taken: Sequence[Takes],
    options: Mapping[str, Any],
    prefer: str,
) -> GroupedGemmProblem:
    a, b, table = inputs[:3]
    sizes: Sizes = options.get("sizes", ())
    if not isinstance(sizes, tuple):
        raise BadArgument(f"sizes = {sizes!r} is not (m, n, k) of each product, as pack() makes it")
    if table.dtype != "int64" or table.shape != (len(sizes), 9) or table.strides != (9, 1):
        raise BadArgument(
            f"the table is {table.dtype} of shape {table.shape}; for {len(sizes)} sizes it is int64"
            f" of shape ({len(sizes)}, 9): pack() makes both"
        )
    if out is None:
        raise BadArgument("a list needs its out, which pack() makes")
    for name, view in (("A", a), ("B", b), ("out", out)):
        if len(view.shape) != 1 or (view.strides != (1,) and view.shape[0] > 1):
            raise BadArgument(f"{name} of a list has shape {view.shape}; pack() makes it 1-D")
    dtype_c = out.dtype
    for t, view in zip(taken, inputs[3:], strict=True):
        _scalar(t, view, dtype_c)
    return GroupedGemmProblem(
        form,
        sizes=sizes,
        dtype_a=a.dtype,
        dtype_b=b.dtype,
        dtype_c=dtype_c,
        layout=options.get("layout", prefer),
        alignment=options.get("alignment", 1),
        precision=options.get("precision", "ieee"),
        epilogue=options.get("epilogue", ""),
    )


def _of_stacked(
    form: str,
    inputs: Sequence[View],
    out: View | None,
    taken: Sequence[Takes],
    options: Mapping[str, Any],
    prefer: str,
) -> GroupedGemmProblem:
    a, b, sizes, *extra = inputs
    a, b = lowbit.read(a, b, options)
    epilogue = options.get("epilogue", "")
    (m, k), n = a.shape[-2:], b.shape[-1]
    rows_a = 0
    if form == "gathered":
        m, rows_a = _mapped(extra.pop(0)), m
    if k != b.shape[-2]:
        raise BadArgument(f"A has {k} columns but B has {b.shape[-2]} rows: they must be equal")
    if form == "masked" and a.shape[0] != b.shape[0]:
        raise BadArgument(f"A is of {a.shape[0]} groups but B of {b.shape[0]}")
    stacked = {"weights": None, TURNED: a}.get(form, b)
    bounds = options.get("bounds", False)
    if stacked is None:
        groups = sizes.shape[0] - (bounds is True) if len(sizes.shape) == 1 else 0
        if groups < 1:
            raise BadArgument(f"offsets has shape {sizes.shape}; it has one or more ends of groups")
    else:
        groups = stacked.shape[0]
    bounds = _check_sizes(form, sizes, groups) or bounds
    if form in ("weights", TURNED):
        letter_a, lda = _either("A", a, prefer[0])
    else:
        letter_a, lda = "r", _leading("A", a)
    letter_b, ldb = _either("B", b, prefer[1])
    columns = n // epilogues.fold(epilogue)
    addresses = [a.address, b.address]
    rows = (groups, m) if form in ("masked", "weights") else (m,)
    if out is not None:
        wanted = (*rows, columns)
        if out.shape != wanted:
            raise BadArgument(f"out has shape {out.shape} but the result has {wanted}")
        dtype_c, ldc = out.dtype, _leading("out", out)
        addresses.append(out.address)
    else:
        dtype_c, ldc = _default_output(a.dtype, options), max(1, columns)
    scaled = sum(bool(options.get(name)) for name in (*gemm.SCALES, scales.ZEROS))
    found = scales.read(extra[:scaled], options, a.shape[:-1], groups, n, k)
    del extra[:scaled]
    ldd = 0
    widths = epilogues.columns(epilogue, n)
    for t, view, width in zip(taken, extra, widths, strict=True):
        ld = _extra(t, view, (groups, *rows), width, form, dtype_c)
        if ld and ldd not in (0, ld):
            raise BadArgument(
                f"the epilogue's matrices must share one leading dimension, not {ldd} and {ld}; "
                "pass contiguous copies"
            )
        ldd = ld or ldd
        addresses += [view.address] if ld else []
    stride_b = stacked.strides[0] if stacked is not None and groups > 1 else 0
    types = (a.dtype, b.dtype, dtype_c, epilogues.operand_dtype(Takes("", "d"), dtype_c))
    steps = (DTYPES[d].size(ld) for ld, d in zip((lda, ldb, ldc, ldd), types, strict=True))
    apart = DTYPES[b.dtype].size(stride_b)
    return GroupedGemmProblem(
        form,
        groups,
        m,
        n,
        k,
        dtype_a=a.dtype,
        dtype_b=b.dtype,
        dtype_c=dtype_c,
        layout=f"{letter_a}{letter_b}r",
        lda=lda,
        ldb=ldb,
        ldc=ldc,
        alignment=natural_alignment((*addresses, *steps, apart)),
        precision=options.get("precision", "ieee"),
        epilogue=epilogue,
        ldd=ldd,
        stride_b=stride_b,
        bounds=bounds,
        zero_rest=options.get("zero_rest", False),
        rows_a=rows_a,
        per_row=options.get("per_row", 1),
        gates_apart=options.get("gates_apart", False),
        quant=options.get("quant", ""),
        **found,
    )


def _mapped(view: View) -> int:
    """How many rows a map of rows has."""
    if view.dtype != "int32" or len(view.shape) != 1:
        raise BadArgument(f"{ROWS} is {view.dtype} of shape {view.shape}; it is an int32 vector")
    if view.strides != (1,) and view.shape[0] > 1:
        raise BadArgument(f"{ROWS} has strides {view.strides}; pass a contiguous copy")
    return view.shape[0]


def _either(name: str, view: View, prefer: str) -> tuple[str, int]:
    """The layout of a matrix, or of those of a stack, and its leading dimension."""
    letters = orders(replace(view, shape=view.shape[-2:], strides=view.strides[-2:]))
    if not letters:
        of_group = " of a group" if len(view.shape) == 3 else ""
        raise BadArgument(
            f"{name} of shape {view.shape} has strides {view.strides}: neither rows nor columns"
            f"{of_group} are contiguous and apart; pass a contiguous copy"
        )
    letter = prefer if prefer in letters else next(iter(letters))
    return letter, letters[letter]


def _check_sizes(form: str, view: View, groups: int) -> bool:
    """Whether there is one more offset than groups."""
    name = SIZES[form]
    lengths = (groups, groups + 1) if name == "offsets" else (groups,)
    if view.dtype != "int32" or len(view.shape) != 1 or view.shape[0] not in lengths:
        wanted = " or ".join(map(str, lengths))
        raise BadArgument(
            f"{name} is {view.dtype} of shape {view.shape}; for {groups} groups it is an int32 "
            f"vector of {wanted}"
        )
    if view.strides != (1,) and view.shape[0] > 1:
        raise BadArgument(f"{name} has strides {view.strides}; pass a contiguous copy")
    return view.shape[0] > groups


def _leading(name: str, view: View) -> int:
    """The leading dimension of a matrix with rows, or of a stack of such matrices without gaps."""
    *outer, columns = view.shape
    if 0 in outer:
        return columns
    inner_ok = view.strides[-1] == 1 or columns == 1
    ld = view.strides[-2] if outer[-1] > 1 else max(columns, 1)
    if len(outer) == 2 and outer[1] <= 1 < outer[0]:
        ld = view.strides[0]  # one row for each group
    if not inner_ok or ld < columns:
        raise BadArgument(
            f"{name} of shape {view.shape} has strides {view.strides}; rows are sorted by group, so"
            " each must be contiguous: pass a contiguous copy"
        )
    if len(outer) == 2 and outer[0] > 1 and view.strides[0] != outer[1] * ld:
        raise BadArgument(
            f"{name} of shape {view.shape} has strides {view.strides}; groups must follow each"
            " other without a gap: pass a contiguous copy"
        )
    return ld


def _extra(t: Takes, view: View, rows: tuple[int, ...], width: int, form: str, dtype_c: str) -> int:
    """Check an operand of an epilogue. Returns the leading dimension of a matrix, 0 for other
    operands.

    rows: the number of groups, and then the dimensions of C before its columns.
    """
    groups, *shape = rows
    wanted: dict[str, tuple[int, ...]] = {
        "n": (groups, width),
        "m": tuple(shape),
        "d": (*shape, width),
    }
    if t.kind == "s":
        _scalar(t, view, dtype_c)
        return 0
    _check_dtype(t, view, dtype_c)
    if view.shape != wanted[t.kind]:
        raise BadArgument(
            f"{t.name} of shape {view.shape} is not a {KINDS[t.kind]} in form {form}, of shape "
            f"{wanted[t.kind]}"
        )
    if t.kind == "d":
        return _leading(t.name, view)
    packed = [1]
    for size in reversed(view.shape[1:]):
        packed.insert(0, packed[0] * size)
    if any(s != at for n, s, at in zip(view.shape, view.strides, packed, strict=True) if n > 1):
        raise BadArgument(f"{t.name} has strides {view.strides}; pass a contiguous copy")
    return 0


def _scalar(t: Takes, view: View, dtype_c: str) -> None:
    _check_dtype(t, view, dtype_c)
    if view.shape not in ((), (1,), (1, 1)):
        raise BadArgument(f"{t.name} of shape {view.shape} is not a {KINDS[t.kind]}")


def _check_dtype(t: Takes, view: View, dtype_c: str) -> None:
    wanted = epilogues.operand_dtype(t, dtype_c)
    if view.dtype != wanted:
        raise BadArgument(f"{t.name} is {view.dtype}; with C as {dtype_c} it must be {wanted}")


def _default_output(dtype_a: str, options: Mapping[str, Any]) -> str:
    if options.get("quant") and dtype_a in QUANTISED:
        return dtype_a
    scaled = any(options.get(name) for name in gemm.SCALES)
    return gemm_calling.default_output(dtype_a, options.get("epilogue", ""), scaled)
