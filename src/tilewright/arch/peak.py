"""The arithmetic ceiling of a device."""

from __future__ import annotations

from tilewright.arch.model import Arch, Device
from tilewright.errors import BadArgument, nearest


def peak_tflops(arch: Arch, device: Device, dtype: str) -> float:
    """Peak dense TFLOP/s (1e12, a multiply-add is two) of `device` for operands of `dtype`.

    `dtype` is an operand name (``"tf32"`` included). An emulated dtype has the peak of the
    instructions that compute it; its conversions come on top. Uses the device's published peak
    where it has one, else the architecture's rate at the device's boost clock. Raises
    `BadArgument` for a refused or unknown dtype, or a device of another architecture.
    """
    if device.arch != arch.name:
        raise BadArgument(f"device '{device.name}' has architecture {device.arch}, not {arch.name}")
    support = arch.dtypes.get(dtype)
    if support is None:
        raise BadArgument(
            f"{arch.name} has no operand dtype '{dtype}'{nearest(dtype, arch.dtypes)}; "
            f"known: {', '.join(arch.dtypes)}"
        )
    if support.support == "refused":
        raise BadArgument(f"{arch.name} does not take {dtype} operands: {support.note}")
    word = support.via or dtype
    published = dict(device.matrix_tflops).get(word)
    if published is not None:
        return published
    return _rate(arch, word) * device.compute_units * device.clock_mhz / 1e6


def _rate(arch: Arch, word: str) -> int:
    if word == "fma":
        return arch.fma_flops_per_cu_per_clock
    return max(mma.flops_per_cu_per_clock for mma in arch.mma if word in mma.dtypes)
