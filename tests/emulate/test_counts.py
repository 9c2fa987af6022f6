"""Counts of hand-made programs, worked out by hand, and the rates against the data files."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from tilewright.arch import arch
from tilewright.emulate.counts import Counts
from tilewright.emulate.cycles import issue_cycles
from tilewright.emulate.kinds import KINDS, kind_of
from tilewright.errors import UnknownInstruction
from tilewright.listing.target import GENERATIONS, Target
from tilewright.listing.text import instruction

CDNA3 = Target("gfx942", "cdna3", 64)


def target(name: str) -> Target:
    return Target(name, GENERATIONS[name], arch(name).warp_size)


# ------------------------------------------------------------------------------------------- kinds

OF_EACH_KIND = {
    "matrix": "v_mfma_f32_32x32x8_f16 v_wmma_i32_16x16x16_iu8 v_mfma_scale_f32_16x16x128_f8f6f4 "
    "v_smfmac_f32_16x16x32_f16 v_swmmac_f32_16x16x32_f16 v_wmma_scale_f32_16x16x128_f8f6f4",
    "vector": "v_add_u32 v_pk_fma_f32 v_dual v_accvgpr_read_b32 v_dot2_f32_f16 v_readlane_b32 "
    "v_sub_f32 v_cvt_f16_f32 v_cmp_lt_i32 v_permlane32_swap_b32 v_mbcnt_lo_u32_b32",
    "transcendental": "v_exp_f32 v_rcp_f32 v_rcp_iflag_f32 v_sqrt_f32 v_log_f32 v_s_exp_f32",
    "scalar": "s_add_i32 s_and_saveexec_b64 s_mov_b32 s_cmp_lt_i32 s_cmpk_gt_i32 s_getreg_b32 "
    "s_setreg_imm32_b32 s_bfe_u32 s_mul_f32 s_sub_i32 s_cvt_f32_u32 s_lshl_b32",
    "LDS": "ds_read_b128 ds_write2_b64 ds_load_b96 ds_bpermute_b32 ds_swizzle_b32 ds_add_f32",
    "global": "buffer_load_dwordx4 global_store_b128 flat_load_dword global_atomic_add_f32 "
    "global_load_async_to_lds_b128 buffer_atomic_add_f32",
    "scratch": "scratch_load_b128 scratch_store_dword",
    "scalar memory": "s_load_dwordx2 s_load_b96 s_buffer_load_b32 s_memtime",
    "cache": "buffer_inv buffer_wbl2 buffer_gl0_inv buffer_wbinvl1_vol global_inv global_wb "
    "s_dcache_inv",
    "branch": "s_branch s_cbranch_scc1 s_cbranch_execz s_setpc_b64 s_set_pc_i64 s_add_pc_i64",
    "wait": "s_waitcnt s_wait_loadcnt_dscnt s_waitcnt_vscnt s_wait_alu s_wait_xcnt",
    "barrier": "s_barrier s_barrier_signal s_barrier_wait",
    "other": "s_nop s_endpgm s_delay_alu s_clause s_setprio s_sendmsg s_set_vgpr_msb "
    "s_set_inst_prefetch_distance",
}


def test_every_kind_has_its_instructions() -> None:
    assert OF_EACH_KIND.keys() == KINDS.keys()
    for kind, mnemonics in OF_EACH_KIND.items():
        for mnemonic in mnemonics.split():
            assert kind_of(mnemonic) == kind, mnemonic
    with pytest.raises(UnknownInstruction, match="`exp_done`"):
        kind_of("exp_done")


# ------------------------------------------------------------------------------------------- rates

AMD = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250")
_ENDS = {
    "fp32": "f32", "tf32": "xf32", "fp16": "f16", "bf16": "bf16", "int8": "i8",
    "e4m3fn": "fp8_fp8", "e5m2": "bf8_bf8", "e4m3fnuz": "fp8_fp8", "e5m2fnuz": "bf8_bf8",
    "mxfp8": "f8f6f4", "mxfp4": "f8f6f4",
}  # fmt: skip


def text_of(name: str, unit: str, dtype: str, shape: tuple[int, int, int]) -> str:
    """A matrix instruction as the compiler writes it, without its operands."""
    m, n, k = shape
    end = _ENDS[dtype]
    if name == "gfx90a":
        end = {"bf16": "bf16_1k"}.get(dtype, end)
    if unit.startswith("v_wmma") and dtype == "int8":
        end = "iu8"
    if name == "gfx950" and end in ("fp8_fp8", "bf8_bf8") and k >= 64:
        end = "f8f6f4"
    between = "" if name == "gfx90a" else "_"
    made = f"{unit}_{'i32' if dtype == 'int8' else 'f32'}_{m}x{n}x{k}{between}{end}"
    if end == "f8f6f4" and dtype == "mxfp4":
        if name == "gfx1250":
            return made + " v0 matrix_a_fmt:MATRIX_FMT_FP4 matrix_b_fmt:MATRIX_FMT_FP4"
        return made + " v0 cbsz:4 blgp:4"
    return made + " v0"


@pytest.mark.parametrize("name", AMD)
def test_matrix_clocks_agree_with_the_rates_of_the_data_files(name: str) -> None:
    this = arch(name)
    for unit in this.mma:
        for dtype in unit.dtypes:
            for m, n, k in unit.shapes:
                ins = instruction(text_of(name, unit.instruction, dtype, (m, n, k)))
                clocks = issue_cycles(ins, target(name))
                rate = 2 * m * n * k * this.simds_per_cu / clocks
                assert rate == unit.flops_per_cu_per_clock, ins.text


@pytest.mark.parametrize("name", AMD)
def test_vector_clocks_agree_with_the_rates_of_the_data_files(name: str) -> None:
    this = arch(name)
    lanes = this.warp_size * this.simds_per_cu
    # Two products at once: packed on CDNA, dual on RDNA; gfx1250's published rate has one.
    two = {
        "gfx9": "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]",
        "gfx1": "v_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5",
    }[name[:4]]
    at_once = 1 if name == "gfx1250" else 2
    rate = lanes * 2 * at_once / issue_cycles(instruction(two), target(name))
    assert rate == this.fma_flops_per_cu_per_clock
    if this.exp_per_cu_per_clock:
        clocks = issue_cycles(instruction("v_exp_f32_e32 v0, v1"), target(name))
        assert lanes / clocks == this.exp_per_cu_per_clock


@pytest.mark.parametrize(
    ("name", "text", "clocks"),
    [
        # As AMD's Matrix Instruction Calculator has them.
        ("gfx90a", "v_mfma_f32_16x16x8bf16", 32),
        ("gfx950", "v_mfma_f32_16x16x16_f16", 16),
        ("gfx1100", "v_wmma_i32_16x16x16_iu4", 16),
        ("gfx1100", "v_wmma_f16_16x16x16_f16", 32),
        ("gfx1201", "v_swmmac_f32_16x16x32_bf16", 16),
        ("gfx1201", "v_swmmac_i32_16x16x64_iu4", 8),
        ("gfx1201", "v_wmma_f32_16x16x16_fp8_bf8", 8),
    ],
)
def test_clocks_of_instructions_that_no_data_file_lists(name, text, clocks) -> None:
    assert issue_cycles(instruction(text + " v0"), target(name)) == clocks


def test_an_operand_of_8_bits_takes_twice_the_clocks_of_f8f6f4() -> None:
    def clocks(modifiers: str) -> int:
        text = f"v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3] {modifiers}"
        return issue_cycles(instruction(text), target("gfx950"))

    assert [clocks(m) for m in ("", "cbsz:1 blgp:1", "blgp:4", "cbsz:4")] == [32, 32, 32, 32]
    assert [clocks(m) for m in ("cbsz:4 blgp:4", "cbsz:2 blgp:3")] == [16, 16]


def test_other_units_take_no_clocks_of_the_simd_and_unknown_matrix_instructions_raise() -> None:
    for text in ("s_add_i32 s0, s1, s2", "ds_read_b32 v0, v1", "s_waitcnt vmcnt(0)"):
        assert issue_cycles(instruction(text), CDNA3) == 0
    with pytest.raises(UnknownInstruction, match="the matrix rates of cdna3 lack"):
        issue_cycles(instruction("v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10"), CDNA3)
    with pytest.raises(UnknownInstruction, match="the matrix rates of rdna4 lack"):
        issue_cycles(instruction("v_wmma_f32_8x8x8_f64 v0, v1, v2, v3"), target("gfx1201"))


def test_vector_clocks_of_each_line() -> None:
    def clocks(name: str, text: str) -> int:
        return issue_cycles(instruction(text), target(name))

    add, exp = "v_add_f32 v0, v1, v2", "v_exp_f32 v0, v1"
    multiply, shift = "v_mul_lo_u32 v0, v1, v2", "v_lshlrev_b64 v[0:1], 2, v[2:3]"
    assert [clocks("gfx942", t) for t in (add, exp, multiply, shift)] == [4, 16, 4, 4]
    assert [clocks("gfx1201", t) for t in (add, exp, multiply, shift)] == [1, 4, 4, 2]
    of_64 = Target("gfx1201", "rdna4", 64)
    assert [issue_cycles(instruction(t), of_64) for t in (add, exp, multiply, shift)] == [
        2,
        8,
        8,
        4,
    ]
    both = "v_dual_add_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5"
    assert clocks("gfx1100", both) == 1


# ------------------------------------------------------------------------------------------ counts


def lines(*texts: str):
    return [instruction(text, index) for index, text in enumerate(texts)]


def test_executions_are_summed_by_kind_and_give_the_units_clocks() -> None:
    program = lines(
        "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]",
        "v_add_u32_e32 v0, v1, v2",
        "v_add_u32_e64 v0, v1, v2",
        "v_exp_f32_e32 v0, v1",
        "s_cbranch_scc1 .loop",
        "s_endpgm",
    )
    found = Counts(CDNA3).counted(program, [10, 3, 4, 2, 5, 0])
    assert {k: n for k, n in found.instructions.items() if n} == {
        "matrix": 10, "vector": 7, "transcendental": 2, "branch": 5
    }  # fmt: skip
    assert found.mnemonics == {
        "s_cbranch_scc1": 5, "v_add_u32": 7, "v_exp_f32": 2, "v_mfma_f32_32x32x8_f16": 10
    }  # fmt: skip
    assert (found.matrix_clocks, found.vector_clocks) == (10 * 32, 7 * 4 + 2 * 16)
    assert found.read.accesses == found.written.lines == found.shared.clocks == 0
    assert found.read.used == 1.0


LOAD = instruction("buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen")
ALL = np.ones((1, 64), bool)


def traffic(*accesses, write=False):
    counts = Counts(CDNA3)
    for addresses, mask, size in accesses:
        counts.global_access(LOAD, np.atleast_2d(addresses).astype(np.int64), mask, size, write)
    found = counts.counted([], [])
    return found.written if write else found.read


def test_consecutive_lanes_ask_for_whole_pieces_of_memory() -> None:
    found = traffic((4096 + 16 * np.arange(64), ALL, 16))
    assert asdict(found) == {
        "accesses": 1, "requested": 1024, "distinct": 1024, "lines": 8, "segments": 16,
        "segment_lines": 8,
    }  # fmt: skip
    assert found.used == 1.0


def test_a_column_touches_a_piece_for_each_row() -> None:
    found = traffic((8192 * np.arange(64), ALL, 2))
    assert (found.requested, found.distinct, found.lines) == (128, 128, 64)
    assert (found.segments, found.segment_lines, found.used) == (64, 64, 128 / 4096)


def test_an_access_across_the_end_of_a_piece_touches_two() -> None:
    one = np.array([[True] + [False] * 63])
    found = traffic((np.full(64, 120), one, 16))
    assert (found.segments, found.segment_lines, found.lines, found.distinct) == (2, 2, 2, 16)
    found = traffic((np.full(64, 56), one, 16))
    assert (found.segments, found.segment_lines, found.lines) == (2, 1, 1)


def test_bytes_that_are_asked_for_again_are_touched_once() -> None:
    rows = 4096 + 16 * np.arange(64)
    found = traffic((rows, ALL, 16), (rows, ALL, 16), (rows + 512, ALL, 16), (rows + 4096, ALL, 4))
    assert (found.accesses, found.requested) == (4, 3 * 1024 + 256)
    assert (found.distinct, found.lines) == (1024 + 512 + 256, 12 + 8)
    same = traffic((np.full(64, 4096), ALL, 4))
    assert (same.requested, same.distinct, same.segments, same.used) == (256, 4, 1, 4.0)


def test_lanes_that_access_nothing_count_nothing() -> None:
    waves = np.stack([np.arange(64) * 4, np.arange(64) * 4])
    mask = np.stack([np.arange(64) < 16, np.zeros(64, bool)])
    found = traffic((waves, mask, 4), (waves, np.zeros((2, 64), bool), 4), write=True)
    assert (found.accesses, found.requested, found.distinct, found.segments) == (1, 64, 64, 1)


def test_scalar_loads_are_counted_apart() -> None:
    counts = Counts(CDNA3)
    load = instruction("s_load_dwordx2 s[0:1], s[2:3], 0x0")
    counts.global_access(load, np.full((2, 1), 4096), np.ones((2, 1), bool), 8, False)
    found = counts.counted([], [])
    assert (found.scalar_read.requested, found.scalar_read.distinct) == (16, 8)
    assert found.read.requested == 0


def test_lds_bytes_clocks_and_conflicts() -> None:
    counts = Counts(CDNA3)
    rows = np.arange(64)[None] * 16
    counts.lds_access(LOAD, rows, ALL, 16, True)
    counts.lds_access(LOAD, rows, ALL, 16, False)
    counts.lds_access(LOAD, np.arange(64)[None] * 128, ALL, 4, False)
    found = counts.counted([], []).shared
    assert (found.written, found.read) == (1024, 1024 + 256)
    assert (found.clocks, found.conflicts) == (8 + 8 + 64, 62)


def test_ranges_are_merged_the_same_when_few_are_kept(monkeypatch) -> None:
    draw = np.random.default_rng(1)
    accesses = [(draw.integers(0, 1 << 14, (1, 64)) * 4, ALL, 8) for _ in range(50)]
    whole = traffic(*accesses)
    monkeypatch.setattr("tilewright.emulate.counts._KEPT", 100)
    assert traffic(*accesses) == whole
    touched = {a + i for addresses, _, _ in accesses for a in addresses.ravel() for i in range(8)}
    assert (whole.distinct, whole.lines) == (len(touched), len({a // 128 for a in touched}))
