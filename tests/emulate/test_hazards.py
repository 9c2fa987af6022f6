"""Wait states: each rule of each generation with one state too few, which is found at its line, and
with enough."""

from __future__ import annotations

import pytest

from tilewright.listing.effects import effects
from tilewright.listing.hazard_rules import RULES
from tilewright.listing.hazards import Shortage, shortages
from tilewright.listing.target import GENERATIONS, Target
from tilewright.listing.text import Program, instruction

NAMES = {generation: name for name, generation in GENERATIONS.items()}
CDNA = ("cdna2", "cdna3", "cdna4")
CDNA34 = ("cdna3", "cdna4")


def found(generation: str, *lines: str) -> list[Shortage]:
    """The shortages of a program; lines that end with a colon are labels."""
    target = Target(NAMES[generation], generation, 64 if generation in CDNA else 32)
    code, labels = [], {}
    for number, line in enumerate((*lines, "s_endpgm"), 1):
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        else:
            code.append(instruction(line, len(code), number))
    program = Program(target, "kernel", tuple(code), labels, {}, (), {})
    return shortages(program, [effects(ins, target) for ins in code])


def states(count: int) -> list[str]:
    """Instructions that take so many wait states."""
    return [f"s_nop {count - 1}"] if count else []


def vectors(count: int) -> list[str]:
    """So many vector instructions that have to do with nothing."""
    return [f"v_mov_b32_e32 v{200 + number}, v250" for number in range(count)]


MFMA = {
    # generation, passes: instruction without operands, registers of A and B, of C and D
    ("cdna2", 8): ("v_mfma_f32_16x16x16f16", 2, 4),
    ("cdna2", 16): ("v_mfma_f32_32x32x8f16", 2, 16),
    ("cdna3", 4): ("v_mfma_f32_16x16x16_f16", 2, 4),
    ("cdna3", 8): ("v_mfma_f32_32x32x8_f16", 2, 16),
    ("cdna4", 4): ("v_mfma_f32_16x16x32_f16", 4, 4),
    ("cdna4", 8): ("v_mfma_f32_32x32x16_f16", 4, 16),
    ("cdna4", 16): ("v_mfma_f32_32x32x64_f8f6f4", 8, 16),
    # of fp32, which another unit executes
    ("cdna3", 8, "fp32"): ("v_mfma_f32_16x16x4_f32", 1, 4),
    ("cdna3", 16, "fp32"): ("v_mfma_f32_32x32x2_f32", 1, 16),
    ("cdna4", 16, "fp32"): ("v_mfma_f32_32x32x2_f32", 1, 16),
    ("cdna3", 4, "xf32"): ("v_mfma_f32_16x16x8_xf32", 2, 4),
}


def mfma(key: tuple, d: int, a: int, b: int, c: int) -> str:
    """An MFMA with operands that begin at these registers."""
    name, inputs, outputs = MFMA[key]

    def span(first: int, count: int) -> str:
        return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"

    return f"{name} {span(d, outputs)}, {span(a, inputs)}, {span(b, inputs)}, {span(c, outputs)}"


WHOLE = {
    ("cdna2", 8): 11,
    ("cdna2", 16): 19,
    ("cdna3", 4): 7,
    ("cdna3", 8): 11,
    ("cdna4", 4): 8,
    ("cdna4", 8): 12,
    ("cdna4", 16): 20,
    ("cdna3", 8, "fp32"): 10,
    ("cdna3", 16, "fp32"): 18,
    ("cdna4", 16, "fp32"): 18,
    ("cdna3", 4, "xf32"): 7,
}
"""From an MFMA to any use of its result."""
OVERLAP = {
    ("cdna2", 8): 8,
    ("cdna2", 16): 16,
    ("cdna3", 4): 5,
    ("cdna3", 8): 9,
    ("cdna4", 4): 6,
    ("cdna4", 8): 10,
    ("cdna4", 16): 18,
    ("cdna3", 8, "fp32"): 8,
    ("cdna3", 16, "fp32"): 16,
    ("cdna4", 16, "fp32"): 16,
    ("cdna3", 4, "xf32"): 5,
}
"""From an MFMA to one of its kind whose C has other registers of its result."""
OVERWRITTEN = {
    ("cdna2", 8): 7,
    ("cdna2", 16): 15,
    ("cdna3", 4): 3,
    ("cdna3", 8): 7,
    ("cdna4", 4): 3,
    ("cdna4", 8): 7,
    ("cdna4", 16): 15,
    ("cdna3", 4, "xf32"): 3,
}
"""From an MFMA to an instruction that overwrites its C."""


