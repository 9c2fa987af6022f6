"""Every instruction that accesses LDS, or loads straight to it, alone, against what it does to the
bytes of each lane, stated in plain Python."""

import itertools
import struct

import numpy as np
import pytest
from memory_bench import (
    BYTES,
    NARROW,
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
    unsigned,
)
from small import LANES

from tilewright.errors import UnknownInstruction

# -------------------------------------------------------------------------------- straight to LDS

TO_LDS = [
    ("gfx90a", "buffer_load_dword", 4),
    ("gfx942", "buffer_load_dword", 4),
    ("gfx950", "buffer_load_dword", 4),
    ("gfx950", "buffer_load_dwordx3", 12),
    ("gfx950", "buffer_load_dwordx4", 16),
    ("gfx950", "global_load_lds_dword", 4),
    ("gfx950", "global_load_lds_dwordx3", 12),
    ("gfx950", "global_load_lds_dwordx4", 16),
]


@pytest.mark.parametrize(("target", "name", "size"), TO_LDS)
@pytest.mark.parametrize("offset", [0, 32])
def test_loads_straight_to_lds(target, name, size, offset):
    bench = Bench(target)
    at = bench.offsets(2, size)
    bench.resource(4, BYTES)
    bench.pointer(8, bench.address)
    bench.scalars(124, 1024)  # m0
    bench.waves.scalar[124, 1] = 8192
    bench.fill_shared()
    expected = bench.lds()
    operands = "v2, s[4:7], 0 offen" if name.startswith("buffer") else "v2, s[8:9]"
    end = " lds" if name.startswith("buffer") else ""
    before = bench.run(f"{name} {operands} offset:{offset}{end}")
    for wave, lane in bench.each():
        to = (1024, 8192)[wave] + offset + lane * (4 if size == 4 else 16)
        expected[to : to + size] = bench.bytes[at[wave, lane] + offset :][:size]
    assert (bench.lds() == expected).all()
    assert (bench.waves.vector == before).all()


def test_how_many_bits_of_m0_count():
    """16, and on gfx950 18, so that all of its LDS can be loaded to."""
    for target, high in (("gfx90a", 1 << 16), ("gfx942", 1 << 16), ("gfx950", 1 << 18)):
        bench = Bench(target)
        bench.fill_shared()
        bench.resource(4, BYTES)
        bench.waves.vector[2] = 4 * np.arange(bench.lanes)
        bench.scalars(124, high + 512)
        bench.waves.activate(np.arange(bench.lanes)[None] < np.array([[8], [0]]))
        expected = bench.lds()
        bench.run("buffer_load_dword v2, s[4:7], 0 offen lds")
        expected[512:544] = bench.bytes[:32]
        assert (bench.lds() == expected).all()
    assert not bench.findings


# -------------------------------------------------------------------------------------------- LDS

DS_LOADS = [
    (target, name)
    for target, name in mnemonics("ds_read_", "ds_load_")
    if "2addr" not in name and "_tr" not in name
]
DS_STORES = [
    (target, name) for target, name in mnemonics("ds_write_", "ds_store_") if "2addr" not in name
]


@pytest.mark.parametrize(("target", "name"), DS_LOADS)
@pytest.mark.parametrize("offset", ["", "offset:48"])
def test_lds_loads(target, name, offset):
    width = name.removeprefix("ds_read_").removeprefix("ds_load_")
    bench = Bench(target)
    bench.fill_shared()
    size = size_of(width, NARROW)
    at = bench.offsets(2, size) + offset_of(offset)
    text = f"{name} {registers(10, width)}, v2 {offset}"
    if not keeps_halves(target, name):
        with pytest.raises(UnknownInstruction, match="ECC"):
            bench.run(text)
        return
    before = bench.run(text)
    check_load(bench, before, 10, width, lambda w, x: bench.bytes[at[w, x] :][:size].tobytes())


@pytest.mark.parametrize(("target", "name"), DS_STORES)
@pytest.mark.parametrize("offset", ["", "offset:48"])
def test_lds_stores(target, name, offset):
    width = name.removeprefix("ds_write_").removeprefix("ds_store_")
    bench = Bench(target)
    bench.fill_shared()
    size = size_of(width, STORED)
    at = bench.offsets(2, size, apart=True) + offset_of(offset)
    before = bench.run(f"{name} v2, {registers(10, width)} {offset}")
    check_store(bench, before, 10, width, lambda w, x: at[w, x], bench.bytes, bench.lds())


@pytest.mark.parametrize("target", LANES)
def test_lds_sums(target):
    bench = Bench(target)
    bench.fill_shared()
    at = bench.offsets(2, 4) // 64 * 64 + 16  # of several lanes one place
    bench.waves.vector[2] = at
    wanted = bench.bytes.copy().view(np.uint32)
    for wave, lane in bench.each():
        place = (at[wave, lane] + 48) // 4
        wanted[place : place + 1] += bench.waves.vector[10, wave, lane]
    before = bench.run("ds_add_u32 v2, v10 offset:48")
    assert (bench.lds() == wanted.view(np.uint8)).all()
    assert (bench.waves.vector == before).all() and not bench.findings


TWO = mnemonics("ds_read2", "ds_load_2addr", "ds_write2", "ds_store_2addr")


