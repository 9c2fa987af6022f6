"""What a workgroup's warps (waves) do with a tile on AMD GPUs, as the estimate needs it.

Counts of executed kernels agree with this (`benchmarks/emulated_counts.py`): products that several
warps repeat, the rate of the instruction that a tile gets, bytes that warps read from shared
memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.model import Arch
from tilewright.ops.gemm import cdna, pipelines
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.sizes import k_parts, operand_dtype
from tilewright.ops.gemm.small_m import vector

OLDER_SHARE = 0.5
"""Share of the matrix rate where a tile is too shallow for every instruction of its architecture's
list, so that the compiler takes one of the generation before (gfx950)."""


@dataclass(frozen=True, slots=True)
class Warps:
    """Warps of a workgroup over a tile.

    down, across: into how many parts warps divide the tile's rows and columns.
    again: how many warps compute each part.
    share: of the published matrix rate of the operands, what the tile's instruction has.
    reads: how many lanes read each element of A and B that a warp multiplies.
    """

    down: int
    across: int
    again: float
    share: float
    reads: int


def warps(config: GemmConfig, arch: Arch) -> Warps | None:
    """The warps of a kernel that multiplies whole tiles on matrix units. None on other GPUs, for
    products on the vector units, and where warps share out K."""
    record = pipelines.of(config)
    dtype = operand_dtype(config)
    word = arch.dtypes[dtype].via or dtype
    units = [unit for unit in arch.mma if word in unit.dtypes]
    on_matrix_units = bool(units) and (arch.dot == "matrix" or not record.has("dot"))
    shares_k = record.has("few_rows") and (vector(config) or k_parts(config) > 1)
    if arch.backend != "hip" or shares_k or not on_matrix_units:
        return None
    if not record.in_triton:
        mapping = cdna.mapping(config, arch)
        edge, lie = mapping.mma[0], (mapping.warps_m, config.num_warps // mapping.warps_m)
    else:
        widths = {shape[0] for unit in units for shape in unit.shapes}
        least = min(config.tile_m, config.tile_n)
        edge = config.mma[0] or max((w for w in widths if w <= least), default=min(widths))
        if record.has("transposed"):
            lie = laid(config.tile_n, config.tile_m, config.num_warps, edge)[::-1]
        else:
            lie = laid(config.tile_m, config.tile_n, config.num_warps, edge)
    down = min(lie[0], -(-config.tile_m // edge))
    across = min(lie[1], -(-config.tile_n // edge))
    published = max(unit.flops_per_cu_per_clock for unit in units)
    fitting = [
        (shape[2], unit.flops_per_cu_per_clock)
        for unit in units
        for shape in unit.shapes
        if shape[0] == edge and config.tile_k % shape[2] == 0
    ]
    share = max(fitting)[1] / published if fitting else OLDER_SHARE
    return Warps(down, across, config.num_warps / (down * across), share, arch.operand_copies)


def laid(tile_m: int, tile_n: int, num_warps: int, edge: int) -> tuple[int, int]:
    """How many warps Triton lays along M and along N, for instructions of `edge` rows and columns
    (`warpsPerTile` in its AccelerateAMDMatmul.cpp, for a single product)."""
    down, across = 1, 1
    while down * across < num_warps:
        behind = tile_m // (2 * edge) // down >= tile_n // edge // across
        if behind and down < tile_m // edge:
            down *= 2
        else:
            across *= 2
    return (across, down) if across * edge > tile_n else (down, across)