def mfma_rows():
    """(asks, generation, first, second, wait states)."""
    for key in MFMA:
        first = mfma(key, 0, 32, 40, 64)
        used, ab, c = WHOLE[key], WHOLE[key], OVERLAP[key]
        generation = key[0]
        asks = "an MFMA's result is used"
        yield asks, generation, first, "v_add_f32_e32 v90, v3, v91", used
        yield asks, generation, first, "v_mov_b32_e32 v2, v91", used
        yield asks, generation, first, "global_store_dword v[90:91], v1, off", used
        yield asks, generation, first, "buffer_load_dword v1, v90, s[0:3], 0 offen", used
        yield asks, generation, first, "ds_write_b32 v90, v0", used
        asks = "an MFMA's result is A or B of another"
        yield asks, generation, first, mfma(key, 112, 0, 48, 128), ab
        yield asks, generation, first, mfma(key, 112, 48, 0, 128), ab
        asks = "an MFMA's result is C of another"
        yield asks, generation, first, mfma(key, 112, 48, 56, 2), c
        if key in OVERWRITTEN:
            asks = "C of an MFMA is overwritten"
            yield asks, generation, first, "v_mov_b32_e32 v65, v91", OVERWRITTEN[key]
            yield asks, generation, first, "ds_read_b32 v65, v91", OVERWRITTEN[key]
        asks = "a vector instruction writes what an MFMA reads"
        for register in (32, 40, 64):
            yield asks, generation, f"v_mov_b32_e32 v{register}, v91", first, 2
        asks = "a vector instruction writes EXEC before an MFMA"
        yield asks, generation, "v_cmpx_gt_u32_e32 v90, v91", first, 4
    yield (
        "an MFMA's result is used",
        "cdna4",
        "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[32:35], v[40:43], v[64:67] cbsz:4 blgp:4",
        "v_mov_b32_e32 v90, v0",
        8,
    )
    yield (
        "an MFMA's result is used",
        "cdna3",
        "v_mfma_f32_16x16x16_f16 a[0:3], v[32:33], v[40:41], a[0:3]",
        "v_accvgpr_read_b32 v0, a3",
        7,
    )


