"""The rules of attention: which configs an architecture can build, and which problems a config can
serve. Each rule is a function that returns a reason, or None."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.model import Arch
from tilewright.ops import reasons
from tilewright.ops.attention import library, pipelines, reach
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.pool import Pool, each
from tilewright.verdict import YES, Verdict, no

LEAST_TILE, MOST_TILE = 16, 512
"""Rows of a tile: matrix instructions take 16 at least."""

OVERHEAD_REGISTERS = 40
"""Registers of a thread beside scores and sums: addresses, maxima, masks."""


def _pipeline(c: AttentionConfig, arch: Arch) -> str | None:
    if pipelines.of(c).runs_on(arch):
        return None
    return reasons.no_pipeline(arch, c.pipeline, pipelines.on(arch))


def _dtype(c: AttentionConfig, arch: Arch) -> str | None:
    if (lacking := reasons.dtypes(arch, (c.dtype, c.dtype_kv, c.dtype_o))) is not None:
        return lacking
    if (c.dtype, c.dtype_kv) not in pipelines.of(c).dtypes:
        return f"pipeline {c.pipeline} does not multiply {c.dtype} by {c.dtype_kv}"
    return None


def _combination(c: AttentionConfig, arch: Arch) -> str | None:
    record = pipelines.of(c)
    for field, value, known in (
        ("mask", c.mask, record.masks),
        ("scheduler", c.scheduler, record.schedulers),
        ("pack", c.pack, record.packs),
    ):
        if value not in known:
            listed = ", ".join(str(one).lower() for one in known)
            return f"pipeline {c.pipeline} has {field} {listed}, not {str(value).lower()}"
    for word in sorted(c.words - record.features):
        return f"pipeline {c.pipeline} does not know {word}"
    return None


def _tile(c: AttentionConfig, arch: Arch) -> str | None:
    record = pipelines.of(c)
    for field, size, odd in (
        ("tile_q", c.tile_q, record.odd_rows),
        ("tile_kv", c.tile_kv, record.odd_columns),
    ):
        if size & (size - 1) and size not in odd:
            also = f" or {', '.join(map(str, odd))}" if odd else ""
            return f"{field} = {size} is not a power of two{also}, as pipeline {c.pipeline} needs"
        if not LEAST_TILE <= size <= MOST_TILE:
            return f"{field} = {size} is not from {LEAST_TILE} to {MOST_TILE}"
    return None


def _warps(c: AttentionConfig, arch: Arch) -> str | None:
    if pipelines.of(c).in_triton and c.num_warps & (c.num_warps - 1):
        return f"{c.num_warps} warps are no power of two, which Triton needs"
    return reasons.warps(arch, c.num_warps)


def _registers(c: AttentionConfig, arch: Arch) -> str | None:
    need = pipelines.of(c).registers(c, arch) + OVERHEAD_REGISTERS
    if need > arch.max_registers:
        return f"a thread needs about {need} registers, over {arch.max_registers}"
    return None


def _shared_memory(c: AttentionConfig, arch: Arch) -> str | None:
    said = pipelines.of(c).shared_memory
    if said is not None and (need := said(c, arch)) > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


LEGALITY: tuple[tuple[str, Callable[[AttentionConfig, Arch], str | None]], ...] = (
    ("pipeline", _pipeline),
    ("dtype", _dtype),
    ("combination", _combination),
    ("tile", _tile),
    ("warps", _warps),
    ("registers", _registers),
    ("shared_memory", _shared_memory),
)


def judge(config: AttentionConfig, arch: Arch) -> Verdict:
    """May `config` be built for `arch`? The first rule that refuses it, else its pipeline's own."""
    if config.library_engine:
        c = config
        return library.on(arch, c.dtype, c.dtype_o, c.head_dim, c.head_dim_v)
    for name, rule in LEGALITY:
        if (reason := rule(config, arch)) is not None:
            return no(name, reason)
    for name, rule in pipelines.of(config).rules.items():
        if (reason := rule(config, arch)) is not None:
            return no(name, reason)
    return YES


