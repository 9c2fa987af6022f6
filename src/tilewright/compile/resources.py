"""The resources that a compiled kernel takes, and how many workgroups fit on a compute unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.arch.model import Arch
from tilewright.errors import BuildFailed


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread (lane) takes: 32-bit registers, and sizes in bytes.

    registers: on AMD the vector registers, including accumulation registers (`agprs`).
    sgprs: AMD's scalar registers of a wave; 0 on NVIDIA.
    spill_bytes: what the compiler moved out of registers.
    stack_bytes: local memory, including spills.
    tensor_memory: columns of Blackwell's tensor memory, of a workgroup.
    """

    registers: int
    agprs: int
    sgprs: int
    spill_bytes: int
    stack_bytes: int
    tensor_memory: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many workgroups one compute unit holds, how many waves (warps) one of its SIMDs holds,
    and the limit that is reached first: ``registers``, ``shared_memory``, ``waves`` or
    ``workgroups``."""

    workgroups: int
    waves_per_simd: float
    limiter: str


def nvidia_resources(report: str, tensor_memory: int) -> Resources:
    """Read ``cuobjdump -res-usage``. Raises `BuildFailed` if it is not such a report."""
    found = re.search(r"REG:(\d{1,9}) STACK:(\d{1,9}) SHARED:\d+ LOCAL:(\d{1,9})", report)
    if found is None:
        raise BuildFailed(f"cuobjdump's resource report is not understood: {report.strip()[:200]}")
    registers, stack, local = map(int, found.groups())
    # Tile kernels have no arrays of their own in local memory: their stack is their spills.
    memory = stack + local
    return Resources(registers, 0, 0, memory, memory, tensor_memory)


def amd_resources(assembly: str) -> Resources:
    """Read the metadata at the end of AMD assembly. Raises `BuildFailed` if there is none."""

    def field(name: str, absent: int | None = None) -> int:
        found = re.search(rf"^[ -]*\.{name}:\s+(\d{{1,9}})$", assembly, re.MULTILINE)
        if found is not None:
            return int(found[1])
        if absent is None:
            raise BuildFailed(f"the assembly's metadata has no .{name}")
        return absent

    return Resources(
        registers=field("vgpr_count"),
        agprs=field("agpr_count", absent=0),  # RDNA has none
        sgprs=field("sgpr_count"),
        spill_bytes=4 * field("vgpr_spill_count"),
        stack_bytes=field("private_segment_fixed_size"),
        tensor_memory=0,
    )


def occupancy(arch: Arch, *, num_warps: int, registers: int, shared: int) -> Occupancy:
    """How many workgroups of `num_warps` warps, with `registers` for each thread and `shared`
    bytes for each workgroup, are resident on a compute unit of `arch` at once (0: it cannot
    run). The first limiter named in `Occupancy` wins a tie."""
    granule = arch.register_granule
    allocated = max(granule, -(-registers // granule) * granule)
    per_group = shared + arch.shared_memory_reserved
    limits = {
        "registers": arch.registers_per_lane // allocated * arch.simds_per_cu // num_warps,
        "waves": arch.max_warps_per_simd * arch.simds_per_cu // num_warps,
        "workgroups": arch.max_workgroups_per_cu,
    }
    if per_group:
        limits["shared_memory"] = arch.shared_memory_per_cu // per_group
    order = ("registers", "shared_memory", "waves", "workgroups")
    limiter = min((name for name in order if name in limits), key=limits.__getitem__)
    workgroups = limits[limiter]
    return Occupancy(workgroups, workgroups * num_warps / arch.simds_per_cu, limiter)
