"""The rules of merging states: which configs an architecture can build, and which problems a config
can serve. Each rule is a function that returns a reason, or None."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import reasons
from tilewright.ops.merge_states.config import MergeStatesConfig
from tilewright.ops.merge_states.problem import MOST, MOST_HEAD_DIM, MergeStatesProblem
from tilewright.verdict import YES, Verdict, no

MOST_TILE = 2**14
OVERHEAD_REGISTERS = 48
"""Registers of a thread beside tiles: addresses, logarithms, masks."""


def _dtype(c: MergeStatesConfig, arch: Arch) -> str | None:
    return reasons.dtypes(arch, (c.dtype,))


def _form(c: MergeStatesConfig, arch: Arch) -> str | None:
    if c.masked and c.form != "in_place":
        return "a mask is of a merge in place"
    if c.form != "stack" and c.states != 1:
        return f"a pair has one state beside the other, not {c.states}"
    return None


def _tile(c: MergeStatesConfig, arch: Arch) -> str | None:
    for axis in ("tile_m", "tile_n", "states", "num_warps"):
        size = getattr(c, axis)
        if size & (size - 1):
            return f"{axis} = {size} is not a power of two"
    if c.tile_n > MOST_HEAD_DIM:
        return f"{c.tile_n} columns, over {MOST_HEAD_DIM}"
    elements = c.tile_m * c.states * c.tile_n
    if elements > MOST_TILE:
        return f"{elements} elements at a time, over {MOST_TILE}"
    if (too_many := reasons.warps(arch, c.num_warps)) is not None:
        return too_many
    threads = c.num_warps * arch.warp_size
    each = (elements + 2 * c.tile_m * c.tile_n) // threads
    warps_per_simd = -(-c.num_warps // arch.simds_per_cu)
    available = min(arch.max_registers, arch.registers_per_lane // warps_per_simd)
    if each + OVERHEAD_REGISTERS > available:
        return f"{each} elements and {OVERHEAD_REGISTERS} registers a thread, over {available}"
    return None


LEGALITY: tuple[tuple[str, Callable[[MergeStatesConfig, Arch], str | None]], ...] = (
    ("dtype", _dtype),
    ("form", _form),
    ("tile", _tile),
)


def judge(config: MergeStatesConfig, arch: Arch) -> Verdict:
    """May `config` be built for `arch`? The first rule that refuses it."""
    for name, rule in LEGALITY:
        if (reason := rule(config, arch)) is not None:
            return no(name, reason)
    return YES


SIGNATURE = ("dtype", "form", "masked")
"""Fields that a config and a problem share."""


def _signature(c: MergeStatesConfig, p: MergeStatesProblem) -> str | None:
    for field in SIGNATURE:
        if (has := getattr(c, field)) != (wants := getattr(p, field)):
            return f"is for {field} '{has}', not '{wants}'"
    return None


def vector(p: MergeStatesProblem) -> int:
    """Bytes, up to 16, that elements of a head may be read by at a time."""
    return math.gcd(p.alignment, p.head_dim * DTYPES[p.dtype].bytes)


def _aligned(c: MergeStatesConfig, p: MergeStatesProblem) -> str | None:
    if vector(p) % c.alignment:
        return f"heads are aligned to {vector(p)} bytes, under {c.alignment}"
    return None


def _size(c: MergeStatesConfig, p: MergeStatesProblem) -> str | None:
    if p.head_dim > c.tile_n:
        return f"has room for {c.tile_n} columns, under the {p.head_dim} of a head"
    if p.rows * p.heads > MOST - c.tile_m:
        return f"{p.rows * p.heads} heads of rows, over {MOST - c.tile_m}"
    return None


SUPPORT: tuple[tuple[str, Callable[[MergeStatesConfig, MergeStatesProblem], str | None]], ...] = (
    ("signature", _signature),
    ("vector_width", _aligned),
    ("size", _size),
)


def supports(config: MergeStatesConfig, problem: MergeStatesProblem, arch: Arch) -> Verdict:
    """Can `config`, built for `arch`, compute `problem`?"""
    for name, rule in SUPPORT:
        if (reason := rule(config, problem)) is not None:
            return no(name, reason)
    return judge(config, arch)
