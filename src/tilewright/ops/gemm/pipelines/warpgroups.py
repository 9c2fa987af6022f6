"""What the kernels in Gluon for sm_90 have in common, whose warps come in groups of four.

One group loads, or one warp of it; the others multiply by wgmma, each its own rows or its own
tiles, and store them in pieces.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.device import widths
from tilewright.ops.gemm.config import SHARING, GemmConfig
from tilewright.ops.gemm.pipelines.constants import Value

WARPGROUP = 4
"""Warps that issue one wgmma together."""

WARPGROUP_ROWS = 64
"""Rows of C that one wgmma computes."""

ODD_ROWS = 192
"""The one number of rows of a tile that is no power of two: three warp groups' of `gluon_ws`."""

ODD_COLUMNS = (96, 160, 192)
"""Columns of a tile that are no powers of two. They lie in two accumulators (`widths.wide`)."""

PART_COLUMNS = 128
"""Columns of C that `gluon_scaled` computes with one wgmma, or fewer if its tile has fewer."""

SPECIALISATION_BYTES = 512
"""Shared memory these kernels take beside their tiles: two barriers a stage, and what the compiler
hands to the warps."""


def groups(c: GemmConfig) -> int:
    """Warp groups that multiply."""
    return c.num_warps // WARPGROUP


def piece(c: GemmConfig) -> int:
    """Columns of the sums that are staged and stored at a time."""
    return widths.piece(widths.wide(c.tile_n), c.store == "split")


def options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The compiler's options."""
    return options_of(c.num_warps)


def options_of(num_warps: int) -> tuple[tuple[str, Value], ...]:
    """The compiler's options where `num_warps` warps multiply. The kernel has one more warp group,
    for the producer, with its worth of registers; most of these go back to the others."""
    registers = 65536 // (32 * (num_warps + WARPGROUP)) // 8 * 8
    return ("num_warps", WARPGROUP), ("maxnreg", min(registers, 255))


def tile_objection(c: GemmConfig, least_m: int) -> str | None:
    """Why a tile cannot be computed by whole wgmma, for kernels with at least `least_m` rows."""
    if c.tile_m < least_m:
        return f"tile_m = {c.tile_m} is under {least_m}, the rows {c.num_warps} warps multiply"
    least_n = 64 if c.store == "split" else 32
    if c.tile_n < least_n:
        return f"tile_n = {c.tile_n} is under {least_n}, which store {c.store} cuts into pieces"
    if (c.tile_m == ODD_ROWS or c.tile_n in ODD_COLUMNS) and c.scheduler in SHARING:
        return f"tiles of {c.tile_m}x{c.tile_n} are not shared"
    if c.tile_n in ODD_COLUMNS and (reason := _odd_columns(c)):
        return reason
    if c.dtype_a == "fp32" and c.precision != "tf32":
        return "wgmma does not take fp32 operands; precision tf32 would round them"
    bits = DTYPES[c.dtype_a].bits
    if c.tile_k * bits < 256:
        return f"tile_k = {c.tile_k} is under {256 // bits}, the least wgmma multiplies"
    if bits != 16 and c.layout[:2] != "rc":
        return (
            f"wgmma takes {bits}-bit operands with K contiguous, so the layout must begin with rc;"
            f" {c.layout} does not"
        )
    return None


def _odd_columns(c: GemmConfig) -> str | None:
    """Why a tile cannot have two accumulators of different widths. B is copied in boxes of the
    second's width, which lie together as one tile, and C leaves in pieces that make up both."""
    rest = c.tile_n - widths.wide(c.tile_n)
    if c.tile_k * DTYPES[c.dtype_a].bits != 1024:
        return f"tile_n = {c.tile_n} is made of parts, which rows of 128 bytes of B allow"
    if c.layout[1] == "r" and rest * DTYPES[c.dtype_b].bits != 1024:
        return f"tile_n = {c.tile_n} copies {rest} columns of B at a time, so B is column-major"
    if rest % piece(c):
        return f"tile_n = {c.tile_n} leaves in parts of {rest} columns, so it needs store split"
    return None
