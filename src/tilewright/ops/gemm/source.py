"""From a config to what is compiled: the same for every pipeline, from its record.

A kernel declares its parameters in this order: A, B and C; m, n and k; the leading dimensions of
what it reaches through pointers; the groups of `Pipeline.arguments`; `Pipeline.constants`; and the
chains of functions.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import pipelines, scales, swap, two_stage
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.lowbit import WORD
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.pipelines.constants import (
    SHARED,
    UNSHARED,
    Value,
    partial_dtype,
    unshared,
)
from tilewright.ops.nouns import MAIN, KernelSource

Types = tuple[tuple[str, str], ...]
"""Names of arguments with their Triton types."""

_CHAINS = {"extra": "CHAIN", "pre_a": "CHAIN_A", "pre_b": "CHAIN_B"}
"""Names of the constants that hold a chain's functions, by the argument with its operands."""


def sources(config: GemmConfig, arch: Arch) -> dict[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    found = {MAIN: source(config, arch)}
    if config.two_stage:
        found[two_stage.TOTALS] = _totals(swap.config(config), arch)
    return found


def source(config: GemmConfig, arch: Arch) -> KernelSource:
    """The kernel that multiplies."""
    config = two_stage.config(swap.config(config))
    record = pipelines.of(config)
    arguments = (*_matrices(config), *_others(config))
    constants = _constants(config, arch)
    functions = _functions(config)
    named = {name for name, _ in arguments}
    later = (name for name, _ in (*constants, *functions) if name not in named)
    return KernelSource(
        module=record.module,
        function=record.function,
        signature=(*arguments, *((name, "constexpr") for name in later)),
        constants=constants,
        divisibility=tuple(_promises(config).items()),
        pointer_range_32=_within_reach(config, arch),
        options=(*record.options(config, arch), *_launched(config)),
        language=record.language,
        functions=functions,
        cluster=config.split_k if config.clustered else 1,
    )


def _launched(config: GemmConfig) -> tuple[tuple[str, Value], ...]:
    """The compiler's option that marks a kernel for programmatic dependent launch."""
    return () if config.dependent_launch == "none" else (("launch_pdl", True),)


def _totals(config: GemmConfig, arch: Arch) -> KernelSource:
    """The kernel that adds up parts."""
    rows, columns = two_stage.block(config)
    dependent = arch.has("pdl")
    types = {"partials": partial_dtype(config), "c": config.dtype_c}
    arguments = (
        *((name, f"*{DTYPES[d].triton}") for name, d in types.items()),
        *((name, "i32") for name in ("m", "n")),
        *((name, stride_type(config)) for name in ("ldp", "ldc")),
        ("splits", "i32"),
        *_chain("extra", config.epilogue, config.dtype_c, stride_type(config)),
    )
    shared = {name: SHARED[name](config, arch) for name in ("C_ROW", "TAKES", "FOLD", "LARGEST")}
    constants = {"ROWS": rows, "COLUMNS": columns, **shared, "DEPENDENT": dependent}
    promises = _promises_of_c(config) | _promises_of_chains(config)
    options: tuple[tuple[str, Value], ...] = (
        ("num_warps", two_stage.THREADS // arch.warp_size),
        ("num_stages", 1),
    )
    return KernelSource(
        module="tilewright.ops.gemm.kernels.totals",
        function="gemm_totals",
        signature=(*arguments, *((name, "constexpr") for name in (*constants, "CHAIN"))),
        constants=tuple(constants.items()),
        divisibility=tuple({"partials": 16, "ldp": two_stage.WHOLE_ROW, **promises}.items()),
        options=(*options, *((("launch_pdl", True),) if dependent else ())),
        functions=(("CHAIN", _operations(config.epilogue)),),
    )


# --- constants ---------------------------------------------------------------------------------


def _constants(config: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    record = pipelines.of(config)
    known = {**SHARED, **record.own_constants}
    constant = unshared(config)
    return tuple(
        (name, known[name](config, arch))
        for name in record.constants
        if name not in UNSHARED or name in constant
    )


def _functions(config: GemmConfig) -> tuple[tuple[str, tuple[str, ...]], ...]:
    taken = pipelines.of(config).arguments
    chains = {"extra": config.epilogue, "pre_a": config.pre_a, "pre_b": config.pre_b}
    return tuple(
        (name, _operations(chains[argument]))
        for argument, name in _CHAINS.items()
        if argument in taken
    )


def _operations(chain: str) -> tuple[str, ...]:
    """The functions of a chain."""
    return tuple(o.function for o in epilogues.parse(chain))


# --- arguments ---------------------------------------------------------------------------------


def stride_type(config: GemmConfig) -> str:
    """Type of the leading dimensions."""
    pointers = pipelines.of(config).reads == "pointers"
    return "i32" if pointers and config.index_bits == 32 else "i64"


def _matrices(config: GemmConfig) -> Types:
    """A, B, C, their sizes, and the leading dimensions of those reached through pointers."""
    record = pipelines.of(config)
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    a, b, c = ((name, f"*{DTYPES[d].triton}") for name, d in zip("abc", types, strict=True))
    sizes = tuple((name, "i32") for name in ("m", "n", "k"))
    if record.reads == "pointers":
        return (a, b, c, *sizes, *((name, stride_type(config)) for name in ("lda", "ldb", "ldc")))
    *operands, described_c = _descriptors(config)
    if record.writes == "pointers":
        return (*operands, c, *sizes, ("ldc", stride_type(config)))
    return (*operands, described_c, *sizes)


def _descriptors(config: GemmConfig) -> Types:
    types = (config.dtype_a, config.dtype_b, config.dtype_c)
    kinds = ("i32" if in_words(config, i) else DTYPES[d].triton for i, d in enumerate(types))
    return tuple(
        (name, f"tensordesc<{kind}[{', '.join(map(str, block))}]>")
        for name, kind, block in zip("abc", kinds, blocks(config), strict=True)
    )


def _rest(config: GemmConfig) -> Types:
    """The tuple arguments `b_rest` and `c_rest`: descriptors for the columns behind the first
    accumulator's."""
    found: list[tuple[str, str]] = []
    for i, operand in ((1, "b"), (2, "c")):
        kind = DTYPES[(config.dtype_a, config.dtype_b, config.dtype_c)[i]].triton
        said = [f"tensordesc<{kind}[{', '.join(map(str, each[i]))}]>" for each in rests(config)]
        found += [(f"{operand}_rest.{part}", each) for part, each in enumerate(said)]
        found += [] if said else [(f"{operand}_rest", "()")]
    return tuple(found)


def _others(config: GemmConfig) -> Types:
    """The arguments behind the matrices and sizes, in the order of `record.ARGUMENTS`."""
    groups: dict[str, Types] = {
        "rest": _rest(config),
        **{name: _chain(name, on, d, stride_type(config)) for name, on, d in _chains(config)},
        "scales": scales.kernel_types(config),
        "batch": batch_types(config),
        "dies": (("dies", "i32"),),
        "sharing": _sharing(config),
    }
    return tuple(one for name in pipelines.of(config).arguments for one in groups[name])


def _chains(config: GemmConfig) -> tuple[tuple[str, str, str], ...]:
    """The tuple arguments of chains' operands, each with its chain and the dtype of the matrix that
    the chain is applied to."""
    return (
        ("pre_a", config.pre_a, config.dtype_a),
        ("pre_b", config.pre_b, config.dtype_b),
        ("extra", config.epilogue, config.dtype_c),
    )


def _chain(name: str, chain: str, dtype: str, stride: str) -> Types:
    """A chain's operands as elements of a tuple argument, and behind them the leading dimension of
    its matrices if there are any."""
    dtypes = (epilogues.operand_dtype(t, dtype) for t in epilogues.takes(chain))
    kinds = [f"*{DTYPES[d].triton}" for d in dtypes]
    if epilogues.has_matrix(chain):
        kinds.append(stride)
    return tuple((f"{name}.{i}", kind) for i, kind in enumerate(kinds)) or ((name, "()"),)


def _sharing(config: GemmConfig) -> Types:
    """What schedulers that share tiles meet in, and the number of parts; constants under the
    others."""
    partials = DTYPES[partial_dtype(config)].triton
    kinds = zip(UNSHARED, ("*i32", f"*{partials}", "i32"), strict=True)
    constant = unshared(config)
    return tuple((name, "constexpr" if name in constant else kind) for name, kind in kinds)


def batch_types(config: GemmConfig) -> Types:
    """The kernels' tuple argument `batch` (see `ops/device/batching.py`): how many matrices, their
    strides (for descriptors: steps) if they have any, for a nested batch the inner one's size and
    the outer strides, and last the stride of the epilogue's matrices."""
    if config.batching == "none":
        return (("batch", "()"),)
    kinds = ["i32"]
    if config.batching in ("strided", "nested"):
        pointers = pipelines.of(config).reads == "pointers"
        kinds += ["i64"] * 3 if pointers else ["i32"] * 2
    if config.batching == "nested":
        kinds += ["i32", *["i64"] * 4]
    if epilogues.has_matrix(config.epilogue):
        kinds.append("i64")
    return tuple((f"batch.{i}", kind) for i, kind in enumerate(kinds))


# --- promises to the compiler -------------------------------------------------------------------


def _within_reach(config: GemmConfig, arch: Arch) -> tuple[str, ...]:
    """Pointers to operands that span under 2 GiB, for AMD's buffer instructions."""
    if arch.backend != "hip" or config.index_bits != 32:
        return ()
    if pipelines.of(config).reads != "pointers":
        return ()
    matrices = () if config.batching == "pointers" else ("a", "b", "c")
    others = ((name, kind) for name, kind in _others(config) if name not in UNSHARED)
    return (*matrices, *(name for name, kind in others if kind.startswith("*")))


def _promises(config: GemmConfig) -> dict[str, int]:
    """What alignment lets the compiler assume: addresses in bytes, strides and innermost extents in
    elements."""
    record = pipelines.of(config)
    if record.reads == "pointers":
        found = _promises_of_pointers(config)
    elif record.writes == "pointers":
        found = _promises_of_c(config) | _promises_of_chains(config)
    else:
        found = _promises_of_chains(config)
        if found and record.language == "triton":
            # So that the mask at C's edge leaves the loads of the epilogue's matrices wide.
            inner = "n" if config.layout[2] == "r" else "m"
            found[inner] = config.alignment // DTYPES[config.dtype_c].bytes
    # Temporaries come from an allocator, so that partial sums move in whole vectors.
    shared = (name for name in ("flags", "partials") if name not in unshared(config))
    return found | dict.fromkeys(shared, 16)


def _promises_of_pointers(config: GemmConfig) -> dict[str, int]:
    if config.alignment == 1:
        return {}
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
    return promises | _promises_of_chains(config)


def _promises_of_c(config: GemmConfig) -> dict[str, int]:
    """The promises of a C that is stored through a pointer, by a kernel that reaches A and B in
    another way."""
    elements = max(1, config.alignment // DTYPES[config.dtype_c].bytes)
    inner = "n" if config.layout[2] == "r" else "m"
    columns = elements * epilogues.fold(config.epilogue) if inner == "n" else elements
    return {"c": config.alignment, "ldc": elements, inner: columns}


def _promises_of_chains(config: GemmConfig) -> dict[str, int]:
    """The promises of the chains' matrices and their strides."""
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


# --- descriptors --------------------------------------------------------------------------------


def in_words(config: GemmConfig, i: int) -> int:
    """Elements of operand `i` (A, B or C) in a word, if the kernel's descriptor counts words; 0 if
    it counts elements."""
    counted = i == 1 and pipelines.of(config).has("b_in_words")
    return WORD // DTYPES[config.dtype_b].bits if counted else 0


def blocks(config: GemmConfig) -> tuple[tuple[int, ...], ...]:
    """Tile of A, B and C that one copy moves, as (outer, inner) in memory, of one matrix."""
    boxes = pipelines.of(config).boxes
    assert boxes is not None, f"pipeline {config.pipeline} has no descriptors"
    return _blocks(config, *boxes(config))


def rests(config: GemmConfig) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Tile of A, B and C that one copy moves, for each accumulator behind a tile's first."""
    record = pipelines.of(config)
    if "rest" not in record.arguments:
        return ()
    assert record.boxes is not None
    m, _, k, _ = record.boxes(config)
    return tuple(_blocks(config, m, n, k, columns) for n, columns in warpgroups.rests(config))


def _blocks(
    config: GemmConfig, m: int, n: int, k: int, columns: int
) -> tuple[tuple[int, ...], ...]:
    each = in_words(config, 1) or 1
    a, b, c = tuple(config.layout)
    one = () if config.batching == "none" else (1,)
    of_c = (1,) if config.two_stage else one
    return (
        (*one, m, k) if a == "r" else (*one, k, m),
        (*one, k, n) if b == "r" else (*one, n, k // each),
        (*of_c, m, columns) if c == "r" else (*of_c, columns, m),
    )
