"""From a config to what is compiled, and from a problem to what is launched."""

from __future__ import annotations

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import epilogues
from tilewright.ops.gemm.operands import chain_names
from tilewright.ops.gemm.sizes import WARPGROUP, masked
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.operands import SIZES
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem
from tilewright.ops.nouns import (
    Argument,
    Descriptor,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
    Step,
)

_MODULE = "tilewright.ops.grouped_gemm.kernels."

Constants = list[tuple[str, int | bool | str]]


def source(config: GroupedGemmConfig, arch: Arch) -> KernelSource:
    """What to compile for `config` on `arch`."""
    options: list[tuple[str, int | bool | str]] = [
        ("num_warps", config.num_warps),
        ("num_stages", config.num_stages),
    ]
    if config.mma != (0, 0, 0):
        options.append(("matrix_instr_nonkdim", config.mma[0]))
    make = {"basic": _basic, "tma": _tma, "gluon_ws": _gluon}[config.pipeline]
    return make(config, tuple(options))


def _constants(config: GroupedGemmConfig) -> Constants:
    """What every kernel in Triton has, in the order in which it declares them."""
    chain = epilogues.parse(config.epilogue)
    return [
        ("FORM", config.form),
        ("TILE_M", config.tile_m),
        ("TILE_N", config.tile_n),
        ("TILE_K", config.tile_k),
        ("GROUP_M", config.group_m),
        ("A_ROW", config.layout[0] == "r"),
        ("B_ROW", config.layout[1] == "r"),
        ("C_ROW", config.layout[2] == "r"),
        ("PRECISION", config.precision),
        ("INT_ACC", config.dtype_acc == "int32"),
        ("TAKES", ",".join("".join(t.kind for t in o.takes) for o in chain)),
        ("WIDTHS", _widths(config)),
        ("FOLD", epilogues.fold(config.epilogue)),
        ("LARGEST", int(DTYPES[config.dtype_c].largest)),
    ]


def _widths(config: GroupedGemmConfig) -> str:
    """For each operand of the epilogue, what N is divided by where it is a vector over columns;
    else 0."""
    taken = epilogues.takes(config.epilogue)
    widths = epilogues.columns(config.epilogue, 2)
    return "".join(
        str(2 // width) if t.kind == "n" else "0" for t, width in zip(taken, widths, strict=True)
    )


def _functions(config: GroupedGemmConfig) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("CHAIN", tuple(o.function for o in epilogues.parse(config.epilogue))),)


def _extra(config: GroupedGemmConfig, stride: str) -> tuple[tuple[str, str], ...]:
    """The epilogue's operands as elements of the kernels' tuple argument, and behind them the
    leading dimension of its matrices if there are any."""
    taken = epilogues.takes(config.epilogue)
    kinds = [f"*{DTYPES[epilogues.operand_dtype(t, config.dtype_c)].triton}" for t in taken]
    if epilogues.has_matrix(config.epilogue):
        kinds.append(stride)
    return tuple((f"extra.{i}", kind) for i, kind in enumerate(kinds)) or (("extra", "()"),)


def _kernel(
    config: GroupedGemmConfig,
    name: str,
    arguments: tuple[tuple[str, str], ...],
    constants: Constants,
    promises: tuple[tuple[str, int], ...],
    options: tuple[tuple[str, int | bool | str], ...],
) -> KernelSource:
    """A kernel in Triton: run-time arguments, then constants, then the epilogue's functions."""
    named = {argument for argument, _ in arguments}
    later = [constant for constant, _ in constants if constant not in named]
    return KernelSource(
        module=f"{_MODULE}{name}",
        function=f"grouped_gemm_{name}",
        signature=(*arguments, *((constant, "constexpr") for constant in (*later, "CHAIN"))),
        constants=tuple(constants),
        divisibility=promises,
        options=options,
        functions=_functions(config),
    )


_IN_TABLE = ("m", "n", "k", "lda", "ldb", "ldc", "stride_b", "lead")
"""Arguments that a list has in its table instead."""


