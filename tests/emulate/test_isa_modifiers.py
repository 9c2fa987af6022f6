"""The modifiers of sources and destinations, each with plain instructions: SDWA's selections, DPP's
lanes, signs, halves, clamp, and denormal modes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from exact import bits32, f32, signed
from one import execute, target, waves
from spelling import exists

from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.registry import Context, executor
from tilewright.emulate.waves import Waves
from tilewright.errors import BadArgument, UnknownInstruction
from tilewright.listing.target import target_of
from tilewright.listing.text import instruction

SELECTIONS = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "DWORD": (0, 32),
}
SDWA = "v_or_b32_sdwa v0, {a}, {b} dst_sel:{d} dst_unused:{u} src0_sel:{s} src1_sel:{t}"


def run(text: str, gpu: str, made: Waves) -> Waves:
    assert exists(text, gpu), f"{gpu} has no {text}"
    execute(text, target(gpu), made)
    return made


def lanes_of(seed: str, count: int = 64) -> np.ndarray:
    rng = random.Random(seed)
    return np.array([rng.getrandbits(32) for _ in range(count)], np.uint32)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("sext", [False, True])
def test_sdwa_source(selection: str, sext: bool) -> None:
    shift, width = SELECTIONS[selection]
    for first in (True, False):
        given = lanes_of(selection)
        name = "sext(v2)" if sext else "v2"
        text = SDWA.format(
            a=name if first else "v4",
            b="v4" if first else name,
            d="DWORD",
            u="UNUSED_PAD",
            s=selection if first else "DWORD",
            t="DWORD" if first else selection,
        )
        made = run(text, "gfx942", waves(target("gfx942"), {2: given, 4: 0}, active=0xF0F0))
        for lane in range(16):
            field = int(given[lane]) >> shift & ((1 << width) - 1)
            wanted = signed(field, width) % 2**32 if sext else field
            if lane % 8 >= 4:
                assert int(made.vector[0, 0, lane]) == wanted


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("unused", ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"])
def test_sdwa_destination(selection: str, unused: str) -> None:
    shift, width = SELECTIONS[selection]
    text = SDWA.format(a="v2", b="v4", d=selection, u=unused, s="DWORD", t="DWORD")
    given, old = lanes_of("new"), lanes_of("old")
    made = waves(target("gfx90a"), {0: old, 2: given, 4: 0}, active=0xFF00FF00FF00FF00)
    run(text, "gfx90a", made)
    for lane in range(64):
        field = int(given[lane]) & ((1 << width) - 1)
        kept = int(old[lane]) & ~(((1 << width) - 1) << shift)
        wanted = {
            "UNUSED_PAD": field << shift,
            "UNUSED_SEXT": signed(field, width) * 2**shift % 2**32,
            "UNUSED_PRESERVE": field << shift | kept,
        }[unused]
        if not made.active[0, lane]:
            wanted = int(old[lane])
        assert int(made.vector[0, 0, lane]) == wanted, f"{text}, lane {lane}"


def test_sdwa_of_16_bits_and_of_comparisons() -> None:
    given = lanes_of("x")
    made = waves(target("gfx942"), {2: 4, 3: given})
    run(
        "v_lshlrev_b16_sdwa v0, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD "
        "src1_sel:BYTE_3",
        "gfx942",
        made,
    )
    assert (made.vector[0, 0] == (given >> 24 << 4)).all()
    run(
        "v_cvt_f32_f16_sdwa v1, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1",
        "gfx942",
        made,
    )
    halves = (given >> 16).astype(np.uint16).view(np.float16).astype(np.float32)
    assert np.array_equal(made.vector[1, 0].view(np.float32), halves, equal_nan=True)
    run("v_cmp_lt_i32_sdwa s[4:5], sext(v3), v2 src0_sel:WORD_1 src1_sel:DWORD", "gfx942", made)
    wanted = sum((signed(int(x) >> 16, 16) < 4) << lane for lane, x in enumerate(given))
    assert int(made.scalar[4, 0]) | int(made.scalar[5, 0]) << 32 == wanted
    run(
        "v_cndmask_b32_sdwa v5, v2, v3, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD "
        "src1_sel:WORD_1",
        "gfx942",
        made,
    )


def in_row(lane: int, other: int) -> int | None:
    """A lane, if it is of the same row of 16."""
    return other if other // 16 == lane // 16 and other >= 0 else None


CONTROLS: dict[str, tuple[str, Callable[[int], int | None]]] = {
    "quad_perm:[2,3,0,1]": ("all", lambda i: i // 4 * 4 + (2, 3, 0, 1)[i % 4]),
    "quad_perm:[1,0,3,2]": ("all", lambda i: i // 4 * 4 + (1, 0, 3, 2)[i % 4]),
    "quad_perm:[0,0,0,3]": ("all", lambda i: i // 4 * 4 + (0, 0, 0, 3)[i % 4]),
    "row_shl:1": ("all", lambda i: in_row(i, i + 1)),
    "row_shl:4": ("all", lambda i: in_row(i, i + 4)),
    "row_shr:8": ("all", lambda i: in_row(i, i - 8)),
    "row_shr:15": ("all", lambda i: in_row(i, i - 15)),
    "row_ror:3": ("all", lambda i: i // 16 * 16 + (i - 3) % 16),
    "row_mirror": ("all", lambda i: i // 16 * 16 + 15 - i % 16),
    "row_half_mirror": ("all", lambda i: i // 8 * 8 + 7 - i % 8),
    "row_newbcast:5": ("gfx9", lambda i: i // 16 * 16 + 5),
    "row_bcast:15": ("gfx9", lambda i: i // 16 * 16 - 1 if i >= 16 else None),
    "row_bcast:31": ("gfx9", lambda i: 31 if i >= 32 else None),
    "wave_shl:1": ("gfx9", lambda i: i + 1 if i < 63 else None),
    "wave_shr:1": ("gfx9", lambda i: i - 1 if i else None),
    "wave_rol:1": ("gfx9", lambda i: (i + 1) % 64),
    "wave_ror:1": ("gfx9", lambda i: (i - 1) % 64),
    "row_share:9": ("gfx11", lambda i: i // 16 * 16 + 9),
    "row_xmask:5": ("gfx11", lambda i: i // 16 * 16 + (i % 16 ^ 5)),
}
MASKS = [(15, 15), (10, 15), (15, 5), (5, 12)]


@pytest.mark.parametrize("control", CONTROLS)
def test_dpp(control: str) -> None:
    """Of a source that is not there or not active: zero with bound_ctrl, else no write; with fi it
    is read all the same."""
    line, origin = CONTROLS[control]
    for gpu in {"all": ("gfx942", "gfx1201"), "gfx9": ("gfx90a",), "gfx11": ("gfx1100",)}[line]:
        for rows, banks in MASKS:
            for bound in ("", " bound_ctrl:1"):
                for inactive in ("", " fi:1") if gpu != "gfx942" and line != "gfx9" else ("",):
                    for active in (None, 0xF731_8CEF_7FFE_A5C3):
                        given, old = lanes_of("given"), lanes_of("old")
                        gpu_lanes = target(gpu).lanes
                        made = waves(
                            target(gpu),
                            {0: old[:gpu_lanes], 2: given[:gpu_lanes]},
                            active=active,
                        )
                        text = (
                            f"v_mov_b32_dpp v0, v2 {control} row_mask:{rows:#x} "
                            f"bank_mask:{banks:#x}{bound}{inactive}"
                        )
                        run(text, gpu, made)
                        for lane in range(made.lanes):
                            from_ = origin(lane)
                            there = from_ is not None and (
                                bool(inactive) or bool(made.active[0, from_])
                            )
                            on = rows >> lane // 16 & 1 and banks >> lane % 16 // 4 & 1
                            wanted = int(old[lane])
                            if made.active[0, lane] and on and (there or bound):
                                wanted = int(given[from_]) if there and from_ is not None else 0
                            assert int(made.vector[0, 0, lane]) == wanted, f"{text}, lane {lane}"


def test_dpp_moves_the_first_source_alone() -> None:
    made = waves(target("gfx942"), {2: np.arange(64), 3: 100 * np.arange(64)})
    run(
        "v_add_u32_dpp v0, v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1",
        "gfx942",
        made,
    )
    wanted = [100 * i + (i - 1 if i % 16 else 0) for i in range(64)]
    assert made.vector[0, 0].tolist() == wanted


def test_dpp_of_eight() -> None:
    for active, inactive in [(None, ""), (0xFFFF_0F0F, ""), (0xFFFF_0F0F, " fi:1")]:
        made = waves(target("gfx1100"), {0: 7, 2: np.arange(32) + 50}, active=active)
        run(f"v_mov_b32_dpp v0, v2 dpp8:[7,6,5,4,3,2,1,0]{inactive}", "gfx1100", made)
        for lane in range(32):
            from_ = lane // 8 * 8 + 7 - lane % 8
            read = from_ + 50 if inactive or made.active[0, from_] else 0
            assert made.vector[0, 0, lane] == (read if made.active[0, lane] else 7)


@pytest.mark.parametrize("code", [0x3F800000, 0xBF800000, 0, 0x80000000, 0x7FC00001, 1])
def test_signs(code: int) -> None:
    """-x, |x| and -|x| change the sign bit of anything, NaN included."""
    for text, wanted in [
        ("v_add_f32_e64 v0, -v2, 0", code ^ 0x80000000),
        ("v_add_f32_e64 v0, |v2|, 0", code & 0x7FFFFFFF),
        ("v_add_f32_e64 v0, -|v2|, 0", code | 0x80000000),
    ]:
        made = run(text, "gfx942", waves(target("gfx942"), {2: code}))
        value = f32(wanted) + 0.0
        got = f32(int(made.vector[0, 0, 0]))
        assert got == value or (got != got and value != value), text
    made = run(
        "v_mul_f16_e64 v0, -v2, |v3|", "gfx942", waves(target("gfx942"), {2: 0xBC00, 3: 0xC000})
    )
    assert (made.vector[0] == 0x4000).all()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("v_fma_f16 v0, v2, v3, v4", 0x4500),  # 1 × 2 + 3; the upper half is zeroed
        ("v_fma_f16 v0, v2, v3, v4 op_sel:[1,0,0,0]", 0x4880),  # 3 × 2 + 3
        ("v_fma_f16 v0, v2, v3, v4 op_sel:[0,1,1,0]", 0x4700),  # 1 × 3 + 4
        ("v_fma_f16 v0, v2, v3, v4 op_sel:[0,0,0,1]", 0x4500BEEF),
    ],
)
def test_halves_by_op_sel(text: str, wanted: int) -> None:
    registers = {0: 0xDEADBEEF, 2: 0x42003C00, 3: 0x42004000, 4: 0x44004200}
    made = run(text, "gfx942", waves(target("gfx942"), registers))
    assert (made.vector[0] == wanted).all(), hex(int(made.vector[0, 0, 0]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("v_add_nc_u16 v0, v2, v3", 0xDEAD0003),
        ("v_add_nc_u16 v0, v2, v3 op_sel:[1,0,0]", 0xDEAD0012),
        ("v_add_nc_u16 v0, v2, v3 op_sel:[1,1,1]", 0x0030BEEF),
    ],
)
def test_halves_are_kept_from_gfx10_on(text: str, wanted: int) -> None:
    made = run(text, "gfx1201", waves(target("gfx1201"), {0: 0xDEADBEEF, 2: 0x100001, 3: 0x200002}))
    assert (made.vector[0] == wanted).all(), hex(int(made.vector[0, 0, 0]))


def test_named_halves() -> None:
    """Registers' halves by name, as compilers print them that know 16-bit registers."""
    made = waves(target("gfx1100"), {0: 0xDEADBEEF, 2: 0x100001, 3: 0x200002})
    execute("v_add_nc_u16 v0.h, v2.l, v3.h", target("gfx1100"), made)
    assert (made.vector[0] == 0x0021BEEF).all()


