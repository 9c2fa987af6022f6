"""Which other GPU's rows to borrow where a GPU has no row of its own.

Only GPUs of the same architecture lend: kernels for another architecture are other binaries, with
other limits. The interpreter and GPUs never lend to each other.

The distance of two GPUs is the sum of the logarithms of the ratios of the quantities that limit
kernels, so half as much is as far as twice as much:

    d(a, b) = Σ |ln(q(a) / q(b))|,  q in compute units, L2 bytes, memory bandwidth, clock, peak rate

The peak rate is that of dense fp16 matrix instructions. Memory size does not count, since no kernel
is faster for it. A partition counts by the units that it has, not by its name. Two within `TWIN` of
each other are one GPU: as a data sheet has it, and as a driver states its clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.arch.peak import peak_tflops

TWIN = 0.01


def distance(one: Device, other: Device) -> float:
    """How different two GPUs are to a kernel: 0 for twins, infinite across architectures, and
    between the interpreter and a GPU."""
    if (one.arch, one.interpreted) != (other.arch, other.interpreted):
        return math.inf
    pairs = zip(_quantities(one), _quantities(other), strict=True)
    return sum(abs(math.log(a / b)) for a, b in pairs)


def lenders(borrower: Device, devices: Iterable[Device]) -> list[tuple[float, Device]]:
    """The devices of `devices` that can lend to `borrower`, with their distances, nearest first;
    ties by name."""
    found = [(distance(borrower, device), device) for device in devices if device != borrower]
    near = [(apart, device) for apart, device in found if math.isfinite(apart)]
    return sorted(near, key=lambda pair: (pair[0], pair[1].name, repr(pair[1])))


def _quantities(device: Device) -> tuple[float, ...]:
    return (
        device.compute_units,
        device.l2_bytes,
        device.bandwidth_gbs,
        device.clock_mhz,
        peak_tflops(arch(device.arch), device, "fp16"),
    )
