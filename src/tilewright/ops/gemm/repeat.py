"""When the same operands give the same bits."""

from __future__ import annotations

from tilewright.ops.gemm.config import GemmConfig
from tilewright.verdict import YES, Verdict, no


def repeats(config: GemmConfig) -> Verdict:
    """Whether two runs on the same operands give the same bits."""
    if config.reduction == "atomic":
        return no("reduction", "adds partial sums by atomics, in whichever order they are ready")
    return YES


def invariant(config: GemmConfig) -> Verdict:
    """Whether a row of the result has the same bits however many rows are computed with it.

    A tile's K is summed in one order, whichever tile it is; split-K cuts it by K alone. Stream-K
    deals the K steps of all tiles out to the workgroups, so where it cuts depends on their number.
    """
    if config.scheduler == "stream_k":
        return no("scheduler", "cuts K by how many tiles there are, and so by M")
    return repeats(config)
