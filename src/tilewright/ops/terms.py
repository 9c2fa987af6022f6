"""The physical terms that estimates of several families are made of: rates of a compute unit, how
many workgroups it holds, and the memory's time. Times and bytes are numbers, or arrays of them
(`ops/pool`)."""

from __future__ import annotations

from functools import lru_cache

from tilewright.arch import arch, peak_tflops
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.ops.pool import Each


def resident(this: Arch, registers: int, shared: int, num_warps: int) -> int:
    """Workgroups that a compute unit holds at once, at least 1.

    registers: of a thread. shared: bytes of a workgroup. num_warps: of a workgroup.
    """
    lanes = this.registers_per_lane * this.simds_per_cu
    return max(
        1,
        min(
            this.shared_memory_per_cu // max(1, shared + this.shared_memory_reserved),
            lanes // (registers * num_warps),
            this.max_warps_per_simd * this.simds_per_cu // num_warps,
            this.max_workgroups_per_cu,
        ),
    )


@lru_cache(maxsize=256)
def matrix_rate(device: Device, dtype: str) -> float:
    """Published rate of the matrix units of one compute unit, in FLOP a microsecond."""
    return peak_tflops(arch(device.arch), device, dtype) * 1e6 / device.compute_units


def lanes(this: Arch) -> float:
    """Instructions a clock of a compute unit's vector units, counted by lanes."""
    return this.fma_flops_per_cu_per_clock / 2


def exponentials(this: Arch) -> float:
    """Exponentials a clock of a compute unit."""
    return this.exp_per_cu_per_clock or lanes(this) / 4


def port_rate(device: Device, share: float = DEVICE.PORT_SHARE) -> float:
    """Bytes a microsecond that a compute unit takes in from L2. share: of the widest port."""
    return DEVICE.PORT_BYTES_PER_CLOCK * share * device.clock_mhz


def memory_us(moved: Each, device: Device) -> Each:
    """Microseconds in which the device's memory moves so many bytes."""
    return moved / (device.bandwidth_gbs * 1e3)


def together_us(body: Each, memory: Each) -> Each:
    """Microseconds of compute units' work beside the memory's traffic, which overlap but not fully:
    the two times add up like the legs of a right triangle, which fitted best."""
    return (body * body + memory * memory) ** 0.5