@pytest.mark.parametrize("value", [-1.0, -0.0, 0.25, 1.0, 1.5, float("inf"), float("nan")])
def test_clamp_of_floats(value: float) -> None:
    wanted = min(max(value, 0.0), 1.0) if value == value else 0.0
    made = run(
        "v_mul_f32_e64 v0, v2, 1.0 clamp", "gfx942", waves(target("gfx942"), {2: bits32(value)})
    )
    assert (made.vector[0] == bits32(abs(wanted))).all()


def test_denormals_are_flushed_where_the_descriptor_says() -> None:
    """Inputs and results of fp32 arithmetic, not of moves."""
    flushing = target("gfx942", denormals_32=False)
    for text, given, wanted in [
        ("v_add_f32_e32 v0, v2, v3", (1, 0x3F800000), 0x3F800000),
        ("v_mul_f32_e32 v0, v2, v3", (0x80800000, 0x3F000000), 0x80000000),
        ("v_mul_f32_e32 v0, v2, v3", (0x807FFFFF, 0x7F000000), 0x80000000),
        ("v_mov_b32_e32 v0, v2", (1, 0), 1),
    ]:
        made = waves(flushing, {2: given[0], 3: given[1]})
        execute(text, flushing, made)
        assert (made.vector[0] == wanted).all(), text
    made = waves(target("gfx942"), {2: 0x80800000, 3: 0x3F000000})
    execute("v_mul_f32_e32 v0, v2, v3", target("gfx942"), made)
    assert (made.vector[0] == 0x80400000).all()


