"""The rules of GEMM about configs: which of them an architecture can build.

A rule returns a reason, or None if it has no objection. The table `LEGALITY` names the rules and
fixes their order: the pruner, the selector, the CLI and the docs read it. Whether a config can
serve a problem is for the rules of `support`.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues, reasons
from tilewright.ops.gemm import (
    clusters,
    dependent_launch,
    lowbit,
    pipelines,
    scales,
    shuffle,
    swap,
    two_stage,
)
from tilewright.ops.gemm.config import MAX_TILE, GemmConfig
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.pipelines.record import OwnRule, Rule
from tilewright.ops.gemm.sizes import (
    OVERHEAD_REGISTERS,
    k_parts,
    operand_dtype,
    shared_memory,
    vector,
    vector_dot,
)
from tilewright.ops.gemm.small_m import MAX_TILE_K
from tilewright.ops.limits import LEAST_8_BIT_K, MAX_STAGES, VECTOR_DOT_PRODUCTS
from tilewright.verdict import YES, Verdict, no


def _dtype(c: GemmConfig, arch: Arch) -> str | None:
    for name in dict.fromkeys((operand_dtype(c), c.dtype_a, c.dtype_b)):
        support = arch.dtypes.get(name)
        if name != "int4" and (support is None or support.support == "refused"):
            why = f": {support.note}" if support is not None and support.note else ""
            return f"{arch.name} does not take {name} operands{why}"
    wmma = any(unit.instruction == "v_wmma" and c.dtype_a in unit.dtypes for unit in arch.mma)
    if wmma and c.dtype_b == lowbit.MIXED.get(c.dtype_a):
        return f"Triton multiplies {c.dtype_a} by {c.dtype_b} with no WMMA of {arch.name}"
    stored = arch.dtypes.get(c.dtype_c)
    if stored is not None and stored.support == "refused":
        return f"{arch.name} does not store {c.dtype_c}: {stored.note}"
    return None


def _pipeline(c: GemmConfig, arch: Arch) -> str | None:
    if pipelines.of(c).runs_on(arch):
        return None
    return reasons.no_pipeline(arch, c.pipeline, pipelines.on(arch))


def _tile(c: GemmConfig, arch: Arch) -> str | None:
    if vector(c):
        return _vector_tile(c)
    record = pipelines.of(c)
    least_m, least_n, least_k = arch.min_dot
    if record.has("transposed"):
        least_m, least_n = least_n, least_m
    least_k *= k_parts(c)  # a step holds a part of K for each warp
    largest_k = record.largest_k * k_parts(c)
    least, most = (least_m, least_n, least_k), (MAX_TILE, MAX_TILE, largest_k)
    sizes = (c.tile_m, c.tile_n, c.tile_k)
    odd = (record.odd_rows, record.odd_columns, ())
    for axis, size, low, high, others in zip("mnk", sizes, least, most, odd, strict=True):
        if size & (size - 1) and size not in others:
            also = f" or {', '.join(map(str, others))}" if others else ""
            none = f"pipeline {c.pipeline} has no other edges"
            return f"tile_{axis} = {size} is not a power of two{also}: {none}"
        if size < low:
            return f"tile_{axis} = {size} is under {low}, the least {arch.name} multiplies"
        if size > high:
            return f"tile_{axis} = {size} is over {high}"
    least_k = LEAST_8_BIT_K * k_parts(c)
    if DTYPES[c.dtype_a].bits == 8 and c.tile_k < least_k:
        return f"tile_k = {c.tile_k} is under {least_k}, the least for 8-bit operands"
    if c.layout[1] == "s":
        rows, columns = shuffle.rows(c.dtype_a), shuffle.COLUMNS
        if c.tile_k < rows or c.tile_n < columns:
            return f"a {c.tile_k}×{c.tile_n} tile of B is under a shuffled block, {rows}×{columns}"
    return None


def _vector_tile(c: GemmConfig) -> str | None:
    """On the vector units, a tile may have any size, but K needs at least a thread's vector."""
    for axis, size, high in (("m", c.tile_m, MAX_TILE), ("n", c.tile_n, MAX_TILE)):
        if size & (size - 1) or size > high:
            return f"tile_{axis} = {size} is not a power of two up to {high}"
    if c.tile_k & (c.tile_k - 1) or not vector(c) <= c.tile_k <= MAX_TILE_K:
        return f"tile_k = {c.tile_k} is not a power of two from {vector(c)} to {MAX_TILE_K}"
    return None


