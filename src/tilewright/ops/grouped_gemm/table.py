"""The ``list`` form: a table with the addresses of each product's matrices, and `pack`, which makes
one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, WrongDevice
from tilewright.ops import epilogues
from tilewright.ops.grouped_gemm.problem import LIST_SPAN, GroupedGemmProblem
from tilewright.ops.nouns import Operand, View
from tilewright.ops.products import natural_alignment

Row = tuple[int, int, int, int, int, int, int, int, int]
"""One product: the starts of A, B and C (in elements from the operand of that name), m, n, k, and
their leading dimensions. Kernels read it (``kernels/walk.py``)."""


def arrange(p: GroupedGemmProblem) -> tuple[list[Row], tuple[int, int, int]]:
    """A table for a list whose matrices follow one another, each row and start aligned to 16 bytes;
    and the number of elements of A, B and C in all."""
    table: list[Row] = []
    ends = [0, 0, 0]
    types = (p.dtype_a, p.dtype_b, p.dtype_c)
    fold = epilogues.fold(p.epilogue)
    for m, n, k in p.sizes:
        begins, lds = tuple(ends), []
        for i, shape in enumerate(((m, k), (k, n), (m, n // fold))):
            outer, inner = shape if p.layout[i] == "r" else shape[::-1]
            step = 16 // DTYPES[types[i]].bytes
            lds.append(-(-max(inner, 1) // step) * step)
            ends[i] += outer * lds[i]
        table.append((*begins, m, n, k, *lds))  # type: ignore[arg-type]
    return table, (ends[0], ends[1], ends[2])


@dataclass(frozen=True, slots=True)
class Packed:
    """A list of products, ready to run any number of times::

        dispatcher.run("grouped_gemm", *packed.inputs, out=packed.out, **packed.options)

    outputs: the results, one matrix for each product.

    On a GPU the operands are used in place, so a run sees everything written into them before. On
    the CPU they were copied.
    """

    inputs: tuple[Any, Any, Any]
    out: Any
    outputs: tuple[Any, ...]
    options: dict[str, Any]
    kept: tuple[Any, ...]
    """Keeps the memory alive that the table's addresses refer to."""


