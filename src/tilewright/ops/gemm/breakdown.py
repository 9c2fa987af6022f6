"""`Breakdown`: what the time of a GEMM kernel is made of."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ops.estimate import Estimate
from tilewright.ops.pool import Each

PRODUCTS = "matrix units"
SHARED_MEMORY = "shared memory"
L2 = "L2"
LATENCY = "waiting for loads"
MEMORY = "memory"
LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The numbers behind a GEMM kernel's `Estimate`; of several kernels, arrays of them. Times in
    microseconds.

    parts: tiles of the output that the grid hands out, or shares of tiles.
    parts_per_unit: parts that the busiest compute unit takes; a fraction where shares are cut to be
        equal.
    waves: how many times the parts fill the device's compute units, the last wave perhaps partly.
    fullness: share of the compute units' slots in these waves that have a part, 0 to 1.
    compute_us, shared_us, l2_us, latency_us: time that the busiest compute unit spends on products,
        on reading and writing its shared memory, on its port to L2, and on waiting for loads. The
        four overlap.
    memory_us: the device's memory traffic.
    fill_us: from the start to the first product, and from the last product to the end of the
        store: nothing else runs then.
    meeting_us: adding up the partial sums of tiles that workgroups share.
    launch_us: the launch.
    total_us: the whole, which is less than the sum.
    limiter: the word of the term that decides.
    """

    parts: Each
    parts_per_unit: Each
    waves: Each
    fullness: Each
    compute_us: Each
    shared_us: Each
    l2_us: Each
    latency_us: Each
    memory_us: Each
    fill_us: Each
    meeting_us: Each
    launch_us: Each
    total_us: Each
    limiter: Each

    @property
    def estimate(self) -> Estimate:
        """The breakdown in the form that all families give."""
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        return Estimate(
            self.total_us,
            self.limiter,
            (
                (PRODUCTS, self.compute_us),
                (SHARED_MEMORY, self.shared_us),
                (L2, self.l2_us),
                (LATENCY, self.latency_us),
                (MEMORY, self.memory_us),
                ("fill and drain", self.fill_us),
                ("putting sums together", self.meeting_us),
                (LAUNCH, self.launch_us),
            ),
            (f"{self.parts} tiles in {waves}", f"{self.fullness:.0%} full"),
        )


def limiter(
    compute: Each, shared: Each, l2: Each, latency: Each, memory: Each, launch: Each
) -> Each:
    """The word of the longest of these terms, for each kernel."""
    import numpy as np

    words = (LATENCY, SHARED_MEMORY, MEMORY, PRODUCTS, LAUNCH, L2)
    terms = np.broadcast_arrays(latency, shared, memory, compute, launch, l2)
    return np.array(words)[np.argmax(terms, axis=0)]
