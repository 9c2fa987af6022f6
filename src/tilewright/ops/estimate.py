"""`Estimate`: what a kernel's time is made of, worked out from sizes and rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long one kernel should take for one problem on one device. Times in microseconds.

    parts: what the grid hands out, which are tiles of the output, or shares of them.
    parts_per_unit: those that the busiest compute unit takes, a fraction where shares are cut to be
    equal. waves: how often the device's compute units are filled, the last time perhaps in part;
    fullness: the share of compute units that these have parts for, 0 to 1.
    compute_us, shared_us, l2_us, latency_us: what the busiest compute unit spends on products, on
    reading and writing its shared memory, on its port to L2, and on waiting for loads that are
    under way; they go on side by side. memory_us: the device's memory traffic. fill_us: from the
    start to the first product, and from the last to the end of the store, where nothing else goes
    on. meeting_us: adding up what workgroups share. launch_us: what any kernel takes. total_us: the
    whole, which is less than the sum. limiter: what decides it, one of the
    words below, or ``launch``.
    """

    parts: int
    parts_per_unit: float
    waves: int
    fullness: float
    compute_us: float
    shared_us: float
    l2_us: float
    latency_us: float
    memory_us: float
    fill_us: float
    meeting_us: float
    launch_us: float
    total_us: float
    limiter: str

    def __str__(self) -> str:
        """One line: the whole, waves, what decides, and each term of 0.05 µs or more."""
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        said = (f"{word} {us:.1f}" for word, us in self.terms if us >= 0.05)
        return (
            f"{self.total_us:.1f} µs: {self.parts} tiles in {waves}, {self.fullness:.0%} full; "
            f"bound by {self.limiter}; {', '.join(said)} µs"
        )

    @property
    def terms(self) -> tuple[tuple[str, float], ...]:
        """Each term's words and microseconds."""
        return (
            (PRODUCTS, self.compute_us),
            (SHARED_MEMORY, self.shared_us),
            (L2, self.l2_us),
            (LATENCY, self.latency_us),
            (MEMORY, self.memory_us),
            ("fill and drain", self.fill_us),
            ("putting sums together", self.meeting_us),
            ("launch", self.launch_us),
        )


PRODUCTS = "matrix units"
SHARED_MEMORY = "shared memory"
L2 = "L2"
LATENCY = "waiting for loads"
MEMORY = "memory"
LAUNCH = "launch"
