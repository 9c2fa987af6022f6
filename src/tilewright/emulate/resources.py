"""What a kernel uses, against what its descriptor and its launch declare."""

from __future__ import annotations

from tilewright.emulate.findings import Findings
from tilewright.listing.operand import ACCUMULATION, TTMP, VCC
from tilewright.listing.text import Instruction, Program


def undeclared(program: Program, shared: int, findings: Findings) -> None:
    """Report every instruction that names a register beyond those that the descriptor declares, and
    a launch with less shared memory than the kernel's own.

    Scalar registers up to VCC need no declaration on RDNA. Where accumulation registers share a
    file with the others, the descriptor says where they begin; on gfx908 they are a file of their
    own, of the declared size.
    """
    descriptor = program.descriptor
    vectors = descriptor.get("next_free_vgpr", 0)
    accumulation = descriptor.get("accum_offset", 0)
    ordinary = min(vectors, accumulation) if accumulation else vectors
    scalars = descriptor.get("next_free_sgpr", 0)
    own = program.resources.get("group_segment_fixed_size", 0)
    for ins in program.instructions:
        for part in ins.parts or (ins,):
            for place in part.operands:
                end = place.first + place.count
                if place.file == "v" and program.target.cdna and place.first >= ACCUMULATION:
                    _exceeds(ins, end - ACCUMULATION, vectors - accumulation, "a", findings)
                elif place.file == "v":
                    _exceeds(ins, end, ordinary, "v", findings)
                elif place.file == "s" and end <= min(VCC, TTMP):
                    _exceeds(ins, end, scalars, "s", findings)
    if shared < own:
        findings.report(
            "undeclared resources",
            program.instructions[0],
            detail=f"launched with {shared} bytes of shared memory, of which the kernel has {own}",
        )


def _exceeds(ins: Instruction, end: int, declared: int, letter: str, findings: Findings) -> None:
    if end > declared:
        findings.report(
            "undeclared resources",
            ins,
            detail=f"register {letter}{end - 1}, and the descriptor declares {declared}",
        )
