"""The rules of causal convolutions: which configs an architecture can build, and which problems a
config can serve. Each rule is a function that returns a reason, or None."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.model import Arch
from tilewright.ops import reasons
from tilewright.ops.causal_conv.config import CausalConvConfig
from tilewright.ops.causal_conv.problem import EXTRAS, CausalConvProblem, vector
from tilewright.ops.limits import INT32_SPAN
from tilewright.verdict import YES, Verdict, no

MOST_TILE = 2**14
OVERHEAD_REGISTERS = 48
"""Registers of a thread beside tiles: places of positions, masks, addresses."""

MOST_NUMBER = 2**31 - 2**20


def tiles(c: CausalConvConfig) -> int:
    """Tiles in registers at once."""
    if c.direction == "backward":
        return 3 * c.taps + 2  # positions around, and sums
    return 2 if c.direction == "forward" else 2 * c.taps


def _dtype(c: CausalConvConfig, arch: Arch) -> str | None:
    return reasons.dtypes(arch, (c.dtype, c.dtype_w))


def _extras(c: CausalConvConfig, arch: Arch) -> str | None:
    for word, directions in EXTRAS.items():
        if c.has(word) and c.direction not in directions:
            return f"'{word}' is nothing that direction {c.direction} has"
    if c.has("packed") and (c.has("initial") or c.has("final")):
        return "packed sequences have no initial or final states"
    return None


def _tile(c: CausalConvConfig, arch: Arch) -> str | None:
    for axis, size in (("m", c.tile_m), ("n", c.tile_n)):
        if size & (size - 1):
            return f"tile_{axis} = {size} is not a power of two"
    if c.tile_m * c.tile_n > MOST_TILE:
        return f"a tile of {c.tile_m * c.tile_n} elements, over {MOST_TILE}"
    if c.direction == "update" and (c.tile_m != 1 or c.inner != "any"):
        return "an update takes one position at a time, in any layout: tile_m is 1, inner is any"
    threads = c.num_warps * arch.warp_size
    if c.num_warps & (c.num_warps - 1) or threads > arch.max_threads:
        return f"{c.num_warps} warps are not a power of two, or over {arch.max_threads} threads"
    if c.tile_m * c.tile_n < threads:
        # Of an update, each element of a state is then read and written by one thread.
        return f"tiles of {c.tile_m * c.tile_n} elements have no work for {threads} threads"
    each = c.tile_m * c.tile_n // threads * tiles(c)
    warps_per_simd = -(-c.num_warps // arch.simds_per_cu)
    available = min(arch.max_registers, arch.registers_per_lane // warps_per_simd)
    if each + OVERHEAD_REGISTERS > available:
        return f"{each} elements and {OVERHEAD_REGISTERS} registers a thread, over {available}"
    return None


LEGALITY: tuple[tuple[str, Callable[[CausalConvConfig, Arch], str | None]], ...] = (
    ("dtype", _dtype),
    ("extras", _extras),
    ("tile", _tile),
)


def judge(config: CausalConvConfig, arch: Arch) -> Verdict:
    """May `config` be built for `arch`? The first rule that refuses it."""
    for name, rule in LEGALITY:
        if (reason := rule(config, arch)) is not None:
            return no(name, reason)
    return YES


SIGNATURE = ("direction", "taps", "dtype", "dtype_w", "extras")
"""Fields that a config and a problem share."""


def _signature(c: CausalConvConfig, p: CausalConvProblem) -> str | None:
    for field in SIGNATURE:
        if (has := getattr(c, field)) != (wants := getattr(p, field)):
            return f"is for {field} '{has}', not '{wants}'"
    return None


def _aligned(c: CausalConvConfig, p: CausalConvProblem) -> str | None:
    inner, alignment = vector(p)
    if c.inner not in (inner, "any"):
        return f"is for neighbouring {c.inner}, but x and y have neighbouring {inner}"
    if c.inner != "any" and alignment < c.alignment:
        return f"x and y are aligned to {alignment} bytes, under {c.alignment}"
    return None


def index_bits(p: CausalConvProblem) -> int:
    """Bits of the indices that reach all elements."""
    return 32 if p.most_span() < INT32_SPAN else 64


def _index(c: CausalConvConfig, p: CausalConvProblem) -> str | None:
    if c.index_bits < index_bits(p):
        return f"an array spans {p.most_span()} bytes, which 32-bit indices do not reach"
    per = -(-(p.tokens + p.taps) // c.tile_m) * -(-p.channels // c.tile_n)
    if p.batch * per > MOST_NUMBER or p.tokens + p.taps > MOST_NUMBER:
        return f"{p.batch * per} tiles, over {MOST_NUMBER}"
    return None


SUPPORT: tuple[tuple[str, Callable[[CausalConvConfig, CausalConvProblem], str | None]], ...] = (
    ("signature", _signature),
    ("vector_width", _aligned),
    ("index", _index),
)


def supports(config: CausalConvConfig, problem: CausalConvProblem, arch: Arch) -> Verdict:
    """Can `config`, built for `arch`, compute `problem`?"""
    for name, rule in SUPPORT:
        if (reason := rule(config, problem)) is not None:
            return no(name, reason)
    return judge(config, arch)