def _warps(c: GemmConfig, arch: Arch) -> str | None:
    if c.num_warps & (c.num_warps - 1) and c.num_warps not in pipelines.of(c).odd_warps:
        return f"num_warps = {c.num_warps} is not a power of two"
    return reasons.warps(arch, c.num_warps)


def _stages(c: GemmConfig, arch: Arch) -> str | None:
    if c.num_stages > MAX_STAGES:
        return f"num_stages = {c.num_stages} is over {MAX_STAGES}"
    return None


def _own(rule: OwnRule) -> Rule:
    """A rule's further condition from the record of a config's pipeline."""

    def asked(c: GemmConfig, arch: Arch) -> str | None:
        added = pipelines.of(c).rules.get(rule)
        return added(c, arch) if added else None

    return asked


_own_combination, _own_scales, _own_packed = _own("combination"), _own("scales"), _own("packed")


def _combination(c: GemmConfig, arch: Arch) -> str | None:
    record = pipelines.of(c)
    if reason := _own_combination(c, arch):
        return reason
    if record.has("shuffled_b") != (c.layout[1] == "s"):
        return (
            f"pipeline {c.pipeline} with layout {c.layout}: preshuffle reads a shuffled B, s, and "
            "no other pipeline does"
        )
    if not record.takes("pre_a") and (c.pre_a or c.pre_b):
        return (
            f"pipeline {c.pipeline} multiplies operands as they lie in memory; under basic they "
            "pass through registers, as pre_a and pre_b need"
        )
    if c.scheduler not in record.schedulers and "scheduler" not in record.own_words:
        has = _and(record.schedulers)
        return f"pipeline {c.pipeline} has schedulers {has}, not {c.scheduler}"
    lacking = c.scheduler in record.schedulers and c.reduction not in ("none", *record.reductions)
    if lacking and "reduction" not in record.own_words:
        has = _and(record.reductions)
        return f"pipeline {c.pipeline} has reductions {has}, not {c.reduction}"
    if c.epilogue and not record.takes("extra") and "epilogue" not in record.own_words:
        return f"pipeline {c.pipeline} has no epilogue; epilogue {c.epilogue} needs one"
    if c.store not in record.stores:
        return f"store split halves the staging buffer of tma stores; {c.pipeline} has none"
    if c.store == "split":
        least = 32 * epilogues.fold(c.epilogue)
        if c.tile_n < least:
            return f"store split needs tile_n of {least} or more, not {c.tile_n}"
    return None


