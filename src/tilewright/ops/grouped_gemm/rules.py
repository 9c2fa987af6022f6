"""The rules of grouped GEMM: which configs an architecture can build, and which problems a config
can serve.

A config is a GEMM kernel run for one group after another, so the rules are those of this kernel
(`tilewright.ops.gemm.rules`), applied to `GroupedGemmConfig.one` and `GroupedGemmProblem.one`. The
tables here add the rules for groups.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import rules as gemm
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import MAX_GROUPS, PIPELINES, GroupedPipeline
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem
from tilewright.verdict import Verdict, no

MAX_TMA_ROWS = 2**30
"""Most rows of C in a tensor map that can end inside it."""

MOST = 2**31 - 1
"""Rows of C, and tiles, at most."""

LEAST_COLUMNS = 32
"""Columns of a tile of the Gluon kernel at least."""


# --- legality ---------------------------------------------------------------------------------


def _record(c: GroupedGemmConfig) -> GroupedPipeline | None:
    """The grouped pipeline; None for a GEMM pipeline that does not walk groups. `names.check`
    refuses such a config, but the rules also judge configs made by hand."""
    return PIPELINES.get(c.pipeline)


def _form(c: GroupedGemmConfig, arch: Arch) -> str | None:
    if c.form == "list":
        record = _record(c)
        if record is None or c.form not in record.forms:
            return (
                f"pipeline {c.pipeline} reads through tensor maps, made before the launch; where a "
                "list's matrices lie is read on the device, which basic does"
            )
        if c.index_bits != 32:
            return "a matrix of a list spans under 2 GiB, so index_bits stays 32"
    elif c.layout[0::2] != "rr":
        return f"form {c.form} has A and C row-major, layout {c.layout} does not"
    return None


def _dtype(c: GroupedGemmConfig, arch: Arch) -> str | None:
    if DTYPES[c.dtype_a].bits < 8:
        return f"{c.dtype_a} operands are packed, which no grouped kernel reads"
    return None


def _tile(c: GroupedGemmConfig, arch: Arch) -> str | None:
    for axis, size in zip("mnk", (c.tile_m, c.tile_n, c.tile_k), strict=True):
        if size & (size - 1):
            return f"tile_{axis} = {size} is not a power of two"
    return None


def _warpgroups(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    legal = record.num_warps if record else ()
    if legal and c.num_warps not in legal:
        words = " or ".join(map(str, legal))
        return f"pipeline {c.pipeline} multiplies with {words} warps, not {c.num_warps}"
    if legal and c.tile_n < LEAST_COLUMNS:
        return f"tile_n = {c.tile_n} is under {LEAST_COLUMNS}, which {c.pipeline} stores in pieces"
    return None


def _epilogue(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if record and c.epilogue and not record.epilogues:
        others = " and ".join(name for name, record in PIPELINES.items() if record.epilogues)
        return f"pipeline {c.pipeline} has no epilogue {c.epilogue}; {others} have it"
    return None


def _table(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if record and record.table_bytes:
        need = shared_memory(c.one, arch) + record.table_bytes
        if need > arch.shared_memory:
            return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


LEGALITY: tuple[tuple[str, Callable[[GroupedGemmConfig, Arch], str | None]], ...] = (
    ("form", _form),
    ("dtype", _dtype),
    ("tile", _tile),
    ("warpgroups", _warpgroups),
    ("combination", _epilogue),
    ("shared_memory", _table),
)


def judge(config: GroupedGemmConfig, arch: Arch) -> Verdict:
    """Whether `config` may be built for `arch`; if not, the first rule that refuses it."""
    for name, rule in LEGALITY:
        reason = rule(config, arch)
        if reason is not None:
            return no(name, reason)
    return gemm.judge(config.one, arch)


# --- support ----------------------------------------------------------------------------------


def _signature(c: GroupedGemmConfig, p: GroupedGemmProblem) -> str | None:
    if c.form != p.form:
        return f"form is {c.form}, the problem has {p.form}"
    return None


def _groups(c: GroupedGemmConfig, p: GroupedGemmProblem) -> str | None:
    if p.groups > MAX_GROUPS:
        return f"{p.groups} groups, over {MAX_GROUPS}: launch them in parts"
    return None


def _rows(c: GroupedGemmConfig, p: GroupedGemmProblem) -> str | None:
    # Tiles are counted in 32 bits. Offsets that lie give all rows to every second group at most.
    owners = p.groups if p.form == "masked" else -(-p.groups // 2)
    count = owners * -(-p.m // c.tile_m) * -(-p.n // c.tile_n)
    if p.form != "list" and max(count, p.rows) > MOST:
        return f"{p.rows} rows and up to {count} tiles, of which one is over {MOST}"
    record = _record(c)
    if record and record.one.reads == "pointers":
        return None
    if p.rows == 0:
        return "no rows at all, which a tensor map cannot describe"
    if p.rows > MAX_TMA_ROWS:
        return f"{p.rows} rows, over {MAX_TMA_ROWS}"
    return None


SUPPORT: tuple[tuple[str, Callable[[GroupedGemmConfig, GroupedGemmProblem], str | None]], ...] = (
    ("signature", _signature),
    ("groups", _groups),
    ("rows", _rows),
)


def supports(config: GroupedGemmConfig, problem: GroupedGemmProblem, arch: Arch) -> Verdict:
    """Whether `config` on `arch` computes `problem`; if not, the first rule that refuses it."""
    for name, rule in SUPPORT:
        reason = rule(config, problem)
        if reason is not None:
            return no(name, reason)
    verdict = gemm.supports(config.one, problem.one, arch)
    return judge(config, arch) if verdict else verdict
