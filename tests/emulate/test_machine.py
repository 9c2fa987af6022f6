"""How waves go: branches, barriers, ends, limits, and the registers that a kernel begins with."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulate.machine import Limits, Machine
from tilewright.emulate.memory import Memory
from tilewright.errors import KernelEndless, LaunchFailed, UnknownInstruction
from tilewright.listing.effects import effects, names
from tilewright.listing.target import target_of
from tilewright.listing.text import instruction, parse

CDNA, RDNA = "gfx942", "gfx1201"


def listing(body: str, arch: str = CDNA, **directives: int) -> str:
    """A kernel with this body."""
    lanes = 32 if arch.startswith("gfx1") else 64
    declared = {
        "next_free_vgpr": 64,
        "next_free_sgpr": 32,
        "user_sgpr_count": 2,
        "user_sgpr_kernarg_segment_ptr": 1,
        "system_sgpr_workgroup_id_x": 1,
        **directives,
    }
    return "\n".join(
        [
            f'\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"',
            "\t.type\tkernel,@function",
            "kernel:",
            *(line if line.endswith(":") else f"\t{line}" for line in body.strip().splitlines()),
            '\t.section\t.rodata,"a",@progbits',
            *(f"\t.amdhsa_{name} {value}" for name, value in declared.items()),
            "\t.amdgpu_metadata",
            f"    .wavefront_size: {lanes}",
            "\t.end_amdgpu_metadata",
        ]
    )


def launched(body: str, arch: str = CDNA, *, groups: int = 1, waves: int = 1, limits=None, **how):
    machine = Machine(parse(listing(body, arch, **how)))
    lanes = machine.program.target.lanes
    return machine.launch((groups, 1, 1), waves * lanes, b"", 0, Memory(), limits=limits)


def counts(execution) -> dict[str, int]:
    """How many waves executed each instruction, by its text."""
    texts = [ins.text for ins in execution.program.instructions]
    return dict(zip(texts, execution.executed.tolist(), strict=True))


@pytest.mark.parametrize("arch", [CDNA, RDNA])
def test_a_branch_on_which_waves_disagree(arch):
    """Workgroup 1 of 4 takes a way of its own, and all meet again."""
    number = "s2" if arch == CDNA else "ttmp9"
    execution = launched(
        f"""
        s_cmp_eq_u32 {number}, 1
        s_cbranch_scc1 .LBB0_2
        s_nop 1
        s_nop 2
        s_branch .LBB0_3
        .LBB0_2:
        s_nop 3
        .LBB0_3:
        s_nop 4
        s_endpgm
        """.replace("        ", ""),
        arch,
        groups=4,
        waves=2,
    )
    assert counts(execution) == {
        f"s_cmp_eq_u32 {number}, 1": 8,
        "s_cbranch_scc1 .LBB0_2": 8,
        "s_nop 1": 6,
        "s_nop 2": 6,
        "s_branch .LBB0_3": 6,
        "s_nop 3": 2,
        "s_nop 4": 8,
        "s_endpgm": 8,
    }
    # They are one group again: every instruction but the two ways was executed once.
    assert execution.steps == 8
    assert execution.waves == 8


def test_a_loop():
    execution = launched(
        """
s_mov_b32 s3, 5
.LBB0_1:
s_sub_i32 s3, s3, 1
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
s_endpgm
"""
    )
    assert counts(execution)["s_sub_i32 s3, s3, 1"] == 5
    assert list(execution.findings) == []


def test_waves_of_a_workgroup_wait_for_one_another():
    """Half of the waves come to the barrier by another way, and later."""
    execution = launched(
        """
