"""Which mutants are proven to make no difference, and which are not."""

import numpy as np
import pytest
from small import launch
from test_lds import exchange

from tilewright.emulate.equivalence import (
    Accesses,
    Watched,
    orders_nothing,
    replaced,
    stated,
    waited_for_later,
)
from tilewright.emulate.mutants import NOTHING, Mutant

OWN = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\n"
READ = "ds_read_b32 v3, v1\ns_waitcnt lgkmcnt(0)\n"


def watched(code, find=None, after=NOTHING, *, kind="wait", broken=False, which=0):
    """A watched run on gfx942, and the index of the instruction `find`."""
    made, at = [], []

    def machine(program):
        found = [ins for ins in program.instructions if find and ins.text == find]
        mutant = None
        if found:
            ins = found[which]
            at.append(ins.index)
            mutant = Mutant(kind, ins.index, ins.line, ins.text, after)
        made.append(Watched(mutant.program(program) if broken else program, mutant, log=True))
        return made[0]

    launch("gfx942", code, waves=2, shared=2048, machine=machine)
    return made[0], at[0] if at else None


def test_a_barrier_between_a_write_and_a_read_of_another_wave_orders_them():
    run, at = watched(exchange("gfx942"), "s_barrier")
    assert not run.orders_nothing(at)


@pytest.mark.parametrize("code", [OWN + "s_barrier\n" + READ, OWN + READ + "s_barrier\n"])
def test_a_barrier_among_accesses_of_each_waves_own_words_orders_nothing(code):
    run, at = watched(code, "s_barrier")
    assert run.orders_nothing(at)


def test_of_two_barriers_in_a_row_each_alone_is_enough():
    twice = exchange("gfx942").replace("s_barrier\n", "s_barrier\ns_barrier\n")
    for which in (0, 1):
        run, at = watched(twice, "s_barrier", which=which)
        assert run.orders_nothing(at)


def rows(*given):
    """Accesses of global memory: (wave, workgroup, epoch, address, write, counter)."""
    wave, workgroup, epoch, address, write, counter = (
        np.array(x) for x in zip(*given, strict=True)
    )
    some = np.zeros(len(given), np.int64)
    return Accesses(wave, workgroup, some > 0, epoch, address, some + 4, write, counter)


DATA, LOCK = 64, 0
PASSED = {(0, 0): [7], (0, 1): [7], (1, 0): [7], (1, 1): [7]}
OTHERS = [(2, 1, 1, DATA, False, False), (2, 1, 0, LOCK, True, True)]
"""Another workgroup reads the data, and has updated the lock."""


@pytest.mark.parametrize(
    "case, first, second",
    [
        ("release", (1, 0, 0, DATA, True, False), (0, 0, 1, LOCK, True, True)),
        ("acquire", (0, 0, 0, LOCK, False, False), (1, 0, 1, DATA, True, False)),
    ],
)
def test_a_barrier_before_a_release_or_behind_an_acquire_of_another_wave(case, first, second):
    assert not orders_nothing(rows(first, second, *OTHERS), PASSED, 7)
    assert orders_nothing(rows(first, second, OTHERS[1]), PASSED, 7)  # nobody shares the data
    own = (*first[:0], second[0], *first[1:])
    assert orders_nothing(rows(own, second, *OTHERS), PASSED, 7)  # the wave's own order is enough


def test_waves_of_a_workgroup_that_share_global_memory():
    write, read = (1, 0, 0, DATA, True, False), (0, 0, 1, DATA, False, False)
    assert not orders_nothing(rows(write, read), PASSED, 7)
    assert orders_nothing(rows(read, (1, 0, 0, DATA, False, False)), PASSED, 7)


LOAD = "v_lshlrev_b32 v1, 2, v0\nglobal_load_dword v2, v1, s[6:7]\n"


def later(code, find, after=NOTHING):
    kernel, _ = watched(code, find, after)
    assert kernel.ended
    broken, _ = watched(code, find, after, broken=True)
    return waited_for_later(kernel, broken, kernel)


def test_a_wait_with_another_behind_it():
    code = LOAD + "s_waitcnt vmcnt(0)\ns_nop 1\ns_waitcnt vmcnt(0) lgkmcnt(0)\nv_mov_b32 v3, v2\n"
    assert later(code, "s_waitcnt vmcnt(0)")


def test_a_wait_before_a_barrier_that_orders_something():
    first = "s_waitcnt lgkmcnt(0) vmcnt(0)"
    code = exchange("gfx942").replace("s_waitcnt lgkmcnt(0)\ns_barrier", f"{first}\ns_barrier")
    assert not later(code, first)


def test_a_wait_before_a_barrier_that_orders_nothing():
    code = OWN.replace("s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(0) vmcnt(0)") + "s_barrier\n"
    assert later(code, "s_waitcnt lgkmcnt(0) vmcnt(0)")


def test_nothing_in_flight():
    kernel, _ = watched(LOAD + "s_waitcnt lgkmcnt(0) vmcnt(1)\n", "s_waitcnt lgkmcnt(0) vmcnt(1)")
    assert not kernel.ended


@pytest.mark.parametrize("other, same", [("v4", True), ("v5", False)])
def test_another_register_with_the_same_value_in_all_lanes(other, same):
    code = "v_mov_b32_e32 v4, v0\nv_add_u32_e32 v5, 1, v0\nv_mov_b32_e32 v6, v0\n"
    run, _ = watched(code, "v_mov_b32_e32 v6, v0", f"v_mov_b32_e32 v6, {other}", kind="operand")
    assert run.same_value == same


def test_a_constant_is_never_the_same():
    before, after = "v_mov_b32_e32 v4, 1", "v_mov_b32_e32 v4, 2"
    assert replaced(Mutant("operand", 0, 1, before, after)) is None


def test_what_a_wait_leaves_in_flight():
    assert stated("s_waitcnt vmcnt(3)", {"vm": 5, "lgkm": 2}) == {"vm": 3, "lgkm": 2}
    assert stated("s_waitcnt_vscnt null, 0x1", {"vs": 4}) == {"vs": 1}
    assert stated("s_wait_loadcnt_dscnt 0x203", {"load": 7, "ds": 7}) == {"load": 2, "ds": 3}
    assert stated(NOTHING, {"vm": 5}) == {"vm": 5}
