"""Every instruction that accesses memory, alone, against what it does to the bytes of each lane,
stated in plain Python."""

import itertools
import struct

import numpy as np
import pytest
from memory_bench import (
    BYTES,
    MASK,
    NARROW,
    POLICY,
    STORED,
    WAVES,
    WORDS,
    Bench,
    check_load,
    check_store,
    keeps_halves,
    mnemonics,
    offset_of,
    registers,
    size_of,
    stored,
)
from small import LANES

from tilewright.emulate.isa.registry import executor, known
from tilewright.emulate.scratch import RESOURCE
from tilewright.errors import UnknownInstruction
from tilewright.listing.text import instruction

# ------------------------------------------------------------------------------ global and buffer


@pytest.mark.parametrize(("target", "name"), mnemonics("global_load_", without="global_load_lds"))
def test_global_loads(target, name):
    width = name.removeprefix("global_load_")
    size = size_of(width, NARROW)
    for policy, form in itertools.product(POLICY[target], ("scalar", "vector")):
        bench = Bench(target)
        at = bench.offsets(2, size)
        if form == "scalar":
            bench.pointer(4, bench.address)
            text = f"{name} {registers(10, width)}, v2, s[4:5] {policy}"
        else:
            address = bench.address + at
            bench.waves.vector[2], bench.waves.vector[3] = address & MASK, address >> 32
            text = f"{name} {registers(10, width)}, v[2:3], off {policy}"
        if not keeps_halves(target, name):
            with pytest.raises(UnknownInstruction, match="ECC"):
                bench.run(text)
            return
        before = bench.run(text)
        at = at + offset_of(policy)
        check_load(
            bench,
            before,
            10,
            width,
            lambda w, x, b=bench, at=at: b.bytes[at[w, x] :][:size].tobytes(),
        )
        assert not bench.findings


@pytest.mark.parametrize(("target", "name"), mnemonics("global_store_"))
def test_global_stores(target, name):
    width = name.removeprefix("global_store_")
    size = size_of(width, STORED)
    for policy, form in itertools.product(POLICY[target], ("scalar", "vector")):
        policy = policy.replace("LOAD_LU", "STORE_NT").replace("LOAD", "STORE")
        bench = Bench(target)
        at = bench.offsets(2, size, apart=True)
        if form == "scalar":
            bench.pointer(4, bench.address)
            text = f"{name} v2, {registers(10, width)}, s[4:5] {policy}"
        else:
            address = bench.address + at
            bench.waves.vector[2], bench.waves.vector[3] = address & MASK, address >> 32
            text = f"{name} v[2:3], {registers(10, width)}, off {policy}"
        before = bench.run(text)
        at = at + offset_of(policy)
        check_store(
            bench, before, 10, width, lambda w, x, at=at: at[w, x], bench.bytes, bench.image()
        )
        assert not bench.findings


def test_the_lanes_offset_is_signed_and_scaled_on_gfx1250_and_unsigned_before():
    bench = Bench("gfx1250")
    bench.pointer(4, bench.address + 4096)
    bench.waves.vector[2] = np.arange(bench.lanes).astype(np.uint32) - np.uint32(16)
    bench.run("global_load_b32 v10, v2, s[4:5] scale_offset")
    words = bench.bytes.view(np.uint32)
    for wave, lane in bench.each():
        assert bench.waves.vector[10, wave, lane] == words[1024 + lane - 16]
    assert not bench.findings
    bench = Bench("gfx1201")
    bench.pointer(4, bench.address + 4096)
    bench.waves.vector[2] = np.uint32(0xFFFFFFC0)
    bench.run("global_load_b32 v10, v2, s[4:5]")
    assert [finding.kind for finding in bench.findings] == ["outside operands"]


BUFFERS = mnemonics("buffer_load_", "buffer_store_")
BUFFER_FORMS = (
    "v2, s[4:7], {none} offen",
    "v2, s[4:7], {none} offen offset:16",
    "off, s[4:7], {none} offset:48",
    "v2, s[4:7], s8 offen offset:4",
)