@pytest.mark.parametrize(("target", "name"), TWO)
@pytest.mark.parametrize("offsets", [(0, 1), (3, 2)])
def test_lds_accesses_in_pairs(target, name, offsets):
    """Offsets count elements, and with stride64 64 elements."""
    width = name[-3:]
    count = WORDS[width]
    unit = 4 * count * (64 if "st64" in name or "stride64" in name else 1)
    bench = Bench(target)
    bench.fill_shared()
    if "st64" in name or "stride64" in name:
        bench.waves.vector[2] = np.arange(bench.lanes) * 4 * count + np.array([[0], [4096]])
        at = bench.waves.vector[2].astype(int)
    else:
        at = bench.offsets(2, 16 * count, apart=True)
    words = f"offset0:{offsets[0]} offset1:{offsets[1]}" if offsets[0] else f"offset1:{offsets[1]}"
    places = [at + unit * each for each in offsets]
    if "read" in name or "load" in name:
        before = bench.run(f"{name} v[10:{9 + 2 * count}], v2 {words}")
        expected = before.copy()
        for wave, lane in bench.each():
            data = b"".join(bench.bytes[p[wave, lane] :][: 4 * count].tobytes() for p in places)
            expected[10 : 10 + 2 * count, wave, lane] = struct.unpack(f"<{2 * count}I", data)
        assert (bench.waves.vector == expected).all()
    else:
        before = bench.run(f"{name} v2, {registers(10, width)}, {registers(20, width)} {words}")
        expected = bench.bytes.copy()
        for (wave, lane), (place, first) in itertools.product(
            bench.each(), zip(places, (10, 20), strict=True)
        ):
            data = stored(width, before[first : first + count, wave, lane].tolist())
            expected[place[wave, lane] :][: 4 * count] = list(data)
        assert (bench.lds() == expected).all()


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("first", ["v", "a"])
def test_transposing_lds_loads(bits, first):
    """16 lanes hold the addresses of 16 blocks of 64 bits, with e elements each. Every (16/e)-th
    block, from the first, second… on, is a row of a matrix; each lane receives a column of one."""
    bench = Bench("gfx950")
    bench.fill_shared()
    bench.waves.activate(np.ones((WAVES, 64), bool))
    at = bench.offsets(2, 8)
    bench.run(f"ds_read_b64_tr_b{bits} {first}[10:11], v2 offset:8")
    each = 64 // bits

    def element(wave, lane, index):
        word = unsigned(bench.bytes[at[wave, lane] + 8 :][:8].tobytes())
        return word >> bits * index & (1 << bits) - 1

    base = 266 if first == "a" else 10
    for wave, group, lane in itertools.product(range(WAVES), range(4), range(16)):
        part, column = divmod(lane, each)
        sources = [row * (16 // each) + part for row in range(each)]
        made = sum(
            element(wave, 16 * group + source, column) << bits * position
            for position, source in enumerate(sources)
        )
        got = bench.waves.vector[base : base + 2, wave, 16 * group + lane]
        assert int(got[0]) | int(got[1]) << 32 == made


def test_transposing_lds_loads_of_octets():
    """16 lanes hold the addresses of 16 rows of 8 bytes. Lanes 0 to 3 and 8 to 11 have the rows of
    one matrix, 4 to 7 and 12 to 15 those of a second; the first 8 lanes receive the columns of the
    first, the others those of the second."""
    bench = Bench("gfx1250")
    bench.fill_shared()
    bench.waves.activate(np.ones((WAVES, 32), bool))
    at = bench.offsets(2, 8)
    before = bench.run("ds_load_tr8_b64 v[10:11], v2 offset:8")
    matrices = ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    expected = before.copy()
    for wave, half, matrix, column in itertools.product(range(WAVES), (0, 16), (0, 1), range(8)):
        made = bytes(
            int(bench.bytes[at[wave, half + row] + 8 + column]) for row in matrices[matrix]
        )
        expected[10:12, wave, half + 8 * matrix + column] = struct.unpack("<2I", made)
    assert (bench.waves.vector == expected).all()


@pytest.mark.parametrize(("target", "name"), mnemonics("ds_bpermute", "ds_permute"))
def test_lanes_exchange_values(target, name):
    bench = Bench(target)
    bench.waves.vector[2] = bench.random.integers(0, 1 << 10, (WAVES, bench.lanes), np.uint32)
    before = bench.run(f"{name} v10, v2, v3")
    active, lanes = bench.waves.active, bench.lanes
    for wave in range(WAVES):
        given = [0] * lanes
        for lane in range(lanes):
            if active[wave, lane]:
                target_lane = int(before[2, wave, lane]) // 4 % lanes
                if name == "ds_permute_b32":
                    given[target_lane] = int(before[3, wave, lane])
        for lane in range(lanes):
            source = int(before[2, wave, lane]) // 4 % lanes
            pulled = int(before[3, wave, source]) if active[wave, source] else 0
            value = pulled if name == "ds_bpermute_b32" else given[lane]
            expected = value if active[wave, lane] else before[10, wave, lane]
            assert bench.waves.vector[10, wave, lane] == expected


SWIZZLES = {
    **{f"SWAP,{n}": (lambda lane, n=n: lane ^ n) for n in (1, 2, 4, 8, 16)},
    "REVERSE,8": lambda lane: lane // 8 * 8 + 7 - lane % 8,
    "BROADCAST,4,3": lambda lane: lane // 4 * 4 + 3,
    "QUAD_PERM,3,0,2,1": lambda lane: lane // 4 * 4 + (3, 0, 2, 1)[lane % 4],
}


@pytest.mark.parametrize("pattern", SWIZZLES)
@pytest.mark.parametrize("target", LANES)
def test_swizzles(target, pattern):
    bench = Bench(target)
    before = bench.run(f"ds_swizzle_b32 v10, v3 offset:swizzle({pattern})")
    for wave, lane in bench.each():
        source = SWIZZLES[pattern](lane)
        expected = before[3, wave, source] if bench.waves.active[wave, source] else 0
        assert bench.waves.vector[10, wave, lane] == expected
    idle = ~bench.waves.active
    assert (bench.waves.vector[10][idle] == before[10][idle]).all()
