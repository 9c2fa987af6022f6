"""Workgroups that share a compute unit: of low tiles, which are for few rows.

There memory's latency counts: a workgroup that finds its tile, waits, or stores asks for nothing.
A grid has as many workgroups as a device holds at once, and each walks its share of the tiles. One
that finds no place would begin when others have ended, and walk its share alone. So the compiler is
told how many registers leave room for all.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Value
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP, WARPGROUP_ROWS
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES

ROWS = 32
"""Rows of a low tile at most."""
MOST = 4
"""Workgroups of low tiles for each compute unit at most."""
FEW_SUMS, FEW_REGISTERS, MOST_REGISTERS = 16, 128, 255
"""Sums of a thread up to which so few registers do; else the most that a thread can have. Of 8-bit
floats the compiler holds what it converts, and left alone takes 168 for 16 sums (sm_90). Elements
that are loaded by themselves are held too: so few spilled 656 bytes of a thread there of a
16×128×64 tile in bf16, and 80 with the most."""


def low(config: GroupedGemmConfig) -> bool:
    """Whether a config's tiles are low."""
    return config.tile_m <= ROWS


def resident(config: GroupedGemmConfig, arch: Arch) -> int:
    """Workgroups for each compute unit."""
    found = PIPELINES[config.pipeline].workgroups
    if not low(config) or not arch.shared_memory_per_cu:
        return found
    shared, registers = shared_memory(config.one, arch), 1
    if _told(config, arch):
        lanes = config.num_warps * arch.warp_size
        few = config.alignment > 1 and config.tile_m * config.tile_n <= FEW_SUMS * lanes
        registers = FEW_REGISTERS if few else MOST_REGISTERS
        if arch.async_mma and config.num_stages > 1 and not turned(config, arch):
            # Matrix instructions that read shared memory are for higher tiles: the stage in use is
            # in registers, and has no buffer.
            shared -= common.stage(config.one)
    return max(found, min(MOST, physics.resident(arch, registers, shared, config.num_warps)))


def turned(config: GroupedGemmConfig, arch: Arch) -> bool:
    """Whether a tile's columns of B are the rows that matrix instructions read from shared memory:
    where these are for higher tiles, and both operands' rows of K lie in whole 16 bytes."""
    of_16 = DTYPES[config.dtype_a].bits <= 16 and config.dtype_a == config.dtype_b
    units = (unit for unit in arch.mma if unit.instruction == "wgmma")
    reading = of_16 and any(config.dtype_a in unit.dtypes for unit in units)
    rows = WARPGROUP_ROWS * (config.num_warps // WARPGROUP)
    fits = config.tile_m < WARPGROUP_ROWS and config.tile_n >= rows > 0
    return reading and fits and config.layout[:2] == "rc" and config.alignment > 1


def options(config: GroupedGemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The compiler's options for room beside each other."""
    count = resident(config, arch)
    if count == 1 or not low(config) or not _told(config, arch):
        return ()
    lanes = arch.registers_per_lane * arch.simds_per_cu
    return (("maxnreg", min(lanes // (config.num_warps * count) // 8 * 8, MOST_REGISTERS)),)


def _told(config: GroupedGemmConfig, arch: Arch) -> bool:
    """Whether the compiler is told of registers: not where B is made in them, which takes more."""
    return arch.backend == "cuda" and not PIPELINES[config.pipeline].one.has("b_in_registers")