v_readfirstlane_b32 s3, v0
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
s_nop 7
.LBB0_1:
s_barrier
s_endpgm
""",
        groups=2,
        waves=2,
    )
    assert counts(execution)["s_barrier"] == 4


def test_a_barrier_counts_waves_wherever_they_wait():
    """One wave comes to two barriers, the other to a loop's, twice."""
    execution = launched(
        """
v_readfirstlane_b32 s3, v0
s_mov_b32 s4, 2
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
s_barrier
s_barrier
s_endpgm
.LBB0_1:
s_barrier
s_sub_i32 s4, s4, 1
s_cmp_lg_u32 s4, 0
s_cbranch_scc1 .LBB0_1
s_endpgm
""",
        groups=3,
        waves=2,
    )
    assert execution.executed.tolist()[4:9] == [3, 3, 3, 6, 6]


def test_a_barrier_that_some_never_reach():
    """The first wave waits at a second barrier, the other in a loop for ever at none."""
    with pytest.raises(KernelEndless):
        launched(
            """
v_readfirstlane_b32 s3, v0
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
s_barrier
s_endpgm
.LBB0_1:
s_branch .LBB0_1
""",
            waves=2,
            limits=Limits(steps=5000),
        )


def test_waves_pass_a_barrier_while_another_workgroup_waits_for_them_in_a_loop():
    """Both waves of workgroup 0 come to the barrier by different ways, then set a flag; workgroup 1
    looks at it until it is set."""
    memory = Memory()
    flag = memory.allocate(4, "flag", contents=np.zeros(4, np.uint8))
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 1
s_waitcnt lgkmcnt(0)
s_cmp_lg_u32 s2, 0
s_cbranch_scc1 .LBB0_3
v_readfirstlane_b32 s3, v0
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
s_barrier
s_branch .LBB0_2
.LBB0_1:
s_barrier
.LBB0_2:
global_atomic_add v1, v2, s[4:5]
s_endpgm
.LBB0_3:
global_load_dword v3, v1, s[4:5] sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s3, v3
s_cmp_eq_u32 s3, 0
s_cbranch_scc1 .LBB0_3
s_endpgm
"""
    machine = Machine(parse(listing(body)), checks=False)
    arguments = flag.to_bytes(8, "little")
    machine.launch((2, 1, 1), 128, arguments, 0, memory, limits=Limits(steps=100_000))
    assert memory.read(flag, 4).view(np.uint32) == 128


def test_waves_that_part_and_meet_in_a_loop_let_others_pass():
    """Both waves of workgroup 0 wait in a loop in which they take two ways. Workgroup 1, which is
    further down, sets the flag."""
    memory = Memory()
    flag = memory.allocate(4, "flag", contents=np.zeros(4, np.uint8))
    body = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 1
v_readfirstlane_b32 s3, v0
s_waitcnt lgkmcnt(0)
s_cmp_lg_u32 s2, 0
s_cbranch_scc1 .LBB0_3
.LBB0_1:
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_2
s_nop 0
.LBB0_2:
global_load_dword v3, v1, s[4:5] sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s6, v3
s_cmp_eq_u32 s6, 0
s_cbranch_scc1 .LBB0_1
s_endpgm
.LBB0_3:
s_nop 0
global_atomic_add v1, v2, s[4:5]
s_endpgm
"""
    machine = Machine(parse(listing(body)), checks=False)
    arguments = flag.to_bytes(8, "little")
    machine.launch((2, 1, 1), 128, arguments, 0, memory, limits=Limits(steps=100_000))
    assert memory.read(flag, 4).view(np.uint32) == 128


def test_a_value_that_only_inactive_lanes_lack():
    """The compiler merges masks of lanes so, and spills registers before they have a value."""
    execution = launched(
        """
s_andn2_b64 s[4:5], s[10:11], exec
v_writelane_b32 v1, s12, 3
v_mov_b32_e32 v2, v1
s_mov_b64 vcc, s[4:5]
s_and_saveexec_b64 s[8:9], vcc
v_cmp_eq_u32_e32 vcc, v2, v0
s_and_saveexec_b64 s[8:9], vcc
s_endpgm
"""
    )
    assert list(execution.findings) == []


def test_waves_that_have_ended_hold_nobody():
    launched(
        """
v_readfirstlane_b32 s3, v0
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
s_barrier
s_endpgm
.LBB0_1:
s_endpgm
""",
        waves=2,
    )


