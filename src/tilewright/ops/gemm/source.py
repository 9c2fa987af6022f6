"""From a config to what is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.device.widths import wide
from tilewright.ops.gemm import cdna, epilogues, lowbit, scales, shuffle, swap
from tilewright.ops.gemm.config import MASKING, SHARING, SPECIALISED, GemmConfig
from tilewright.ops.gemm.sizes import (
    BATCHED,
    PART_COLUMNS,
    SCALED,
    WARPGROUP,
    WARPGROUP_ROWS,
    masked,
    partial_dtype,
    piece,
    summed_k,
)
from tilewright.ops.gemm.small_m import k_parts, vector
from tilewright.ops.nouns import KernelSource


def source(config: GemmConfig, arch: Arch) -> KernelSource:
    """What to compile for `config` on `arch`."""
    config = swap.config(config)
    options: list[tuple[str, int | bool | str]] = [
        ("num_warps", config.num_warps),
        ("num_stages", config.num_stages),
    ]
    if config.mma != (0, 0, 0):
        options.append(("matrix_instr_nonkdim", config.mma[0]))
    if config.pipeline == "preshuffle" and arch.kpack > 1:
        options.append(("kpack", arch.kpack))  # so that 16 bytes of B are whole operands
    if config.pipeline in MASKING:
        return _pointer_source(config, arch, tuple(options))
    if config.pipeline in SPECIALISED:
        return _gluon_source(config)
    if config.pipeline == "gluon_scaled":
        return _gluon_scaled_source(config)
    if config.pipeline == "gluon_weights":
        return _gluon_weights_source(config)
    if config.pipeline == "small_m_tma":
        return _small_m_tma_source(config, tuple(options))
    if config.pipeline == "gluon_cdna":
        return _cdna_source(config, arch)
    return _tma_source(config, tuple(options))


def _constants(config: GemmConfig) -> list[tuple[str, int | bool | str]]:
    taken = _takes(config.epilogue)
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
        ("PRECISION", config.precision),
        ("INT_ACC", partial_dtype(config) == "int32"),
        *(() if config.scheduler in SHARING else (("flags", 0), ("partials", 0), ("splits", 0))),
        ("TAKES", swap.takes(taken) if config.swap_ab else taken),
        ("FOLD", epilogues.fold(config.epilogue)),
        ("LARGEST", int(DTYPES[config.dtype_c].largest)),
    ]


def _scales_and_batch(config: GemmConfig) -> list[tuple[str, int | bool | str]]:
    """The constants of kernels that have block scales, and of those that have batches."""
    found: list[tuple[str, int | bool | str]] = []
    if config.pipeline in (*SCALED, "gluon_scaled"):
        found.append(("SCALES", scales.kernel_blocks(config)))
    if config.pipeline in BATCHED:
        found.append(("BATCHING", config.batching))
    return found


def _scale_types(config: GemmConfig) -> tuple[tuple[str, str], ...]:
    """The kernels' tuple argument `scales`, of those that have one (see kernels/scale.py)."""
    return scales.kernel_types(config) if config.pipeline in (*SCALED, "gluon_scaled") else ()


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
    """The kernels' tuple arguments of operands, each with its chain and its matrix's dtype."""
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
    """What alignment says of the chains' matrices and their strides."""
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
            if config.batching != "none":
                found[batch_types(config)[-1][0]] = count
            if config.batching == "nested":
                found["batch.8"] = count
    return found