def pack(
    pairs: Sequence[tuple[Any, Any]],
    outs: Sequence[Any] | None = None,
    *,
    dtype_c: str = "",
    precision: str = "ieee",
    epilogue: str = "",
) -> Packed:
    """The products A·B of `pairs`, of any sizes (0 too), as one list.

    pairs: A and B of each product. All A have one dtype and one layout, and so do all B.
    outs: arrays for the results (on a GPU only); by default, one allocation of `dtype_c` holds
    them.

    Reads no element, so it does not wait for a GPU. Raises `BadArgument` and `WrongDevice`.
    """
    if not pairs:
        raise BadArgument("a list needs one product or more")
    given = [
        (arrays.adopt(a, f"A of product {i}"), arrays.adopt(b, f"B of product {i}"))
        for i, (a, b) in enumerate(pairs)
    ]
    views = [(arrays.view(a), arrays.view(b)) for a, b in given]
    places = {v.device for pair in views for v in pair}
    if len(places) > 1:
        raise WrongDevice(f"operands are on {', '.join(sorted(places))}; move them together")
    place = places.pop()
    sizes = tuple(_size(i, a, b) for i, (a, b) in enumerate(views))
    letter_a, letter_b = (_letter(name, [pair[i] for pair in views]) for i, name in enumerate("AB"))
    letter_c = "r"
    if outs is not None:
        outs = [arrays.adopt(out, f"out of product {i}") for i, out in enumerate(outs)]
        views_c = _check_outs(outs, sizes, epilogue, place)
        letter_c = _letter("out", views_c)
        dtype_c = views_c[0].dtype
    problem = GroupedGemmProblem(
        "list",
        sizes=sizes,
        dtype_a=_one_dtype("A", [a for a, _ in views]),
        dtype_b=_one_dtype("B", [b for _, b in views]),
        dtype_c=dtype_c,
        layout=letter_a + letter_b + letter_c,
        alignment=1,
        precision=precision,
        epilogue=epilogue,
    )
    table, lengths = arrange(problem)
    like = given[0][0]
    types = (problem.dtype_a, problem.dtype_b, problem.dtype_c)
    if outs is None:
        out = arrays.empty(Operand("C", (lengths[2],), (1,), types[2]), place, like)
        shapes = [(m, n // epilogues.fold(epilogue)) for m, n, _ in sizes]
        results = [
            matrix(out, row[2], shape, letter_c, row[8])
            for row, shape in zip(table, shapes, strict=True)
        ]
        views_c = [arrays.view(x) for x in results]
    else:
        results = list(outs)
    if place == "cpu":
        flat = [
            arrays.empty(Operand(name, (length,), (1,), d), place, like)
            for name, length, d in zip("AB", lengths, types, strict=False)
        ]
        for pair, (m, n, k), row in zip(given, sizes, table, strict=True):
            matrix(flat[0], row[0], (m, k), letter_a, row[6])[...] = pair[0]
            matrix(flat[1], row[1], (k, n), letter_b, row[7])[...] = pair[1]
        alignment = natural_alignment(
            tuple(x.address for x in map(arrays.view, (*flat, out)) if 0 not in x.shape)
        )
        rows = table
    else:
        triples = [(a, b, c) for (a, b), c in zip(views, views_c, strict=True)]
        rows, alignment = _addresses(problem, triples)
        flat = [_flat([pair[i] for pair in given]) for i in (0, 1)]
        if outs is not None:
            _refuse_overlap(triples)
            out = _flat(outs)
    made = arrays.empty(Operand("table", (len(rows), 9), (9, 1), "int64"), place, like)
    arrays.fill_random([made], 0, [lambda _: rows])
    options = {
        "sizes": sizes,
        "layout": problem.layout,
        "alignment": alignment,
        "precision": precision,
        "epilogue": epilogue,
    }
    kept = tuple(x for pair in given for x in pair)
    return Packed((flat[0], flat[1], made), out, tuple(results), options, kept)


def _size(place: int, a: View, b: View) -> tuple[int, int, int]:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise BadArgument(
            f"product {place}: A has shape {a.shape} and B {b.shape}; they must be matrices, with "
            "as many rows of B as columns of A"
        )
    return a.shape[0], b.shape[1], a.shape[1]


def _one_dtype(name: str, views: Sequence[View]) -> str:
    found = dict.fromkeys(v.dtype for v in views)
    if len(found) > 1:
        raise BadArgument(
            f"{name} of the products are {', '.join(found)}; they must be of one dtype"
        )
    return views[0].dtype


def orders(view: View) -> dict[str, int]:
    """The letters of a matrix's possible layouts, each with its leading dimension."""
    (rows, columns), (row_stride, column_stride) = view.shape, view.strides
    if 0 in view.shape:
        return {"r": max(columns, 1), "c": max(rows, 1)}
    found = {}
    if (column_stride == 1 or columns == 1) and (row_stride >= columns or rows == 1):
        found["r"] = row_stride if rows > 1 else columns
    if (row_stride == 1 or rows == 1) and (column_stride >= rows or columns == 1):
        found["c"] = column_stride if columns > 1 else rows
    return found


def _letter(name: str, views: Sequence[View]) -> str:
    """``r`` or ``c``, whichever fits all matrices; if both fit, ``c`` for B."""
    prefer = "c" if name == "B" else "r"
    for letter in (prefer, "r", "c"):
        if all(letter in orders(v) for v in views):
            return letter
    raise BadArgument(
        f"{name} of the products are neither all row-major nor all column-major: pass contiguous "
        "copies"
    )


def _check_outs(
    outs: Sequence[Any], sizes: Sequence[tuple[int, int, int]], epilogue: str, place: str
) -> list[View]:
    if place == "cpu":
        raise BadArgument("on the CPU a list has results of its own (outputs); leave outs away")
    views = [arrays.view(out) for out in outs]
    wanted = [(m, n // epilogues.fold(epilogue)) for m, n, _ in sizes]
    if [v.shape for v in views] != wanted:
        raise BadArgument(f"outs have shapes {[v.shape for v in views]}; the results have {wanted}")
    if {v.device for v in views} != {place}:
        raise WrongDevice(f"outs are not all on {place}, where the operands are")
    _one_dtype("out", views)
    return views


def _addresses(
    p: GroupedGemmProblem, triples: Sequence[tuple[View, View, View]]
) -> tuple[list[Row], int]:
    """The table of the matrices in place, and the alignment that all of them have, in bytes."""
    types = [DTYPES[d].bytes for d in (p.dtype_a, p.dtype_b, p.dtype_c)]
    bases = [_base([triple[i] for triple in triples]) for i in range(3)]
    rows: list[Row] = []
    combined = 0
    for (m, n, k), triple in zip(p.sizes, triples, strict=True):
        begins, lds = [], []
        for view, letter, base, size in zip(triple, p.layout, bases, types, strict=True):
            ld = orders(view)[letter]
            low, high = arrays.span(view)
            if high - low >= LIST_SPAN:
                raise BadArgument(f"a matrix of a list spans under 2 GiB, not {high - low} bytes")
            begins.append((view.address - base) // size if high > low else 0)
            lds.append(ld)
            combined |= ld * size | (view.address if high > low else 0)
        rows.append((*begins, m, n, k, *lds))  # type: ignore[arg-type]
    return rows, natural_alignment((combined,))


def _base(views: Sequence[View]) -> int:
    return next((v.address for v in views if 0 not in v.shape), 0)


def _flat(tensors: Sequence[Any]) -> Any:
    """The origin of the matrices' places in the table: the first matrix that has elements."""
    first = next((t for t in tensors if t.numel()), tensors[0])
    reach = sum((n - 1) * s for n, s in zip(first.shape, first.stride(), strict=True)) + 1
    return first.as_strided((reach if first.numel() else 0,), (1,))


def matrix(flat: Any, at: int, shape: tuple[int, int], letter: str, ld: int) -> Any:
    """A matrix inside a flat array."""
    strides = (ld, 1) if letter == "r" else (1, ld)
    if arrays.is_torch(flat):
        return flat.as_strided(shape, strides, flat.storage_offset() + at)
    import numpy as np

    steps = tuple(s * flat.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(flat[at:], shape, steps)


def _refuse_overlap(triples: Sequence[tuple[View, View, View]]) -> None:
    """Raise `BadArgument` if a result shares memory with an operand or another result."""
    spans = sorted(
        (*arrays.span(view), place % 3 == 2, place)
        for place, view in enumerate(v for triple in triples for v in triple)
    )
    flat = [v for triple in triples for v in triple]
    near: list[tuple[int, int, bool, int]] = []
    for span in spans:
        near = [other for other in near if other[1] > span[0]]
        for other in near:
            if (span[2] or other[2]) and arrays.overlap(flat[span[3]], flat[other[3]]):
                raise BadArgument("an out of a list shares memory with an operand or another out")
        near.append(span)


def check(a: Any, b: Any, sizes: Any) -> None:
    """Raise `BadArgument` unless the offsets (or counts, for A and B of three dimensions) are in
    order and end within the rows that they are of: rows of A, columns of B or K, by the numbers of
    dimensions. Reads them, so on a GPU it waits. Kernels clamp them instead."""
    values = [int(x) for x in sizes.tolist()]
    if len(a.shape) == len(b.shape) == 3:
        m = a.shape[1]
        for group, count in enumerate(values):
            if not 0 <= count <= m:
                raise BadArgument(f"counts[{group}] = {count} is outside 0 … {m}, the capacity")
        return
    along_k = len(a.shape) == len(b.shape) == 2
    groups = len(values) if along_k else (b if len(b.shape) == 3 else a).shape[0]
    most = a.shape[1] if along_k else a.shape[0] if len(b.shape) == 3 else b.shape[1]
    if len(values) not in (groups, groups + 1):
        raise BadArgument(f"{len(values)} offsets for {groups} groups")
    before = 0
    for place, end in enumerate(values):
        if not before <= end <= most:
            raise BadArgument(f"offsets[{place}] = {end} is outside {before} … {most}")
        before = end
