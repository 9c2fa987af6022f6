"""The source that a config is compiled from. Every pipeline's source is made here, from its record.

A kernel declares its parameters in this order: A, B and C; the groups' sizes; the scalars; the
epilogue's operands; `GroupedPipeline.constants`; and the epilogue's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm.layouts import masked
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.pipelines.constants import Value
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.nouns import KernelSource

Types = tuple[tuple[str, str], ...]
"""Names of arguments with their Triton types."""

IN_TABLE = ("m", "n", "k", "lda", "ldb", "ldc", "stride_b", "lead", "zero_rest")
"""Arguments that a list has in its table instead, or not at all."""


def source(config: GroupedGemmConfig, arch: Arch) -> KernelSource:
    """The source to compile for `config` on `arch`."""
    record = PIPELINES[config.pipeline]
    arguments = _arguments(config)
    constants = _constants(config)
    functions = _functions(config)
    named = {name for name, _ in arguments}
    later = (name for name, _ in (*constants, *functions) if name not in named)
    return KernelSource(
        module=record.module,
        function=record.function,
        signature=(*arguments, *((name, "constexpr") for name in later)),
        constants=constants,
        divisibility=tuple(_promises(config).items()),
        options=record.options(config.one, arch),
        language=record.one.language,
        functions=functions,
    )


_CONSTANTS: Mapping[str, Callable[[GroupedGemmConfig], Value]] = {
    "FORM": lambda c: c.form,
    "TILE_M": lambda c: c.tile_m,
    "TILE_N": lambda c: c.tile_n,
    "TILE_K": lambda c: c.tile_k,
    "GROUP_M": lambda c: c.group_m,
    "A_ROW": lambda c: c.layout[0] == "r",
    "B_ROW": lambda c: c.layout[1] == "r",
    "C_ROW": lambda c: c.layout[2] == "r",
    "PRECISION": lambda c: c.precision,
    "INT_ACC": lambda c: c.dtype_acc == "int32",
    "TAKES": lambda c: epilogues.kinds(c.epilogue),
    "WIDTHS": lambda c: _widths(c),
    "FOLD": lambda c: epilogues.fold(c.epilogue),
    "LARGEST": lambda c: int(DTYPES[c.dtype_c].largest),
    "MASK_N": lambda c: masked(c.layout, True, c.pad_n, c.pad_k)[1],
    "MASK_K": lambda c: masked(c.layout, True, c.pad_n, c.pad_k)[2],
    "ELEMENTS": lambda c: max(1, c.alignment // DTYPES[c.dtype_a].bytes),
    "ELEMENTS_C": lambda c: max(1, c.alignment // DTYPES[c.dtype_c].bytes),
    "SPLIT": lambda c: c.store == "split",
    "STAGES": lambda c: c.num_stages,
    "WARP_GROUPS": lambda c: warpgroups.groups(c.one),
}


def _constants(config: GroupedGemmConfig) -> tuple[tuple[str, Value], ...]:
    found = ((name, _CONSTANTS[name](config)) for name in PIPELINES[config.pipeline].constants)
    absent = IN_TABLE if config.form == "list" else ()
    return (*found, *((name, 0) for name in absent))


def _widths(config: GroupedGemmConfig) -> str:
    """For each operand of the epilogue: the divisor of N if it is a vector over columns, else 0."""
    taken = epilogues.takes(config.epilogue)
    widths = epilogues.columns(config.epilogue, 2)
    return "".join(
        str(2 // width) if t.kind == "n" else "0" for t, width in zip(taken, widths, strict=True)
    )


def _functions(config: GroupedGemmConfig) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not PIPELINES[config.pipeline].epilogues:
        return ()
    return (("CHAIN", tuple(o.function for o in epilogues.parse(config.epilogue))),)


def _arguments(config: GroupedGemmConfig) -> Types:
    record = PIPELINES[config.pipeline]
    pointers = record.one.reads == "pointers"
    arguments = _pointers(config) if pointers else _described(config)
    if record.epilogues:
        stride = "i32" if pointers and config.index_bits == 32 else "i64"
        arguments = (*arguments, *_extra(config, stride))
    return arguments


def _pointers(config: GroupedGemmConfig) -> Types:
    listed = config.form == "list"
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    stride = "i64" if config.index_bits == 64 else "i32"
    arguments = (
        *((name, f"*{DTYPES[d].triton}") for name, d in zip("abc", types, strict=True)),
        ("table", "*i64" if listed else "*i32"),
        *((name, "i32") for name in ("m", "n", "k")),
        *((name, stride) for name in ("lda", "ldb", "ldc")),
        ("stride_b", "i64"),
        ("groups", "i32"),
        ("lead", "i32"),
        ("zero_rest", "i32"),
    )
    return tuple((n, "constexpr" if listed and n in IN_TABLE else t) for n, t in arguments)


def _described(config: GroupedGemmConfig) -> Types:
    """Arguments of the kernels that read through tensor maps."""
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    boxes = (", ".join(map(str, block)) for block in blocks(config))
    return (
        *(
            (name, f"tensordesc<{DTYPES[d].triton}[{block}]>")
            for name, d, block in zip("abc", types, boxes, strict=True)
        ),
        ("table", "*i32"),
        *((name, "i32") for name in ("m", "n", "k", "groups", "lead")),
        ("c_rows", f"*{DTYPES[config.dtype_c].triton}"),
        ("ldc", "i64"),
        ("zero_rest", "i32"),
    )


def _extra(config: GroupedGemmConfig, stride: str) -> Types:
    """The epilogue's operands as elements of the kernels' tuple argument, followed by the leading
    dimension of its matrices, if there are any."""
    taken = epilogues.takes(config.epilogue)
    kinds = [f"*{DTYPES[epilogues.operand_dtype(t, config.dtype_c)].triton}" for t in taken]
    if epilogues.has_matrix(config.epilogue):
        kinds.append(stride)
    return tuple((f"extra.{i}", kind) for i, kind in enumerate(kinds)) or (("extra", "()"),)


def _promises(config: GroupedGemmConfig) -> dict[str, int]:
    """What the compiler may assume from the alignment: addresses in bytes, strides and innermost
    extents in elements."""
    record = PIPELINES[config.pipeline]
    if record.one.reads == "pointers":
        return _promises_of_pointers(config)
    found = _promises_of_matrices(config)
    if found:  # so that the mask at C's edge leaves the loads of matrices wide
        found["n"] = config.alignment // DTYPES[config.dtype_c].bytes
    return found


def _promises_of_pointers(config: GroupedGemmConfig) -> dict[str, int]:
    """A list's sizes and strides are in its table, so its kernel makes these promises itself."""
    if config.alignment == 1:
        return {}
    promises = dict.fromkeys("abc", config.alignment)
    if config.form == "list":
        return promises
    count = config.alignment // DTYPES[config.dtype_a].bytes
    count_c = config.alignment // DTYPES[config.dtype_c].bytes * epilogues.fold(config.epilogue)
    if count > 1:
        promises |= {"lda": count, "ldb": count, "stride_b": count, "k": count}
    promises["n"] = max(count if config.layout[1] == "r" else 1, count_c)
    if count_c > 1:
        promises["ldc"] = count_c // epilogues.fold(config.epilogue)
    promises |= _promises_of_matrices(config)
    return {name: by for name, by in promises.items() if by > 1}


def _promises_of_matrices(config: GroupedGemmConfig) -> dict[str, int]:
    """Alignments of the epilogue's matrices and their leading dimension."""
    taken = epilogues.takes(config.epilogue)
    if config.alignment == 1 or not epilogues.has_matrix(config.epilogue):
        return {}
    found = {f"extra.{i}": config.alignment for i, t in enumerate(taken) if t.kind == "d"}
    matrix = next(t for t in taken if t.kind == "d")
    count = config.alignment // DTYPES[epilogues.operand_dtype(matrix, config.dtype_c)].bytes
    return {**found, f"extra.{len(taken)}": count}


def blocks(config: GroupedGemmConfig) -> tuple[tuple[int, ...], ...]:
    """The box that one copy moves of A (rows, K), of B (group, then B's two dimensions in memory
    order) and of C (see `launch._ragged`)."""
    boxes = PIPELINES[config.pipeline].one.boxes
    assert boxes is not None, f"pipeline {config.pipeline} has no descriptors"
    m, n, k, columns = boxes(config.one)
    return (m, k), ((1, k, n) if config.layout[1] == "r" else (1, n, k)), (1, 1, m, columns)
