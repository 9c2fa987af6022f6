"""Small kernels, written for tests: a listing around a few instructions, launched on an array."""

from dataclasses import dataclass

import numpy as np

from tilewright.emulate.machine import Limits, Machine
from tilewright.emulate.memory import Memory
from tilewright.listing.text import parse

LANES = {"gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32, "gfx1250": 32}
TARGETS = tuple(LANES)

_LISTING = """\
	.amdgcn_target "amdgcn-amd-amdhsa--{target}"
	.text
	.type	small,@function
small:
{code}
	s_endpgm
	.section	.rodata
	.amdhsa_kernel small
		.amdhsa_group_segment_fixed_size {shared}
		.amdhsa_private_segment_fixed_size {scratch}
		.amdhsa_user_sgpr_count {user}
		.amdhsa_user_sgpr_private_segment_buffer {buffer}
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_private_segment_wavefront_offset {buffer}
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_next_free_vgpr 512
		.amdhsa_next_free_sgpr 102
		.amdhsa_accum_offset 256
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
      - .offset: 8
        .size: 8
        .value_kind: global_buffer
    .group_segment_fixed_size: {shared}
    .kernarg_segment_size: 16
    .private_segment_fixed_size: {scratch}
    .sgpr_count: 102
    .vgpr_count: 512
    .wavefront_size: {lanes}
	.end_amdgpu_metadata
"""
FIRST_LINE = 5
"""The line of the listing in which the code begins."""


@dataclass
class Ran:
    """What a launch left: the output's words, and the findings as (kind, text of the line)."""

    words: np.ndarray
    findings: list[tuple[str, str]]
    details: list[str]


def listing(target, code, *, shared=0, scratch=0, user=2, buffer=0):
    return _LISTING.format(
        target=target,
        code="\n".join("\t" + line.strip() for line in code.strip().splitlines()),
        shared=shared,
        scratch=scratch,
        user=user,
        buffer=buffer,
        lanes=LANES[target],
    )


def launch(
    target,
    code,
    *,
    waves=1,
    groups=1,
    shared=0,
    words=1024,
    given=None,
    limits=None,
    machine=Machine,
):
    """Run code on an output array c of zeros and an input array a of words 0, 1, 2…

    The code finds in v0 the thread's number in its workgroup; in s[4:5] and s[6:7] the addresses of
    c and a; in s8 the workgroup's number. machine: makes the machine from the program.
    """
    loads = _BEGIN_GFX12 if target.startswith("gfx12") else _BEGIN
    load = "s_load_dwordx4" if LANES[target] == 64 else "s_load_b128"
    program = parse(listing(target, loads.format(load=load) + code, shared=shared))
    memory = Memory()
    a = np.arange(words, dtype=np.uint32) if given is None else given
    source = memory.place(a, "operand a", writable=False)
    c = np.zeros(words, np.uint32)
    output = memory.place(c, "operand c", writable=True)
    arguments = output.to_bytes(8, "little") + source.to_bytes(8, "little")
    made = machine(program).launch(
        (groups, 1, 1),
        waves * LANES[target],
        arguments,
        shared,
        memory,
        limits=limits or Limits(steps=100_000, seconds=60),
    )
    memory.fetch(output, c)
    findings = list(made.findings)
    return Ran(c, [(each.kind, each.text) for each in findings], [each.detail for each in findings])


_BEGIN = """\
{load} s[4:7], s[0:1], 0x0
s_mov_b32 s8, s2
s_waitcnt lgkmcnt(0)
"""
_BEGIN_GFX12 = """\
{load} s[4:7], s[0:1], 0x0
s_mov_b32 s8, ttmp9
s_wait_kmcnt 0x0
"""
