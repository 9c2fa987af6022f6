"""Shared memory: races between waves, what nothing wrote, what is in flight, what lies outside."""

import pytest
from small import TARGETS, launch
from test_waits import ADDRESS, CDNA, ds, wait, word

from tilewright.errors import KernelCrashed

GFX12 = ("gfx1201", "gfx1250")


def barrier(target):
    return "s_barrier_signal -1\ns_barrier_wait -1\n" if target in GFX12 else "s_barrier\n"


def lanes(target):
    return 64 if target in CDNA else 32


def found(ran, kind):
    return [text for one, text in ran.findings if one == kind]


def exchange(target, *, waited=True, met=True):
    """Two waves write their words, and read the words mirrored over the workgroup."""
    last = 2 * lanes(target) - 1
    sub = "v_sub_u32_e32" if target in CDNA else "v_sub_nc_u32_e32"
    return (
        ADDRESS
        + f"{ds(target, 'store')}_b32 v1, v0\n"
        + f"{sub} v2, {last}, v0\n"
        + "v_lshlrev_b32 v2, 2, v2\n"
        + (wait(target, "shared") if waited else "")
        + (barrier(target) if met else "")
        + f"{ds(target, 'load')}_b32 v3, v2\n"
        + wait(target, "shared")
        + f"global_store_{word(target)} v1, v3, s[4:5]\n"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_waves_exchange_words_through_a_barrier(target):
    ran = launch(target, exchange(target), waves=2, shared=1024)
    assert ran.findings == []
    count = 2 * lanes(target)
    assert ran.words[:count].tolist() == list(range(count))[::-1]


@pytest.mark.parametrize("target", TARGETS)
def test_without_the_barrier_it_is_a_race(target):
    ran = launch(target, exchange(target, met=False), waves=2, shared=1024)
    assert found(ran, "shared memory race") == [f"{ds(target, 'load')}_b32 v3, v2"]


@pytest.mark.parametrize("target", TARGETS)
def test_without_the_wait_the_barrier_does_not_help(target):
    ran = launch(target, exchange(target, waited=False), waves=2, shared=1024)
    at = barrier(target).splitlines()[0]
    assert found(ran, "unwaited shared memory") == [at]


@pytest.mark.parametrize("target", TARGETS)
def test_words_that_are_read_may_not_be_overwritten_before_a_barrier(target):
    store = f"{ds(target, 'store')}_b32 v2, v0"
    again = exchange(target) + store + "\n"
    assert found(launch(target, again, waves=2, shared=1024), "shared memory race") == []
    # v2 is the place that this wave itself has read; v1 is what the other wave read
    store = f"{ds(target, 'store')}_b32 v1, v0 offset:0"
    racing = exchange(target) + store + "\n"
    ran = launch(target, racing, waves=2, shared=1024)
    assert found(ran, "shared memory race") == [store]
    assert "writes what another wave reads" in ran.details
    sound = exchange(target) + barrier(target) + store + "\n"
    assert launch(target, sound, waves=2, shared=1024).findings == []


@pytest.mark.parametrize("target", TARGETS)
def test_two_waves_may_write_one_value_to_one_place_and_not_two(target):
    same = "v_and_b32 v2, 28, v0\n" + f"{ds(target, 'store')}_b32 v2, v2\n"
    assert launch(target, same, waves=2, shared=1024).findings == []
    differs = "v_and_b32 v2, 28, v0\n" + f"{ds(target, 'store')}_b32 v2, v0\n"
    ran = launch(target, differs, waves=2, shared=1024)
    assert found(ran, "shared memory race") == [f"{ds(target, 'store')}_b32 v2, v0"]
    alone = launch(target, differs, waves=1, shared=1024)
    assert found(alone, "shared memory race") == [f"{ds(target, 'store')}_b32 v2, v0"]


@pytest.mark.parametrize("target", TARGETS)
def test_waves_may_add_to_one_place_and_nobody_may_use_it_before_a_barrier(target):
    store, load = (f"{ds(target, what)}_b32" for what in ("store", "load"))
    zeros = ADDRESS + f"v_mov_b32 v4, 0\nv_mov_b32 v5, 1\n{store} v1, v4\n{wait(target, 'shared')}"
    add = f"ds_add_u32 v4, v5\n{wait(target, 'shared')}"
    read = f"{load} v3, v4\n{wait(target, 'shared')}"
    out = f"global_store_{word(target)} v1, v3, s[4:5]\n"
    met = barrier(target)
    ran = launch(target, zeros + met + add + met + read + out, waves=2, shared=1024)
    assert ran.findings == [] and ran.words[0] == 2 * lanes(target)
    for code, what in (
        (zeros + add + met + read, "adds to what another wave writes"),
        (zeros + met + read + add, "adds to what another wave reads"),
        (zeros + met + add + read, "reads what another wave writes"),
    ):
        ran = launch(target, code, waves=2, shared=1024)
        assert found(ran, "shared memory race") and what in ran.details, what
    ran = launch(target, "v_mov_b32 v4, 0\n" + add, waves=1, shared=1024)
    assert found(ran, "unwritten shared memory") == ["ds_add_u32 v4, v5"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_late_write_races_with_an_earlier_one_of_another_wave(target):
    """The waves diverge: each writes all words when its turn comes."""
    mask = "exec" if target in CDNA else "exec_lo"
    move = "s_mov_b64" if target in CDNA else "s_mov_b32"
    compare = f"v_cmp_gt_u32_e32 {'vcc' if target in CDNA else 'vcc_lo'}, {lanes(target)}, v0\n"
    away = "s_cbranch_vccz .Lother\n"
    write = f"v_mov_b32_e32 v2, 16\n{ds(target, 'store')}_b32 v2, {{}}\n"
    code = (
        compare
        + away
        + f"{move} {mask}, 1\n"
        + write.format("v0")
        + "s_endpgm\n"
        + ".Lother:\n"
        + f"{move} {mask}, 1\n"
        + write.format("v0").replace("ds_", "s_nop 0\nds_")
    )
    ran = launch(target, code, waves=2, shared=1024)
    assert found(ran, "shared memory race") == [f"{ds(target, 'store')}_b32 v2, v0"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_nothing_wrote_is_flagged_where_it_is_read(target):
    code = ADDRESS + f"{ds(target, 'load')}_b32 v2, v1\n" + wait(target, "shared")
    ran = launch(target, code, shared=1024)
    assert found(ran, "unwritten shared memory") == [f"{ds(target, 'load')}_b32 v2, v1"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", ["store", "load"])
def test_the_last_word_is_inside_and_the_next_outside(target, what):
    registers = {"store": "v1, v0", "load": "v2, v1"}[what]
    shared = 4 * lanes(target)
    whole = ADDRESS + f"{ds(target, 'store')}_b32 v1, v0\n" + wait(target, "shared")
    inside = f"{ds(target, what)}_b32 {registers}"
    assert launch(target, whole + inside, shared=shared).findings == []
    outside = f"{inside} offset:4"
    ran = launch(target, whole + outside, shared=shared)
    assert found(ran, "outside shared memory") == [outside]
    assert f"4 bytes at {shared} of {shared}" in ran.details


def straight(target, *, waited=True, met=True, read="v1"):
    """Two waves load words straight to LDS, and read them, or with v2 each other's."""
    last = 2 * lanes(target) - 1
    return (
        "v_lshlrev_b32 v1, 2, v0\n"
        + f"v_sub_u32_e32 v2, {last}, v0\n"
        + "v_lshlrev_b32 v2, 2, v2\n"
        + "v_readfirstlane_b32 s9, v1\n"
        + "s_mov_b32 m0, s9\n"
        + "s_mov_b32 s12, s6\ns_mov_b32 s13, s7\ns_mov_b32 s14, 0x1000\ns_mov_b32 s15, 0x27000\n"
        + "s_nop 0\n"
        + "buffer_load_dword v1, s[12:15], 0 offen lds\n"
        + (wait(target, "load") if waited else "")
        + (barrier(target) if met else "")
        + f"ds_read_b32 v3, {read}\n"
        + "s_waitcnt vmcnt(0) lgkmcnt(0)\n"
        + "global_store_dword v1, v3, s[4:5]\n"
    )


@pytest.mark.parametrize("target", CDNA)
def test_loads_straight_to_lds_land_with_the_wait(target):
    for read in ("v1", "v2"):
        ran = launch(target, straight(target, read=read), waves=2, shared=1024)
        assert ran.findings == []
        expected = list(range(2 * lanes(target)))
        assert ran.words[:128].tolist() == (expected if read == "v1" else expected[::-1])


@pytest.mark.parametrize("target", CDNA)
def test_words_in_flight_to_lds_may_not_be_read(target):
    ran = launch(target, straight(target, waited=False), waves=2, shared=1024)
    assert found(ran, "unwaited shared memory") == ["ds_read_b32 v3, v1"]
    ran = launch(target, straight(target, waited=False, read="v2"), waves=2, shared=1024)
    assert found(ran, "unwaited shared memory") == ["ds_read_b32 v3, v2"]


@pytest.mark.parametrize("target", CDNA)
def test_words_of_another_wave_need_its_wait_and_the_barrier(target):
    ran = launch(target, straight(target, met=False, read="v2"), waves=2, shared=1024)
    assert found(ran, "shared memory race") == ["ds_read_b32 v3, v2"]
    late = straight(target, waited=False, read="v2").replace(
        "s_barrier\n", "s_barrier\ns_waitcnt vmcnt(0)\n"
    )
    ran = launch(target, late, waves=2, shared=1024)
    assert found(ran, "shared memory race") == ["ds_read_b32 v3, v2"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("met", [False, True])
def test_a_word_that_several_waves_have_read(target, met):
    store = f"{ds(target, 'store')}_b32 v1, v0"
    code = (
        ADDRESS
        + store
        + "\n"
        + wait(target, "shared")
        + barrier(target)
        + f"v_mov_b32_e32 v2, 4\n{ds(target, 'load')}_b32 v3, v2\n"
        + wait(target, "shared")
        + (barrier(target) if met else "")
        + store.replace("v0", "v0 offset:0")
    )
    ran = launch(target, code, waves=2, shared=1024)
    racing = [] if met else [store.replace("v0", "v0 offset:0")]
    assert found(ran, "shared memory race") == racing


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_a_read_in_flight_at_a_barrier_races_with_a_write_behind_it(target, waited, several):
    at = "v_mov_b32_e32 v2, 4\n" if several else ""
    store = f"{ds(target, 'store')}_b32 v1, v0 offset:0"
    code = (
        exchange(target).rpartition(f"{ds(target, 'load')}_b32")[0]
        + at
        + f"{ds(target, 'load')}_b32 v3, v2\n"
        + (wait(target, "shared") if waited else "")
        + barrier(target)
        + f"{store}\n"
        + wait(target, "shared")
    )
    ran = launch(target, code, waves=2, shared=1024)
    assert ran.findings == ([] if waited else [("shared memory race", store)])


@pytest.mark.parametrize("target", TARGETS)
def test_a_read_after_which_so_few_are_in_flight_has_ended(target):
    """The first of two reads has ended, and only the place of the second may not be written."""
    load = f"{ds(target, 'load')}_b32"
    code = (
        exchange(target).rpartition(load)[0]
        + f"{load} v3, v2\nv_or_b32_e32 v4, 0x200, v1\n{ds(target, 'store')}_b32 v4, v4\n"
        + wait(target, "shared")
        + f"{load} v5, v4\n"
        + barrier(target)
        + f"{ds(target, 'store')}_b32 v1, v0 offset:0\n"
        + wait(target, "shared")
    )
    assert launch(target, code, waves=2, shared=1024).findings == []


@pytest.mark.parametrize("target", GFX12)
@pytest.mark.parametrize("half, why", [("signal", "has not signalled"), ("wait", "again")])
def test_a_barrier_with_one_half_holds_nobody(target, half, why):
    halves = {"signal": "s_barrier_signal -1\n", "wait": "s_barrier_wait -1\n"}
    lame = "".join(text for name, text in halves.items() if name != half)
    with pytest.raises(KernelCrashed, match=why):
        launch(target, lame + barrier(target), waves=2)


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_word_may_be_read_beside_words_that_are_not_aligned(target):
    mask = "vcc" if target in CDNA else "vcc_lo"
    ran = launch(
        target,
        "v_mov_b32 v1, 0xfffc\n"
        + f"{ds(target, 'store')}_b32 v1, v0\n"
        + "v_mov_b32 v2, 0xfffa\n"
        + f"v_cmp_eq_u32 {mask}, 0, v0\ns_nop 4\n"
        + f"v_cndmask_b32 v2, v2, v1, {mask}\n"
        + wait(target, "shared")
        + f"{ds(target, 'load')}_b32 v3, v2\n"
        + wait(target, "shared"),
        shared=65536,
    )
    assert {kind for kind, _ in ran.findings} <= {"shared memory race", "unwritten shared memory"}
