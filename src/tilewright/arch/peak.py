"""The arithmetic ceilings of a device, by the unit that does the work."""

from __future__ import annotations

from tilewright.arch.model import Arch, Device
from tilewright.errors import BadArgument, nearest

EXP = "exp"
"""The unit of transcendental functions (exp2, log2, reciprocals). Other units are called by the
operand dtype of the instructions that they execute."""


def peak_tflops(arch: Arch, device: Device, unit: str) -> float:
    """Peak dense rate of `unit` on `device` in 1e12 operations a second; a multiply-add is two.

    unit: an operand dtype (``"bf16"``, ``"tf32"``) or ``"exp"``. An emulated dtype has the peak of
        the instructions that compute it; its conversions come on top.

    The rate is the device's published peak where it has one, else the architecture's rate at the
    device's boost clock. Raises `BadArgument` for a refused or unknown dtype, for a unit whose rate
    is not known, and for a device of another architecture.
    """
    if device.arch != arch.name:
        raise BadArgument(f"device '{device.name}' has architecture {device.arch}, not {arch.name}")
    if unit == EXP:
        if not arch.exp_per_cu_per_clock:
            raise BadArgument(f"the rate of {EXP} is not known for {arch.name}")
        return arch.exp_per_cu_per_clock * device.compute_units * device.clock_mhz / 1e6
    support = arch.dtypes.get(unit)
    if support is None:
        known = [*arch.dtypes, EXP]
        raise BadArgument(
            f"{arch.name} has no operand dtype '{unit}'{nearest(unit, known)}; "
            f"known: {', '.join(known)}"
        )
    if support.support == "refused":
        raise BadArgument(f"{arch.name} does not take {unit} operands: {support.note}")
    word = support.via or unit
    published = dict(device.matrix_tflops).get(word)
    if published is not None:
        return published
    return _rate(arch, word) * device.compute_units * device.clock_mhz / 1e6


def _rate(arch: Arch, word: str) -> int:
    if word == "fma":
        return arch.fma_flops_per_cu_per_clock
    return max(mma.flops_per_cu_per_clock for mma in arch.mma if word in mma.dtypes)
