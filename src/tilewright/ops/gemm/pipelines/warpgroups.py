"""What the kernels in Gluon for sm_90 have in common, whose warps come in groups of four.

One group loads, or one warp of it; the others multiply by wgmma, each its own rows or its own
tiles, and store them in pieces.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.binder import Value
from tilewright.ops.device import widths
from tilewright.ops.gemm import clusters
from tilewright.ops.gemm.config import GemmConfig

WARPGROUP = 4
"""Warps that issue one wgmma together."""

WARPGROUP_ROWS = 64
"""Rows of C that one wgmma computes."""

ODD_ROWS = 192
"""The one number of rows of a tile that is no power of two: three warp groups' of `gluon_ws`."""

MOST_PARTS = 3
"""Accumulators of a tile. Each reads A from shared memory again."""

ODD_COLUMNS = tuple(
    columns for columns in range(8, 256, 8) if 1 < len(widths.parts(columns)) <= MOST_PARTS
)
"""Columns of a tile that are no powers of two, 24 to 224: all in steps of 8, but those that would
take more accumulators."""

MOST_SUMS_IN_PARTS = 208
"""Accumulators of a thread that hold parts of a tile. The compiler spilled 112 bytes of 224 and
waited for each wgmma; nothing of 208, with an epilogue too."""

LEAST_SPLIT = 64
"""Columns of a tile whose accumulators leave in quarters."""

LEAST_COPIED = 16
"""Bytes of a row that the copy engine moves at least."""

LEAST_ROW_OF_B = 32
"""Bytes of a row of row-major B: the narrowest swizzle."""

PART_COLUMNS = 128
"""Columns of C that `gluon_scaled` computes with one wgmma, or fewer if its tile has fewer."""

MOST_BESIDE = 64 * 128
"""Elements of a tile that one warp group computes in a workgroup that shares an SM: wgmma of wider
tiles need more registers at launch than such workgroups have."""

SPECIALISATION_BYTES = 512
"""Shared memory these kernels take beside their tiles: two barriers a stage, and what the compiler
hands to the warps."""


def groups(c: GemmConfig) -> int:
    """Warp groups that multiply."""
    return c.num_warps // WARPGROUP


def piece(c: GemmConfig) -> int:
    """Columns of the sums that are staged and stored at a time."""
    return widths.piece(widths.wide(clusters.columns(c)), c.store == "split")


def rests(c: GemmConfig) -> tuple[tuple[int, int], ...]:
    """Columns of B and of C that one copy moves, for each accumulator behind the first."""
    fold = epilogues.fold(c.epilogue)
    return tuple((part, min(part, piece(c)) // fold) for part in widths.parts(c.tile_n)[1:])


def options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The compiler's options."""
    return options_of(c.num_warps)


def options_beside(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The compiler's options for kernels that may be followed by one that starts early
    (`dependent_launch`, and reduction ``two_stage``). A small kernel then takes half of an SM's
    registers: the next kernel starts on an SM where this one still runs, if shared memory has room
    for both. The one group that multiplies still has 232 registers."""
    small = groups(c) == 1 and c.tile_m * c.tile_n <= MOST_BESIDE
    followed = c.two_stage or c.dependent_launch != "none"
    return options_of(c.num_warps, sharers=2 if small and followed else 1)


def options_of(num_warps: int, sharers: int = 1) -> tuple[tuple[str, Value], ...]:
    """The compiler's options where `num_warps` warps multiply. The kernel has one more warp group,
    for the producer, with its worth of registers; most of these go back to the others. sharers:
    workgroups that fit an SM's registers together."""
    registers = 65536 // (32 * (num_warps + WARPGROUP) * sharers) // 8 * 8
    return ("num_warps", WARPGROUP), ("maxnreg", min(registers, 255))


def tile_objection(c: GemmConfig, least_m: int, sums: int) -> str | None:
    """Why a tile cannot be computed by whole wgmma, for kernels with at least `least_m` rows and
    `sums` accumulators a thread."""
    if c.tile_m < least_m:
        return f"tile_m = {c.tile_m} is under {least_m}, the rows {c.num_warps} warps multiply"
    if c.store == "split" and (stored := clusters.columns(c)) < LEAST_SPLIT:
        what = f"a workgroup's share, {stored} columns," if c.clustered else f"tile_n = {c.tile_n}"
        return f"{what} is under {LEAST_SPLIT}, which store split cuts into pieces"
    if (c.tile_m == ODD_ROWS or c.tile_n in ODD_COLUMNS) and (c.parts_meet or c.clustered):
        return f"tiles of {c.tile_m}x{c.tile_n} are shared with reduction two_stage alone"
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
    if c.tile_n in ODD_COLUMNS and sums > MOST_SUMS_IN_PARTS:
        return f"{sums} accumulators a thread in parts, over {MOST_SUMS_IN_PARTS}: they would spill"
    return _narrow_part(c)


def _narrow_part(c: GemmConfig) -> str | None:
    """Why a tile's narrowest part cannot be copied: the copy engine moves rows of whole 16 bytes,
    and wgmma transposes rows of B that a swizzle spans, of 32 bytes or more."""
    *_, columns = widths.parts(c.tile_n)
    said = f"tile_n = {c.tile_n} is made of parts, the narrowest with {columns} columns"
    if c.layout[1] == "r" and DTYPES[c.dtype_b].size(columns) < LEAST_ROW_OF_B:
        return f"{said}: rows of B under {LEAST_ROW_OF_B} bytes, which wgmma does not transpose"
    stored = min(columns, piece(c)) // epilogues.fold(c.epilogue)
    if c.layout[2] == "r" and DTYPES[c.dtype_c].size(stored) < LEAST_COPIED:
        return f"{said}: rows of C under {LEAST_COPIED} bytes, which no copy stores"
    return None