def test_modes_that_are_not_known_are_errors() -> None:
    for mode, value in [("float_round_mode_32", 3), ("float_denorm_mode_16_64", 0)]:
        with pytest.raises(BadArgument, match=f"{mode} to {value}"):
            target_of("gfx942", 64, {mode: value})


def test_rows_change_places_only_where_all_lanes_are_active() -> None:
    gpu = target("gfx950")
    with pytest.raises(UnknownInstruction, match="inactive"):
        execute("v_permlane32_swap_b32 v1, v2", gpu, waves(gpu, active=1))


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("v_add_f32_e64 v0, v2, v3 mul:2", "gfx942"),
        ("v_mul_lo_u32 v0, v2, v3 clamp", "gfx942"),
        ("v_and_b32_e64 v0, -v2, v3", "gfx942"),
        ("v_add_u32 v0, v[2:3], v4", "gfx942"),
        ("v_add_u32 v0, v2", "gfx942"),
        ("v_add_u32 s0, v2, v3", "gfx942"),
        ("v_add_f32_dpp v0, v2, v3 row_turn:1 row_mask:0xf bank_mask:0xf", "gfx942"),
        ("v_pk_mul_f32 v[0:1], v[2:3], 1.0", "gfx942"),
        ("v_nonesuch_b32 v0, v1", "gfx942"),
        ("s_and_b64 s[0:1], s2, s[4:5]", "gfx942"),
        ("s_mov_b32 s0, v1", "gfx942"),
        ("v_cvt_pk_fp8_f32 v0, v1, v2", "gfx90a"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3", "gfx942"),
        ("v_permlane32_swap_b32 v0, v1", "gfx942"),
    ],
)
def test_an_unknown_form_is_an_error(text: str, gpu: str) -> None:
    with pytest.raises(UnknownInstruction, match="line 7"):
        executor(instruction(text, 0, 7), Context(target(gpu), Findings()))