def vector_rows():
    """The same, of rules that are not about MFMA."""
    for generation in CDNA:
        asks = "a vector instruction writes a scalar register that a memory access reads"
        first = "v_readfirstlane_b32 s6, v0"
        yield asks, generation, first, "buffer_load_dword v1, v2, s[4:7], 0 offen", 5
        yield asks, generation, first, "buffer_store_dword v1, v2, s[8:11], s6 offen", 5
        yield asks, generation, first, "global_load_dword v1, v2, s[6:7]", 5
        asks = "a register is written that DPP reads in other lanes"
        dpp = "v_add_f32_dpp v1, v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf"
        yield asks, generation, "v_mov_b32_e32 v2, v9", dpp, 2
        asks = "a vector instruction writes EXEC before DPP"
        yield asks, generation, "v_cmpx_gt_u32_e32 v90, v91", dpp, 5
        asks = "a vector instruction writes VCC before v_div_fmas"
        divide = "v_div_fmas_f32 v0, v1, v2, v3"
        yield asks, generation, "v_cmp_gt_u32_e32 vcc, v90, v91", divide, 4
        asks = "a vector instruction writes the lane's number of v_readlane or v_writelane"
        yield asks, generation, "v_readfirstlane_b32 s6, v0", "v_readlane_b32 s0, v1, s6", 4
        yield asks, generation, "v_readfirstlane_b32 s6, v0", "v_writelane_b32 v1, s0, s6", 4
        asks = "s_setreg before an access to the same hardware register"
        set_ = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3"
        yield asks, generation, set_, "s_getreg_b32 s0, hwreg(HW_REG_MODE, 4, 4)", 2
        yield asks, generation, set_, "s_setreg_b32 hwreg(HW_REG_MODE, 4, 4), s0", 2
        asks = "a scalar instruction writes M0 before a load to shared memory or a message"
        load = "buffer_load_dword v1, s[0:3], 0 offen lds"
        yield asks, generation, "s_mov_b32 m0, s4", load, 1
        yield asks, generation, "s_mov_b32 m0, s4", "s_sendmsg sendmsg(MSG_INTERRUPT)", 1
        asks = "a vector instruction overwrites what a wide store has yet to read"
        wait = 1 if generation == "cdna2" else 2
        write = "v_mov_b32_e32 v3, v90"
        yield asks, generation, "global_store_dwordx4 v[90:91], v[0:3], off", write, wait
        yield asks, generation, "buffer_store_dwordx4 v[0:3], v9, s[0:3], 0 offen", write, wait
        if generation != "cdna2":
            yield asks, generation, "buffer_store_dwordx4 v[0:3], v9, s[0:3], s5 offen", write, 1
        asks = "a dot product's result is used"
        dot = "v_dot2c_f32_f16_e32 v0, v1, v2"
        yield asks, generation, dot, "v_mov_b32_e32 v9, v0", 3
        yield asks, generation, dot, "v_mov_b32_e32 v0, v9", 3
        yield asks, generation, dot, "v_dot2c_f32_f16_e32 v5, v0, v2", 3
    for generation in CDNA34:
        asks = "a transcendental's result is read by another vector instruction"
        yield asks, generation, "v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v0, v1", 1
        asks = "half a register is written, and the register used"
        first = "v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]"
        yield asks, generation, first, "v_mov_b32_e32 v9, v0", 1
        yield asks, generation, first, "v_mov_b32_e32 v0, v9", 1
        asks = "a vector instruction writes a scalar register that another reads"
        first = "v_cmp_gt_u32_e64 s[2:3], v0, v1"
        yield asks, generation, first, "v_cndmask_b32_e64 v0, v1, v2, s[2:3]", 2
        first = "v_cmp_gt_u32_e32 vcc, v0, v1"
        yield asks, generation, first, "v_cndmask_b32_e32 v0, v1, v2, vcc", 2
        asks = "a vector register is written that v_readlane or v_readfirstlane reads"
        yield asks, generation, "v_mov_b32_e32 v0, v1", "v_readfirstlane_b32 s0, v0", 1
        yield asks, generation, "v_mov_b32_e32 v0, v1", "v_readlane_b32 s0, v0, 3", 1
        asks = "a vector instruction writes EXEC before lanes are read or written"
        first = "v_cmpx_gt_u32_e32 v90, v91"
        yield asks, generation, first, "v_readfirstlane_b32 s0, v0", 4
        yield asks, generation, first, "v_writelane_b32 v0, s0, 3", 4
    asks = "a vector register is written that v_permlane…_swap reads"
    swap = "v_permlane32_swap_b32_e32 v0, v1"
    yield asks, "cdna4", "v_mov_b32_e32 v1, v9", swap, 2
    asks = "v_cmpx writes EXEC before v_permlane…_swap"
    yield asks, "cdna4", "v_cmpx_gt_u32_e32 v90, v91", swap, 4


STATES = [*vector_rows(), *mfma_rows()]


@pytest.mark.grid(79)
@pytest.mark.parametrize(("asks", "generation", "first", "second", "count"), STATES)
def test_wait_states(asks, generation, first, second, count):
    short = found(generation, first, *states(count - 1), second)
    assert [each.detail.split(" (")[0] for each in short] == [asks]
    assert (short[0].ins.text, short[0].cause.text) == (second, first)
    assert f"{count - 1} of {count} wait states" in short[0].detail
    assert found(generation, first, *states(count), second) == []


def vector_count_rows():
    """Rules that vector instructions alone keep: (asks, generation, first, second, how many)."""
    asks = "v_cmpx writes EXEC before v_permlane"
    for generation in ("rdna3", "rdna4", "gfx1250"):
        first, second = "v_cmpx_gt_u32_e32 v0, v1", "v_permlanex16_b32 v0, v1, s0, s1"
        yield asks, generation, first, second, 1
    asks = "a transcendental's result is read within five vector instructions without a wait"
    yield asks, "rdna3", "v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v0, v1", 6
    asks = "a WMMA's result is A or B of the next vector instruction"
    wmma = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"
    for a, b in (("0:7", "24:31"), ("24:31", "0:7")):
        second = f"v_wmma_f32_16x16x16_f16 v[40:47], v[{a}], v[{b}], v[40:47]"
        yield asks, "rdna3", wmma, second, 1
    wmma = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]"
    second = "v_wmma_f32_16x16x16_f16 v[40:47], v[4:7], v[24:27], v[40:47]"
    yield asks, "rdna4", wmma, second, 1
    for name, size, latency in (
        ("v_wmma_f32_16x16x32_bf16", 8, 8),
        ("v_wmma_f32_16x16x128_fp8_fp8", 16, 8),
        ("v_wmma_f32_16x16x64_fp8_fp8", 8, 4),
        ("v_wmma_i32_16x16x64_iu8", 8, 16),
    ):

        def wmma_of(d, a, b, name=name, size=size):
            return f"{name} v[{d}:{d + 7}], v[{a}:{a + size - 1}], v[{b}:{b + size - 1}], v[80:87]"

        first = wmma_of(0, 16, 32)
        asks = "a WMMA's result is A or B of another"
        yield asks, "gfx1250", first, wmma_of(96, 0, 48), latency // 2 + 1
        asks = "a WMMA's result is used"
        yield asks, "gfx1250", first, "v_mov_b32_e32 v190, v7", latency // 2
        yield asks, "gfx1250", first, "v_mov_b32_e32 v7, v190", latency // 2
        asks = "A or B of a WMMA is overwritten"
        yield asks, "gfx1250", first, "v_mov_b32_e32 v17, v190", latency // 2
    asks = "a transcendental's result is read by the next vector instruction"
    yield asks, "gfx1250", "v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v0, v3", 1
    asks = "a transcendental's source is overwritten by the next vector instruction"
    yield asks, "gfx1250", "v_exp_f32_e32 v0, v1", "v_mov_b32_e32 v1, v3", 1


