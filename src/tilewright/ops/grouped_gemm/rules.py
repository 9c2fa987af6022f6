"""Which grouped GEMM configs an architecture can have, and which problems a config can serve.

A config is a GEMM kernel run for one group after another, so the rules are those of that kernel
(`tilewright.ops.gemm.rules`), asked about `GroupedGemmConfig.one` and `GroupedGemmProblem.one`;
the tables here have what groups add.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import rules as gemm
from tilewright.ops.gemm.sizes import WARPGROUP, shared_memory
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem
from tilewright.verdict import Verdict, no

MAX_GROUPS = 1024
"""Most groups of one launch: a kernel keeps the number of each group's tiles at hand."""

MAX_TMA_ROWS = 2**30
"""Rows of C that a tensor map which ends inside them can count."""

TABLE_BYTES = 4 * MAX_GROUPS
"""Shared memory that `gluon_ws` takes for the numbers of tiles."""


# --- legality ---------------------------------------------------------------------------------


def _form(c: GroupedGemmConfig, arch: Arch) -> str | None:
    if c.form == "list":
        if c.pipeline != "basic":
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
    if c.pipeline == "gluon_ws" and c.num_warps not in (WARPGROUP, 2 * WARPGROUP):
        return f"pipeline gluon_ws multiplies with 4 or 8 warps, not {c.num_warps}"
    return None


def _epilogue(c: GroupedGemmConfig, arch: Arch) -> str | None:
    if c.pipeline == "gluon_ws" and c.epilogue:
        return f"pipeline gluon_ws has no epilogue {c.epilogue}; basic and tma have it"
    return None


def _table(c: GroupedGemmConfig, arch: Arch) -> str | None:
    if c.pipeline == "gluon_ws":
        need = shared_memory(c.one, arch) + TABLE_BYTES
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
    """Whether `config` may be built for `arch`; else the first rule against it."""
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
    if c.pipeline == "basic":
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
    """Whether `config` on `arch` computes `problem`; else the first rule against it."""
    for name, rule in SUPPORT:
        reason = rule(config, problem)
        if reason is not None:
            return no(name, reason)
    verdict = gemm.supports(config.one, problem.one, arch)
    return judge(config, arch) if verdict else verdict
