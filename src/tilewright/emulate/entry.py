"""The state that a kernel begins with: registers that the hardware sets, preloaded arguments.

Sources: LLVM's AMDGPU usage guide, "Initial Kernel Execution State" and "Preloaded Kernel
Arguments".
"""

from __future__ import annotations

import numpy as np

from tilewright.emulate.scratch import RESOURCE
from tilewright.emulate.waves import Waves
from tilewright.errors import LaunchFailed
from tilewright.listing.effects import scalar_bits, vector_bits
from tilewright.listing.operand import EXEC, TTMP
from tilewright.listing.text import Program

_USER = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)
"""User scalar registers in their order, each with how many it takes if the descriptor asks."""

_GIVEN = frozenset({"kernarg_segment_ptr", "private_segment_buffer"})
"""Those that the emulator sets. Kernels of this project ask for no other."""


def begin(
    program: Program,
    waves: Waves,
    grid: tuple[int, int, int],
    segment: tuple[int, bytes],
    *,
    preload: bool = True,
) -> None:
    """Set the registers of `waves`, whose workgroup and wave numbers are set, as the hardware does.

    segment: the address and the content of the kernel's argument segment.
    preload: whether arguments are preloaded into scalar registers, as current firmware does. If
        not, the kernel begins at its first instruction, which loads them.

    Raises `LaunchFailed` if the kernel asks for state that the emulator does not give.
    """
    descriptor = program.descriptor
    scalar, at = waves.scalar, 0
    known = scalar_bits(EXEC, 2) | vector_bits(0)
    for name, size in _USER:
        if not descriptor.get(f"user_sgpr_{name}", 0):
            continue
        if name not in _GIVEN:
            raise LaunchFailed(f"{program.name} asks for {name}, which the emulator does not give")
        if name == "kernarg_segment_ptr":
            scalar[at], scalar[at + 1] = segment[0] & 0xFFFFFFFF, segment[0] >> 32
        else:
            scalar[at : at + size] = np.array(RESOURCE, np.uint32)[:, None]
        known |= scalar_bits(at, size)
        at += size
    length = descriptor.get("user_sgpr_kernarg_preload_length", 0)
    if length and preload:
        words = np.frombuffer(segment[1] + bytes(-len(segment[1]) % 4), np.uint32)
        offset = descriptor.get("user_sgpr_kernarg_preload_offset", 0)
        if offset + length > len(words):
            raise LaunchFailed(
                f"{program.name} preloads {length} words of arguments from word {offset}, and they "
                f"take {len(words)}"
            )
        scalar[at : at + length] = words[offset : offset + length, None]
        known |= scalar_bits(at, length)
        waves.position = _preloaded_entry(program)
    known |= _workgroup_ids(program, waves, grid)
    waves.vector[0] = waves.wave[:, None] * waves.lanes + np.arange(waves.lanes)
    waves.known = known


def _workgroup_ids(program: Program, waves: Waves, grid: tuple[int, int, int]) -> int:
    """Set the workgroup's place in the grid; returns the bits of the registers."""
    x = waves.workgroup % grid[0]
    y = waves.workgroup // grid[0] % grid[1]
    z = waves.workgroup // (grid[0] * grid[1])
    if program.target.gfx12:
        waves.scalar[TTMP + 9], waves.scalar[TTMP + 7] = x, y | z << 16
        # gfx1250: the place in a cluster, and the cluster's size less one. There are no clusters.
        waves.scalar[TTMP + 6] = 0
        return scalar_bits(TTMP + 6) | scalar_bits(TTMP + 7) | scalar_bits(TTMP + 9)
    at, known = program.descriptor.get("user_sgpr_count", 0), 0
    for axis, number in (("x", x), ("y", y), ("z", z)):
        if program.descriptor.get(f"system_sgpr_workgroup_id_{axis}", 0):
            waves.scalar[at] = number
            known |= scalar_bits(at)
            at += 1
    if program.descriptor.get("system_sgpr_private_segment_wavefront_offset", 0):
        waves.scalar[at] = 0  # scratch is each wave's own here
        known |= scalar_bits(at)
    return known


def _preloaded_entry(program: Program) -> int:
    """Where a kernel begins whose arguments are preloaded. Where the kernel also runs on firmware
    that does not preload, this is 256 bytes behind the first instruction: the loads in between end
    with a branch there."""
    if program.target.gfx12:
        return 0
    first = next(ins for ins in program.instructions if ins.base == "s_branch")
    return program.labels[first.operands[0].text]