VECTORS = [*vector_count_rows()]


@pytest.mark.parametrize(("asks", "generation", "first", "second", "count"), VECTORS)
def test_vector_instructions_between(asks, generation, first, second, count):
    short = found(generation, first, *vectors(count - 1), "s_nop 15", second)
    assert [each.detail.split(" (")[0] for each in short] == [asks]
    assert (short[0].ins.text, short[0].cause.text) == (second, first)
    assert found(generation, first, *vectors(count), second) == []


def test_every_rule_is_tested():
    tested = {(row[0], row[1]) for row in STATES + VECTORS}
    assert tested == {(rule.asks, each) for rule in RULES for each in rule.generations}


def test_a_result_is_passed_on_to_the_same_registers_at_once():
    for key in MFMA:
        line = mfma(key, 0, 32, 40, 0)
        assert found(key[0], line, line, line) == []


def test_an_fp32_result_may_be_c_of_other_types_at_once():
    """LLVM's tables ask for nothing there."""
    other = "v_mfma_f32_16x16x16_f16 v[112:115], v[48:49], v[50:51], v[2:5]"
    assert found("cdna3", mfma(("cdna3", 8, "fp32"), 0, 32, 40, 64), other) == []


def test_of_two_results_in_a_register_the_later_counts():
    """As in LLVM's tables: the first would have to be 18 wait states away."""
    first = mfma(("cdna3", 16, "fp32"), 0, 32, 40, 64)
    later = "v_mfma_f32_16x16x16_f16 v[0:3], v[32:33], v[40:41], 0"
    (short,) = found("cdna3", first, later, *states(6), "v_mov_b32_e32 v90, v0")
    assert short.cause.text == later
    assert found("cdna3", first, later, *states(7), "v_mov_b32_e32 v90, v0") == []
    assert found("cdna3", first, later, *states(7), "v_mov_b32_e32 v90, v9")


def test_rdna3_a_transcendental_may_have_passed_another_way():
    first, second = "v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v0, v1"
    assert found("rdna3", first, second)
    assert found("rdna3", first, "s_waitcnt_depctr 0xf000", second)
    waits = ("s_waitcnt_depctr depctr_va_vdst(0)", "s_waitcnt_depctr 0xfff")
    for between in (*waits, "ds_load_b32 v9, v8", "global_load_b32 v9, v[6:7], off"):
        assert found("rdna3", first, between, second) == []
    other = "v_rcp_f32_e32 v7, v8"
    assert found("rdna3", first, other, second)
    assert found("rdna3", first, other, other, second) == []


# Ways through a program ---------------------------------------------------------------------------

LAST = "v_mfma_f32_32x32x8_f16 v[0:15], v[32:33], v[40:41], v[0:15]"


def test_what_lies_behind_a_taken_branch_is_not_counted():
    """The compiler counts both branches at the end of a block, and so puts one state too few in
    front of the target of the first: gluon_cdna's kernels for gfx942."""
    lines = (
        "s_branch .loop",
        ".out:",
        "s_nop 6",
        "v_mov_b32_e32 v90, v0",
        "s_endpgm",
        ".loop:",
        LAST,
        "s_cbranch_scc1 .loop",
        "s_andn2_b64 vcc, exec, s[0:1]",
        "s_cbranch_vccnz .out",
        "s_branch .more",
        ".more:",
    )
    (short,) = found("cdna3", *lines)
    assert (short.ins.line, short.cause.line) == (4, 7)
    assert "10 of 11 wait states" in short.detail
    enough = [line.replace("s_nop 6", "s_nop 7") for line in lines]
    assert found("cdna3", *enough) == []


