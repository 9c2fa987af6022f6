"""Every scalar and vector instruction that the emulator knows has a statement of its meaning."""

from __future__ import annotations

import test_isa_compare as compare
import test_isa_convert as convert
import test_isa_floats as floats
import test_isa_lanes as lanes
import test_isa_packed as packed
import test_isa_scalar as scalar
import vector_statements as vector

from tilewright.emulate.isa.registry import _MEANINGS

OTHERS = {
    compare.test_fp32_class: "v_cmp_class_f32",
    compare.test_selection: "v_cndmask_b32 v_cndmask_b16",
    compare.test_wide_product_with_carry: "v_mad_u64_u32 v_mad_co_u64_u32",
    compare.test_wide_signed_product_with_its_sign: "v_mad_i64_i32 v_mad_co_i64_i32",
    compare.test_bits_below_a_lane: "v_mbcnt_lo_u32_b32 v_mbcnt_hi_u32_b32",
    compare.test_any_function_of_three_bits: "v_bitop3_b32 v_bitop3_b16",
    compare.test_any_function_of_two_bits: "v_bitop2_b32",
    convert.test_two_codes_to_fp32: "v_cvt_pk_f32_fp8 v_cvt_pk_f32_bf8",
    convert.test_one_code_to_fp32: "v_cvt_f32_fp8 v_cvt_f32_bf8",
    convert.test_two_fp32_to_codes: "v_cvt_pk_fp8_f32 v_cvt_pk_bf8_f32",
    convert.test_scaled_from_small: " ".join(
        f"v_cvt_scalef32_pk_{wide}_{small}"
        for wide in convert.WIDE
        for small in ("fp8", "bf8", "fp4")
    ),
    convert.test_scaled_to_small: " ".join(
        f"v_cvt_scalef32_pk_{small}_{wide}"
        for wide in convert.WIDE
        for small in ("fp8", "bf8", "fp4")
    ),
    floats.test_minimum_and_maximum: "v_min_f32 v_max_f32 v_min_f16 v_max_f16",
    floats.test_approximate_functions_of_fp32: " ".join(f"v_{x}_f32" for x in floats.APPROXIMATE),
    floats.test_approximate_functions_of_fp16: " ".join(
        f"v_{x}_f16" for x in floats.APPROXIMATE if x != "rcp_iflag"
    ),
    floats.test_products_with_a_literal: "v_fmaak_f32 v_fmamk_f32",
    floats.test_division_is_rounded_correctly: "v_div_scale_f32 v_div_fmas_f32 v_div_fixup_f32",
    lanes.test_first_active_lane: "v_readfirstlane_b32",
    lanes.test_one_lane: "v_readlane_b32 v_writelane_b32",
    lanes.test_any_lane_of_a_row: "v_permlane16_b32 v_permlanex16_b32",
    lanes.test_rows_change_places: "v_permlane16_swap_b32 v_permlane32_swap_b32",
    lanes.test_registers_change_places: "v_swap_b32",
    lanes.test_dual_instructions_read_before_they_write: "v_dual",
    packed.test_two_registers_of_four: "v_pk_mov_b32",
    packed.test_mixed_precision: (
        "v_fma_mix_f32 v_fma_mixlo_f16 v_fma_mixhi_f16 v_fma_mix_f32_bf16"
    ),
    scalar.test_selection_by_scc: "s_cselect_b32 s_cselect_b64 s_cmov_b32 s_cmov_b64",
    scalar.test_short_constants: "s_movk_i32 s_addk_i32 s_addk_co_i32 s_mulk_i32",
    scalar.test_one_bit: "s_bitcmp0_b32 s_bitcmp1_b32",
    scalar.test_a_bit_is_set_or_cleared: " ".join(
        f"s_bitset{bit}_b{size}" for bit in (0, 1) for size in (32, 64)
    ),
    scalar.test_fused_products: "s_fmaak_f32 s_fmamk_f32 s_fmac_f32",
    scalar.test_approximate_functions_of_scalars: " ".join(
        f"v_s_{x}_f32" for x in floats.APPROXIMATE if x != "rcp_iflag"
    ),
    scalar.test_fp16_overflow_mode_is_set_and_cleared: "s_setreg_imm32_b32",
    scalar.test_clusters: "s_getreg_b32",
    scalar.test_a_long_branch: "s_getpc_b64 s_setpc_b64 s_get_pc_i64 s_set_pc_i64",
    scalar.test_a_long_branch_in_one_instruction: "s_add_pc_i64",
}
"""What the tests state that are of a few instructions each."""

STATED = {
    *vector.STATEMENTS,
    *compare.COMPARED,
    *compare.CARRIES,
    *packed.HALVES,
    *packed.PAIRS,
    *scalar.STATEMENTS,
    *scalar.CARRIES,
    *(f"s_cmp_{name}_{kind}" for name, kind in scalar.COMPARISONS),
    *(f"s_cmpk_{name}_{kind}" for name in scalar.INTEGERS for kind in ("i32", "u32")),
    *(f"s_{name}_saveexec_b{size}" for name in scalar.SAVING for size in (32, 64)),
    *(name for names in OTHERS.values() for name in names.split()),
}
MODULES = (
    *("elementwise", "integer", "floats", "convert", "compare", "lanes", "packed", "wide"),
    *("division", "dual", "scalar", "scalar_floats", "modes", "relative"),
)
"""The modules whose instructions are stated here."""
KNOWN = {
    mnemonic
    for (mnemonic, _), maker in _MEANINGS.items()
    if maker.__module__.rpartition(".")[2] in MODULES
}


def test_every_instruction_is_stated() -> None:
    assert not KNOWN - STATED


def test_every_statement_is_of_an_instruction() -> None:
    assert len(KNOWN) > 500
    assert not STATED - KNOWN
