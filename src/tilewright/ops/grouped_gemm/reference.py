"""The result in float64, group by group. Rows of no group are zeros where the problem says so, and
else keep the output's poison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import lowbit, scales
from tilewright.ops.grouped_gemm.problem import BLOCK, SCALES, TURNED, GroupedGemmProblem
from tilewright.ops.grouped_gemm.table import arrange, matrix


def reference(problem: GroupedGemmProblem, inputs: Sequence[Any]) -> Mapping[str, Any]:
    """The outputs for float64 `inputs`, NumPy or torch; `arrays.poison_of` their types where no
    kernel writes."""
    p = problem
    a, b, sizes, *extra = inputs
    a, b = lowbit.decoded(a, b, p)
    row_map = extra.pop(0) if p.form == "gathered" else None
    if p.scale_a:
        of_a = extra.pop(0)
        of_rows = of_a.reshape(-1, of_a.shape[-1])
        a = scales.dequantised(a.reshape(-1, p.k), of_rows, p.scale_a)
    if row_map is not None:
        a = _gathered(p, a, row_map)
    if p.form == "list":
        _, (_, _, length) = arrange(p)
        shape: tuple[int, ...] = (length,)
    elif p.form == TURNED:
        shape = (p.m, p.n)
    else:
        shape = (p.rows, p.columns)
    poison = 0.0 if p.zero_rest else arrays.poison_of(DTYPES[p.dtype_c])
    out = _full(a, shape, poison)
    if p.form == "list":
        for row in sizes.tolist():
            at_a, at_b, at_c, m, n, k, lda, ldb, ldc = map(int, row)
            part_a = matrix(a, at_a, (m, k), p.layout[0], lda)
            part_b = matrix(b, at_b, (k, n), p.layout[1], ldb)
            columns = n // epilogues.fold(p.epilogue)
            matrix(out, at_c, (m, columns), p.layout[2], ldc)[...] = _finished(
                p, part_a @ part_b, extra
            )
        return {"C": out}
    made = {SCALES: _full(a, (p.rows, p.columns // BLOCK), arrays.poison_of(DTYPES["fp32"]))}
    taken = epilogues.takes(p.epilogue)
    of_b = extra.pop(0) if p.scale_b else None
    zeros = extra.pop(0) if p.zero_b else None
    for group, begin, end in _ranges(p, [int(x) for x in sizes.tolist()]):
        if p.form == TURNED:
            out[:, begin:end] = _finished(p, a[group] @ b[:, begin:end], ())
            continue
        if p.form == "weights":
            product = a[:, begin:end] @ b[begin:end]
            begin, end = group * p.m, (group + 1) * p.m
        else:
            own_b = b[group]
            if zeros is not None:
                own_b = own_b - scales.dequantised(own_b * 0 + 1, zeros[group], p.scale_b)
            if of_b is not None:
                own_b = scales.dequantised(own_b, of_b[group], p.scale_b)
            product = a.reshape(p.rows, p.k)[begin:end] @ own_b
        own = [_own(t.kind, x, p, group, begin, end) for t, x in zip(taken, extra, strict=True)]
        out[begin:end] = _finished(p, product, own)
        if p.quant:
            out[begin:end], made[SCALES][begin:end] = _rounded(p, out[begin:end])
    found = {"C": out} | (made if p.quant else {})
    return {name: one.reshape(*p.c_shape[:-1], one.shape[-1]) for name, one in found.items()}


def _rounded(p: GroupedGemmProblem, c: Any) -> tuple[Any, Any]:
    """Rows of C as they are stored, and their scales. A NaN is no largest value."""
    blocks = c.reshape(len(c), -1, BLOCK)
    size = abs(blocks)
    size[size != size] = 0.0
    least, most = DTYPES[p.dtype_c].range or (0.0, 0.0)
    scales = size.max(-1) / most if not arrays.is_torch(c) else size.amax(-1) / most
    scales[scales == 0] = 1.0
    return (blocks / scales[..., None]).reshape(c.shape).clip(least, most), scales


def _gathered(p: GroupedGemmProblem, a: Any, row_map: Any) -> Any:
    """A row of A for each number of the map, zeros where it means none."""
    last = p.rows_a * p.per_row
    places = [int(x) // p.per_row if 0 <= x < last else p.rows_a for x in row_map.tolist()]
    rows = _full(a, (p.rows_a + 1, p.k), 0.0)
    rows[: p.rows_a] = a
    return rows[places]


def _ranges(p: GroupedGemmProblem, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(group, its first row, past its last row), clamped as in the kernels: of the groups with
    rows, but of ``weights`` all, whose rows are parts of K."""
    for group in range(p.groups):
        if p.form == "masked":
            begin = group * p.m
            end = begin + min(max(sizes[group], 0), p.m)
        else:
            ends = sizes if p.bounds else [0, *sizes]
            begin, end = (min(max(at, 0), p.dealt) for at in ends[group : group + 2])
        if end > begin or p.form == "weights":
            yield group, begin, max(begin, end)


def _own(kind: str, x: Any, p: GroupedGemmProblem, group: int, begin: int, end: int) -> Any:
    """A group's part of an operand of the epilogue."""
    if kind == "s":
        return x
    if kind == "n":
        return x[group]
    return x.reshape(p.rows, *x.shape[-1:] if kind == "d" else ())[begin:end]


def _finished(p: GroupedGemmProblem, product: Any, extra: Sequence[Any]) -> Any:
    if p.gates_apart:
        half = p.n // 2
        product = product[:, [half * (at % 2) + at // 2 for at in range(p.n)]]
    result = epilogues.reference(p.epilogue, product, extra)
    within = DTYPES[p.dtype_c].range if p.epilogue and not p.quant else None
    return result.clip(*within) if within else result


def _full(like: Any, shape: tuple[int, ...], value: float) -> Any:
    if arrays.is_torch(like):
        return like.new_full(shape, value)
    import numpy as np

    return np.full(shape, value)
