"""What the parameters of GEMM's kernels are (`launch` has which kernels a config has).

The meanings are of the product that a kernel computes: where A and B are swapped, of the exchanged
one, and in two stages, for the first kernel, of the one that stores parts (`swap`, `two_stage`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import blocks
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import binder, epilogues
from tilewright.ops.binder import (
    Array,
    Constant,
    Context,
    Described,
    Functions,
    Numbers,
    Tuple,
)
from tilewright.ops.gemm import operands, pipelines, scales, swap, two_stage
from tilewright.ops.gemm.batch import STRIDED
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.layouts import masked
from tilewright.ops.gemm.lowbit import WORD
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import steps, tiles
from tilewright.ops.tile_sharing import MAX_FLAGS, shared_tiles, slots

Whether = Callable[[GemmConfig], bool]

# --- what alignment promises --------------------------------------------------------------------


def _through_pointers(c: GemmConfig) -> bool:
    return pipelines.of(c).reads == "pointers"


def _near(c: GemmConfig) -> bool:
    """Whether operands span under 2 GiB, for AMD's buffer instructions."""
    return c.index_bits == 32 and _through_pointers(c)


def never(c: GemmConfig) -> bool:
    return False


def index_type(c: Any) -> str:
    """The type of leading dimensions."""
    return "i32" if _near(c) else "i64"


def _types(c: GemmConfig) -> tuple[str, str, str]:
    return c.dtype_a, c.dtype_b, c.dtype_c


