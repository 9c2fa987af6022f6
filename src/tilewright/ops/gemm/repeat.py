"""Rules for kernels that give the same bits for the same operands."""

from __future__ import annotations

from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.sizes import Sharing
from tilewright.verdict import YES, Verdict, no


def repeats(config: Sharing) -> Verdict:
    """Whether two runs on the same operands give the same bits."""
    if config.reduction == "atomic":
        return no("reduction", "adds partial sums by atomics, in whichever order they are ready")
    return YES


def invariant(config: GemmConfig) -> Verdict:
    """Whether a row of the result has the same bits for every number of rows.

    A tile's K is summed in one order, the same for every tile, and split-K cuts it by K alone.
    Stream-K deals the K steps of all tiles out to the workgroups, so its cuts depend on the number
    of tiles.
    """
    if config.scheduler == "stream_k":
        return no("scheduler", "cuts K by how many tiles there are, and so by M")
    return repeats(config)
