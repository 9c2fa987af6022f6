"""The launch of a grouped GEMM kernel for a problem."""

from __future__ import annotations

from tilewright.arch.model import Device
from tilewright.ops.epilogues import chain_names
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.operands import SIZES
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem
from tilewright.ops.grouped_gemm.source import blocks
from tilewright.ops.nouns import Argument, Descriptor, Launch, Pointer, Scalar, Step


def launch(config: GroupedGemmConfig, problem: GroupedGemmProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`."""
    p = problem
    grid = (max(1, min(most_tiles(config, p), device.compute_units)), 1, 1)
    pointers = PIPELINES[config.pipeline].one.reads == "pointers"
    stride = "i32" if pointers and config.index_bits == 32 else "i64"
    extra: tuple[Argument, ...] = tuple(Pointer(name) for name in chain_names(config.epilogue))
    if p.ldd:
        extra = (*extra, Scalar(stride, p.ldd))
    sizes = tuple(Scalar("i32", size) for size in (p.m, p.n, p.k))
    groups, lead = Scalar("i32", p.groups), Scalar("i32", int(p.bounds))
    zero_rest = Scalar("i32", int(p.zero_rest))
    arguments: tuple[Argument, ...]
    if not pointers:
        b = (p.k, p.n) if p.layout[1] == "r" else (p.n, p.k)
        a_block, b_block, c_block = blocks(config)
        arguments = (
            Descriptor("A", p.dtype_a, (p.rows, p.k), (p.lda, 1), a_block),
            Descriptor("B", p.dtype_b, (p.groups, *b), (p.stride_b, p.ldb, 1), b_block),
            _ragged("C", p.dtype_c, p.columns, p.ldc, c_block),
            Pointer(SIZES[p.form]),
            *sizes,
            groups,
            lead,
            Pointer("C"),
            Scalar("i64", p.ldc),
            zero_rest,
            *extra,
        )
        return Launch((Step(grid, arguments),))
    addresses = tuple(Pointer(name) for name in ("A", "B", "C", SIZES[p.form]))
    if p.form == "list":
        return Launch((Step(grid, (*addresses, groups, *extra)),))
    arguments = (
        *addresses,
        *sizes,
        *(Scalar(stride, ld) for ld in (p.lda, p.ldb, p.ldc)),
        Scalar("i64", p.stride_b),
        groups,
        lead,
        zero_rest,
        *extra,
    )
    return Launch((Step(grid, arguments),))


def most_tiles(config: GroupedGemmConfig, problem: GroupedGemmProblem) -> int:
    """The most tiles for any sizes of the groups: each group may end inside a tile."""
    p = problem
    if p.form == "list":
        return sum(-(-m // config.tile_m) * -(-n // config.tile_n) for m, n, _ in p.sizes)
    if p.form == "masked":
        rows = p.groups * -(-p.m // config.tile_m)
    else:  # a group with rows has at least one tile, and one more for each further tile_m rows
        used = min(p.groups, p.m)
        rows = used + (p.m - used) // config.tile_m
    return rows * -(-p.n // config.tile_n)


RAGGED_ROWS = 2**30
"""Rows of a ragged tensor map. This number times `_WRAP` elements is a multiple of 2**64 bytes, at
which addresses wrap."""
_WRAP = 2**34
_MOST = 2**31 - 2**16


def _ragged(operand: str, dtype: str, columns: int, ld: int, block: tuple[int, ...]) -> Descriptor:
    """The tensor map of a matrix for stores that may stop at any row.

    Three of its dimensions walk the rows. (RAGGED_ROWS, end, RAGGED_ROWS - size + i) is row i of
    the `size` rows before row `end`. The first coordinate goes RAGGED_ROWS rows back, since its
    stride is `_WRAP` elements less a row and addresses wrap. The last coordinate is past its
    extent, where nothing is written, exactly for i ≥ size. (The "ragged" descriptors of Triton's
    ``tools/ragged_tma.py``.)
    """
    shape = (_MOST, _MOST, RAGGED_ROWS, columns)
    return Descriptor(operand, dtype, shape, (_WRAP - ld, ld, ld, 1), block)