# --- support: can this config compute this problem? --------------------------------------------


SIGNATURE = ("dtype", "dtype_kv", "dtype_o", "head_dim", "head_dim_v", "page_size")
"""Fields that a config and a problem share, beside `mask` and `features`."""


def _signature(c: AttentionConfig, p: AttentionProblem) -> str | None:
    for field in SIGNATURE:
        if (has := getattr(c, field)) != (wants := getattr(p, field)):
            return f"is for {field} {has}, not {wants}"
    if c.mask != p.mask.kind:
        return f"is for mask {c.mask}, not {p.mask.kind}"
    if c.features != p.features:
        return f"is for features '{c.features}', not '{p.features}'"
    return None


def _aligned(c: AttentionConfig, p: AttentionProblem) -> str | None:
    if p.alignment < c.alignment:
        return f"addresses and rows are aligned to {p.alignment} bytes, under {c.alignment}"
    return None


def _scales(c: AttentionConfig, p: AttentionProblem) -> str | None:
    if p.scale_block and (p.scale_block % c.tile_kv or p.scale_block % c.tile_q):
        return f"blocks of {p.scale_block} rows are no multiple of tiles {c.tile_q}x{c.tile_kv}"
    return None


def _blocks(c: AttentionConfig, p: AttentionProblem) -> str | None:
    """A tile has one row of the mask: its queries lie within a block, and its heads share it."""
    if not p.blocks_shape:
        return None
    if p.block_size % c.tile_kv or p.block_size % c.tile_q:
        return f"blocks of {p.block_size} rows are no multiple of tiles {c.tile_q}x{c.tile_kv}"
    if c.pack and p.blocks_shape[1] > 1:
        return "the heads of a packed tile share one mask of blocks, and here each has its own"
    return None


SUPPORT: tuple[tuple[str, Callable[[AttentionConfig, AttentionProblem], str | None]], ...] = (
    ("signature", _signature),
    ("vector_width", _aligned),
    ("scale_blocks", _scales),
    ("mask_blocks", _blocks),
    ("reach", reach.refused),
)


def serving(problem: AttentionProblem, configs: Pool, arch: Arch) -> list[int]:
    """The places of the configs of which `supports` says yes, in order. Rules of support are asked
    once for all configs of one tile: stages, warps and schedulers do not matter to them."""
    if not configs:
        return []
    c = configs.columns
    legal, found = each(c, _legal, arch), []
    for places, alike in c.groups(_tile_of).values():
        if _unsupported(alike[0], problem) is None:
            found += places.tolist()
    return [place for place in sorted(found) if legal[place]]


def _legal(c: AttentionConfig, arch: Arch) -> bool:
    return bool(judge(c, arch))


def _tile_of(c: AttentionConfig) -> str:
    """All that rules of support read of a config, as a word."""
    fields = (*SIGNATURE, "mask", "features")
    signature = "_".join(str(getattr(c, field)) for field in fields)
    return f"{signature}_{c.tile_q}x{c.tile_kv}_{c.pipeline}_{c.alignment}_{c.pack}"


def supports(config: AttentionConfig, problem: AttentionProblem, arch: Arch) -> Verdict:
    """Can `config`, built for `arch`, compute `problem`?"""
    refused = _unsupported(config, problem)
    return judge(config, arch) if refused is None else refused


def _unsupported(c: AttentionConfig, p: AttentionProblem) -> Verdict | None:
    if c.library_engine:
        reason = _signature(c, p)
        objection = ("signature", reason) if reason else library.refused(p)
        return no(*objection) if objection else None
    for name, rule in (*SUPPORT, *pipelines.of(c).supports.items()):
        if (reason := rule(c, p)) is not None:
            return no(name, reason)
    return None
