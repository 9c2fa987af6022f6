"""The physical terms that estimates of several families are made of: rates of a compute unit, how
many workgroups it holds, the memory's time, and putting parts of sums together. Times and bytes are
numbers, or arrays of them (`ops/pool`)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.arch import arch, peak_tflops
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.ops.estimate import Estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Number = TypeVar("Number", float, NDArray[Any])
else:
    Number = TypeVar("Number")


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


def lanes_us(instructions: Number, device: Device) -> Number:
    """Microseconds in which a compute unit's lanes issue so many instructions."""
    return instructions / lanes(arch(device.arch)) / device.clock_mhz


def port_share(device: Device) -> float:
    """Share of `PORT_BYTES_PER_CLOCK` that every compute unit reaches for long: less on GPUs of
    sm_90 whose L2 has fewer slices for each compute unit than an H200's."""
    if device.arch != "sm_90":
        return DEVICE.PORT_SHARE
    each = device.l2_bytes / device.compute_units
    return DEVICE.PORT_SHARE * min(1.0, each / DEVICE.PORT_L2_BYTES)


def port_rate(device: Device, share: float = DEVICE.PORT_SHARE) -> float:
    """Bytes a microsecond that a compute unit takes in from L2. share: of the widest port."""
    return DEVICE.PORT_BYTES_PER_CLOCK * share * device.clock_mhz


def memory_us(moved: Number, device: Device) -> Number:
    """Microseconds in which the device's memory moves so many bytes."""
    return moved / (device.bandwidth_gbs * 1e3)


def together_us(body: Number, memory: Number) -> Number:
    """Microseconds of compute units' work beside the memory's traffic, which overlap but not fully:
    the two times add up like the legs of a right triangle, which fitted best."""
    found: Number = (body * body + memory * memory) ** 0.5
    return found


def ring_us(read: Number, stages: Number) -> Number:
    """Microseconds of a step in which operands are waited for, where a ring of so many stages is
    filled ahead: those of all stages but one are on their way at once.

    read: microseconds of a step's operands on their way from L2.
    """
    ahead = stages - 1 + (stages == 1)
    found: Number = (DEVICE.LATENCY_US + read) / ahead
    return found


def meeting_us(reduction: str, ways: int, sums: int, device: Device) -> float:
    """Time for `ways` workgroups that share a tile of so many sums to meet. Each publishes its
    sums. Then the last workgroup reads the sums of the others (``linear``) or the sum that atomics
    made; in a ``tree`` two workgroups meet at each level, and one of them reads the sums of the
    other. In a ``cluster`` each sends all but its share to the others."""
    partial = sums * 4
    port = port_rate(device, port_share(device))
    read, stored = partial / port, partial / DEVICE.STORE_SHARE / port
    if reduction == "tree":
        levels = math.ceil(math.log2(ways))
        again = (levels - 1) * DEVICE.MEETING_AGAIN_US
        return DEVICE.MEETING_US + again + levels * (stored + read)
    if reduction == "cluster":
        return DEVICE.CLUSTER_US + (ways - 1) / ways * stored
    reads = {"linear": ways, "atomic": DEVICE.ATOMIC_READS}
    later = math.log2(ways / 2) * DEVICE.LATER_US
    return DEVICE.MEETING_US + later + stored + read * reads[reduction]


def totals_us(partials: Number, device: Device, start: float = DEVICE.SECOND_US) -> Number:
    """Time of a kernel that adds up parts of sums that another stored, and of their way to memory
    and back.

    partials: bytes. start: what the kernel takes without any.
    """
    return memory_us(2 * partials, device) + start


def at_best(problem: Any, device: Device, fact: str) -> Estimate:
    """The least time that anything could take for `problem`, as an estimate of which nothing is
    known but the `fact`."""
    (unit, flops), *_ = problem.work.items()
    compute = flops / peak_tflops(arch(device.arch), device, unit) / 1e6
    memory = problem.min_bytes / device.bandwidth_gbs / 1e3
    terms = (("matrix units", compute), ("memory", memory), ("launch", DEVICE.LAUNCH_US))
    limiter = max(terms, key=lambda term: term[1])[0]
    return Estimate(max(compute, memory) + DEVICE.LAUNCH_US, limiter, terms, (fact,))
