"""What `effects` says of scalar and vector instructions is what they do: no other register changes,
and none that they are not said to read, or to keep in part, decides what they write."""

from __future__ import annotations

import numpy as np
import pytest
import test_isa_compare as compare
import test_isa_packed as packed
import test_isa_scalar as scalar
from one import FAR, execute, target, waves
from spelling import exists, spelt
from test_isa_vector import operands
from vector_statements import STATEMENTS

from tilewright.emulate.waves import Waves
from tilewright.listing.effects import SCALAR_BIT, SCC_BIT, effects, names
from tilewright.listing.operand import EXEC, MODE, SCALARS
from tilewright.listing.text import instruction

OTHERS = {
    "gfx942": """
        v_readfirstlane_b32 s3, v2
        v_readlane_b32 s3, v2, s5
        v_writelane_b32 v2, s5, 1
        v_swap_b32 v1, v2
        v_fmac_f32_e32 v0, v2, v3
        v_fmaak_f32 v0, v2, v3, 0x3fb8aa3b
        v_fma_mix_f32 v0, v2, v3, v4
        v_fma_mixlo_f16 v0, v2, v3, v4
        v_fma_mixhi_f16 v0, v2, v3, v4
        v_fma_f16 v0, v2, v3, v4 op_sel:[0,0,0,1]
        v_pk_mov_b32 v[2:3], v[2:3], v[4:5] op_sel:[1,0]
        v_pk_mov_b32 v[2:3], v[4:5], v[6:7]
        v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[0,0,1] op_sel_hi:[0,1,1]
        v_cvt_pk_fp8_f32 v0, v2, v3
        v_cvt_pk_fp8_f32 v0, v2, v3 op_sel:[0,0,1]
        v_cvt_pk_f32_fp8_sdwa v[0:1], v2 src0_sel:WORD_1
        v_not_b32_sdwa v0, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD
        v_not_b32_sdwa v0, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD
        v_mov_b32_dpp v0, v2 row_shr:4 row_mask:0xf bank_mask:0xa
        v_add_f32_dpp v0, v2, v3 row_shr:8 row_mask:0xf bank_mask:0xf bound_ctrl:1
        v_mbcnt_lo_u32_b32 v0, s2, v3
        v_div_scale_f32 v0, vcc, v2, v3, v2
        v_div_scale_f32 v0, s[4:5], v3, v3, v2
        v_div_fmas_f32 v0, v2, v3, v4
        v_cndmask_b32_e32 v0, v2, v3, vcc
        v_cndmask_b32_e64 v0, v2, v3, s[4:5]
        v_addc_co_u32_e32 v0, vcc, v2, v3, vcc
        v_mad_u64_u32 v[0:1], s[4:5], v2, v3, v[4:5]
        v_cmp_eq_u64_e64 s[4:5], v[2:3], v[4:5]
        v_accvgpr_write_b32 a0, v2
        s_cselect_b64 s[0:1], s[2:3], s[4:5]
        s_cmov_b32 s0, s2
        s_cmpk_lt_i32 s2, 7
        s_addk_i32 s2, 7
        s_mulk_i32 s2, 7
        s_movk_i32 s2, 7
        s_bitset0_b32 s2, s4
        s_bitcmp1_b32 s2, s4
        s_and_saveexec_b64 s[0:1], s[2:3]
        s_andn2_saveexec_b64 vcc, vcc
        s_addc_u32 s0, s2, s4
        s_mov_b32 m0, s2
        s_mov_b64 vcc, exec
    """,
    "gfx950": """
        v_bitop3_b16 v0, v2, v3, v4 bitop3:0x6c
        v_cvt_scalef32_pk_fp8_f32 v0, v2, v3, v4
        v_cvt_scalef32_pk_fp4_bf16 v0, v2, v4 op_sel:[0,0,1,0]
        v_permlane32_swap_b32 v1, v2
    """,
    "gfx1201": """
        v_add_nc_u16 v0, v2, v3
        v_permlanex16_b32 v0, v2, s4, s5 op_sel:[1,0]
        v_permlane16_b32 v0, v2, s4, s5
        v_add_co_ci_u32_e64 v0, s4, v2, v3, s5
        v_div_scale_f32 v0, null, v3, v3, v2
        v_cmpx_lt_i32_e32 v2, v3
        v_cmpx_gt_i32_e64 s4, v3
        v_cmpx_eq_u32_e32 0, v3
        v_dual_fmac_f32 v0, v1, v2 :: v_dual_cndmask_b32 v3, v0, v1
        v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0
        v_s_exp_f32 s0, s2
        s_fmac_f32 s0, s2, s4
        s_addk_co_i32 s2, 7
        s_add_co_ci_u32 s0, s2, s4
        s_cmp_lt_f32 s2, s4
        s_mul_u64 s[0:1], s[2:3], s[4:5]
        s_and_saveexec_b32 s0, s2
    """,
}


