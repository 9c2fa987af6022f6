"""Registers used before the wait that covers their load: each counter of each generation."""

import numpy as np
import pytest
from small import TARGETS, launch

from tilewright.emulate.waits import Counters, Entry, counter
from tilewright.listing.target import target_of

CDNA = ("gfx90a", "gfx942", "gfx950")
GFX12 = ("gfx1201", "gfx1250")
ADDRESS = "v_lshlrev_b32 v1, 2, v0\n"


def word(target):
    return "dword" if target in CDNA else "b32"


def wait(target, what, left=0):
    """The wait for loads, stores, LDS or scalar memory."""
    if target in GFX12:
        name = {"load": "load", "store": "store", "shared": "ds", "scalar": "km"}[what]
        return f"s_wait_{name}cnt {left:#x}\n"
    if what == "store" and target == "gfx1100":
        return f"s_waitcnt_vscnt null, {left:#x}\n"
    name = "vmcnt" if what in ("load", "store") else "lgkmcnt"
    return f"s_waitcnt {name}({left})\n"


def ds(target, what):
    old = {"load": "read", "store": "write"}[what]
    return f"ds_{old if target in CDNA else what}"


def flagged(ran):
    return [text for kind, text in ran.findings if kind == "unwaited register"]


LOADS = {
    "load": lambda target: f"global_load_{word(target)} v2, v1, s[6:7]\n",
    "shared": lambda target: (
        f"{ds(target, 'store')}_b32 v1, v0\n"
        + wait(target, "shared")
        + f"{ds(target, 'load')}_b32 v2, v1\n"
    ),
    "scalar": lambda target: f"s_load_{word(target)} s9, s[6:7], 0x4\n",
}
USES = {
    "load": "v_mov_b32_e32 v3, v2",
    "shared": "v_mov_b32_e32 v3, v2",
    "scalar": "v_mov_b32_e32 v3, s9",
}
OVERWRITES = {
    "load": "v_mov_b32_e32 v2, 0",
    "shared": "v_mov_b32_e32 v2, 0",
    "scalar": "s_mov_b32 s9, 0",
}


