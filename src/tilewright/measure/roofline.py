"""The least time that a problem can take on a device, and how near a measured time comes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Device


def main_unit(problem: Any) -> str:
    """The unit that does the problem's `flops`; ``""`` if it computes nothing."""
    return next(iter(problem.work), "")


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time for a problem on a device, in microseconds.

    units_us: each unit's work (`Problem.work`) at the unit's peak. Units run side by side.
    memory_us: `Problem.min_bytes` at the memory's bandwidth.
    """

    units_us: Mapping[str, float]
    memory_us: float

    @property
    def compute_us(self) -> float:
        """The time of the unit that takes longest."""
        return max(self.units_us.values(), default=0.0)

    @property
    def us(self) -> float:
        """The least time of all."""
        return max(self.compute_us, self.memory_us)


def floor(problem: Any, device: Device) -> Floor:
    """The least time for `problem` on `device`. Raises `BadArgument` where no peak is known for a
    unit that the problem needs."""
    this = arch(device.arch)
    units = {
        unit: count / peak_tflops(this, device, unit) / 1e6 for unit, count in problem.work.items()
    }
    return Floor(units, problem.min_bytes / device.bandwidth_gbs / 1e3)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a measured time stands on the roofline.

    flops, bytes: operations, and bytes with each operand moved once.
    intensity: operations for each byte.
    units_us: least time of each unit that computes, in microseconds.
    compute_us, memory_us: least time for all computing, and for all moving, in microseconds.
    share: the longer of these two as a share of the measured time.
    """

    flops: int
    bytes: int
    intensity: float
    units_us: Mapping[str, float]
    compute_us: float
    memory_us: float
    share: float

    @property
    def bound(self) -> str:
        """The resource that a perfect kernel would wait for."""
        return "compute" if self.compute_us > self.memory_us else "memory"


def position(problem: Any, device: Device, median_us: float) -> Position:
    """The place of a kernel that takes `median_us` for `problem` on `device`. Raises `BadArgument`
    where no peak is known for a unit that the problem needs."""
    least = floor(problem, device)
    return Position(
        problem.flops,
        problem.min_bytes,
        problem.flops / max(1, problem.min_bytes),
        least.units_us,
        least.compute_us,
        least.memory_us,
        least.us / median_us,
    )
