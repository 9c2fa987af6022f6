"""The listing's parser: operands, modifiers, flags, labels, arguments."""

from __future__ import annotations

import pytest

from tilewright.errors import BadArgument, BadFile
from tilewright.listing.operand import ACCUMULATION, EXEC, M0, TTMP, VCC, operand
from tilewright.listing.padding import padded
from tilewright.listing.text import instruction, parse

LISTING = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
\t.text
\t.globl\tcopy
\t.type\tcopy,@function
copy:                             ; @copy
\t.file\t1 "/somewhere" "kernel.py"
\t.loc\t1 12 5
\ts_load_dwordx2 s[2:3], s[0:1], 0x0
.LBB0_1:                          ; a loop
\t.loc\t1 13 5
\tv_add_f32_e64 v1, -|v2|, s4 clamp mul:2
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel copy
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_float_denorm_mode_32 3
\t\t.amdhsa_next_free_vgpr max(totalnumvgprs, 1)
\t.end_amdhsa_kernel
.Lfunc_end0:
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .offset:         8
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 512
    .name:           copy
    .wavefront_size: 64
...
\t.end_amdgpu_metadata
"""


def test_a_listing():
    program = parse(LISTING)
    assert (program.name, program.target.name, program.target.lanes) == ("copy", "gfx942", 64)
    assert program.target.generation == "cdna3"
    assert program.target.denormals_32
    assert [ins.base for ins in program.instructions] == [
        "s_load_dwordx2",
        "v_add_f32",
        "s_cbranch_scc1",
        "s_endpgm",
    ]
    assert [ins.line for ins in program.instructions] == [8, 11, 12, 13]
    assert [ins.source for ins in program.instructions] == ["kernel.py:12"] + ["kernel.py:13"] * 3
    assert program.labels == {"copy": 0, ".LBB0_1": 1}
    assert program.descriptor["user_sgpr_count"] == 2
    assert [(a.offset, a.size, a.kind) for a in program.arguments] == [
        (0, 8, "global_buffer"),
        (8, 4, "by_value"),
    ]
    assert program.resources["group_segment_fixed_size"] == 512


@pytest.mark.parametrize(
    ("text", "file", "first", "count"),
    [
        ("v7", "v", 7, 1),
        ("v[2:5]", "v", 2, 4),
        ("a3", "v", ACCUMULATION + 3, 1),
        ("a[0:15]", "v", ACCUMULATION, 16),
        ("s[10:11]", "s", 10, 2),
        ("ttmp9", "s", TTMP + 9, 1),
        ("vcc", "s", VCC, 2),
        ("vcc_hi", "s", VCC + 1, 1),
        ("exec_lo", "s", EXEC, 1),
        ("m0", "s", M0, 1),
        ("src_scc", "scc", 0, 0),
        ("off", "none", 0, 0),
        ("null", "none", 0, 0),
        (".LBB0_3", "text", 0, 0),
        ("v300", "v", 300, 1),
    ],
)
def test_registers(text, file, first, count):
    read = operand(text)
    assert (read.file, read.first, read.count) == (file, first, count)
    assert not (read.negate or read.absolute or read.sext or read.half)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-16", -16),
        ("0x80000000", 0x80000000),
        ("-4.0", -4.0),
        ("0.15915494", 0.15915494),
    ],
)
def test_constants(text, value):
    read = operand(text)
    assert read.file == "constant"
    assert (type(read.value), read.value) == (type(value), value)
    assert not read.negate  # the sign is the constant's


@pytest.mark.parametrize(
    ("text", "negate", "absolute", "sext", "half"),
    [
        ("-v1", True, False, False, ""),
        ("|v1|", False, True, False, ""),
        ("-|s[2:3]|", True, True, False, ""),
        ("sext(v1)", False, False, True, ""),
        ("v1.h", False, False, False, "h"),
        ("-v1.l", True, False, False, "l"),
        ("neg(v1)", True, False, False, ""),
    ],
)
def test_modifiers_of_operands(text, negate, absolute, sext, half):
    read = operand(text)
    assert read.file in "vs"
    assert (read.negate, read.absolute, read.sext, read.half) == (negate, absolute, sext, half)


@pytest.mark.parametrize(
    ("text", "base", "encoding", "operands", "modifiers", "flags"),
    [
        ("v_add_f32_e32 v1, v2, v3", "v_add_f32", "e32", ["v1", "v2", "v3"], {}, []),
        (
            "v_add_u16_sdwa v1, v2, sext(v3) dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE "
            "src0_sel:DWORD src1_sel:WORD_1",
            "v_add_u16",
            "sdwa",
            ["v1", "v2", "sext(v3)"],
            {
                "dst_sel": "BYTE_1",
                "dst_unused": "UNUSED_PRESERVE",
                "src0_sel": "DWORD",
                "src1_sel": "WORD_1",
            },
            [],
        ),
        (
            "v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1",
            "v_mov_b32",
            "dpp",
            ["v1", "v2"],
            {"quad_perm": (1, 0, 3, 2), "row_mask": 15, "bank_mask": 15, "bound_ctrl": 1},
            [],
        ),
        (
            "v_mov_b32_e64_dpp v1, v2 row_mirror row_mask:0x5 bank_mask:0xf",
            "v_mov_b32",
            "e64_dpp",
            ["v1", "v2"],
            {"row_mask": 5, "bank_mask": 15},
            ["row_mirror"],
        ),
        (
            "buffer_load_dword v5, s[0:3], 0 offen offset:64 lds",
            "buffer_load_dword",
            "",
            ["v5", "s[0:3]", "0"],
            {"offset": 64},
            ["offen", "lds"],
        ),
        ("buffer_inv sc0 sc1", "buffer_inv", "", [], {}, ["sc0", "sc1"]),
        ("global_wb scope:SCOPE_DEV", "global_wb", "", [], {"scope": "SCOPE_DEV"}, []),
        (
            "ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)",
            "ds_swizzle_b32",
            "",
            ["v1", "v2"],
            {"offset": "swizzle(SWAP,16)"},
            [],
        ),
        ("s_waitcnt vmcnt(0) lgkmcnt(1)", "s_waitcnt", "", ["vmcnt(0) lgkmcnt(1)"], {}, []),
        (
            "s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_2)",
            "s_delay_alu",
            "",
            ["instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_2)"],
            {},
            [],
        ),
        (
            "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3",
            "s_setreg_imm32_b32",
            "",
            ["hwreg(HW_REG_MODE, 0, 2)", "3"],
            {},
            [],
        ),
        ("s_endpgm", "s_endpgm", "", [], {}, []),
    ],
)
def test_instructions(text, base, encoding, operands, modifiers, flags):
    read = instruction(text)
    assert (read.base, read.encoding) == (base, encoding)
    assert [place.text for place in read.operands] == operands
    assert dict(read.modifiers) == modifiers
    assert list(read.flags) == flags


def test_both_halves_of_a_dual_instruction():
    read = instruction("v_dual_mul_f32 v1, v2, v3 :: v_dual_add_f32 v4, 1.0, v6")
    assert [part.base for part in read.parts] == ["v_mul_f32", "v_add_f32"]
    assert [place.text for place in read.parts[1].operands] == ["v4", "1.0", "v6"]


def test_registers_beyond_255():
    body = "\ts_set_vgpr_msb 0x40\n\tv_mov_b32_e32 v[2:3] /*v[258:259]*/, v1\n"
    text = LISTING.replace("gfx942", "gfx1250").replace("\ts_endpgm\n", body + "\ts_endpgm\n")
    program = parse(text)
    moved = program.instructions[-2]
    assert [(place.first, place.count) for place in moved.operands] == [(258, 2), (1, 1)]
    with pytest.raises(BadFile, match=r"line 14: v_mov.*v\[258:259\] is out of reach of the mode"):
        parse(text.replace("0x40", "0x00"))


def test_asking_is_remembered():
    read = instruction("global_load_dword v1, v[2:3], off offset:16 sc0 nt")
    assert read.modifiers.whole("offset") == 16
    assert "sc0" in read.flags
    assert list(read.modifiers.ignored) == []
    assert list(read.flags.ignored) == ["nt"]


def test_what_no_listing_is():
    with pytest.raises(BadFile, match=r"no .amdgcn_target"):
        parse("v_nop\n")
    with pytest.raises(BadFile, match=r"line 12: s_cbranch_scc1 .LBB0_2: the listing has no such"):
        parse(LISTING.replace("s_cbranch_scc1 .LBB0_1", "s_cbranch_scc1 .LBB0_2"))
    with pytest.raises(BadArgument, match="no instruction set for gfx803"):
        parse(LISTING.replace("gfx942", "gfx803"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("s_nop ../x", "operand 1 is no whole number"),
        ("s_nop", "no operand 1"),
        ("v_swap_b32 v0", "no operand 2"),
        ("v_add_f32 v0, , v1", "an operand is empty"),
        ("v_mfma_f32_16x16x16_f16 v[0:3], v[0:1]", "no operand 3"),
        ("v_pk_add_f16 v0, v1, v2 op_sel:[0,x]", "no list of numbers"),
        ("s_cbranch_scc1", "no such label"),
    ],
)
def test_a_damaged_instruction_is_an_error_with_its_line(wrong: str, said: str) -> None:
    with pytest.raises(BadFile, match=f"line 3: .*{said}"):
        padded(ONE.format(code=f"\t{wrong}"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    .wavefront_size: 64\n", "", "no .wavefront_size"),
        (".wavefront_size: 64", ".wavefront_size: 99999999999", "waves of 99999999999 lanes"),
        ("        .size: 8\n", "", "an argument without .size"),
        (".size: 8", ".size: x", "'x' is no number"),
        ("      - .offset: 0\n", "", "it is of no argument"),
    ],
)
def test_damaged_metadata_is_an_error(old: str, new: str, said: str) -> None:
    text = ONE.format(code="\ts_endpgm")
    parse(text)
    assert old in text
    with pytest.raises((BadFile, BadArgument), match=said):
        parse(text.replace(old, new))


def test_registers_that_no_gpu_has_are_text() -> None:
    for text in ("v99999999999", "v[0:999999999]", "v[5:3]", "s[0:500]"):
        assert operand(text).file == "text"


ONE = """\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
kernel:
{code}
\t.amdgpu_metadata
amdhsa.kernels:
  - .args:
      - .offset: 0
        .size: 8
        .value_kind: global_buffer
    .wavefront_size: 64
\t.end_amdgpu_metadata
"""
