"""From a config to what is compiled, and from a problem to what is launched."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.family import (
    FLAG_BYTES,
    WORKSPACE,
    Argument,
    Descriptor,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
)
from tilewright.ops.gemm import epilogues, shuffle
from tilewright.ops.gemm.config import POINTERS, SHARING, GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.rules import WARPGROUP, masked

A, B, MORE = 0, 1, 2
"""Operand numbers: A, B, those of `pre_a`, of `pre_b` and of the epilogue, and C last."""


def source(config: GemmConfig, arch: Arch) -> KernelSource:
    """What to compile for `config` on `arch`."""
    options: list[tuple[str, int | bool | str]] = [
        ("num_warps", config.num_warps),
        ("num_stages", config.num_stages),
    ]
    if config.mma != (0, 0, 0):
        options.append(("matrix_instr_nonkdim", config.mma[0]))
    if config.pipeline == "preshuffle" and arch.kpack > 1:
        options.append(("kpack", arch.kpack))  # so that 16 bytes of B are whole operands
    if config.pipeline in POINTERS:
        return _pointer_source(config, arch, tuple(options))
    if config.pipeline == "gluon_ws":
        return _gluon_source(config)
    return _tma_source(config, tuple(options))


def _constants(config: GemmConfig) -> list[tuple[str, int | bool | str]]:
    return [
        ("TILE_M", config.tile_m),
        ("TILE_N", config.tile_n),
        ("TILE_K", config.tile_k),
        ("GROUP_M", config.group_m),
        ("A_ROW", config.layout[0] == "r"),
        ("B_ROW", config.layout[1] == "r"),
        ("C_ROW", config.layout[2] == "r"),
        ("SCHEDULER", config.scheduler),
        ("REDUCTION", config.reduction),
        ("FLAG_BYTES", FLAG_BYTES),
        ("PRECISION", config.precision),
        ("INT_ACC", config.dtype_acc == "int32"),
        *(() if config.scheduler in SHARING else (("work", 0), ("splits", 0))),
        ("TAKES", _takes(config.epilogue)),
        ("FOLD", epilogues.fold(config.epilogue)),
        ("LARGEST", int(DTYPES[config.dtype_c].largest)),
    ]


def _takes(chain: str) -> str:
    """What the operations of a chain take, as kernels read it: ``"n,,ss"``."""
    return ",".join("".join(t.kind for t in o.takes) for o in epilogues.parse(chain))


def _functions(config: GemmConfig) -> tuple[tuple[str, tuple[str, ...]], ...]:
    chains = [("CHAIN", config.epilogue)]
    if config.pipeline == "basic":
        chains += [("CHAIN_A", config.pre_a), ("CHAIN_B", config.pre_b)]
    return tuple(
        (name, tuple(o.function for o in epilogues.parse(chain))) for name, chain in chains
    )


def _chains(config: GemmConfig) -> tuple[tuple[str, str, str], ...]:
    """The tuple arguments of the kernels, each with its chain and the dtype it starts from."""
    extra = ("extra", config.epilogue, config.dtype_c)
    if config.pipeline != "basic":
        return (extra,)
    return (
        ("pre_a", config.pre_a, config.dtype_a), ("pre_b", config.pre_b, config.dtype_b), extra
    )  # fmt: skip


def _extra(config: GemmConfig, stride: str) -> tuple[tuple[str, str], ...]:
    """The operands of each chain as elements of a tuple argument, and behind them the leading
    dimension of its matrices if there are any."""
    found: list[tuple[str, str]] = []
    for name, chain, dtype in _chains(config):
        dtypes = (epilogues.operand_dtype(t, dtype) for t in epilogues.takes(chain))
        kinds = [f"*{DTYPES[d].triton}" for d in dtypes]
        if epilogues.has_matrix(chain):
            kinds.append(stride)
        found += [(f"{name}.{i}", kind) for i, kind in enumerate(kinds)] or [(name, "()")]
    return tuple(found)


def _matrix_promises(config: GemmConfig) -> dict[str, int]:
    """What alignment says of the chains' matrices and their leading dimensions."""
    found: dict[str, int] = {}
    for name, chain, dtype in _chains(config):
        taken = epilogues.takes(chain)
        if config.alignment == 1 or not epilogues.has_matrix(chain):
            continue
        found |= {f"{name}.{i}": config.alignment for i, t in enumerate(taken) if t.kind == "d"}
        matrix = next(t for t in taken if t.kind == "d")
        count = config.alignment // DTYPES[epilogues.operand_dtype(matrix, dtype)].bytes
        if count > 1:
            found[f"{name}.{len(taken)}"] = count
    return found


