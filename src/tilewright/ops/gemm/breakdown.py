"""What the time of a GEMM kernel is made of, in words."""

from __future__ import annotations

from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each
from tilewright.wording import many

PRODUCTS = "matrix units"
SHARED_MEMORY = "shared memory"
L2 = "L2"
LATENCY = "waiting for loads"
MEMORY = "memory"
FILL = "fill and drain"
MEETING = "putting sums together"
LAUNCH = "launch"

LIMITERS = (LATENCY, SHARED_MEMORY, MEMORY, PRODUCTS, LAUNCH, L2)
"""The terms of which the longest is the limiter."""


def estimates(
    total_us: Each,
    terms: tuple[Each, Each, Each, Each, Each, Each, Each, Each],
    parts: Each,
    waves: Each,
    fullness: Each,
) -> Estimates:
    """The estimates of several kernels: arrays.

    terms: times in microseconds that the busiest compute unit spends on products, on reading and
        writing its shared memory, on its port to L2, and on waiting for loads, which overlap; of
        the device's memory traffic; from the start to the first product and from the last product
        to the end of the store, when nothing else runs; of adding up the partial sums of tiles that
        workgroups share; and of the launch.
    parts: tiles of the output that the grid hands out, or shares of tiles.
    waves: how many times the parts fill the device's compute units, the last wave perhaps partly.
    fullness: share of the compute units' slots in these waves that have a part, 0 to 1.
    """
    words = (PRODUCTS, SHARED_MEMORY, L2, LATENCY, MEMORY, FILL, MEETING, LAUNCH)
    us = dict(zip(words, terms, strict=True))

    def facts(at: int) -> tuple[str, ...]:
        tiles, often = round(float(parts[at])), round(float(waves[at]))
        return f"{many(tiles, 'tile')} in {many(often, 'wave')}", f"{fullness[at]:.0%} full"

    def limiter(at: int) -> str:
        return max(LIMITERS, key=lambda word: float(us[word][at]))

    return Estimates.of(total_us, us, facts, limiter)
