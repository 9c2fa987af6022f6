"""Where a time stands between what a device can compute and what it can move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Device


def operand_dtype(problem: Any) -> str:
    """What the matrix units multiply: the dtype of the first operand."""
    if getattr(problem, "precision", "") == "tf32":
        return "tf32"
    return ops.family(problem.family).operands(problem)[0].dtype


@dataclass(frozen=True, slots=True)
class Position:
    """Where a time stands on the roofline: operations and bytes (each operand once), operations for
    each byte, the least time that computing and that moving takes at the device's peaks, in
    microseconds, and the longer of these as a share of the time."""

    flops: int
    bytes: int
    intensity: float
    compute_us: float
    memory_us: float
    share: float

    @property
    def bound(self) -> str:
        """What a perfect kernel would wait for."""
        return "compute" if self.compute_us > self.memory_us else "memory"


def position(problem: Any, device: Device, median_us: float) -> Position:
    """The place of a kernel that takes `median_us` for `problem` on `device`. Raises `BadArgument`
    where no peak is known for the problem's operands."""
    rate = peak_tflops(arch(device.arch), device, operand_dtype(problem))
    compute, memory = problem.flops / rate / 1e6, problem.min_bytes / device.bandwidth_gbs / 1e3
    return Position(
        problem.flops,
        problem.min_bytes,
        problem.flops / max(1, problem.min_bytes),
        compute,
        memory,
        max(compute, memory) / median_us,
    )