def test_a_kernel_that_never_ends():
    with pytest.raises(KernelEndless, match="given up after 10000 instructions"):
        launched(".LBB0_1:\ns_branch .LBB0_1\ns_endpgm", limits=Limits(steps=9000))
    with pytest.raises(KernelEndless, match="the limits are"):
        launched(".LBB0_1:\ns_branch .LBB0_1\ns_endpgm", limits=Limits(seconds=0.05))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v_guess_b32 v1, v2", "line 4: `v_guess_b32 v1, v2`: the emulator does not know it"),
        ("s_endpgm sometimes:1", "does not know sometimes of it"),
        ("s_barrier 0 perhaps", "does not know perhaps of it"),
    ],
)
def test_what_is_unknown(text, reason):
    with pytest.raises(UnknownInstruction, match=reason):
        launched(f"{text}\ns_endpgm")


def test_a_register_that_nothing_has_written():
    """The read is named, and what came to depend on it."""
    execution = launched(
        """
s_mov_b32 s3, s2
s_mov_b32 s4, s20
s_add_i32 s5, s4, s3
s_cmp_eq_u32 s5, 0
s_cbranch_scc1 .LBB0_1
.LBB0_1:
s_endpgm
"""
    )
    (finding,) = execution.findings
    assert (finding.kind, finding.line) == ("unwritten register", 5)
    assert finding.text == "s_mov_b32 s4, s20"
    assert finding.detail == "s20; line 8, `s_cbranch_scc1 .LBB0_1`, depends on it"


@pytest.mark.parametrize(
    ("lower", "pair", "upper"),
    [("v_mov_b32_e32 v2, 0", "v[2:3]", "v3"), ("s_mov_b32 s22, 0", "s[22:23]", "s23")],
)
def test_a_value_of_an_unwritten_register_that_decides_nothing(lower, pair, upper):
    """The compiler adds to 64 bits of which it uses the lower half."""
    execution = launched(
        f"""
s_mov_b32 s4, s20
{lower}
v_mad_u64_u32 v[4:5], s[6:7], v0, v0, {pair}
v_cmp_eq_u32_e32 vcc, 0, v4
s_and_saveexec_b64 s[8:9], vcc
s_endpgm
"""
    )
    assert list(execution.findings) == []
    execution = launched(
        f"""
{lower}
v_mad_u64_u32 v[4:5], s[6:7], v0, v0, {pair}
v_cmp_eq_u32_e32 vcc, 0, v5
s_and_saveexec_b64 s[8:9], vcc
s_endpgm
"""
    )
    assert [(f.line, f.detail.partition(";")[0]) for f in execution.findings] == [(5, upper)]


@pytest.mark.parametrize("result", [4, 5])
@pytest.mark.parametrize("pair", ["v[2:3]", "s[22:23]"])
def test_half_of_a_packed_instruction_that_takes_an_unwritten_register(pair, result):
    """The compiler computes both halves where it uses one."""
    selected = "op_sel:[0,0] op_sel_hi:[1,0]"
    body = f"""
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 0
s_mov_b32 s22, 0
v_pk_mul_f32 v[4:5], v[0:1], {pair} HOW
v_cmp_eq_u32_e32 vcc, 0, v{result}
s_and_saveexec_b64 s[8:9], vcc
s_endpgm
"""
    bodies = (body.replace("HOW", how) for how in ("", selected))
    found = [launched(text, float_denorm_mode_32=3).findings for text in bodies]
    assert [len([*one]) for one in found] == [result - 4, 0]