def _pointer_source(
    config: GemmConfig, arch: Arch, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    stride = "i64" if config.index_bits == 64 else "i32"
    mask_m, mask_n, mask_k = masked(config.layout, config.pad_m, config.pad_n, config.pad_k)
    constants = [
        *_constants(config),
        *_operand_constants(config),
        ("MASK_M", mask_m),
        ("MASK_N", mask_n),
        ("MASK_K", mask_k),
    ]
    pointers = tuple((name, f"*{DTYPES[d].triton}") for name, d in zip("abc", types, strict=True))
    arguments = (
        *pointers,
        *((name, "i32") for name in ("m", "n", "k")),
        *((name, stride) for name in ("lda", "ldb", "ldc")),
        *_extra(config, stride),
        *_sharing_types(config),
    )
    within_reach = ("a", "b", "c", *(n for n, t in _extra(config, stride) if t.startswith("*")))
    return KernelSource(
        module=f"tilewright.ops.gemm.kernels.{config.pipeline}",
        function=f"gemm_{config.pipeline}",
        signature=_signature(arguments, constants, _functions(config)),
        constants=tuple(constants),
        divisibility=_promises(config),
        pointer_range_32=within_reach if arch.backend == "hip" and config.index_bits == 32 else (),
        options=options,
        functions=_functions(config),
    )


def _operand_constants(config: GemmConfig) -> list[tuple[str, int | bool | str]]:
    """How operands reach the matrix units, where pipelines differ in it."""
    if config.pipeline == "preshuffle":
        return [("VECTOR", shuffle.vector(config.dtype_b))]
    return [
        ("TAKES_A", _takes(config.pre_a)),
        ("TAKES_B", _takes(config.pre_b)),
        ("LARGEST_AB", int(DTYPES[config.dtype_a].largest)),
    ]


def _sharing_types(config: GemmConfig) -> tuple[tuple[str, str], ...]:
    """Types of the arguments that only schedulers which share tiles have."""
    shares = config.scheduler in SHARING
    return ("work", "*i8" if shares else "constexpr"), ("splits", "i32" if shares else "constexpr")


def _promises(config: GemmConfig) -> tuple[tuple[str, int], ...]:
    """What alignment lets the compiler assume: addresses in bytes, strides and innermost
    extents in elements."""
    if config.alignment == 1:
        return ()
    promises = dict.fromkeys("abc", config.alignment)
    inner = ("k" if config.layout[0] == "r" else "m", "n" if config.layout[1] == "r" else "k")
    inner_c = "n" if config.layout[2] == "r" else "m"
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    for name, extent, d in zip("abc", (*inner, inner_c), types, strict=True):
        count = config.alignment // DTYPES[d].bytes
        if count > 1:
            promises[f"ld{name}"] = count
            if extent == "n" and name == "c":
                count *= epilogues.fold(config.epilogue)
            promises[extent] = max(count, promises.get(extent, 1))
    return tuple({**promises, **_matrix_promises(config)}.items())


def _tma_source(
    config: GemmConfig, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    constants = [
        *_constants(config),
        ("SPLIT", config.store == "split"),
        ("WARP_SPECIALIZE", config.pipeline == "tma_ws"),
    ]
    arguments = (
        *_descriptor_arguments(config),
        *_extra(config, "i64"),
        *_sharing_types(config),
    )
    promises = _matrix_promises(config)
    if promises:  # so that the mask at C's edge leaves the loads of matrices wide
        inner = "n" if config.layout[2] == "r" else "m"
        promises[inner] = config.alignment // DTYPES[config.dtype_c].bytes
    return KernelSource(
        module="tilewright.ops.gemm.kernels.tma",
        function="gemm_tma",
        signature=_signature(arguments, constants, _functions(config)),
        constants=tuple(constants),
        divisibility=tuple(promises.items()),
        options=options,
        functions=_functions(config),
    )


def _descriptor_arguments(config: GemmConfig) -> tuple[tuple[str, str], ...]:
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    descriptors = tuple(
        (name, f"tensordesc<{DTYPES[d].triton}[{block[0]}, {block[1]}]>")
        for name, d, block in zip("abc", types, _blocks(config), strict=True)
    )
    return (*descriptors, *((name, "i32") for name in ("m", "n", "k")))


def _gluon_source(config: GemmConfig) -> KernelSource:
    used = ("TILE_M", "TILE_N", "TILE_K", "GROUP_M", "A_ROW", "B_ROW", "C_ROW", "INT_ACC")
    constants = [
        *((name, value) for name, value in _constants(config) if name in used),
        ("SPLIT", config.store == "split"),
        ("STAGES", config.num_stages),
        ("GROUPS", config.num_warps // WARPGROUP),
    ]
    # One more warp group's worth of registers goes to the producer, and most of it back.
    registers = 65536 // (32 * (config.num_warps + WARPGROUP)) // 8 * 8
    return KernelSource(
        module="tilewright.ops.gemm.kernels.gluon_ws",
        function="gemm_gluon_ws",
        signature=_signature(_descriptor_arguments(config), constants),
        constants=tuple(constants),
        options=(("num_warps", WARPGROUP), ("maxnreg", min(registers, 255))),
        language="gluon",
    )


def _signature(
    arguments: Sequence[tuple[str, str]],
    constants: Sequence[tuple[str, int | bool | str]],
    functions: Sequence[tuple[str, tuple[str, ...]]] = (),
) -> tuple[tuple[str, str], ...]:
    """Run-time arguments, then constants and the epilogue's functions: the order every GEMM
    kernel declares them in."""
    named = {name for name, _ in arguments}
    later = (name for name, _ in (*constants, *functions) if name not in named)
    return (*arguments, *((name, "constexpr") for name in later))


def _blocks(config: GemmConfig) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Tile of A, B and C that one copy moves, as (outer, inner) in memory."""
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    columns = n // epilogues.fold(config.epilogue)
    n_store = columns // 2 if config.store == "split" else columns
    if config.pipeline == "gluon_ws":  # a warp group takes its own rows, and two pieces of C
        m //= config.num_warps // WARPGROUP
        n_store //= 2
    a, b, c = tuple(config.layout)
    return (
        (m, k) if a == "r" else (k, m),
        (k, n) if b == "r" else (n, k),
        (m, n_store) if c == "r" else (n_store, m),
    )


def launch(config: GemmConfig, problem: GemmProblem, device: Device) -> Launch:
    """How to launch `config` for `problem` on `device`; operands are A, B, those of `pre_a`, of
    `pre_b` and of the epilogue, and C."""
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    programs, splits = _share(config, problem, tiles, device.compute_units)
    sizes = tuple(Scalar("i32", size) for size in (problem.m, problem.n, problem.k))
    lds = (problem.lda, problem.ldb, problem.ldc)
    stride = "i64" if config.index_bits == 64 or config.pipeline not in POINTERS else "i32"
    chains = (
        (config.pre_a, problem.ldpa),
        (config.pre_b, problem.ldpb),
        (config.epilogue, problem.ldd),
    )
    extra: list[Argument] = []
    number = MORE
    for chain, ld in chains:
        count = len(epilogues.takes(chain))
        extra += [Pointer(number + i) for i in range(count)]
        extra += [Scalar(stride, ld)] if ld else []
        number += count
    places = (A, B, number)
    arguments: tuple[Argument, ...]
    if config.pipeline in POINTERS:
        arguments = (
            *(Pointer(operand) for operand in places),
            *sizes,
            *(Scalar(stride, ld) for ld in lds),
            *extra,
        )
    else:
        types = (problem.dtype_a, problem.dtype_b, problem.dtype_c)
        shapes = zip(problem.outer, problem.inner, strict=True)
        views = zip(places, types, shapes, lds, _blocks(config), strict=True)
        arguments = (
            *(Descriptor(x, d, shape, (ld, 1), block) for x, d, shape, ld, block in views),
            *sizes,
            *extra,
        )
    if config.scheduler not in SHARING:
        return Launch((programs, 1, 1), arguments)
    # Under stream-K a workgroup has up to two parts: where its share begins, and where it ends.
    slots = tiles * splits if config.scheduler == "split_k" else 2 * programs
    return Launch(
        (programs, 1, 1),
        (*arguments, Pointer(WORKSPACE), Scalar("i32", splits)),
        workspace_bytes=FLAG_BYTES + slots * config.tile_m * config.tile_n * 4,
        zero_workspace=config.reduction == "atomic",
    )


def _share(
    config: GemmConfig, problem: GemmProblem, tiles: int, compute_units: int
) -> tuple[int, int]:
    """Workgroups to launch, and the kernel's `splits`."""
    if config.scheduler == "split_k":
        return tiles * config.split_k, config.split_k
    if config.scheduler == "stream_k":
        # Whole waves but the last go tile by tile; the last two, full and partial, are shared
        # out in equal parts (the paper's "two-tile" hybrid), so that no share is under a tile.
        steps = -(-problem.k // config.tile_k)
        programs = min(compute_units, tiles * steps)
        waves = tiles // programs
        shared = tiles if waves < 2 else tiles % programs + programs
        return programs, 0 if tiles % programs == 0 else shared
    return (min(tiles, compute_units) if config.scheduler == "persistent" else tiles), 0
