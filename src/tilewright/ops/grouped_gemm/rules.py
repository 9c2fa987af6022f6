"""The rules of grouped GEMM: which configs an architecture can build, and which problems a config
can serve.

A config is a GEMM kernel run for one group after another, so the rules are those of this kernel
(`gemm.legality`, `gemm.support`), applied to `GroupedGemmConfig.one` and
`GroupedGemmProblem.one`. The tables here add the rules for groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops import epilogues
from tilewright.ops.gemm import legality, scales, support
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.pipelines.warpgroups import PART_COLUMNS, WARPGROUP_ROWS
from tilewright.ops.gemm.pipelines.weights import elementwise
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import MAX_GROUPS, PIPELINES, GroupedPipeline, table_of
from tilewright.ops.grouped_gemm.problem import BLOCK, GroupedGemmProblem
from tilewright.ops.pool import Objections, Pool, each
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


def _through_pointers(c: GroupedGemmConfig) -> bool:
    record = _record(c)
    return record is not None and record.one.reads == "pointers"


def _gates_apart(c: GroupedGemmConfig) -> bool:
    record = _record(c)
    return record is not None and record.gates_apart


def _form(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    takes = record is not None and c.form in record.forms
    if record and not takes and record.one.reads == "pointers":
        others = " and ".join(name for name, other in PIPELINES.items() if c.form in other.forms)
        return f"pipeline {c.pipeline} has no form {c.form}; {others} have it"
    if c.form in ("list", "gathered") and not takes:
        where = "where a list's matrices lie" if c.form == "list" else "which rows of A are meant"
        return (
            f"pipeline {c.pipeline} reads through tensor maps, made before the launch; {where} is "
            "read on the device, which basic does"
        )
    if c.form == "list":
        if c.index_bits != 32:
            return "a matrix of a list spans under 2 GiB, so index_bits stays 32"
    elif c.form == "weights":
        return _weights(c) if takes else f"pipeline {c.pipeline} has no form weights"
    elif c.layout[0::2] != "rr":
        if c.form != "contiguous" or c.layout[2] != "c":
            return f"form {c.form} has A and C row-major, layout {c.layout} does not"
        if c.pipeline != "basic":
            return (
                f"layout {c.layout} is that of groups of columns, which end inside rows of C: "
                f"pipeline {c.pipeline} stores whole rows, or whole 16 bytes of one; basic any"
            )
    return None


def _weights(c: GroupedGemmConfig) -> str | None:
    if c.layout[2] != "r":
        return f"form weights has C row-major, layout {c.layout} does not"
    if not c.pad_k:
        return "groups of form weights end anywhere along K: declare pad_k"
    if not _through_pointers(c) and c.layout != "crr":
        return (
            f"pipeline {c.pipeline} copies boxes that end with a group along their rows, so K is "
            f"the rows of both operands, as in layout crr, not {c.layout}; basic takes any"
        )
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


def _those(form: str, parameter: str) -> str:
    """The pipelines whose kernel for a form takes a parameter."""
    records = PIPELINES.items()
    return " and ".join(n for n, one in records if form in one.forms and one.takes(form, parameter))


def _epilogue(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if record and c.epilogue and not record.takes(c.form, "extra"):
        others = _those(c.form, "extra")
        return f"pipeline {c.pipeline} has no epilogue {c.epilogue}; {others} have it"
    return _gate(c) if c.epilogue and _gates_apart(c) else None


def _gate(c: GroupedGemmConfig) -> str | None:
    """Why a pipeline that takes gates apart has no such epilogue."""
    if epilogues.fold(c.epilogue) != 2 or epilogues.has_matrix(c.epilogue):
        return (
            f"pipeline {c.pipeline} has no epilogue {c.epilogue}, but gates (swiglu) without a "
            "matrix"
        )
    rows = WARPGROUP_ROWS * warpgroups.groups(c.one)
    if (c.tile_m, c.tile_n) != (rows, 2 * PART_COLUMNS):
        return (
            f"a warp group of {c.pipeline} has a part of gates and one of their ups, so with "
            f"{c.num_warps} warps and {c.epilogue} the tile is {rows}x{2 * PART_COLUMNS}, not "
            f"{c.tile_m}x{c.tile_n}"
        )
    return None


def _rounded(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if not c.quant or record is None:
        return None
    if not record.takes(c.form, "quants"):
        return f"pipeline {c.pipeline} makes no scales; {_those(c.form, 'quants')} make them"
    columns = c.tile_n // epilogues.fold(c.epilogue)
    if columns % BLOCK:
        return f"a tile has {columns} columns of C, no whole {BLOCK}s that share a scale"
    return None


def _scales(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if record and scales.count(c) and not record.takes(c.form, "scales"):
        others = _those(c.form, "scales")
        return f"pipeline {c.pipeline} has no block scales; {others} have them"
    return None


def _zeros(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if not c.zero_b or record is None:
        return None
    if not record.takes(c.form, "zeros"):
        return f"pipeline {c.pipeline} has no zero points; {_those(c.form, 'zeros')} has them"
    if elementwise(c.one):
        return "scales that are multiplied into the elements (e8m0) go with no zero points"
    return None


def _several_blocks(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record, depth = _record(c), scales.k_block(c)
    if record and record.one_block and depth and c.tile_k != depth:
        return f"tile_k = {c.tile_k} is not the {depth} of K that one scale serves in {c.pipeline}"
    return None


def _table(c: GroupedGemmConfig, arch: Arch) -> str | None:
    record = _record(c)
    if record and record.table_bytes:
        _, table = table_of(c)
        need = shared_memory(c.one, arch) + table
        if need > arch.shared_memory:
            return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


LEGALITY: tuple[tuple[str, Callable[[GroupedGemmConfig, Arch], str | None]], ...] = (
    ("form", _form),
    ("tile", _tile),
    ("warpgroups", _warpgroups),
    ("combination", _epilogue),
    ("quant", _rounded),
    ("scales", _scales),
    ("scales", _several_blocks),
    ("zeros", _zeros),
    ("shared_memory", _table),
)


def judge(config: GroupedGemmConfig, arch: Arch) -> Verdict:
    """Whether `config` may be built for `arch`; if not, the first rule that refuses it."""
    for name, rule in LEGALITY:
        reason = rule(config, arch)
        if reason is not None:
            return no(name, reason)
    whole = one(config)
    if _gates_apart(config):  # the GEMM's kernel has none
        whole = replace(whole, epilogue="")
    return legality.judge(whole, arch)


# --- support ----------------------------------------------------------------------------------


def _signature(c: Any, p: GroupedGemmProblem) -> Objections:
    yield c.form != p.walked, "form is {c.form}, the problem has {p.walked}".format
    yield c.zero_b != p.zero_b, "zero_b is {c.zero_b}, the problem has {p.zero_b}".format
    yield c.quant != p.quant, "quant is '{c.quant}', the problem has '{p.quant}'".format


def _groups(c: Any, p: GroupedGemmProblem) -> Objections:
    said = f"{p.groups} groups, over {MAX_GROUPS}: launch them in parts"
    yield p.groups > MAX_GROUPS, said.format
    said = f"{p.groups} groups, more than {{c.pipeline}} keeps with store {{c.store}}"
    yield p.groups > each(c, _most_groups), said.format


def _most_groups(c: GroupedGemmConfig) -> int:
    most, _ = table_of(c)
    return most


def _rows(c: Any, p: GroupedGemmProblem) -> Objections:
    # Tiles are counted in 32 bits. Offsets that lie give all rows to every second group at most.
    one, each_its_own = p.one, p.form in ("masked", "weights")
    owners = p.groups if each_its_own else -(-p.groups // 2)
    rows = p.m if each_its_own else one.m
    count = float(owners) * (-(-rows // c.tile_m) * -(-one.n // c.tile_n))
    said = "{p.rows} rows and up to {:.0f} tiles, of which one is over {}"
    over = (count > MOST) | (p.rows > MOST)
    yield over & (p.form != "list"), partial(said.format, count, MOST)
    maps = each(c, _through_pointers) ^ True
    described = p.k if p.form == "weights" else p.rows
    yield maps & (described == 0), "no rows at all, which a tensor map cannot describe".format
    yield maps & (described > MAX_TMA_ROWS), f"{described} rows, over {MAX_TMA_ROWS}".format


def _apart(c: Any, p: GroupedGemmProblem) -> Objections:
    if epilogues.fold(p.epilogue) != 2:
        return
    apart = each(c, _gates_apart)
    turns = (each(c, _through_pointers) | apart) ^ True
    said = "scales of gates and ups that lie apart, which {c.pipeline} takes for those of turns"
    yield turns & (p.gates_apart and bool(scales.of(p))), said.format
    said = "gates and ups by turns, which {c.pipeline} takes for those that lie apart"
    yield apart & (not p.gates_apart), said.format
    half = p.n // 2
    said = f"ups begin at column {half}, inside one of the {PART_COLUMNS} that share a scale"
    yield apart & (bool(p.scale_b) and half % PART_COLUMNS > 0), said.format


SUPPORT: tuple[tuple[str, Callable[[Any, GroupedGemmProblem], Objections]], ...] = (
    ("signature", _signature),
    ("groups", _groups),
    ("rows", _rows),
    ("gates_apart", _apart),
)
"""Each rule judges a config, or the `Columns` of several."""


def supports(config: GroupedGemmConfig, problem: GroupedGemmProblem, arch: Arch) -> Verdict:
    """Whether `config` on `arch` computes `problem`; if not, the first rule that refuses it."""
    for name, rule in SUPPORT:
        for refused, why in rule(config, problem):
            if refused:
                return no(name, str(why(c=config, p=problem)))
    verdict = support.takes(one(config), problem.one)
    return judge(config, arch) if verdict else verdict


def serving(problem: GroupedGemmProblem, configs: Pool, arch: Arch) -> Sequence[int]:
    """The places of the configs of which `supports` says yes, in order."""
    c = configs.columns
    refused = each(c, _illegal, arch) | support.unsupported(each(c, one), problem.one)
    for _, rule in SUPPORT:
        for objected, _ in rule(c, problem):
            refused = refused | objected
    return [i for i, no in enumerate(refused.tolist()) if not no]


def one(config: GroupedGemmConfig) -> GemmConfig:
    """The GEMM kernel that computes a tile as a grouped kernel does; of `Columns`, each is made
    once."""
    record = _record(config)
    return replace(config.one, scheduler=record.scheduler) if record else config.one


def _illegal(config: GroupedGemmConfig, arch: Arch) -> bool:
    return not judge(config, arch)
