"""Which mutants are made of a kernel, and that they are what they say."""

from __future__ import annotations

import pytest

from tilewright.emulate.mutants import KINDS, NOTHING, mutants, sample
from tilewright.listing.text import parse

HEAD = '\t.amdgcn_target "amdgcn-amd-amdhsa--{}"\n\t.text\n\t.type\tkernel,@function\nkernel:\n'
TAIL = """
\t.section\t.rodata,"a",@progbits
\t.amdgpu_metadata
amdhsa.kernels:
  - .args:
    .wavefront_size: {}
\t.end_amdgpu_metadata
"""


def program(name: str, *lines: str):
    lanes = 64 if name.startswith("gfx9") else 32
    body = "\n".join(f"\t{line}" for line in (*lines, "s_endpgm"))
    return parse(HEAD.format(name) + body + TAIL.format(lanes))


def made(name: str, *lines: str) -> dict[str, list[str]]:
    """The mutants' texts by kind, of lines that are all executed."""
    this = program(name, *lines)
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for mutant in mutants(this, [1] * len(this.instructions)):
        found[mutant.kind].append(mutant.after)
    return found


def test_each_counter_of_a_wait_is_left_out_and_weakened():
    assert made("gfx942", "s_waitcnt vmcnt(3) lgkmcnt(0)")["wait"] == [
        "s_waitcnt  lgkmcnt(0)",
        "s_waitcnt vmcnt(4) lgkmcnt(0)",
        "s_waitcnt vmcnt(3)",
        "s_waitcnt vmcnt(3) lgkmcnt(1)",
    ]
    assert made("gfx942", "s_waitcnt vmcnt(0)")["wait"] == [NOTHING, "s_waitcnt vmcnt(1)"]
    assert made("gfx1201", "s_wait_loadcnt 0x2")["wait"] == [NOTHING, "s_wait_loadcnt 0x3"]
    assert made("gfx1201", "s_wait_loadcnt_dscnt 0x201")["wait"] == [
        NOTHING,
        "s_wait_loadcnt_dscnt 0x23f",
        "s_wait_loadcnt_dscnt 0x3f01",
        "s_wait_loadcnt_dscnt 0x202",
    ]


@pytest.mark.parametrize("line", ["s_barrier_signal -1", "s_barrier_wait -1"])
def test_each_half_of_a_barrier_is_left_out(line):
    assert made("gfx1201", line)["barrier"] == [NOTHING]


def test_addresses_move():
    lines = ("v_mov_b32_e32 v4, 0", "v_mov_b32_e32 v9, 0", "ds_read_b32 v9, v4 offset:64")
    assert made("gfx942", *lines)["address"] == [
        "ds_read_b32 v9, v4 offset:48",
        "ds_read_b32 v9, v9 offset:64",
    ]
    store = "buffer_store_dword v4, v9, s[0:3], 0 offen sc0"
    (moved, _) = made("gfx942", *lines[:2], store)["address"]
    assert moved == "buffer_store_dword v4, v9, s[0:3], 0 offen offset:16 sc0"


def test_operands_are_other_registers_that_the_program_writes():
    lines = ("v_mov_b32_e32 v4, 0", "v_mov_b32_e32 v9, 0", "v_add_u32_e32 v9, v4, v4")
    assert made("gfx942", *lines)["operand"] == [
        "v_mov_b32_e32 v4, 1",
        "v_mov_b32_e32 v9, 1",
        "v_add_u32_e32 v9, v4, v9",
    ]


def test_a_mutant_changes_its_instruction_alone():
    this = program("gfx942", "v_mov_b32_e32 v4, 0", "s_barrier", "v_mov_b32_e32 v9, v4")
    (barrier,) = (m for m in mutants(this, [1] * 4) if m.kind == "barrier")
    changed = barrier.program(this)
    assert [ins.text for ins in changed.instructions] == [
        "v_mov_b32_e32 v4, 0",
        "s_nop 0",
        "v_mov_b32_e32 v9, v4",
        "s_endpgm",
    ]
    assert [ins.line for ins in changed.instructions] == [ins.line for ins in this.instructions]


def test_what_is_not_executed_has_no_mutants():
    this = program("gfx942", "v_mov_b32_e32 v4, 0", "s_barrier")
    assert {m.kind for m in mutants(this, [0, 1, 1])} == {"barrier"}


def test_a_sample_has_so_many_of_each_kind():
    this = program("gfx942", *["s_barrier"] * 5, *["v_mov_b32_e32 v4, 0"] * 9)
    chosen = sample(mutants(this, [1] * 15), 2, waits=1, barriers=3)
    assert [m.kind for m in chosen].count("barrier") == 3
    assert [m.kind for m in chosen].count("operand") == 2