@pytest.mark.parametrize(("target", "name"), BUFFERS)
def test_buffers(target, name):
    load = name.startswith("buffer_load_")
    width = name.removeprefix("buffer_load_").removeprefix("buffer_store_")
    size = size_of(width, NARROW if load else STORED)
    none = "null" if target.startswith("gfx12") else "0"
    for form in BUFFER_FORMS:
        bench = Bench(target)
        at = bench.offsets(2, size, apart=True)
        bench.resource(4, BYTES)
        bench.scalars(8, 64)
        words = form.format(none=none)
        text = f"{name} {registers(10, width)}, {words}"
        if load and not keeps_halves(target, name):
            with pytest.raises(UnknownInstruction, match="ECC"):
                bench.run(text)
            return
        at = at * ("offen" in form) + offset_of(form) + 64 * ("s8" in form)
        if not load and "offen" not in form:
            active = np.zeros((WAVES, bench.lanes), bool)
            active[1, 3] = True  # all lanes would write one place
            bench.waves.activate(active)
        before = bench.run(text)
        if load:
            check_load(
                bench,
                before,
                10,
                width,
                lambda w, x, b=bench, at=at: b.bytes[at[w, x] :][:size].tobytes(),
            )
        else:
            check_store(
                bench, before, 10, width, lambda w, x, at=at: at[w, x], bench.bytes, bench.image()
            )
        assert not bench.findings


@pytest.mark.parametrize("target", LANES)
def test_beyond_its_records_a_buffer_reads_zero_and_writes_nothing(target):
    """Each register of an access is checked. Addresses beyond are no findings."""
    wide, narrow = (("dwordx4", "ushort"), ("b128", "u16"))[target.startswith(("gfx11", "gfx12"))]
    none = "null" if target.startswith("gfx12") else "0"
    records = 1000
    for width in (wide, narrow):
        size = size_of(width, NARROW)
        bench = Bench(target)
        bench.resource(4, records)
        lane = np.arange(bench.lanes)
        at = np.broadcast_to(records - 24 + 4 * (lane % 16), (WAVES, bench.lanes)).copy()
        at[:, lane % 16 == 15] = 0x80000000
        bench.waves.vector[2] = at
        before = bench.run(f"buffer_load_{width} {registers(10, width)}, v2, s[4:7], {none} offen")

        def data(w, x, at=at, size=size, bench=bench):
            step = min(size, 4)
            parts = range(at[w, x], at[w, x] + size, step)
            return b"".join(
                bench.bytes[y : y + step].tobytes() if y + step <= records else bytes(step)
                for y in parts
            )

        check_load(bench, before, 10, width, data)
        assert not bench.findings
    bench = Bench(target)
    bench.resource(4, records)
    bench.waves.activate(np.arange(bench.lanes)[None] == np.array([[0], [1]]))
    bench.waves.vector[2, :, 0], bench.waves.vector[2, :, 1] = records - 8, 0x80000000
    before = bench.run(f"buffer_store_{wide} v[10:13], v2, s[4:7], {none} offen")
    expected = bench.bytes.copy()
    expected[records - 8 : records] = before[10:12, 0, 0].copy().view(np.uint8)
    assert (bench.image() == expected).all()
    assert not bench.findings


def test_a_buffer_is_larger_than_its_operand_and_the_access_is_found():
    bench = Bench("gfx942")
    bench.resource(4, 0x7FFFFFFE)
    bench.waves.vector[2] = BYTES
    bench.run("buffer_load_dword v10, v2, s[4:7], 0 offen")
    assert [finding.kind for finding in bench.findings] == ["outside operands"]


