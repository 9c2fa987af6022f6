"""Global memory: accesses outside operands, and races between workgroups."""

import numpy as np
import pytest
from small import TARGETS, launch
from test_lds import barrier, found, lanes
from test_waits import ADDRESS, CDNA, wait, word

INTEGER_ADD = {"gfx1100": "add_u32", "gfx1201": "add_u32", "gfx1250": "add_u32"}
COHERENT = {
    "gfx90a": "glc",
    "gfx942": "sc1",
    "gfx950": "sc1",
    "gfx1100": "glc",
    "gfx1201": "scope:SCOPE_DEV",
    "gfx1250": "scope:SCOPE_DEV",
}
WRITE_BACK = {
    "gfx942": "buffer_wbl2 sc1",
    "gfx950": "buffer_wbl2 sc1",
    "gfx1250": "global_wb scope:SCOPE_DEV",
}
INVALIDATE = {
    "gfx90a": "buffer_wbinvl1_vol",
    "gfx942": "buffer_inv sc1",
    "gfx950": "buffer_inv sc1",
    "gfx1100": "buffer_gl1_inv\nbuffer_gl0_inv",
    "gfx1201": "global_inv scope:SCOPE_DEV",
    "gfx1250": "global_inv scope:SCOPE_DEV",
}


# ------------------------------------------------------------------------------ outside operands


def shifted(target, words):
    """v1: 4 × (thread + words)."""
    add = "v_add_u32_e32" if target in CDNA else "v_add_nc_u32_e32"
    return f"{add} v1, {words}, v0\nv_lshlrev_b32 v1, 2, v1\n"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", ["load", "store"])
@pytest.mark.parametrize("by", [-1, 0, 1])
def test_one_element_outside_an_operand(target, what, by):
    """As many words as lanes, shifted by one to either side."""
    line = {
        "load": f"global_load_{word(target)} v2, v1, s[6:7] offset:{4 * by}",
        "store": f"global_store_{word(target)} v1, v0, s[4:5] offset:{4 * by}",
    }[what]
    ran = launch(target, ADDRESS + line, words=lanes(target))
    assert found(ran, "outside operands") == ([line] if by else [])
    if by:
        name = {"load": "a", "store": "c"}[what]
        where = "4 bytes before" if by < 0 else "4 bytes past the end of"
        assert ran.details == [f"4 bytes, {where} operand {name} ({4 * lanes(target)} bytes)"]


@pytest.mark.parametrize("target", TARGETS)
def test_gaps_of_strided_operands_are_not_theirs(target):
    given = np.arange(4 * lanes(target), dtype=np.uint32)[::2]
    shift = "v_lshlrev_b32 v1, {}, v0\n"
    load = f"global_load_{word(target)} v2, v1, s[6:7]"
    assert launch(target, shift.format(3) + load, given=given).findings == []
    assert found(launch(target, shift.format(2) + load, given=given), "outside operands") == [load]


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_are_not_written(target):
    line = f"global_store_{word(target)} v1, v0, s[6:7]"
    assert found(launch(target, ADDRESS + line), "read-only operand") == [line]


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_that_are_not_active_touch_nothing(target):
    line = f"global_store_{word(target)} v1, v0, s[4:5]"
    some = "s_mov_b64 exec, 15\n" if target in CDNA else "s_mov_b32 exec_lo, 15\n"
    ran = launch(target, ADDRESS + some + line, words=4)
    assert ran.findings == []
    assert ran.words.tolist() == [0, 1, 2, 3]


# ----------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("target", TARGETS)
def test_two_workgroups_may_not_write_one_place(target):
    line = f"global_store_{word(target)} v1, v0, s[4:5]"
    assert launch(target, ADDRESS + line).findings == []
    ran = launch(target, ADDRESS + line, groups=2)
    assert found(ran, "global memory race") == [line]


@pytest.mark.parametrize("target", TARGETS)
def test_atomics_do_not_race_with_atomics_and_do_with_stores(target):
    name = INTEGER_ADD.get(target, "add")
    atomic = f"global_atomic_{name} v1, v0, s[4:5]"
    ran = launch(target, ADDRESS + atomic, groups=3)
    assert ran.findings == []
    assert ran.words[: lanes(target)].tolist() == [3 * lane for lane in range(lanes(target))]
    store = f"global_store_{word(target)} v1, v0, s[4:5]"
    ran = launch(target, f"{ADDRESS}{atomic}\n{store}", groups=3)
    assert found(ran, "global memory race") == [store]