def _pointer_source(
    config: GemmConfig, arch: Arch, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    stride = "i64" if config.index_bits == 64 else "i32"
    mask_m, mask_n, mask_k = masked(config.layout, config.pad_m, config.pad_n, config.pad_k)
    masks = [("MASK_M", mask_m), ("MASK_N", mask_n), ("MASK_K", mask_k)]
    constants = [*_constants(config), *_scales_and_batch(config), *masks]
    if config.pipeline == "basic":
        takes = (("TAKES_A", _takes(config.pre_a)), ("TAKES_B", _takes(config.pre_b)))
        largest = ("LARGEST_AB", int(DTYPES[config.dtype_a].largest))
        constants = [
            *_constants(config),
            *takes,
            largest,
            *_scales_and_batch(config),
            *masks,
            ("ALIGNMENT", config.alignment),
        ]
    elif config.pipeline == "preshuffle":
        vectors = ("VECTOR", shuffle.vector(config.dtype_b))
        constants = [*_constants(config), vectors, *masks]
    elif config.pipeline == "small_m":
        parts = ("K_PARTS", k_parts(config))
        constants += [parts, ("VECTOR", vector(config)), ("STAGES", config.num_stages)]
    else:
        unused = ("PRECISION", "INT_ACC", *(("B_ROW",) if config.pipeline == "weights" else ()))
        constants = [one for one in constants if one[0] not in unused] + lowbit.constants(config)
    arguments = (
        *_pointer_arguments(config, stride),
        *_extra(config, stride),
        *_scale_types(config),
        *batch_types(config),
        *_sharing_types(config),
    )
    matrices = () if config.batching == "pointers" else ("a", "b", "c")
    others = (*_extra(config, stride), *_scale_types(config))
    within_reach = (*matrices, *(name for name, kind in others if kind.startswith("*")))
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


def batch_types(config: GemmConfig) -> tuple[tuple[str, str], ...]:
    """The kernels' tuple argument `batch` (see kernels/batching.py): how many matrices, their
    strides (for descriptors: steps) if they have any, for a nested batch the inner one's size and
    the outer strides, and last the stride of the epilogue's matrices."""
    if config.pipeline not in BATCHED:
        return ()
    if config.batching == "none":
        return (("batch", "()"),)
    kinds = ["i32"]
    if config.batching in ("strided", "nested"):
        kinds += ["i64"] * 3 if config.pipeline == "basic" else ["i32"] * 2
    if config.batching == "nested":
        kinds += ["i32", *["i64"] * 4]
    if epilogues.has_matrix(config.epilogue):
        kinds.append("i64")
    return tuple((f"batch.{i}", kind) for i, kind in enumerate(kinds))


def _pointer_arguments(config: GemmConfig, stride: str) -> tuple[tuple[str, str], ...]:
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    return (
        *((name, f"*{DTYPES[d].triton}") for name, d in zip("abc", types, strict=True)),
        *((name, "i32") for name in ("m", "n", "k")),
        *((name, stride) for name in ("lda", "ldb", "ldc")),
    )


def _sharing_types(config: GemmConfig) -> tuple[tuple[str, str], ...]:
    """Types of the arguments that only schedulers which share tiles have."""
    if config.scheduler not in SHARING:
        return tuple((name, "constexpr") for name in ("flags", "partials", "splits"))
    partials = DTYPES[partial_dtype(config)].triton
    return ("flags", "*i32"), ("partials", f"*{partials}"), ("splits", "i32")


def _workspace_promises(config: GemmConfig) -> dict[str, int]:
    """A workspace comes from an allocator: partial sums move in whole vectors."""
    return {"flags": 16, "partials": 16} if config.scheduler in SHARING else {}


def _promises(config: GemmConfig) -> tuple[tuple[str, int], ...]:
    """What alignment lets the compiler assume: addresses in bytes, strides and innermost
    extents in elements."""
    if config.alignment == 1:
        return tuple(_workspace_promises(config).items())
    promises = {} if config.batching == "pointers" else dict.fromkeys("abc", config.alignment)
    inner = ("k" if config.layout[0] == "r" else "m", "n" if config.layout[1] == "r" else "k")
    inner_c = "n" if config.layout[2] == "r" else "m"
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    for i, (name, extent, d) in enumerate(zip("abc", (*inner, inner_c), types, strict=True)):
        count = config.alignment // DTYPES[d].bytes
        if count > 1:
            promises[f"ld{name}"] = count
            if config.batching in ("strided", "nested"):
                promises[f"batch.{i + 1}"] = count
            if config.batching == "nested":
                promises[f"batch.{i + 5}"] = count
            if extent == "n" and name == "c":
                count *= epilogues.fold(config.epilogue)
            count *= DTYPES[d].packed
            promises[extent] = max(count, promises.get(extent, 1))
    promises |= _matrix_promises(config)
    return tuple({**promises, **_workspace_promises(config)}.items())


def _tma_source(
    config: GemmConfig, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    constants = [
        *_constants(config),
        *_scales_and_batch(config),
        ("SPLIT", config.store == "split"),
        ("WARP_SPECIALIZE", config.pipeline == "tma_ws"),
    ]
    arguments = (
        *_descriptor_arguments(config),
        *_extra(config, "i64"),
        *_scale_types(config),
        *batch_types(config),
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
        divisibility=tuple({**promises, **_workspace_promises(config)}.items()),
        options=options,
        functions=_functions(config),
    )


def _small_m_tma_source(
    config: GemmConfig, options: tuple[tuple[str, int | bool | str], ...]
) -> KernelSource:
    """C is too small for a descriptor to pay: its kernel stores through a pointer."""
    constants = [*_constants(config), ("K_PARTS", k_parts(config))]
    a, b, _, *sizes = _descriptor_arguments(config)
    c = ("c", f"*{DTYPES[config.dtype_c].triton}")
    arguments = (a, b, c, *sizes, ("ldc", "i64"), *_extra(config, "i64"), *_sharing_types(config))
    promises = _promises_of_c(config)
    return KernelSource(
        module="tilewright.ops.gemm.kernels.small_m",
        function="gemm_small_m_tma",
        signature=_signature(arguments, constants, _functions(config)),
        constants=tuple(constants),
        divisibility=tuple(promises.items()),
        options=options,
        functions=_functions(config),
    )


def _promises_of_c(config: GemmConfig) -> dict[str, int]:
    """What kernels may assume that read through descriptors and store through a pointer."""
    elements = config.alignment // DTYPES[config.dtype_c].bytes
    inner = "n" if config.layout[2] == "r" else "m"
    columns = elements * epilogues.fold(config.epilogue) if inner == "n" else elements
    promises = {"c": config.alignment, "ldc": elements, inner: columns}
    return promises | _matrix_promises(config) | _workspace_promises(config)


def _gluon_weights_source(config: GemmConfig) -> KernelSource:
    unused = ("B_ROW", "A_ROW", "PRECISION", "INT_ACC")
    constants = [one for one in _constants(config) if one[0] not in unused]
    constants += lowbit.constants(config)
    a, b, _, *sizes = _descriptor_arguments(config)
    c = ("c", f"*{DTYPES[config.dtype_c].triton}")
    arguments = (
        *(a, b, c, *sizes, ("ldc", "i64")),
        *_extra(config, "i64"),
        *_scale_types(config),
        *_sharing_types(config),
    )
    return KernelSource(
        module="tilewright.ops.gemm.kernels.gluon_weights",
        function="gemm_gluon_weights",
        signature=_signature(arguments, constants, _functions(config)),
        constants=tuple(constants),
        divisibility=tuple(_promises_of_c(config).items()),
        options=(("num_warps", config.num_warps),),
        language="gluon",
        functions=_functions(config),
    )


def _descriptor_arguments(config: GemmConfig) -> tuple[tuple[str, str], ...]:
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    kinds = ("i32" if lowbit.in_words(config, i) else DTYPES[d].triton for i, d in enumerate(types))
    descriptors = tuple(
        (name, f"tensordesc<{kind}[{', '.join(map(str, block))}]>")
        for name, kind, block in zip("abc", kinds, blocks(config), strict=True)
    )
    return (*descriptors, *((name, "i32") for name in ("m", "n", "k")))


def _gluon_source(config: GemmConfig) -> KernelSource:
    constants = [
        *_constants(config),
        *_scales_and_batch(config),
        ("SPLIT", config.store == "split"),
        ("STAGES", config.num_stages),
    ]
    arguments = (*_descriptor_arguments(config), *_extra(config, "i64"), *batch_types(config))
    if config.pipeline == "gluon_ws":
        constants.append(("GROUPS", config.num_warps // WARPGROUP))
        arguments = (*arguments, *_sharing_types(config))
    else:
        unused = ("SCHEDULER", "REDUCTION", "PRECISION", "flags", "partials", "splits")
        constants = [one for one in constants if one[0] not in unused]
    return KernelSource(
        module=f"tilewright.ops.gemm.kernels.{config.pipeline}",
        function=f"gemm_{config.pipeline}",
        signature=_signature(arguments, constants, _functions(config)),
        constants=tuple(constants),
        divisibility=tuple({**_matrix_promises(config), **_workspace_promises(config)}.items()),
        options=_specialised(config),
        language="gluon",
        functions=_functions(config),
    )


def _specialised(config: GemmConfig) -> tuple[tuple[str, int], ...]:
    """Compiler options of a kernel that gives one more warp group than multiplies to its
    producer: its worth of registers, of which most goes back."""
    registers = 65536 // (32 * (config.num_warps + WARPGROUP)) // 8 * 8
    return ("num_warps", WARPGROUP), ("maxnreg", min(registers, 255))


def _gluon_scaled_source(config: GemmConfig) -> KernelSource:
    sharing = ("SCHEDULER", "REDUCTION", "flags", "partials", "splits")
    used = ("TILE_M", "TILE_N", "TILE_K", "GROUP_M", "C_ROW", *sharing)
    constants = [
        *((name, value) for name, value in _constants(config) if name in used),
        *_scales_and_batch(config),
        ("SPLIT", config.store == "split"),
        ("STAGES", config.num_stages),
        ("GROUPS", config.num_warps // WARPGROUP),
    ]
    types = (*_scale_types(config), *_sharing_types(config))
    arguments = (*_descriptor_arguments(config), *types)
    return KernelSource(
        module="tilewright.ops.gemm.kernels.gluon_scaled",
        function="gemm_gluon_scaled",
        signature=_signature(arguments, constants),
        constants=tuple(constants),
        divisibility=tuple(_workspace_promises(config).items()),
        options=_specialised(config),
        language="gluon",
    )


def _cdna_source(config: GemmConfig, arch: Arch) -> KernelSource:
    assert arch.cdna is not None
    used = (
        *("TILE_M", "TILE_N", "TILE_K", "GROUP_M", "A_ROW", "B_ROW", "C_ROW"),
        *("SCHEDULER", "REDUCTION", "INT_ACC", "flags", "partials", "splits"),
        *("TAKES", "FOLD", "LARGEST"),
    )
    how = cdna.mapping(config, arch)
    constants = [
        *((name, value) for name, value in _constants(config) if name in used),
        ("GENERATION", arch.cdna.generation),
        ("MMA_MN", how.mma[0]),
        ("MMA_K", how.mma[2]),
        ("K_WIDTH", how.k_width),
        ("FORMAT", how.format),
        ("WARPS_M", how.warps_m),
        ("BANK_BYTES", arch.cdna.bank_bytes),
        ("DIRECT", arch.cdna.direct_to_shared),
        ("STAGES", config.num_stages),
    ]
    extra = _extra(config, "i32")
    sharing = _sharing_types(config)
    arguments = (*_pointer_arguments(config, "i32"), *extra, ("dies", "i32"), *sharing)
    return KernelSource(
        module="tilewright.ops.gemm.kernels.gluon_cdna",
        function="gemm_gluon_cdna",
        signature=_signature(arguments, constants, _functions(config)),
        constants=tuple(constants),
        divisibility=_promises(config),
        pointer_range_32=("a", "b", "c", *(n for n, t in extra if t.startswith("*"))),
        options=(("num_warps", config.num_warps), ("waves_per_eu", 2)),
        language="gluon",
        functions=_functions(config),
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


def blocks(config: GemmConfig) -> tuple[tuple[int, ...], ...]:
    """Tile of A, B and C that one copy moves, as (outer, inner) in memory, of one matrix."""
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    columns = n // epilogues.fold(config.epilogue)
    n_store = columns // 2 if config.store == "split" else columns
    if config.pipeline in SPECIALISED:  # a warp group takes its own rows, and pieces of C
        if config.pipeline == "gluon_ws":
            m //= config.num_warps // WARPGROUP
        n_store = piece(config) // epilogues.fold(config.epilogue)
        n = n - wide(n) or n  # where there are two accumulators, boxes of the second's width
    if config.pipeline == "gluon_scaled":  # in parts of one wgmma's size
        m, n, k = WARPGROUP_ROWS, min(n, PART_COLUMNS), summed_k(config)
        n_store = n // (4 if config.store == "split" else 2)
    each = lowbit.in_words(config, 1) or 1
    a, b, c = tuple(config.layout)
    one = () if config.batching == "none" else (1,)
    return (
        (*one, m, k) if a == "r" else (*one, k, m),
        (*one, k, n) if b == "r" else (*one, n, k // each),
        (*one, m, n_store) if c == "r" else (*one, n_store, m),
    )
