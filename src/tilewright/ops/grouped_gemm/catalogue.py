"""What the parameters of the grouped kernels are, and what is compiled and launched for a config.

Most constants, and the epilogue's operands, are those of the GEMM kernel of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import binder, epilogues
from tilewright.ops.binder import (
    Array,
    Box,
    Catalogue,
    Constant,
    Context,
    Described,
    Meaning,
    Numbers,
    Part,
    Tuple,
)
from tilewright.ops.gemm import catalogue as gemm
from tilewright.ops.gemm.layouts import masked
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.scales import count
from tilewright.ops.grouped_gemm import low_tiles, scales
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.operands import ROWS, SIZES
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.grouped_gemm.problem import SCALES, GroupedGemmProblem
from tilewright.ops.nouns import MAIN, KernelSource, Launch

# --- what alignment promises --------------------------------------------------------------------


def _stacked(c: GroupedGemmConfig) -> bool:
    """Whether sizes and strides are arguments. A list's are in its table, so that its kernel makes
    the promises about them itself."""
    return c.form != "list"


def _gathered(c: GroupedGemmConfig) -> bool:
    return c.form == "gathered"


def _elements(c: GroupedGemmConfig, dtype: str) -> int:
    """Elements in as many bytes as rows are multiples of, where they are reached through
    pointers."""
    through_pointers = PIPELINES[c.pipeline].one.reads == "pointers" or _gathered(c)
    return c.alignment // DTYPES[dtype].bytes if through_pointers else 1


def _columns(c: GroupedGemmConfig) -> int:
    """What N is a multiple of."""
    if PIPELINES[c.pipeline].one.reads == "descriptors":
        # So that the mask at C's edge leaves the loads of the epilogue's matrices wide.
        wide = epilogues.has_matrix(c.epilogue)
        return c.alignment // DTYPES[c.dtype_c].bytes if wide else 1
    if c.alignment == 1:
        return 1
    read = _elements(c, c.dtype_b) if c.layout[1] == "r" else 1
    written = _elements(c, c.dtype_c) * epilogues.fold(c.epilogue) if c.layout[2] == "r" else 1
    return max(read, written)


def _rows(c: GroupedGemmConfig) -> int:
    """What M is a multiple of: elements in a row of A, where groups share out K."""
    return _elements(c, c.dtype_a) if c.form == "weights" and c.layout[0] == "c" else 1


def _summed(c: GroupedGemmConfig) -> int:
    """What K is a multiple of: whole vectors of the matrices that lie along it."""
    if c.form == "weights":
        return 1
    operands = zip(c.layout, "rc", (c.dtype_a, c.dtype_b), strict=False)
    along = [d for letter, inner, d in operands if letter == inner]
    return max((_elements(c, d) * DTYPES[d].packed for d in along), default=1)


# --- parameters ---------------------------------------------------------------------------------


RAGGED_ROWS = 2**30
"""Rows of a ragged tensor map. This number times `_WRAP` elements is a multiple of 2**64 bytes, at
which addresses wrap."""
_WRAP = 2**34
_MOST = 2**31 - 2**16


def _ragged(columns: int, ld: int) -> Described:
    """The tensor map of a matrix for copies that may stop at any row: nothing is stored behind it,
    and zeros are loaded.

    Three of its dimensions walk the rows. (RAGGED_ROWS, end, RAGGED_ROWS - size + i) is row i of
    the `size` rows before row `end`. The first coordinate goes RAGGED_ROWS rows back, since its
    stride is `_WRAP` elements less a row and addresses wrap. The last coordinate is past its
    extent exactly for i ≥ size. (The "ragged" descriptors of Triton's ``tools/ragged_tma.py``.)
    """
    return Described((_MOST, _MOST, RAGGED_ROWS, columns), (_WRAP - ld, ld, ld, 1))


def _view(c: GroupedGemmConfig, p: GroupedGemmProblem, name: str) -> Described:
    if p.form == "weights":
        if name == "c":
            return Described((p.groups, p.m, p.columns), (p.m * p.ldc, p.ldc, 1))
        return _ragged(p.m if name == "a" else p.n, p.lda if name == "a" else p.ldb)
    if name == "a":
        return Described((p.rows, p.k), (p.lda, 1))
    if name == "c":
        return _ragged(p.columns, p.ldc)
    if _paired_by_map(c):  # the map takes gates and ups by turns, wherever they lie
        between, onward = _steps(p)
        shape = (p.groups, p.n // 2, 2, p.k)
        return Described(shape, (p.stride_b, onward * p.ldb, between * p.ldb, 1))
    b = (p.k, p.n) if p.layout[1] == "r" else (p.n, p.k)
    return Described((p.groups, *b), (p.stride_b, p.ldb, 1))


def _pairs(of: Any) -> bool:
    """Whether columns of a column-major B become one column of C in twos; of a problem or a
    config."""
    return epilogues.fold(of.epilogue) == 2 and of.layout[1] == "c"


def _paired_by_map(c: GroupedGemmConfig) -> bool:
    """Whether B's map takes gates and ups by turns: not where they are parts of the tile."""
    return _pairs(c) and not PIPELINES[c.pipeline].gates_apart


def _steps(p: GroupedGemmProblem) -> tuple[int, int]:
    """Columns of B from a gate to its up, and to the next gate."""
    return (p.n // 2, 1) if p.gates_apart else (1, 2)


def _turned(x: Context, name: str) -> str:
    """The operand that a kernel has as `name`."""
    return str(x.problem.as_walked(f"ld{name}")[2:].upper())


def _matrix(name: str) -> Array:
    return Array(
        f"dtype_{name}",
        lambda x: _turned(x, name),
        aligned=lambda c: c.alignment,
        view=lambda x: _view(x.config, x.problem, name),
    )


def _number(
    field: str, kind: str | Callable[[GroupedGemmConfig], str] = "i32", like: str = ""
) -> Numbers:
    """A field of the problem, unless a list has it in its table. like: the field with the dtype of
    the matrix that it is a stride of, of 4-bit elements in bytes."""

    def multiples(c: GroupedGemmConfig) -> int:
        return _elements(c, getattr(c, like)) if like else 1

    def value(x: Context) -> int:
        each = DTYPES[getattr(x.config, like)].packed if like else 1
        return int(getattr(x.problem, x.problem.as_walked(field))) // each

    return Numbers(kind, value, _stacked, multiples)


_EPILOGUE = gemm.chain(2, near=lambda _: False)


def _extra(c: GroupedGemmConfig) -> list[Array | Numbers]:
    own = replace(c.one, epilogue=c.epilogue)
    return list(_EPILOGUE.of(own if _stacked(c) else replace(own, alignment=1)))


def _scales(c: GroupedGemmConfig) -> list[Array | Numbers]:
    """Those of a GEMM, and behind them for each operand with scales the elements from one group's
    to the next."""

    def step(place: int) -> Numbers:
        return Numbers("i64", lambda x: scales.group_steps(x.problem)[place])

    found = gemm.block_scales(c.one, near=lambda _: False, of=lambda p: p.one)
    return [*found, *map(step, range(count(c)))]


def _zeros(c: GroupedGemmConfig) -> list[Array | Numbers]:
    """The zero points, their strides (0 along a dimension of one), and the elements from one
    group's to the next."""

    def stride(axis: int) -> Numbers:
        def value(x: Context) -> int:
            (zeros,) = scales.zeros_of(x.problem)
            return zeros.strides[axis] if zeros.shape[axis] > 1 else 0

        return Numbers("i32" if axis else "i64", value)

    if not c.zero_b:
        return []
    return [Array("int8", lambda _: scales.ZEROS), stride(1), stride(2), stride(0)]


def _widths(c: GroupedGemmConfig, _: Arch) -> str:
    """For each operand of the epilogue: the divisor of N if it is a vector over columns, else 0."""
    taken = epilogues.takes(c.epilogue)
    widths = epilogues.columns(c.epilogue, 2)
    return "".join(
        str(2 // width) if t.kind == "n" else "0" for t, width in zip(taken, widths, strict=True)
    )


def _paired(place: int) -> Numbers:
    """One of `_steps`. In rows, gates and ups take turns; a list knows no other way."""
    return Numbers("i32", lambda x: _steps(x.problem)[place], lambda c: _pairs(c) and _stacked(c))


def _mask(axis: int) -> Constant:
    return lambda c, _: masked(c.layout, True, c.pad_n, c.pad_k)[axis]


CATALOGUE: Catalogue = {
    **gemm.CATALOGUE,
    **{name: _matrix(name) for name in "abc"},
    "c_rows": Array("dtype_c", lambda _: "C"),
    "table": Array(lambda c: "int32" if _stacked(c) else "int64", lambda x: SIZES[x.problem.form]),
    "m": replace(_number("m"), multiples=_rows),
    "n": replace(_number("n"), multiples=_columns),
    "k": replace(_number("k"), multiples=_summed),
    **{f"ld{name}": _number(f"ld{name}", gemm.index_type, f"dtype_{name}") for name in "abc"},
    "stride_b": _number("stride_b", "i64", "dtype_b"),
    "groups": replace(_number("groups"), there=lambda _: True),
    "lead": _number("bounds"),
    "zero_rest": _number("zero_rest"),
    "counter": Array("int32", shape=lambda _: (1,), initial=lambda _: "kept_zero"),
    "row_map": Array("int32", lambda _: ROWS, there=_gathered),
    "rows_a": replace(_number("rows_a"), there=_gathered),
    "per_row": replace(_number("per_row"), there=_gathered),
    "between": _paired(0),
    "onward": _paired(1),
    "extra": Tuple(_extra),
    "scales": Tuple(_scales),
    "quants": Tuple(lambda c: [Array("fp32", lambda _: SCALES)] * (c.quant != "")),
    "zeros": Tuple(_zeros),
    "ZEROS": lambda c, _: c.zero_b,
    "INT_ACC": lambda c, _: c.one.dtype_partials == "int32",
    "TAKES": lambda c, _: epilogues.kinds(c.epilogue),
    "WIDTHS": _widths,
    "MASK_N": _mask(1),
    "MASK_K": _mask(2),
    "ELEMENTS": lambda c, _: max(1, c.alignment // DTYPES[c.dtype_a].bytes),
    "ELEMENTS_C": lambda c, _: max(1, c.alignment // DTYPES[c.dtype_c].bytes),
    "TURNED": lambda c, arch: low_tiles.turned(c, arch),
    "WARP_GROUPS": lambda c, _: warpgroups.groups(c),
}


# --- descriptors --------------------------------------------------------------------------------


def _boxes(c: GroupedGemmConfig) -> dict[str, Box]:
    """The box that one copy moves of A (rows, K), of B (group, then B's two dimensions in memory
    order) and of C (see `_ragged`); of ``weights``, A and B are ragged, and C has groups."""
    boxes = PIPELINES[c.pipeline].one.boxes
    if boxes is None:
        return {}
    m, n, k, columns = boxes(c.one)
    if c.form == "weights":
        return {"a": (1, 1, k, m), "b": (1, 1, k, n), "c": (1, m, columns)}
    b: Box = (1, k, n) if c.layout[1] == "r" else (1, n, k)
    if _paired_by_map(c):
        b = (1, n // 2, 2, k)
    found = {"a": (m, k), "b": b, "c": (1, 1, m, columns)}
    return {name: box for name, box in found.items() if name != "a" or not _gathered(c)}


# --- kernels ------------------------------------------------------------------------------------


def most_tiles(config: GroupedGemmConfig, problem: GroupedGemmProblem) -> int:
    """The most tiles for any sizes of the groups: each group may end inside a tile."""
    p = problem
    if p.form == "list":
        return sum(-(-m // config.tile_m) * -(-n // config.tile_n) for m, n, _ in p.sizes)
    if p.form in ("masked", "weights"):
        rows = p.groups * -(-p.m // config.tile_m)
    else:  # a group with rows has at least one tile, and one more for each further tile_m rows
        used = min(p.groups, p.dealt)
        rows = used + (p.dealt - used) // config.tile_m
    return rows * -(-p.one.n // config.tile_n)


def _grid(x: Context) -> int:
    most = x.device.compute_units * low_tiles.resident(x.config, arch_called(x.device.arch))
    return max(1, min(most_tiles(x.config, x.problem), most))


def _of_one(constant: Meaning | Constant) -> Constant:
    """A constant of the GEMM kernel of one group."""
    assert callable(constant)
    return lambda c, arch: constant(c.one, arch)


def _parts(config: GroupedGemmConfig) -> tuple[Part]:
    record = PIPELINES[config.pipeline]
    return (
        Part(
            name=MAIN,
            kernel=record.kernel_of(config.form),
            grid=_grid,
            options=lambda c, arch: (*record.one.options(c.one, arch), *low_tiles.options(c, arch)),
            own={name: _of_one(constant) for name, constant in record.one.own.items()},
            boxes=_boxes,
        ),
    )


def sources(config: GroupedGemmConfig, arch: Arch) -> dict[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    return binder.sources(_parts(config), CATALOGUE, config, arch)


def launch(config: GroupedGemmConfig, problem: GroupedGemmProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`."""
    return binder.launch(_parts(config), CATALOGUE, Context(config, problem, device))