def test_waves_that_came_by_different_ways_know_different_registers():
    """They meet and part again: only those that skipped the write lack it."""
    body = """
v_readfirstlane_b32 s3, v0
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_1
v_mov_b32_e32 v1, 0
.LBB0_1:
s_nop 0
s_cmp_lg_u32 s3, 0
s_cbranch_scc1 .LBB0_2
v_cmp_eq_u32_e32 vcc, v1, v0
s_and_saveexec_b64 s[8:9], vcc
.LBB0_2:
s_endpgm
"""
    assert list(launched(body, waves=2).findings) == []
    execution = launched(body.replace("s_cbranch_scc1 .LBB0_2\n", ""), waves=2)
    assert [(f.line, f.wave, f.count) for f in execution.findings] == [(11, 1, 1)]


def test_registers_that_the_descriptor_does_not_declare():
    execution = launched(
        "v_mov_b32_e32 v7, 0\nv_mov_b32_e32 v8, 0\ns_mov_b32 s9, 0\nv_accvgpr_write_b32 a3, 0\n"
        "v_accvgpr_write_b32 a4, 0\ns_endpgm",
        next_free_vgpr=12,
        accum_offset=8,
        next_free_sgpr=9,
    )
    assert [(f.kind, f.line) for f in execution.findings] == [
        ("undeclared resources", line) for line in (5, 6, 8)
    ]


def test_arguments_are_preloaded():
    """Behind the loads that serve firmware which does not preload."""
    text = listing(
        """
s_nop 1
s_branch .LBB0_0
.LBB0_0:
s_cmp_eq_u32 s2, 0
s_cbranch_scc1 .LBB0_1
.LBB0_1:
s_endpgm
""",
        user_sgpr_count=4,
        user_sgpr_kernarg_preload_length=2,
    )
    machine = Machine(parse(text))
    execution = machine.launch((1, 1, 1), 64, bytes(8), 0, Memory())
    assert counts(execution)["s_nop 1"] == 0
    assert list(execution.findings) == []
    execution = machine.launch((1, 1, 1), 64, bytes(8), 0, Memory(), preload=False)
    assert counts(execution)["s_nop 1"] == 1
    assert [f.detail.partition(";")[0] for f in execution.findings] == ["s2"]
    with pytest.raises(LaunchFailed, match="preloads 2 words of arguments from word 0"):
        machine.launch((1, 1, 1), 64, bytes(4), 0, Memory())


def test_a_launch_that_does_not_fit():
    with pytest.raises(LaunchFailed, match="100 threads are no whole waves of 64"):
        Machine(parse(listing("s_endpgm"))).launch((1, 1, 1), 100, b"", 0, Memory())
    with pytest.raises(LaunchFailed, match="asks for dispatch_ptr"):
        launched("s_endpgm", user_sgpr_dispatch_ptr=1)


def test_many_workgroups_go_in_order():
    execution = launched("s_nop 0\ns_endpgm", groups=5000, waves=1)
    assert counts(execution)["s_endpgm"] == 5000
    assert execution.steps == 2 * 3