def through_memory(target, *, waited=True, met=True):
    """Waves of one workgroup exchange words through global memory."""
    last = 2 * lanes(target) - 1
    sub = "v_sub_u32_e32" if target in CDNA else "v_sub_nc_u32_e32"
    return (
        ADDRESS
        + f"global_store_{word(target)} v1, v0, s[4:5]\n"
        + f"{sub} v2, {last}, v0\n"
        + "v_lshlrev_b32 v2, 2, v2\n"
        + (wait(target, "store") if waited else "")
        + (barrier(target) if met else "")
        + f"global_load_{word(target)} v3, v2, s[4:5]"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_waves_exchange_words_through_memory_and_a_barrier(target):
    """Where they share an L1 that keeps accesses in order, the barrier is enough."""
    assert launch(target, through_memory(target), waves=2).findings == []
    line = [f"global_load_{word(target)} v3, v2, s[4:5]"]
    ran = launch(target, through_memory(target, met=False), waves=2)
    assert found(ran, "global memory race") == line
    ran = launch(target, through_memory(target, waited=False), waves=2)
    assert found(ran, "global memory race") == ([] if target in CDNA else line)


FLAG = 4000
LINE = "v3, v1, s[4:5]"


def handed_over(
    target, *, waited=True, written_back=True, invalidated=True, first_wave=True, atomic=True
):
    """Workgroup 0 stores words and raises a flag; workgroup 1 waits for it, and reads them.

    first_wave: before the barrier, each wave waits for its stores.
    """
    w, exec_ = word(target), "exec" if target in CDNA else "exec_lo"
    move, both = ("s_mov_b64", "s[10:11]") if target in CDNA else ("s_mov_b32", "s10")
    name = INTEGER_ADD.get(target, "add")
    raise_flag = f"global_atomic_{name} v4, v5, s[4:5]\n"
    if target.startswith("gfx12"):
        raise_flag = raise_flag.replace("\n", " scope:SCOPE_DEV\n")
    if not atomic:
        raise_flag = f"global_store_{w} v4, v5, s[4:5]\n"
    one_thread = f"{move} {both}, {exec_}\nv_cmp_eq_u32_e32 {_vcc(target)}, 0, v0\n" + (
        f"{move} {exec_}, {_vcc(target)}\n"
    )
    every_thread = f"{move} {exec_}, {both}\n"
    return (
        ADDRESS
        + f"v_mov_b32_e32 v4, {FLAG}\nv_mov_b32_e32 v5, 1\n"
        + "s_cmp_eq_u32 s8, 0\ns_cbranch_scc0 .Lreader\n"
        + f"global_store_{w} v1, v0, s[4:5]\n"
        + (wait(target, "store") if first_wave else "")
        + barrier(target)
        + one_thread
        + (WRITE_BACK.get(target, "s_nop 0") + "\n" if written_back else "")
        + (wait(target, "store") if waited else "")
        + raise_flag
        + "s_endpgm\n"
        + ".Lreader:\n"
        + one_thread
        + "s_cbranch_execz .Lraised\n"
        + ".Lagain:\n"
        + f"global_load_{w} v6, v4, s[4:5] {COHERENT[target]}\n"
        + wait(target, "load")
        + "v_readfirstlane_b32 s12, v6\n"
        + "s_cmp_eq_u32 s12, 0\ns_cbranch_scc1 .Lagain\n"
        + (INVALIDATE[target] + "\n" if invalidated else "")
        + ".Lraised:\n"
        + every_thread
        + barrier(target)
        + f"global_load_{w} {LINE}\n"
        + wait(target, "load")
        + f"global_store_{w} v1, v3, s[4:5] offset:1024\n"
    )


def _vcc(target):
    return "vcc" if target in CDNA else "vcc_lo"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("waves", [1, 2])
def test_words_are_handed_over_by_release_and_acquire(target, waves):
    ran = launch(target, handed_over(target), waves=waves, groups=2)
    assert ran.findings == []
    count = waves * lanes(target)
    assert ran.words[256 : 256 + count].tolist() == list(range(count))


FAULTS = {
    "no wait before the release": {"waited": False, "first_wave": False},
    "a wait in the releasing wave alone": {"first_wave": False},
    "no write-back before the release": {"written_back": False},
    "no invalidation after the acquire": {"invalidated": False},
}


CASES = [
    (target, fault)
    for target in TARGETS
    for fault, missing in FAULTS.items()
    if target in WRITE_BACK or "written_back" not in missing
]


@pytest.mark.parametrize(("target", "fault"), CASES)
def test_what_a_hand_over_must_not_lack(target, fault):
    ran = launch(target, handed_over(target, **FAULTS[fault]), waves=2, groups=2)
    line = f"global_load_{word(target)} {LINE}"
    assert line in found(ran, "global memory race")


@pytest.mark.parametrize("target", ("gfx942", "gfx950", "gfx1250"))
def test_a_write_back_that_is_not_waited_for_is_none(target):
    back = WRITE_BACK[target] + "\n"
    code = handed_over(target).replace(back + wait(target, "store"), back)
    ran = launch(target, code, waves=1, groups=2)
    assert found(ran, "global memory race") == [f"global_load_{word(target)} {LINE}"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_plain_store_to_the_flag_is_no_release(target):
    ran = launch(target, handed_over(target, atomic=False), waves=1, groups=2)
    assert f"global_load_{word(target)} {LINE}" in found(ran, "global memory race")


@pytest.mark.parametrize("target", TARGETS)
def test_the_later_of_two_returning_atomics_acquires_from_the_earlier(target):
    """Two workgroups store, and count themselves; the one that counts second reads the other's
    words. Both are at the same instruction at once."""
    w, name = word(target), INTEGER_ADD.get(target, "add")
    returns = {"gfx90a": "glc", "gfx942": "sc0", "gfx950": "sc0", "gfx1100": "glc"}.get(
        target, "th:TH_ATOMIC_RETURN scope:SCOPE_DEV"
    )
    shift, other = "v_lshl_add_u32 v1, v0, 2, s9\n", "v_lshl_add_u32 v2, v0, 2, s11\n"
    code = (
        f"s_lshl_b32 s9, s8, 9\ns_xor_b32 s11, s9, 0x200\n{shift}{other}"
        + f"v_mov_b32_e32 v4, {FLAG}\nv_mov_b32_e32 v5, 1\n"
        + f"global_store_{w} v1, v0, s[4:5]\n"
        + "v_cmp_eq_u32_e32 VCC, 0, v0\ns_mov_WIDE EXEC, VCC\n"
        + (WRITE_BACK.get(target, "s_nop 0") + "\n")
        + wait(target, "store")
        + f"global_atomic_{name} v6, v4, v5, s[4:5] {returns}\n"
        + wait(target, "load")
        + INVALIDATE[target]
        + "\nv_readfirstlane_b32 s10, v6\ns_mov_WIDE EXEC, -1\n"
        + "s_cmp_eq_u32 s10, 0\ns_cbranch_scc1 .Lend\n"
        + f"global_load_{w} v3, v2, s[4:5]\n"
        + wait(target, "load")
        + f"global_store_{w} v1, v3, s[4:5] offset:1024\n"
        + ".Lend:\n"
    )
    cdna = target in CDNA
    code = code.replace("VCC", _vcc(target)).replace("EXEC", "exec" if cdna else "exec_lo")
    code = code.replace("WIDE", "b64" if cdna else "b32")
    ran = launch(target, code, groups=2)
    assert ran.findings == []
    assert ran.words[FLAG // 4] == 2
    assert ran.words[256 + 128 :][: lanes(target)].tolist() == list(range(lanes(target)))
    for line in (WRITE_BACK.get(target, wait(target, "store").strip()), INVALIDATE[target]):
        ran = launch(target, code.replace(line + "\n", "", 1), groups=2)
        assert found(ran, "global memory race") == [f"global_load_{w} v3, v2, s[4:5]"]


@pytest.mark.parametrize("target", ("gfx90a", "gfx1100"))
def test_an_addition_by_compare_and_swap_begins_with_a_plain_load(target):
    """As compilers write it. The second workgroup comes after the first."""
    swap, add, plus = ("cmpswap", "add", "v_add_u32_e32")
    if target == "gfx1100":
        swap, add, plus = ("cmpswap_b32", "add_u32", "v_add_nc_u32_e32")
    load = f"global_load_{word(target)} v5, v1, s[4:5]"
    swapped = f"global_atomic_{swap} v6, v1, v[4:5], s[4:5] glc\n"

    def twice(atomic):
        once = f"{load}\n{wait(target, 'load')}{plus} v4, 1, v5\n{atomic}{wait(target, 'load')}"
        first = f"s_cmp_eq_u32 s8, 0\ns_cbranch_scc0 .Llater\n{once}s_endpgm\n"
        return launch(target, f"{ADDRESS}{first}.Llater:\n{once}", groups=2)

    assert twice(swapped).findings == []
    assert twice(swapped).words[: lanes(target)].tolist() == [2] * lanes(target)
    ran = twice(f"global_atomic_{add} v1, v4, s[4:5]\n")
    assert found(ran, "global memory race") == [load]


@pytest.mark.parametrize("target", TARGETS)
def test_an_invalidation_before_the_flag_has_arrived_is_none(target):
    code = handed_over(target)
    flag = f"global_load_{word(target)} v6, v4, s[4:5] {COHERENT[target]}\n"
    early = code.replace(INVALIDATE[target] + "\n", "").replace(
        flag, flag + INVALIDATE[target] + "\n"
    )
    assert early != code
    ran = launch(target, early, groups=2)
    assert f"global_load_{word(target)} {LINE}" in found(ran, "global memory race")


@pytest.mark.parametrize("target", TARGETS)
def test_loads_past_the_caches_need_no_invalidation(target):
    code = handed_over(target, invalidated=False)
    line = f"global_load_{word(target)} {LINE}"
    ran = launch(target, code.replace(line, f"{line} {COHERENT[target]}"), groups=2)
    assert ran.findings == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("met", [False, True])
def test_words_that_other_waves_read_are_not_overwritten(target, met):
    """Each wave reads all words of the workgroup, and then writes its own."""
    store = f"global_store_{word(target)} v1, v0, s[4:5]"
    code = (
        ADDRESS
        + f"v_mov_b32_e32 v2, 0\nglobal_load_{word(target)} v3, v2, s[4:5]\n"
        + wait(target, "load")
        + (barrier(target) if met else "")
        + store
    )
    ran = launch(target, code, waves=2)
    assert found(ran, "global memory race") == ([] if met else [store])
