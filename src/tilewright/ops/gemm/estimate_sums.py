"""What it takes workgroups, or warps, to put the sums of one tile together, for the estimate."""

from __future__ import annotations

from typing import Any

from tilewright.arch.model import Device
from tilewright.ops import physics
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.gemm.sizes import k_parts
from tilewright.ops.pool import Each, either
from tilewright.ops.tile_sharing import shared_tiles


def tile_meeting_us(config: GemmConfig, tiles: int, device: Device) -> float:
    """Time for the workgroups that share a tile to meet."""
    ways = config.split_k
    if config.scheduler == "stream_k":
        ways = stream_ways(tiles, device.compute_units)
    return physics.meeting_us(config.reduction, ways, config.tile_m * config.tile_n, device)


def stream_ways(tiles: int, units: int) -> int:
    """Workgroups that share each of the tiles that whole waves leave over."""
    return max(2, units // (tiles % units or units))


def tiles_apart(config: Any, tiles: Each, units: Each) -> Each:
    """Tiles for each compute unit whose K steps stream-K cuts into shares that cross tiles. The
    shares begin anywhere in K, so no two workgroups read the same bytes at the same time."""
    shared = shared_tiles(config, tiles, units)
    return either(units < 2 * shared, shared / units, 0.0)


def added_up_us(config: GemmConfig) -> float:
    """Time for warps that shared out K to add up their sums of the whole tile, at its end."""
    if k_parts(config) == 1:
        return 0.0
    return GEMM.ADDING_UP_US * config.tile_m * config.tile_n