@pytest.mark.parametrize(
    ("text", "reads", "writes", "tied"),
    [
        ("v_add_f32_e32 v1, v2, s3", "v2, s3", "v1", ""),
        ("v_fmac_f32_e32 v1, v2, v3", "v1, v2, v3", "v1", ""),
        ("s_add_u32 s1, s2, s3", "s2, s3", "s1, scc", ""),
        ("s_addc_u32 s1, s2, s3", "s2, s3, scc", "s1, scc", ""),
        ("s_mul_i32 s1, s2, s3", "s2, s3", "s1", ""),
        ("s_cselect_b32 s1, s2, s3", "s2, s3, scc", "s1", ""),
        ("s_cmp_eq_u32 s2, s3", "s2, s3", "scc", ""),
        ("s_and_saveexec_b64 s[2:3], vcc", "vcc, s107, exec, s127", "s2, s3, exec, s127, scc", ""),
        ("s_cbranch_vccnz .LBB0_1", "vcc, s107", "", ""),
        ("v_cmp_lt_f32_e32 vcc, v1, v2", "v1, v2", "vcc, s107", ""),
        ("v_cmpx_lt_f32_e32 v1, v2", "v1, v2", "exec, s127", ""),
        ("v_cndmask_b32_e32 v1, v2, v3, vcc", "v2, v3, vcc, s107", "v1", ""),
        ("v_div_fmas_f32 v1, v2, v3, v4", "v2, v3, v4, vcc, s107", "v1", ""),
        ("v_add_co_u32_e64 v1, s[2:3], v4, v5", "v4, v5", "v1, s2, s3", ""),
        ("v_addc_co_u32_e32 v1, vcc, v4, v5, vcc", "v4, v5, vcc, s107", "v1, vcc, s107", ""),
        ("v_readfirstlane_b32 s1, v2", "v2", "s1", ""),
        ("v_writelane_b32 v1, s2, 3", "s2", "", "v1"),
        ("v_swap_b32 v1, v2", "v1, v2", "v1, v2", ""),
        ("v_mfma_f32_4x4x1_16b_f32 a[0:1], v2, v3, a[4:5]", "v2, v3, v260, v261", "v256, v257", ""),
        ("ds_read_b64 v[1:2], v3", "v3", "v1, v2", ""),
        ("ds_write2_b32 v1, v2, v3 offset1:1", "v1, v2, v3", "", ""),
        ("ds_read_u16_d16_hi v1, v2", "v2", "", "v1"),
        ("buffer_load_dword v1, v2, s[4:7], 0 offen", "v2, s4, s5, s6, s7", "v1", ""),
        ("buffer_load_dword v2, s[4:7], s8 offen lds", "v2, s4, s5, s6, s7, s8, m0", "", ""),
        ("buffer_store_dword v1, v2, s[4:7], 0 offen", "v1, v2, s4, s5, s6, s7", "", ""),
        ("global_load_dword v1, v[2:3], off", "v2, v3", "v1", ""),
        ("global_store_dword v[2:3], v1, off", "v1, v2, v3", "", ""),
        ("global_atomic_add_u32 v1, v2, s[4:5]", "v1, v2, s4, s5", "", ""),
        ("global_atomic_add_u32 v1, v2, v3, s[4:5] sc0", "v2, v3, s4, s5", "v1", ""),
        ("buffer_atomic_add_u32 v1, v2, s[4:7], 0 offen sc0", "v1, v2, s4, s5, s6, s7", "v1", ""),
        ("v_add_u16_sdwa v1, v2, v3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE", "v2, v3", "", "v1"),
        ("v_mov_b32_dpp v1, v2 row_shl:1 row_mask:0xf bank_mask:0xf", "v2", "", "v1"),
        ("v_pk_mul_f32 v[0:1], v[2:3], s[4:5] op_sel_hi:[0,1]", "v2, s4, s5", "v0, v1", ""),
        ("v_pk_add_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]", "v3, v4, v5", "v0, v1", ""),
        ("s_waitcnt vmcnt(0)", "", "", ""),
    ],
)
def test_effects(text, reads, writes, tied):
    """``tied`` registers are set in part: they are no results alone."""
    found = effects(instruction(text), target_of("gfx942", 64, {}))
    kept = found.writes & ~found.tied
    assert (names(found.reads), names(kept), names(found.tied)) == (reads, writes, tied)
    assert found.touches == found.reads | found.writes | found.tied


def test_effects_of_a_dual_instruction():
    read = instruction("v_dual_mul_f32 v1, v2, v3 :: v_dual_cndmask_b32 v4, v5, v6")
    found = effects(read, target_of("gfx1201", 32, {}))
    assert names(found.reads) == "v2, v3, v5, v6, vcc"
    assert names(found.writes) == "v1, v4"


def test_findings_count_waves():
    text = "s_mov_b64 exec, s[20:21]"
    execution = launched(f"{text}\ns_endpgm", groups=3, waves=2)
    (finding,) = execution.findings
    assert (finding.count, finding.workgroup, finding.wave) == (6, 0, 0)
    assert f"unwritten register, line 4, `{text}`" in str(finding)
    assert np.array_equal(execution.executed, [6, 6])
