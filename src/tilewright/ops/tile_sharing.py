"""Workgroups that share a tile: how many tiles, where their partial sums lie, whether two runs give
the same bits."""

from __future__ import annotations

from typing import Any, Protocol

from tilewright.ops.nouns import Temporary
from tilewright.ops.pool import Each
from tilewright.verdict import YES, Verdict, no

MAX_FLAGS = 16384
"""Flags of a kernel that shares tiles: one for each part of a tile, or more (`meetings`)."""

FLAGS = Temporary("flags", (MAX_FLAGS,), "int32", "kept_zero")
"""Flags for workgroups that share a tile (`ops/device/reduce.py`)."""


class Sharing(Protocol):
    """The fields of a config that decide how workgroups share tiles."""

    @property
    def scheduler(self) -> str: ...
    @property
    def reduction(self) -> str: ...


MOST_WAYS = 16
"""Most workgroups of a stream-K tile where shares do not cross tiles, as ops/device/schedule.py has
it."""


def shared_tiles(config: Any, tiles: Each, programs: Each) -> Each:
    """Tiles that stream-K shares out, of a config or of `Columns`.

    Whole waves go tile by tile; the tiles left over are shared out in equal parts. If there are
    fewer than two workgroups for each of these tiles, parts cross tiles. Few parts of a tile are
    then better than many, unless partial sums are added as they come: the last whole wave is shared
    too (the paper's "two-tile" hybrid), so that no share is under a tile.
    """
    left = tiles % programs
    hybrid = (programs < 2 * left) & (left < tiles) & (config.reduction != "atomic")
    return left + programs * hybrid


def slots(config: Sharing, tiles: int, programs: int, splits: int) -> int:
    """Number of partial tiles that the workspace has room for.

    splits: parts of a tile; under stream-K, the tiles that are shared.
    """
    if config.reduction == "atomic":
        return splits if config.scheduler == "stream_k" else tiles
    # Under stream-K, a workgroup has up to two partial tiles: at the start and at the end of its
    # share.
    return 2 * programs if config.scheduler == "stream_k" else tiles * splits


def repeats(config: Sharing) -> Verdict:
    """Whether two runs on the same operands give the same bits."""
    if config.reduction == "atomic":
        return no("reduction", "adds partial sums by atomics, in whichever order they are ready")
    return YES


def invariant(config: Sharing) -> Verdict:
    """Whether a row of the result has the same bits for every number of rows.

    A tile's K is summed in one order, the same for every tile, and split-K cuts it by K alone.
    Stream-K deals the K steps of all tiles out to the workgroups, so its cuts depend on the number
    of tiles.
    """
    if config.scheduler == "stream_k":
        return no("scheduler", "cuts K by how many tiles there are, and so by M")
    return repeats(config)