def _aligned(c: GemmConfig, dtype: str) -> int:
    """Elements in as many bytes as addresses and rows are multiples of."""
    return max(1, c.alignment // DTYPES[dtype].bytes)


def _inner(c: GemmConfig) -> tuple[str, str, str]:
    """The innermost dimensions of A, B and C; of a shuffled B K."""
    a, b, of_c = tuple(c.layout)
    return "k" if a == "r" else "m", "n" if b == "r" else "k", "n" if of_c == "r" else "m"


def promised_by_c(c: GemmConfig, axis: str) -> int:
    """What a dimension is a multiple of for C's sake."""
    if _inner(c)[2] != axis:
        return 1
    return _aligned(c, c.dtype_c) * (epilogues.fold(c.epilogue) if axis == "n" else 1)


def size(axis: str) -> Numbers:
    """M, N or K: whole vectors of the matrices that lie along it and are reached through
    pointers."""

    def multiple(c: GemmConfig) -> int:
        record, (*inner, inner_c) = pipelines.of(c), _inner(c)
        if record.writes == "descriptors":
            # So that the mask at C's edge leaves the loads of the epilogue's matrices wide.
            loads = record.in_triton and epilogues.has_matrix(c.epilogue)
            return _aligned(c, c.dtype_c) if loads and inner_c == axis else 1
        found = [promised_by_c(c, axis)] if _aligned(c, c.dtype_c) > 1 else []
        if record.reads == "pointers":
            for along, dtype in zip(inner, (c.dtype_a, c.dtype_b), strict=True):
                if along == axis and _aligned(c, dtype) > 1:
                    found.append(_aligned(c, dtype) * DTYPES[dtype].packed)
        return max(found, default=1)

    return Numbers("i32", lambda x: getattr(x.problem, axis), multiples=multiple)


# --- matrices -----------------------------------------------------------------------------------


def in_words(c: GemmConfig) -> int:
    """Elements of B in a word, if the kernel's descriptor counts words; else 0."""
    return WORD // DTYPES[c.dtype_b].bits if pipelines.has(c, "b_in_words") else 0


def matrix_of(place: int, operand: Callable[[GemmConfig], str], near: Whether) -> Array:
    """A, B or C."""

    def dtype(c: GemmConfig) -> str:
        return "int32" if place == 1 and in_words(c) else _types(c)[place]

    def scattered(c: GemmConfig) -> bool:
        return c.batching == "pointers"

    return Array(
        dtype,
        lambda x: operand(x.config),
        aligned=lambda c: 1 if scattered(c) else c.alignment,
        near=lambda c: near(c) and not scattered(c),
        view=lambda x: _view(x, place),
    )


def _view(x: Context, place: int) -> Described:
    """What a tensor map shows. A matrix that a whole batch shares is a batch of one: a tensor map
    has no strides of 0."""
    c, p = x.config, x.problem
    ld, rows = (p.lda, p.ldb, p.ldc)[place], p.outer[place]
    each = (in_words(c) if place == 1 else 0) or 1
    shape: tuple[int, ...] = (rows, p.inner[place] // each)
    strides: tuple[int, ...] = (ld // each, 1)
    if in_batch(c, place):
        shape = (p.matrices[place], *shape)
        strides = (p.batch_strides[place] or rows * ld, *strides)
    if c.two_stage and place == 2:
        shape, strides = (c.split_k, *shape), (rows * ld, *strides)
    return Described(shape, strides)


def in_batch(c: GemmConfig, place: int) -> bool:
    """Whether a kernel with descriptors has a batch of A, B or C."""
    return c.batching == "strided" or (c.batching == "summed" and place < 2)


def _leading(place: int) -> Numbers:
    """The leading dimension of A, B or C; of 4-bit elements in bytes."""

    def value(x: Context) -> int:
        p = x.problem
        return int((p.lda, p.ldb, p.ldc)[place]) // DTYPES[_types(p)[place]].packed

    return Numbers(index_type, value, multiples=lambda c: _aligned(c, _types(c)[place]))


_A = matrix_of(0, lambda c: "B" if c.swap_ab else "A", _near)
_B = matrix_of(1, lambda c: "A" if c.swap_ab else "B", _near)
_C = matrix_of(2, lambda c: two_stage.PARTIALS if c.two_stage else "C", _near)


def rests(c: GemmConfig) -> tuple[tuple[int, int], ...]:
    return warpgroups.rests(c) if pipelines.of(c).takes("b_rest") else ()


# --- tuples -------------------------------------------------------------------------------------


def _pointer(name: str, dtype: str, near: Whether, aligned: int = 1) -> Array:
    return Array(dtype, lambda _: name, aligned=lambda _: aligned, near=near)


def _number(value: Callable[[GemmProblem], int], kind: str = "i64", multiple: int = 1) -> Numbers:
    """A number of the problem's; a stride, if its kind is not said."""
    return Numbers(kind, lambda x: value(x.problem), multiples=lambda _: multiple)


def chain(place: int, near: Whether = _near) -> Tuple:
    """The operands of `pre_a`, of `pre_b` or of the epilogue, and behind them the leading dimension
    of its matrices if there are any."""
    leading = ("ldpa", "ldpb", "ldd")[place]

    def elements(c: GemmConfig) -> list[Array | Numbers]:
        said, beside = (c.pre_a, c.pre_b, c.epilogue)[place], _types(c)[place]
        names, found = operands.names(c).chains[place], list[Array | Numbers]()
        for name, taken in zip(names, epilogues.takes(said), strict=True):
            aligned = c.alignment if taken.kind == "d" else 1
            found.append(_pointer(name, epilogues.operand_dtype(taken, beside), near, aligned))
        if epilogues.has_matrix(said):
            by = _of_matrices(c, said, beside)
            found.append(_number(lambda p: int(getattr(p, leading)), index_type(c), by))
        return found

    return Tuple(elements)


def _of_matrices(c: GemmConfig, chain: str, beside: str) -> int:
    """What strides of a chain's matrices are multiples of."""
    matrix = next(taken for taken in epilogues.takes(chain) if taken.kind == "d")
    return _aligned(c, epilogues.operand_dtype(matrix, beside))


def block_scales(
    c: GemmConfig, near: Whether = _near, of: Callable[[Any], GemmProblem] = lambda p: p
) -> list[Array | Numbers]:
    """For each operand with scales of blocks their pointer and two strides, 0 along a dimension of
    one scale. of: the GEMM of a launch's problem."""
    found: list[Array | Numbers] = []
    for name in operands.SCALES:
        block = blocks.parse(getattr(c, name))
        if block is not None:
            found.append(_pointer(name, block.dtype, near))
            found += [Numbers("i32", _scale_stride(name, axis, of)) for axis in (0, 1)]
    return found


def _scale_stride(
    name: str, axis: int, of: Callable[[Any], GemmProblem]
) -> Callable[[Context], int]:
    def value(x: Context) -> int:
        (one,) = (found for found in scales.of(of(x.problem)) if found.name == name)
        return one.strides[axis] if one.shape[axis] > 1 else 0

    return value


def _batch(c: GemmConfig) -> list[Numbers]:
    """See `device.batching`: how many matrices, their strides (for descriptors: steps) if they have
    any, for a nested batch the inner one's size and the outer strides, and last the stride of the
    epilogue's matrices."""
    if c.batching == "none":
        return []
    found = [_number(lambda p: p.batch, "i32")]
    by = [_aligned(c, dtype) for dtype in _types(c)]
    matrix = epilogues.has_matrix(c.epilogue)
    by.append(_of_matrices(c, c.epilogue, c.dtype_c) if matrix else 1)
    if c.batching in STRIDED:
        if _through_pointers(c):
            found += [_number(_at("batch_strides", i), multiple=by[i]) for i in range(3)]
        else:
            found += [_number(_step(i), "i32") for i in range(2)]
    if c.batching == "nested":
        found.append(_number(lambda p: p.batch_inner, "i32"))
        found += [_number(_at("outer_strides", i), multiple=by[i]) for i in range(4)]
    if matrix and c.batching != "summed":
        found.append(_number(lambda p: p.stride_d, multiple=by[3]))
    return found


def _at(field: str, i: int) -> Callable[[GemmProblem], int]:
    return lambda p: int(getattr(p, field)[i])


def _step(i: int) -> Callable[[GemmProblem], int]:
    """Steps of A or B from one matrix of a batch to the next: 0 where all share one."""
    return lambda p: min(p.batch_strides[i], 1)


# --- workgroups ---------------------------------------------------------------------------------


def share(x: Context) -> tuple[int, int]:
    """Number of workgroups to launch, and the kernel's `splits`."""
    c, units, all_tiles = x.config, x.device.compute_units, tiles(x.config, x.problem)
    if c.scheduler == "split_k":
        parts = all_tiles * c.split_k
        return min(parts, units) if pipelines.has(c, "walks_parts") else parts, c.split_k
    if c.scheduler == "stream_k":
        programs = min(units, all_tiles * steps(c, x.problem))
        return programs, shared_tiles(c, all_tiles, programs)
    return (min(all_tiles, units) if c.scheduler == "persistent" else all_tiles), 0


def _partials(x: Context) -> tuple[int, ...]:
    """The shape of the partial sums that workgroups exchange, or that a second kernel adds up."""
    c = x.config
    if c.two_stage:
        return two_stage.partials(c, x.problem)
    programs, splits = share(x)
    return slots(c, tiles(c, x.problem), programs, splits), c.tile_m, c.tile_n


def _dies(x: Context) -> int:
    """Number of dies, each with its own L2, in a device or a partition of a device."""
    cdna = arch_called(x.device.arch).cdna
    per_die = cdna.compute_units_per_die if cdna else 0
    return max(1, x.device.compute_units // per_die) if per_die else 1


# --- the catalogue ------------------------------------------------------------------------------


def _row(place: int) -> Constant:
    return lambda c, _: c.layout[place] == "r"


def _mask(axis: int) -> Constant:
    return lambda c, _: masked(c.layout, c.pad_m, c.pad_n, c.pad_k)[axis]


def _takes(c: GemmConfig, _: Arch) -> str:
    found = epilogues.kinds(c.epilogue)
    return swap.takes(found) if c.swap_ab else found


def _pdl(c: GemmConfig, arch: Arch) -> str:
    """``a`` or ``b`` for the kernel's matrix that it may load ahead: the caller's B. With reduction
    ``two_stage`` at least ``wait``: such kernels let the next one start early. Where the kernel
    before has ended, the wait costs nothing."""
    if c.two_stage and c.dependent_launch == "none":
        return "wait" if arch.has("pdl") else "none"
    if c.dependent_launch == "ahead":
        return "a" if c.swap_ab else "b"
    return c.dependent_launch


def _functions(chain: str) -> Functions:
    return tuple(one.function for one in epilogues.parse(chain))


PARTIALS = Array(
    lambda c: c.dtype_partials,
    there=lambda c: c.parts_meet,
    shape=_partials,
    initial=lambda c: "kept_zero" if c.reduction == "atomic" else "anything",
)

CATALOGUE: dict[str, binder.Meaning | Constant] = {
    "a": _A,
    "b": _B,
    "c": _C,
    **{axis: size(axis) for axis in "mnk"},
    **{f"ld{name}": _leading(place) for place, name in enumerate("abc")},
    # Of the columns behind a tile's first accumulator.
    "b_rest": Tuple(lambda c: [_B] * len(rests(c))),
    "c_rest": Tuple(lambda c: [_C] * len(rests(c))),
    "pre_a": chain(0),
    "pre_b": chain(1),
    "extra": chain(2),
    "scales": Tuple(block_scales),
    "batch": Tuple(_batch),
    "dies": Numbers("i32", _dies),
    # In a cluster nothing meets in memory, and `splits` is known.
    "flags": Array(
        "int32",
        there=lambda c: c.parts_meet,
        shape=lambda _: (MAX_FLAGS,),
        initial=lambda _: "kept_zero",
    ),
    two_stage.PARTIALS: PARTIALS,
    "splits": Numbers(
        "i32",
        lambda x: x.splits,
        there=lambda c: c.shares and not c.clustered,
        instead=lambda c: c.split_k if c.clustered else 0,
    ),
    **{f"{name}_ROW": _row(place) for place, name in enumerate("ABC")},
    **{f"MASK_{axis}": _mask(place) for place, axis in enumerate("MNK")},
    "DONE": lambda c, arch: arch.stores_done if c.reduction != "none" else "",
    "INT_ACC": lambda c, _: c.dtype_partials == "int32",
    "TAKES": _takes,
    "TAKES_A": lambda c, _: epilogues.kinds(c.pre_a),
    "TAKES_B": lambda c, _: epilogues.kinds(c.pre_b),
    "FOLD": lambda c, _: epilogues.fold(c.epilogue),
    "LARGEST": lambda c, _: int(DTYPES[c.dtype_c].largest),
    "LARGEST_AB": lambda c, _: int(DTYPES[c.dtype_a].largest),
    "SCALES": lambda c, _: scales.kernel_blocks(c),
    "SPLIT": lambda c, _: c.store == "split",
    "STAGES": lambda c, _: c.num_stages,
    "GROUPS": lambda c, _: warpgroups.groups(c),
    "PDL": _pdl,
    "CHAIN": lambda c, _: _functions(c.epilogue),
    "CHAIN_A": lambda c, _: _functions(c.pre_a),
    "CHAIN_B": lambda c, _: _functions(c.pre_b),
}
"""By name. Those of one kernel alone are in its pipeline's record."""