def test_the_shortest_of_several_ways_counts():
    def program(nops: int) -> list[Shortage]:
        return found(
            "cdna3",
            LAST,
            "s_cbranch_scc1 .join",
            "s_nop 9",
            ".join:",
            *states(nops),
            "v_mov_b32_e32 v90, v0",
        )

    assert [each.ins.line for each in program(9)] == [6]
    assert program(10) == []


def test_a_loop_leads_back():
    loop = (".loop:", "v_mov_b32_e32 v90, v0", LAST, "s_cbranch_scc1 .loop")
    assert [(each.ins.line, each.cause.line) for each in found("cdna3", *loop)] == [(2, 3)]
    assert found("cdna3", ".loop:", "v_mov_b32_e32 v90, v0", LAST, "s_nop 10", *loop[3:]) == []


def test_a_long_jump_leads_on():
    jump = (
        LAST,
        "s_getpc_b64 s[4:5]",
        ".here:",
        "s_add_u32 s4, s4, (.far-.here)&4294967295",
        "s_addc_u32 s5, s5, (.far-.here)>>32",
        "s_setpc_b64 s[4:5]",
        "v_mov_b32_e32 v90, v0",
        ".far:",
    )
    use = "v_mov_b32_e32 v91, v0"
    assert [each.ins.line for each in found("cdna3", *jump, "s_nop 5", use)] == [10]
    assert found("cdna3", *jump, "s_nop 6", use) == []


# Scalar registers of gfx1201 ----------------------------------------------------------------------

READ, WRITE = "v_add_f32_e32 v0, s4, v1", "s_mov_b32 s4, s9"


def test_a_scalar_register_that_a_vector_instruction_has_read():
    assert found("rdna4", WRITE, READ) == []  # nothing has read it yet
    (short,) = found("rdna4", READ, WRITE, READ)
    assert (short.ins.line, short.ins.text) == (3, READ)
    assert "s4 was written" in short.detail
    assert found("rdna4", READ, WRITE, "s_wait_alu depctr_sa_sdst(0)", READ) == []
    assert found("rdna4", READ, WRITE, "s_wait_alu depctr_va_sdst(0)", READ)
    assert found("rdna4", READ, WRITE, "s_load_b32 s20, s[0:1], 0x0", READ) == []
    assert found("rdna4", READ, WRITE, "buffer_load_b32 v9, v8, s[0:3], null offen", READ) == []
    assert found("rdna4", READ, WRITE, "global_load_b32 v9, v[6:7], off", READ)
    for other in ("rdna3", "gfx1250"):
        assert found(other, READ, WRITE, READ) == []


def test_the_other_register_of_a_pair_counts_as_read():
    read = "v_add_f32_e32 v0, s5, v1"
    assert found("rdna4", read, WRITE, READ)
    assert found("rdna4", "v_add_f32_e32 v0, s6, v1", WRITE, READ) == []


def test_a_scalar_register_that_a_vector_instruction_writes():
    write = "v_readfirstlane_b32 s4, v3"
    assert found("rdna4", READ, write, READ)
    assert found("rdna4", READ, write, "s_wait_alu depctr_va_sdst(0)", READ) == []
    assert found("rdna4", READ, write, "s_add_co_i32 s9, s4, 1", READ) == []  # that waited


def test_vcc():
    read = "v_cndmask_b32_e32 v0, v1, v2, vcc_lo"
    write = "v_cmp_gt_u32_e32 vcc_lo, v0, v1"
    assert found("rdna4", read, write, read)
    assert found("rdna4", read, write, "s_wait_alu depctr_va_vcc(0)", read) == []
    assert found("rdna4", read, write, "s_wait_alu depctr_va_sdst(0)", read)
    assert found("rdna4", read, "s_mov_b32 vcc_lo, s0", "s_wait_alu depctr_va_vcc(0)", read)


def test_loops_carry_what_was_read():
    lines = (".loop:", READ, "s_add_co_i32 s4, s4, 1", "s_cbranch_scc1 .loop")
    assert [each.ins.line for each in found("rdna4", *lines)] == [2]
    waited = (*lines[:3], "s_wait_alu depctr_sa_sdst(0)", lines[3])
    assert found("rdna4", *waited) == []
