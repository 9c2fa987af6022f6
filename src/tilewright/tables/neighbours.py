"""Which other GPU's rows to borrow where a GPU has none of its own.

Only a GPU of the same architecture can lend: another's kernels are other binaries, with other
limits. The interpreter lends to no GPU, whichever it played, and no GPU lends to the interpreter.
The distance of two is the sum over what holds kernels up of how many times larger one's is, as a
logarithm, so that half as much is as far as twice as much:

    d(a, b) = Σ |ln(q(a) / q(b))|,  q in compute units, L2 bytes, memory bandwidth, clock, peak rate

The peak rate is that of dense fp16 matrix instructions. Memory's size does not count, since no
kernel is faster for it; a name and a partition count only through what the partition has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.arch.peak import peak_tflops


def distance(one: Device, other: Device) -> float:
    """How different two GPUs are to a kernel: 0 if not at all, infinite across architectures, and
    between the interpreter and a GPU."""
    if (one.arch, one.interpreted) != (other.arch, other.interpreted):
        return math.inf
    pairs = zip(_quantities(one), _quantities(other), strict=True)
    return sum(abs(math.log(a / b)) for a, b in pairs)


def lenders(borrower: Device, devices: Iterable[Device]) -> list[tuple[float, Device]]:
    """Those of `devices` that can lend to `borrower`, with their distance, the nearest first; of
    equally near ones the first by name."""
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