@pytest.mark.parametrize(
    "text",
    [
        "buffer_load_dword v10, v2, s[4:7], 0 idxen",
        "buffer_load_dword v10, v2, s[4:7], 0",
        "buffer_load_dword v10, v2, s[4:5], 0 offen",
        "buffer_load_dwordx2 v10, v2, s[4:7], 0 offen",
        "buffer_load_dword v10, v2, s[4:7], 0 offen tfe",
        "global_load_dword v10, v2, off",
        "global_load_dword v10, v2, s4",
        "global_load_dword v10, v2, s[4:5] scope:SCOPE_MOON",
        "scratch_load_dword v10, v[2:3], off",
        "s_load_dword s10, s4, 0x0",
        "ds_read_b64 v10, v2",
        "ds_read_b32 v10, v2 gds",
        "ds_swizzle_b32 v10, v2 offset:swizzle(FFT,3)",
        "s_waitcnt lamecnt(0)",
    ],
)
def test_forms_that_nobody_stated_are_unknown(text):
    with pytest.raises(UnknownInstruction, match="line 1"):
        executor(instruction(text), Bench("gfx942").context)


# ---------------------------------------------------------------------------------------- scratch


@pytest.mark.parametrize(("target", "name"), mnemonics("scratch_load_", "scratch_store_"))
def test_scratch(target, name):
    """A store of words, and each load and narrow store of them."""
    load = name.startswith("scratch_load_")
    width = name.removeprefix("scratch_load_").removeprefix("scratch_store_")
    words = "dwordx4" if LANES[target] == 64 else "b128"
    bench = Bench(target)
    bench.run(f"scratch_store_{words} off, v[20:23], off offset:64")
    contents = [
        [stored(words, bench.waves.vector[20:24, w, x].tolist()) for x in range(bench.lanes)]
        for w in range(WAVES)
    ]
    size = size_of(width, NARROW if load else STORED)
    at = 4 if size % 4 == 0 and size < 16 else 0
    if load:
        text = f"{name} {registers(10, width)}, off, off offset:{64 + at}"
        if not keeps_halves(target, name):
            with pytest.raises(UnknownInstruction, match="ECC"):
                bench.run(text)
            return
        before = bench.run(text)
        check_load(bench, before, 10, width, lambda w, x: contents[w][x][at : at + size])
        return
    bench.run(f"{name} off, {registers(10, width)}, off offset:{64 + at}")
    before = bench.run(f"scratch_load_{words} v[30:33], off, off offset:64")
    for wave, lane in bench.each():
        count = WORDS.get(width, 1)
        new = stored(width, before[10 : 10 + count, wave, lane].tolist())
        data = contents[wave][lane]
        data = data[:at] + new + data[at + size :]
        assert bench.waves.vector[30:34, wave, lane].tolist() == list(struct.unpack("<4I", data))


def test_scratch_through_a_swizzled_buffer_on_gfx90a():
    bench = Bench("gfx90a")
    bench.scalars(0, *RESOURCE)
    bench.run("buffer_store_dword v20, off, s[0:3], 0 offset:8")
    bench.run("buffer_store_dword a20, off, s[0:3], 0")
    before = bench.run("buffer_load_dword v30, off, s[0:3], 0 offset:8")
    bench.run("buffer_load_dword v31, off, s[0:3], 0")
    for wave, lane in bench.each():
        assert bench.waves.vector[30, wave, lane] == before[20, wave, lane]
        assert bench.waves.vector[31, wave, lane] == before[256 + 20, wave, lane]
    assert (bench.image() == bench.bytes).all()


def test_scratch_at_addresses_in_registers():
    bench = Bench("gfx1100")
    bench.run("scratch_store_b128 off, v[20:23], off offset:16")
    bench.run("scratch_store_b128 off, v[24:27], off offset:32")
    bench.waves.scalar[8] = [16, 32]
    bench.waves.vector[2] = 4 * (np.arange(bench.lanes) % 4)
    bench.waves.vector[3] = 24
    before = bench.run("scratch_load_b32 v30, v2, s8")
    bench.run("scratch_load_b64 v[31:32], v3, off offset:-8")
    bench.run("scratch_store_b32 v2, v10, s8 offset:16")
    bench.run("scratch_load_b128 v[40:43], off, off offset:32")
    for wave, lane in bench.each():
        first = (20, 24)[wave]
        assert bench.waves.vector[30, wave, lane] == before[first + lane % 4, wave, lane]
        assert (bench.waves.vector[31:33, wave, lane] == before[20:22, wave, lane]).all()
        expected = before[24:28, wave, lane].copy()
        if wave == 0:  # the other wave's is 16 bytes further
            expected[lane % 4] = before[10, wave, lane]
        assert (bench.waves.vector[40:44, wave, lane] == expected).all()
    assert not bench.findings


