"""What it takes workgroups, or warps, to put the sums of one tile together, for the estimate."""

from __future__ import annotations

import math

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.ops import terms
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.estimate_step import port_rate
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.gemm.sizes import k_parts
from tilewright.ops.tile_sharing import shared_tiles


def tile_meeting_us(config: GemmConfig, tiles: int, device: Device) -> float:
    """Time for the workgroups that share a tile to meet."""
    ways = config.split_k
    if config.scheduler == "stream_k":
        ways = stream_ways(tiles, device.compute_units)
    return meeting_us(config.reduction, ways, config.tile_m * config.tile_n, device)


def stream_ways(tiles: int, units: int) -> int:
    """Workgroups that share each of the tiles that whole waves leave over."""
    return max(2, units // (tiles % units or units))


def meeting_us(reduction: str, ways: int, sums: int, device: Device) -> float:
    """Time for `ways` workgroups that share a tile of so many sums to meet. Each publishes its
    sums. Then the last workgroup reads the sums of the others (``linear``) or the sum that atomics
    made; in a ``tree`` two workgroups meet at each level, and one of them reads the sums of the
    other. In a ``cluster`` each sends all but its share to the others."""
    partial = sums * 4
    read = partial / port_rate(device)
    stored = partial / DEVICE.STORE_SHARE / port_rate(device)
    if reduction == "tree":
        levels = math.ceil(math.log2(ways))
        again = (levels - 1) * GEMM.MEETING_AGAIN_US
        return GEMM.MEETING_US + again + levels * (stored + read)
    if reduction == "cluster":
        return GEMM.CLUSTER_US + (ways - 1) / ways * stored
    reads = {"linear": ways, "atomic": GEMM.ATOMIC_READS}
    later = math.log2(ways / 2) * GEMM.LATER_US
    return GEMM.MEETING_US + later + stored + read * reads[reduction]


def totals_us(partials: int, device: Device, start: float = DEVICE.SECOND_US) -> float:
    """Time of a kernel that adds up parts of sums that another stored, and of their way to memory
    and back.

    partials: bytes. start: what the kernel takes without any.
    """
    there_and_back: float = terms.memory_us(2 * partials, device)
    return start + there_and_back


def tiles_apart(config: GemmConfig, tiles: int, units: int) -> float:
    """Tiles for each compute unit whose K steps stream-K cuts into shares that cross tiles. The
    shares begin anywhere in K, so no two workgroups read the same bytes at the same time."""
    shared = shared_tiles(config, tiles, units)
    return shared / units if units < 2 * shared else 0.0


def added_up_us(config: GemmConfig) -> float:
    """Time for warps that shared out K to add up their sums of the whole tile, at its end."""
    if k_parts(config) == 1:
        return 0.0
    return GEMM.ADDING_UP_US * config.tile_m * config.tile_n