def texts() -> list[tuple[str, str]]:
    found = [
        (gpu, line.strip()) for gpu, all_ in OTHERS.items() for line in all_.strip().split("\n")
    ]
    for name, statement in STATEMENTS.items():
        found += spelt(name, operands(name, statement))
    for name, (count, *_) in packed.HALVES.items():
        found += spelt(name, ", ".join(f"v{2 * i}" for i in range(count + 1)))
    for name, (count, _) in packed.PAIRS.items():
        found.append(
            ("gfx942", f"{name} " + ", ".join(f"v[{2 * i}:{2 * i + 1}]" for i in range(count + 1)))
        )
    for name, (result, sources, _) in scalar.STATEMENTS.items():
        places = [scalar.registers(result, 0)]
        places += [scalar.registers(kind, 2 + 2 * i) for i, kind in enumerate(sources)]
        text = f"{name} {', '.join(places)}"
        found.append((scalar.home(text), text))
    found += [
        each
        for name, kind in (("lt", "f32"), ("eq", "u16"))
        for each in compare.texts(
            f"v_cmp_{name}_{kind}", lambda gpu: f"{compare.name_of(8, gpu)}, v2, v4"
        )
    ]
    return found


def fill(made: Waves, rng: np.random.Generator, kept: int) -> None:
    """Random bits in every register but those of a mask of `effects`, EXEC and the mode."""
    kept |= sum(1 << SCALAR_BIT + register for register in (EXEC, EXEC + 1, MODE))
    vector = [register for register in range(FAR) if not kept >> register & 1]
    scalar = [register for register in range(SCALARS) if not kept >> SCALAR_BIT + register & 1]
    made.vector[vector] = rng.integers(0, 2**32, made.vector[vector].shape, np.uint32)
    made.scalar[scalar] = rng.integers(0, 2**32, made.scalar[scalar].shape, np.uint32)
    if not kept >> SCC_BIT & 1:
        made.scc[:] = rng.integers(0, 2, made.count).astype(bool)


def differences(one: Waves, other: Waves) -> int:
    """The bits of the registers that differ."""
    found = 0
    for register in np.flatnonzero((one.vector != other.vector).any((1, 2))).tolist():
        found |= 1 << register
    for register in np.flatnonzero((one.scalar != other.scalar).any(1)).tolist():
        found |= 1 << SCALAR_BIT + register
    return found | (1 << SCC_BIT if (one.scc != other.scc).any() else 0)


@pytest.mark.turns(24)
def test_effects_are_what_instructions_do() -> None:
    wrong = []
    rng = np.random.default_rng(20260917)
    for gpu, text in texts():
        assert exists(text, gpu), (gpu, text)
        chosen = target(gpu)
        told = effects(instruction(text), chosen)
        written = told.writes | told.tied
        for _ in range(3):
            made = waves(chosen)
            fill(made, rng, 0)
            everyone = np.array([0])
            before, other = made.taken(everyone), made.taken(everyone)
            fill(other, rng, told.reads | told.tied)
            execute(text, chosen, made)
            execute(text, chosen, other)
            if unsaid := differences(made, before) & ~written:
                wrong.append(f"{gpu} {text}: writes {names(unsaid)}")
            if differing := differences(made, other) & written:
                wrong.append(f"{gpu} {text}: something unsaid decides {names(differing)}")
    assert not wrong, "\n".join(wrong)