def test_more_scratch_than_declared_is_found():
    bench = Bench("gfx942")
    bench.run("scratch_store_dword off, v20, off offset:252")
    assert not bench.findings
    bench.run("scratch_store_dword off, v20, off offset:256")
    assert [finding.kind for finding in bench.findings] == ["undeclared resources"]


# ---------------------------------------------------------------------------------- scalar memory


@pytest.mark.parametrize(("target", "name"), mnemonics("s_load_"))
def test_scalar_loads(target, name):
    count = WORDS[name.removeprefix("s_load_")]
    for offset, far in (("0x0", 0), ("0x1c", 28), ("s8", 40)):
        bench = Bench(target)
        bench.waves.scalar[4], bench.waves.scalar[5] = 0, bench.address >> 32
        base = bench.address + np.array([512, 2048])
        bench.waves.scalar[4:6] = base & MASK, base >> 32
        bench.scalars(8, 40)
        before = bench.waves.scalar.copy()
        data = "s16" if count == 1 else f"s[16:{15 + count}]"
        bench.run(f"{name} {data}, s[4:5], {offset}")
        words = bench.bytes.view(np.uint32)
        for wave, start in enumerate((512, 2048)):
            before[16 : 16 + count, wave] = words[(start + far) // 4 :][:count]
        assert (bench.waves.scalar == before).all()
        assert not bench.findings


@pytest.mark.parametrize(("name", "count"), [("s_load_b32", 1), ("s_load_b64", 2)])
def test_scalar_loads_count_in_elements(name, count):
    bench = Bench("gfx1250")
    base = bench.address + np.array([512, 2048])
    bench.waves.scalar[4:6] = base & MASK, base >> 32
    bench.scalars(8, 5)
    data = "s16" if count == 1 else f"s[16:{15 + count}]"
    bench.run(f"{name} {data}, s[4:5], s8 offset:0x10 scale_offset")
    words = bench.bytes.view(np.uint32)
    for wave, start in enumerate((512, 2048)):
        at = (start + 5 * 4 * count + 16) // 4
        assert (bench.waves.scalar[16 : 16 + count, wave] == words[at:][:count]).all()
    assert not bench.findings


# -------------------------------------------------------------------------------------------- all

STATED = (
    *("global_load_", "global_store_", "buffer_load_", "buffer_store_"),
    *("scratch_load_", "scratch_store_", "s_load_"),
    *("ds_read", "ds_load", "ds_write", "ds_store"),
    *("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32", "ds_add_u32"),
    *("global_atomic_", "buffer_atomic_"),
)
ELSEWHERE = {
    *("s_waitcnt", "s_waitcnt_vscnt", "s_wait_loadcnt", "s_wait_storecnt", "s_wait_dscnt"),
    *("s_wait_kmcnt", "s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt", "s_wait_xcnt"),
    *("s_wait_asynccnt", "s_wait_tensorcnt", "s_wait_samplecnt", "s_wait_bvhcnt", "s_wait_expcnt"),
    *("buffer_wbl2", "global_wb", "buffer_inv", "buffer_wbinvl1_vol", "buffer_wbinvl1"),
    *("buffer_gl0_inv", "buffer_gl1_inv", "global_inv"),
}
"""Waits and cache maintenance, which `test_waits` and `test_global_memory` state."""


def test_every_instruction_that_touches_memory_is_stated():
    for name in known():
        if name.startswith(("ds_", "buffer_", "global_", "flat_", "scratch_", "s_load", "s_wait")):
            if name in ("s_wait_alu", "s_waitcnt_depctr", "s_wait_idle"):
                continue
            assert name.startswith(STATED) or name in ELSEWHERE, name
