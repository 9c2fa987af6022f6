"""Instructions that move values between lanes, and dual instructions."""

from __future__ import annotations

import numpy as np
import pytest
from one import execute, one, target, waves
from spelling import exists

ACTIVE = 0x9669_F00D_1234_8000


def test_first_active_lane() -> None:
    given = np.arange(64) + 100
    assert one("v_readfirstlane_b32 s3, v2", vector={2: given}).scalar[3, 0] == 100
    made = one("v_readfirstlane_b32 s3, v2", vector={2: given}, active=ACTIVE)
    assert made.scalar[3, 0] == 115
    assert one("v_readfirstlane_b32 s3, v2", vector={2: given}, active=0).scalar[3, 0] == 100
    assert one("v_readfirstlane_b32 m0, v2", vector={2: given}).scalar[124, 0] == 100


def test_one_lane() -> None:
    """Lane numbers wrap; whether the lane is active does not matter."""
    given = np.arange(64) + 100
    state = {"vector": {2: given}, "scalar": {5: [3, 67]}, "count": 2, "active": ACTIVE}
    assert one("v_readlane_b32 s3, v2, 17", **state).scalar[3].tolist() == [117, 117]
    assert one("v_readlane_b32 s3, v2, s5", **state).scalar[3].tolist() == [103, 103]
    made = one("v_writelane_b32 v2, s5, 1", **state)
    assert made.vector[2, :, 1].tolist() == [3, 67]
    assert (made.vector[2, :, 0] == 100).all()
    assert (made.vector[2, :, 2:] == given[2:]).all()
    made = one("v_writelane_b32 v2, 7, s5", **state)
    assert made.vector[2, :, 3].tolist() == [7, 7]
    made = one("v_readlane_b32 s3, v2, s5", "gfx1201", vector={2: np.arange(32)}, scalar={5: 33})
    assert made.scalar[3, 0] == 1


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("selected", ["", " op_sel:[1,0]", " op_sel:[0,1]", " op_sel:[1,1]"])
@pytest.mark.parametrize("active", [None, 0xF00F_8421])
def test_any_lane_of_a_row(other: bool, selected: str, active: int | None) -> None:
    name = "v_permlanex16_b32" if other else "v_permlane16_b32"
    text = f"{name} v0, v2, s4, s5{selected}"
    assert exists(text, "gfx1201")
    low, high = 0xFEDCBA98, 0x01234567
    state = {"vector": {0: 7, 2: np.arange(32) + 100}, "scalar": {4: low, 5: high}}
    made = one(text, "gfx1201", active=active, **state)
    for lane in range(32):
        chosen = (low | high << 32) >> lane % 16 * 4 & 15
        from_ = ((lane // 16) ^ other) * 16 + chosen
        readable = bool(made.active[0, from_]) or selected.startswith(" op_sel:[1")
        wanted = from_ + 100 if readable else 0 if selected.endswith("1]") else 7
        assert made.vector[0, 0, lane] == (wanted if made.active[0, lane] else 7), lane


@pytest.mark.parametrize("size", [16, 32])
def test_rows_change_places(size: int) -> None:
    text = f"v_permlane{size}_swap_b32 v1, v2"
    assert exists(text, "gfx950")
    made = one(text, "gfx950", vector={1: np.arange(64), 2: np.arange(64) + 100})
    first, second = list(range(64)), list(range(100, 164))
    for lane in range(64):
        if lane // size % 2 == 0:
            partner = lane + size
            first[partner], second[lane] = second[lane], first[partner]
    assert made.vector[1, 0].tolist() == first
    assert made.vector[2, 0].tolist() == second


def test_registers_change_places() -> None:
    made = one("v_swap_b32 v1, v2", vector={1: 10, 2: 20}, active=1)
    assert made.vector[1:3, 0, :2].tolist() == [[20, 10], [10, 20]]


def test_dual_instructions_read_before_they_write() -> None:
    for text, wanted in [
        ("v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0", [20, 10]),
        ("v_dual_add_nc_u32 v1, v0, v1 :: v_dual_lshlrev_b32 v0, 1, v1", [40, 30]),
        ("v_dual_mov_b32 v0, 5 :: v_dual_mov_b32 v1, 6", [5, 6]),
        ("v_dual_add_nc_u32 v0, v0, v0 :: v_dual_mov_b32 v1, v0", [20, 10]),
    ]:
        made = waves(target("gfx1250"), {0: 10, 1: 20}, active=0xFFFF)
        assert exists(text.replace("v_dual_add_nc_u32 v1", "v_dual_add_nc_u32 v1"), "gfx1250"), text
        execute(text, target("gfx1250"), made)
        assert made.vector[:2, 0, 0].tolist() == wanted, text
        assert made.vector[:2, 0, 16].tolist() == [10, 20], text


def test_a_dual_half_that_accumulates_or_selects() -> None:
    one_, two, three = 0x3F800000, 0x40000000, 0x40400000
    text = "v_dual_fmac_f32 v0, v1, v2 :: v_dual_cndmask_b32 v3, v0, v1"
    assert exists(text, "gfx1100")
    made = waves(target("gfx1100"), {0: one_, 1: two, 2: three, 3: 0}, {106: 0xFFFF0000})
    execute(text, target("gfx1100"), made)
    assert (made.vector[0] == 0x40E00000).all()
    assert made.vector[3, 0, [0, 31]].tolist() == [one_, two]