def _and(words: tuple[str, ...]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _scales(c: GemmConfig, arch: Arch) -> str | None:
    """The products of a K step share one scale of A for each row and one scale of B for each
    column."""
    record = pipelines.of(c)
    if "scales" in record.rules:
        return _own_scales(c, arch)
    if not scales.count(c):
        return None
    if not record.takes("scales"):
        others = _and(tuple(n for n, p in PIPELINES.items() if p.takes("scales")))
        return f"pipeline {c.pipeline} has no block scales; {others} have them"
    return _one_block(c)


def _one_block(c: GemmConfig) -> str | None:
    along_k = scales.k_block(c)
    if along_k % c.tile_k and not pipelines.of(c).several_blocks(c):
        return f"tile_k = {c.tile_k} does not divide the {along_k} of K that one scale serves"
    return None


def _swapped(c: GemmConfig, arch: Arch) -> str | None:
    if not c.swap_ab:
        return None
    if not pipelines.of(c).has("swaps"):
        others = ", ".join(pipelines.those("swaps"))
        return f"pipeline {c.pipeline} does not swap A and B; {others} do"
    return swap.objection(c)


def _packed(c: GemmConfig, arch: Arch) -> str | None:
    if reason := _own_packed(c, arch):
        return reason
    packed = [d for d in (c.dtype_a, c.dtype_b) if DTYPES[d].packed > 1]
    if packed and not pipelines.of(c).has("packed"):
        return f"pipeline {c.pipeline} reads whole elements; weights unpacks {packed[0]}"
    if lowbit.widens(c) and not pipelines.of(c).has("widens"):
        others = _and(pipelines.those("widens"))
        return (
            f"pipeline {c.pipeline} multiplies operands of one width; {others} convert "
            f"{c.dtype_b} to {c.dtype_a}"
        )
    return None


def _padding(c: GemmConfig, arch: Arch) -> str | None:
    if not {c.pad_m, c.pad_n, c.pad_k} <= {*pipelines.of(c).padding}:
        return f"pipeline {c.pipeline} always pads: declare pad_m, pad_n and pad_k"
    return None


def _alignment(c: GemmConfig, arch: Arch) -> str | None:
    if c.alignment not in pipelines.of(c).alignments:
        return f"pipeline {c.pipeline} needs rows of whole 16 bytes, not alignment {c.alignment}"
    a, b = DTYPES[c.dtype_a], DTYPES[c.dtype_b]
    if 1 < c.alignment <= min(a.bytes, b.bytes):
        return f"alignment {c.alignment} says no more than alignment 1 for {c.dtype_a}"
    inner_a = c.tile_k if c.layout[0] == "r" else c.tile_m
    inner_b = c.tile_n if c.layout[1] == "r" else c.tile_k
    if min(a.size(inner_a), b.size(inner_b)) < c.alignment:
        return f"the tile's rows are shorter than its alignment of {c.alignment} bytes"
    return None


def _index(c: GemmConfig, arch: Arch) -> str | None:
    record = pipelines.of(c)
    if c.index_bits not in record.index_bits:
        why = "it counts in elements, not bytes"
        if record.reads == "pointers":
            why = "its instructions take 32-bit offsets"
        return f"pipeline {c.pipeline}: {why}; index_bits stays 32"
    return None


def _batching(c: GemmConfig, arch: Arch) -> str | None:
    taken = pipelines.of(c).batchings
    if c.batching in taken:
        return None
    if taken == ("none",):
        others = [p.name for p in pipelines.PIPELINES.values() if p.batchings != ("none",)]
        return f"pipeline {c.pipeline} has no batches; {' and '.join(others)} have"
    if c.batching == "nested":
        return (
            f"pipeline {c.pipeline} walks a batch by one stride; batching nested, which has two, "
            "needs basic"
        )
    return (
        f"pipeline {c.pipeline} describes an operand once, at one address; batching {c.batching} "
        "needs basic"
    )


def _mma(c: GemmConfig, arch: Arch) -> str | None:
    if c.mma == (0, 0, 0):
        return None
    shape = "x".join(map(str, c.mma))
    if not arch.mma_selectable:
        return f"the compiler picks the matrix instruction on {arch.name}; leave mma out"
    name = operand_dtype(c)
    known = [s for unit in arch.mma if name in unit.dtypes for s in unit.shapes]
    if c.mma not in known:
        listed = ", ".join("x".join(map(str, s)) for s in known) or "none"
        return f"{arch.name} has no {shape} instruction for {name}; it has {listed}"
    if c.tile_m % c.mma[0] or c.tile_n % c.mma[1] or c.tile_k % c.mma[2]:
        return f"tile {c.tile_m}x{c.tile_n}x{c.tile_k} is not made of whole {shape} instructions"
    deepest = max(s[2] for s in known if s[:2] == c.mma[:2] and c.tile_k % s[2] == 0)
    if deepest != c.mma[2]:
        chosen = f"{c.mma[0]}x{c.mma[1]}x{deepest}"
        return f"with tile_k = {c.tile_k} the compiler takes {chosen}, the deepest that divides it"
    return None


def _registers(c: GemmConfig, arch: Arch) -> str | None:
    accumulators = pipelines.of(c).accumulators(c, arch)
    warps_per_simd = -(-c.num_warps // arch.simds_per_cu)
    available = min(arch.max_registers, arch.registers_per_lane // warps_per_simd)
    if accumulators + OVERHEAD_REGISTERS > available:
        return (
            f"{accumulators} accumulators and {OVERHEAD_REGISTERS} other registers a thread, "
            f"over {available} with {c.num_warps} warps"
        )
    return None


def _dot(c: GemmConfig, arch: Arch) -> str | None:
    """A dot on the vector units is unrolled, product by product."""
    if not vector_dot(c, arch):
        return None
    products = c.tile_m * c.tile_n * c.tile_k // (c.num_warps * arch.warp_size)
    a = DTYPES[c.dtype_a]
    most = VECTOR_DOT_PRODUCTS // (2 if a.bits == 8 and a.kind == "float" else 1)
    if products > most:
        return (
            f"the compiler multiplies tl.dot on the vector units of {arch.name}: {products} "
            f"products a thread in a step, over {most}"
        )
    return None


def _shared_memory(c: GemmConfig, arch: Arch) -> str | None:
    need = shared_memory(c, arch)
    if need > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


LEGALITY: tuple[tuple[str, Rule], ...] = (
    ("dtype", _dtype),
    ("pipeline", _pipeline),
    ("swap", _swapped),
    ("tile", _tile),
    ("warps", _warps),
    ("stages", _stages),
    ("combination", _combination),
    ("warpgroups", _own("warpgroups")),
    ("small_m", _own("small_m")),
    ("cdna", _own("cdna")),
    ("scales", _scales),
    ("packed", _packed),
    ("padding", _padding),
    ("alignment", _alignment),
    ("index", _index),
    ("batching", _batching),
    ("two_stage", lambda c, _: two_stage.objection(c)),
    ("cluster", clusters.objection),
    ("dependent_launch", dependent_launch.legal),
    ("mma", _mma),
    ("dot", _dot),
    ("registers", _registers),
    ("shared_memory", _shared_memory),
)


def _exchanged(config: GemmConfig) -> bool:
    """Whether the kernel computes the product with A and B exchanged, and may do so."""
    return config.swap_ab and pipelines.of(config).has("swaps") and not swap.objection(config)


def judge(config: GemmConfig, arch: Arch) -> Verdict:
    """Whether `config` may be built for `arch`; if not, the first rule of `LEGALITY` that refuses
    it. Dtypes, and whether A and B may be swapped, are judged by what the caller gets, the rest by
    what the kernel computes and stores (`swap`, `two_stage`)."""
    computed = swap.config(config) if _exchanged(config) else config
    computed = two_stage.config(computed)
    for name, rule in LEGALITY:
        reason = rule(config if rule in (_dtype, _swapped) else computed, arch)
        if reason is not None:
            return no(name, reason)
    return YES


def judged(config: GemmConfig, arch: Arch) -> Verdict:
    """As `judge`, which most candidates of a plan were asked before for this very architecture."""
    known = _judged.get((config, id(arch)))
    if known is None or known[0] is not arch:
        if len(_judged) >= MOST_JUDGED:
            _judged.clear()
        known = _judged[config, id(arch)] = (arch, judge(config, arch))
    return known[1]


MOST_JUDGED = 16384
_judged: dict[tuple[GemmConfig, int], tuple[Arch, Verdict]] = {}
"""Verdicts by config and architecture. The architecture is kept, so that no other object can get
its identity."""
