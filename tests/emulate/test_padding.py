"""Listings get the wait states that they lack, and nothing else."""

from __future__ import annotations

import pytest
from small import FIRST_LINE, listing

from tilewright.arch import arch as find_arch
from tilewright.compile import Store, build, inspect
from tilewright.emulate.proof import prover
from tilewright.listing.effects import effects
from tilewright.listing.hazards import shortages
from tilewright.listing.padding import padded
from tilewright.listing.text import parse
from tilewright.ops.gemm import FAMILY


def code(target: str, text: str) -> list[str]:
    """The code of a listing after padding."""
    lines = padded(listing(target, text)).splitlines()
    end = lines.index("\ts_endpgm")
    return [line.strip() for line in lines[FIRST_LINE - 1 : end]]


MFMA = "v_mfma_f32_32x32x8_f16 v[0:15], v[32:33], v[40:41], v[0:15]"
WMMA = "v_wmma_f32_16x16x32_bf16 v[0:7], v[8:15], v[16:23], v[0:7]"
DUAL = "v_dual_mov_b32 v8, v60 :: v_dual_mov_b32 v9, v61"


@pytest.mark.parametrize(
    ("target", "text", "expected"),
    [
        (
            "gfx942",
            [MFMA, "v_mov_b32_e32 v90, v0"],
            [MFMA, "s_nop 7", "s_nop 2", "v_mov_b32_e32 v90, v0"],
        ),
        (
            "gfx942",
            [MFMA, "s_nop 9", "v_mov_b32_e32 v90, v0"],
            [MFMA, "s_nop 9", "s_nop 0", "v_mov_b32_e32 v90, v0"],
        ),
        ("gfx942", [MFMA, "s_nop 10", "v_mov_b32_e32 v90, v0"], None),
        ("gfx1250", [WMMA, DUAL], [WMMA, *["v_nop"] * 4, DUAL]),
        (
            "gfx1100",
            ["v_exp_f32_e32 v0, v1", "v_add_f32_e32 v2, v0, v1"],
            ["v_exp_f32_e32 v0, v1", "s_waitcnt_depctr 0xfff", "v_add_f32_e32 v2, v0, v1"],
        ),
        (
            "gfx1201",
            ["v_add_f32_e32 v0, s4, v1", "s_mov_b32 s4, s9", "v_add_f32_e32 v0, s4, v1"],
            [
                "v_add_f32_e32 v0, s4, v1",
                "s_mov_b32 s4, s9",
                "s_wait_alu 0xf1fc",
                "v_add_f32_e32 v0, s4, v1",
            ],
        ),
    ],
)
def test_padding(target, text, expected):
    assert code(target, "\n".join(text)) == (expected or text)


def test_a_listing_that_lacks_nothing_is_the_same():
    text = listing("gfx942", f"{MFMA}\ns_nop 10\nv_mov_b32_e32 v90, v0")
    assert padded(text) is text


def test_several_dangers():
    """Branches must not jump over a wait."""
    text = f"""\
.loop:
{MFMA}
s_cbranch_scc1 .loop
s_cbranch_vccnz .out
s_nop 3
.out:
v_add_f32_e32 v90, v0, v1
v_readfirstlane_b32 s0, v90"""
    made = parse(padded(listing("gfx942", text)))
    assert shortages(made, [effects(ins, made.target) for ins in made.instructions]) == []
    order = [ins.text for ins in made.instructions]
    assert order.index("s_nop 7") == made.labels[".out"]
    assert (
        order.index("v_readfirstlane_b32 s0, v90") == order.index("v_add_f32_e32 v90, v0, v1") + 2
    )


@pytest.mark.turns(24)
def test_a_kernel_whose_compiler_left_out_a_wait_state(tmp_path):
    """gluon_cdna of 64x64x64, for which Triton's LLVM puts ten wait states where eleven are needed:
    what is stored has them, and its listing is still the code object's."""
    arch = "gfx942"
    axes = {**FAMILY.axes(), "tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4}
    fields = {"num_stages": 2, "pipeline": "gluon_cdna", "layout": "rrr", "dtype_a": "fp16"}
    config = FAMILY.make_config({**axes, **fields}, find_arch(arch))
    store = Store(tmp_path)
    (result,) = build([(config, arch)], store=store).results
    text = inspect(result.kernel, store, "amdgcn")
    made = parse(text)
    assert "\ts_nop 0\n\tv_cvt_f16_f32" in text
    assert shortages(made, [effects(ins, made.target) for ins in made.instructions]) == []
    prover().prove(text, store.read(result.kernel), arch)
