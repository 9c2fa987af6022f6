"""The estimate of a GEMM's time, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ops.gemm import FAMILY


@dataclass(frozen=True)
class Breakdown:
    """The terms of an estimate, in microseconds, and what it says of itself."""

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
    facts: tuple[str, ...]

    @property
    def waves(self) -> int:
        return int(self.facts[0].split()[-2])


def breakdown(kernel, problem, gpu) -> Breakdown:
    found = FAMILY.estimate(kernel, problem, gpu)
    return Breakdown(*dict(found.terms).values(), found.total_us, found.limiter, found.facts)