@pytest.mark.parametrize("what", LOADS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_use_before_the_wait_is_flagged_at_its_line(target, what):
    load = ADDRESS + LOADS[what](target)
    for after in (USES[what], OVERWRITES[what]):
        assert flagged(launch(target, load + after, shared=1024)) == [after]
        sound = load + wait(target, what) + after
        assert launch(target, sound, shared=1024).findings == []


@pytest.mark.parametrize("what", LOADS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_wait_for_something_else_does_not_cover_a_load(target, what):
    for other in {"load", "shared"} - {what}:
        if wait(target, other) == wait(target, what):
            continue
        code = ADDRESS + LOADS[what](target) + wait(target, other) + USES[what]
        assert flagged(launch(target, code, shared=1024)) == [USES[what]]


@pytest.mark.parametrize("target", TARGETS)
def test_loads_end_in_order(target):
    loads = "".join(
        f"global_load_{word(target)} v{register}, v1, s[6:7]\n" for register in (2, 3, 4)
    )
    ran = launch(
        target,
        ADDRESS
        + loads
        + wait(target, "load", 1)
        + "v_add_u32_e32 v5, v2, v3\n".replace("add", "add" if target in CDNA else "add_nc")
        + "v_mov_b32_e32 v6, v4",
    )
    assert flagged(ran) == ["v_mov_b32_e32 v6, v4"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_load_with_as_many_behind_it_as_the_counter_counts_has_ended(target):
    """The counter's largest value is 63: with 63 loads behind it, the first is none of them."""
    more = [f"global_load_{word(target)} v3, v1, s[6:7]\n"]
    use = "v_mov_b32_e32 v4, v2"
    first = ADDRESS + LOADS["load"](target)
    assert flagged(launch(target, first + "".join(more * 62) + use)) == [use]
    assert flagged(launch(target, first + "".join(more * 63) + use)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_scalar_loads_end_in_any_order(target):
    loads = "".join(f"s_load_{word(target)} s{register}, s[6:7], 0x0\n" for register in (9, 10))
    ran = launch(target, loads + wait(target, "scalar", 1) + "s_mov_b32 s11, s9")
    assert flagged(ran) == ["s_mov_b32 s11, s9"]


@pytest.mark.parametrize("target", ("gfx1100", "gfx1201"))
def test_two_loads_of_halves_need_no_wait_between_them(target):
    code = (
        ADDRESS
        + "ds_store_b32 v1, v0\n"
        + wait(target, "shared")
        + "v_mov_b32_e32 v2, 0\n"
        + "ds_load_u16_d16 v2, v1\n"
        + "ds_load_u16_d16_hi v2, v1\n"
    )
    assert launch(target, code, shared=1024).findings == []
    between = code.replace("ds_load_u16_d16_hi v2, v1", "global_load_d16_hi_b16 v2, v1, s[6:7]")
    assert flagged(launch(target, between, shared=1024)) == [
        "global_load_d16_hi_b16 v2, v1, s[6:7]"
    ]
    address = code.replace("ds_load_u16_d16_hi v2, v1", "ds_load_u16_d16_hi v3, v2")
    assert "ds_load_u16_d16_hi v3, v2" in flagged(launch(target, address, shared=1024))


@pytest.mark.parametrize("target", TARGETS)
def test_a_stores_registers_may_be_overwritten_at_once(target):
    code = f"global_store_{word(target)} v1, v0, s[4:5]\nv_mov_b32_e32 v0, 0\n"
    ran = launch(target, ADDRESS + code)
    assert ran.findings == []
    lanes = 64 if target in CDNA else 32
    assert (ran.words[:lanes] == np.arange(lanes)).all()


def test_which_counter_an_access_adds_to():
    expected = {
        "gfx90a": ("vm", "vm", "lgkm", "lgkm"),
        "gfx942": ("vm", "vm", "lgkm", "lgkm"),
        "gfx950": ("vm", "vm", "lgkm", "lgkm"),
        "gfx1100": ("vm", "vs", "lgkm", "lgkm"),
        "gfx1201": ("load", "store", "ds", "km"),
        "gfx1250": ("load", "store", "ds", "km"),
    }
    for name, counters in expected.items():
        target = target_of(name, 32, {})
        accesses = ("load", "store", "shared", "scalar")
        assert tuple(counter(target, access) for access in accesses) == counters


def test_groups_keep_what_each_wave_has_in_flight():
    def made(*registers):
        counters = Counters(2)
        for register in registers:
            counters.issue("vm", Entry("load", 1 << register))
        return counters

    joined = made(1, 2, 3).joined([made(4)])
    assert joined.count == 4
    joined.wait("vm", 1)  # leaves the newest of each: v3 and v4
    assert joined.pending == 1 << 3 | 1 << 4
    apart = joined.taken(np.array([0]))
    apart.wait("vm", 0)
    assert apart.pending == 0
    assert joined.pending != 0


def test_landings_follow_their_waves():
    counters = Counters(3)
    counters.issue("vm", Entry("load", lands=np.array([[1, 2], [3, -1], [5, 6]])))
    part, rest = counters.taken(np.array([2])), counters.taken(np.array([0, 1]))
    both = part.joined([rest])
    (entry,) = both.wait("vm", 0)
    assert entry.lands.tolist() == [[5, 6], [1, 2], [3, -1]]
    other = Counters(1)
    other.issue("vm", Entry("load", 1))
    part.issue("vm", Entry("load", 2))
    entries = list(part.joined([other]).entries())
    assert entries[0].lands.tolist() == [[5, 6], [-1, -1]]
    assert entries[1].lands is None
    assert entries[1].registers == 3


@pytest.mark.parametrize("target", GFX12)
def test_one_number_for_two_counters(target):
    load = ADDRESS + "ds_store_b32 v1, v0\ns_wait_dscnt 0x0\n"
    load += "ds_load_b32 v2, v1\nglobal_load_b32 v3, v1, s[6:7]\n"
    uses = ["v_mov_b32_e32 v4, v2", "v_mov_b32_e32 v5, v3"]
    for number, left in ((0x0, []), (0x1, uses[:1]), (0x100, uses[1:]), (0x101, uses)):
        code = load + f"s_wait_loadcnt_dscnt {number:#x}\n" + "\n".join(uses)
        assert flagged(launch(target, code, shared=1024)) == left


def test_a_load_and_a_store_of_waves_that_meet_are_a_load():
    """A further load into the register needs no wait, whichever waves come first."""
    loading, storing = Counters(1), Counters(1)
    loading.issue("vm", Entry("load", registers=1 << 5))
    storing.issue("vm", Entry("store"))
    for first, second in ((loading, storing), (storing, loading)):
        together = first.joined([second])
        assert together.pending == together.exempt("vm", "load") == 1 << 5