def _basic(
    config: GroupedGemmConfig, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
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
        *_extra(config, stride),
    )
    if listed:
        arguments = tuple((n, "constexpr" if n in _IN_TABLE else t) for n, t in arguments)
    _, mask_n, mask_k = masked(config.layout, True, config.pad_n, config.pad_k)
    constants = [
        *_constants(config),
        ("MASK_N", mask_n),
        ("MASK_K", mask_k),
        ("ELEMENTS", max(1, config.alignment // DTYPES[config.dtype_a].bytes)),
        ("ELEMENTS_C", max(1, config.alignment // DTYPES[config.dtype_c].bytes)),
        *((name, 0) for name in _IN_TABLE if listed),
    ]
    return _kernel(config, "basic", arguments, constants, _promises(config), options)


def _promises(config: GroupedGemmConfig) -> tuple[tuple[str, int], ...]:
    """What alignment lets the compiler assume: addresses in bytes, strides and innermost
    extents in elements. A list's are in its table, where the kernel says it itself."""
    if config.alignment == 1:
        return ()
    promises = dict.fromkeys("abc", config.alignment)
    if config.form == "list":
        return tuple(promises.items())
    count = config.alignment // DTYPES[config.dtype_a].bytes
    count_c = config.alignment // DTYPES[config.dtype_c].bytes * epilogues.fold(config.epilogue)
    if count > 1:
        promises |= {"lda": count, "ldb": count, "stride_b": count, "k": count}
    promises["n"] = max(count if config.layout[1] == "r" else 1, count_c)
    if count_c > 1:
        promises["ldc"] = count_c // epilogues.fold(config.epilogue)
    return tuple((name, by) for name, by in {**promises, **_matrices(config)}.items() if by > 1)


def _matrices(config: GroupedGemmConfig) -> dict[str, int]:
    """What alignment says of the epilogue's matrices and their leading dimension."""
    taken = epilogues.takes(config.epilogue)
    if config.alignment == 1 or not epilogues.has_matrix(config.epilogue):
        return {}
    found = {f"extra.{i}": config.alignment for i, t in enumerate(taken) if t.kind == "d"}
    matrix = next(t for t in taken if t.kind == "d")
    count = config.alignment // DTYPES[epilogues.operand_dtype(matrix, config.dtype_c)].bytes
    return {**found, f"extra.{len(taken)}": count}


def _tma(
    config: GroupedGemmConfig, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    constants = [*_constants(config), ("SPLIT", config.store == "split")]
    arguments = (*_described(config), *_extra(config, "i64"))
    promises = _matrices(config)
    if promises:  # so that the mask at C's edge leaves the loads of matrices wide
        promises["n"] = config.alignment // DTYPES[config.dtype_c].bytes
    return _kernel(config, "tma", arguments, constants, tuple(promises.items()), options)


def _described(config: GroupedGemmConfig) -> tuple[tuple[str, str], ...]:
    """Arguments of the kernels that read through tensor maps."""
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    blocks = (", ".join(map(str, block)) for block in _blocks(config))
    return (
        *(
            (name, f"tensordesc<{DTYPES[d].triton}[{block}]>")
            for name, d, block in zip("abc", types, blocks, strict=True)
        ),
        ("table", "*i32"),
        *((name, "i32") for name in ("m", "n", "k", "groups", "lead")),
    )


def _gluon(
    config: GroupedGemmConfig, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    used = ("FORM", "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "B_ROW", "INT_ACC")
    constants = [
        *((name, value) for name, value in _constants(config) if name in used),
        ("SPLIT", config.store == "split"),
        ("STAGES", config.num_stages),
        ("WARP_GROUPS", config.num_warps // WARPGROUP),
    ]
    # One more warp group's worth of registers goes to the producer, and most of it back.
    registers = 65536 // (32 * (config.num_warps + WARPGROUP)) // 8 * 8
    return KernelSource(
        module=f"{_MODULE}gluon_ws",
        function="grouped_gemm_gluon_ws",
        signature=(*_described(config), *((name, "constexpr") for name, _ in constants)),
        constants=tuple(constants),
        options=(("num_warps", WARPGROUP), ("maxnreg", min(registers, 255))),
        language="gluon",
    )


def _blocks(config: GroupedGemmConfig) -> tuple[tuple[int, ...], ...]:
    """What one copy moves of A (rows, K), of B (group, and as it lies) and of C (see `_ragged`)."""
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    columns = n // epilogues.fold(config.epilogue)
    n_store = columns // 2 if config.store == "split" else columns
    if config.pipeline == "gluon_ws":  # a warp group takes its own rows, and two pieces of C
        m //= config.num_warps // WARPGROUP
        n_store //= 2
    return (m, k), ((1, k, n) if config.layout[1] == "r" else (1, n, k)), (1, 1, m, n_store)


def launch(config: GroupedGemmConfig, problem: GroupedGemmProblem, device: Device) -> Launch:
    """How to launch `config` for `problem` on `device`."""
    p = problem
    grid = (max(1, min(most_tiles(config, p), device.compute_units)), 1, 1)
    stride = "i64" if config.index_bits == 64 or config.pipeline != "basic" else "i32"
    extra: tuple[Argument, ...] = tuple(Pointer(name) for name in chain_names(config.epilogue))
    if p.ldd:
        extra = (*extra, Scalar(stride, p.ldd))
    sizes = tuple(Scalar("i32", size) for size in (p.m, p.n, p.k))
    groups, lead = Scalar("i32", p.groups), Scalar("i32", int(p.bounds))
    arguments: tuple[Argument, ...]
    if config.pipeline != "basic":
        b = (p.k, p.n) if p.layout[1] == "r" else (p.n, p.k)
        a_block, b_block, c_block = _blocks(config)
        arguments = (
            Descriptor("A", p.dtype_a, (p.rows, p.k), (p.lda, 1), a_block),
            Descriptor("B", p.dtype_b, (p.groups, *b), (p.stride_b, p.ldb, 1), b_block),
            _ragged("C", p.dtype_c, p.columns, p.ldc, c_block),
            Pointer(SIZES[p.form]),
            *sizes,
            groups,
            lead,
            *extra,
        )
        return Launch((Step(grid, arguments),))
    pointers = tuple(Pointer(name) for name in ("A", "B", "C", SIZES[p.form]))
    if p.form == "list":
        return Launch((Step(grid, (*pointers, groups, *extra)),))
    arguments = (
        *pointers,
        *sizes,
        *(Scalar(stride, ld) for ld in (p.lda, p.ldb, p.ldc)),
        Scalar("i64", p.stride_b),
        groups,
        lead,
        *extra,
    )
    return Launch((Step(grid, arguments),))


def most_tiles(config: GroupedGemmConfig, problem: GroupedGemmProblem) -> int:
    """The most tiles there can be, whatever the groups' sizes: each may end inside a tile."""
    p = problem
    if p.form == "list":
        return sum(-(-m // config.tile_m) * -(-n // config.tile_n) for m, n, _ in p.sizes)
    if p.form == "masked":
        rows = p.groups * -(-p.m // config.tile_m)
    else:  # groups with rows have one tile at least, and one more for each further tile_m rows
        used = min(p.groups, p.m)
        rows = used + (p.m - used) // config.tile_m
    return rows * -(-p.n // config.tile_n)


RAGGED_ROWS = 2**30
"""Rows of a ragged tensor map. The number of its rows times `_WRAP` elements is a multiple of
2**64 bytes, which is where addresses begin again."""
_WRAP = 2**34
_MOST = 2**31 - 2**16


def _ragged(operand: str, dtype: str, columns: int, ld: int, block: tuple[int, ...]) -> Descriptor:
    """A matrix whose rows a store can stop at any row, not only at its last.

    Three of its dimensions walk the rows. At (RAGGED_ROWS, end, RAGGED_ROWS - size + i) is row i of
    the `size` rows before row `end`: the first coordinate takes RAGGED_ROWS rows back, since its
    stride is `_WRAP` elements less a row and addresses wrap; the last one is past its extent, where
    nothing is written, exactly for i ≥ size. (The "ragged" descriptors of Triton's
    ``tools/ragged_tma.py``.)
    """
    shape = (_MOST, _MOST, RAGGED_ROWS, columns)
    return Descriptor(operand, dtype, shape, (_WRAP - ld, ld, ld, 1), block)
