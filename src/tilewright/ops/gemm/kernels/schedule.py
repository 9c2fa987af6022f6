"""Which output tile a workgroup computes: shared by every GEMM kernel.

Tiles are numbered so that `GROUP_M` rows of tiles are walked column by column: workgroups that
run together then share rows of A and columns of B in L2 (the "grouped ordering" of the Triton
matrix-multiplication tutorial; CK Tile calls it the tile partitioner).
"""

import triton
import triton.language as tl


@triton.jit
def tile_coordinates(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of output tile number `tile` among tiles_m × tiles_n."""
    tiles_in_group = GROUP_M * tiles_n
    first_m = (tile // tiles_in_group) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    within = tile % tiles_in_group
    return first_m + within % group_m, within // group_m
