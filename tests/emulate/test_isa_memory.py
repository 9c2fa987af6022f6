"""Every instruction that accesses memory, alone, against what it does to the bytes of each lane,
stated in plain Python."""

import itertools
import struct
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest
from small import LANES

from tilewright.emulate import isa
from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.registry import Context, executor, known
from tilewright.emulate.lds import Shared
from tilewright.emulate.memory import Memory
from tilewright.emulate.order import Order
from tilewright.emulate.scratch import RESOURCE, Scratch
from tilewright.emulate.waits import Counters
from tilewright.emulate.waves import Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.target import GENERATIONS, target_of
from tilewright.listing.text import instruction

assert isa
TARGET = {generation: name for name, generation in GENERATIONS.items()}
LINES = ({"cdna4": 0, "cdna3": 0, "cdna2": 0}.keys(), {"gfx1250": 0, "rdna4": 0, "rdna3": 0}.keys())
BYTES = 1 << 14
WAVES = 2
MASK = 0xFFFFFFFF


def mnemonics(*begins, without=()):
    """(target, mnemonic) of each that has a meaning, for one CDNA and one other target that has
    it."""
    found = []
    for name, where in known().items():
        if name.startswith(begins) and not name.startswith(without):
            found += [(next(t for t in line if t in where), name) for line in LINES if line & where]
    return [(TARGET[generation], name) for generation, name in found]


@dataclass
class Bench:
    """Two waves with random registers, some lanes inactive, and memory with random bytes."""

    target: str
    seed: int = 0
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self):
        self.lanes = LANES[self.target]
        self.random = np.random.default_rng(self.seed)
        self.bytes = self.random.integers(0, 256, BYTES, np.uint8)
        self.address = self.memory.allocate(BYTES, "operand c", contents=self.bytes)
        target = target_of(self.target, self.lanes, {})
        self.findings = Findings()
        order = Order(1, WAVES, target)
        self.shared = Shared(0, 1, BYTES, order=order, granule=1)
        self.scratch = Scratch(0, 1, WAVES, self.lanes, 256, self.findings)
        self.context = Context(
            target,
            self.findings,
            memory=self.memory,
            shared=self.shared,
            scratch=self.scratch,
            order=order,
        )
        each = np.arange(WAVES)
        self.waves = Waves(np.zeros(WAVES, int), each, self.lanes, 512, Counters(WAVES))
        shape = self.waves.vector.shape
        self.waves.vector[...] = self.random.integers(0, 1 << 32, shape, np.uint32)
        self.waves.activate(self.random.integers(0, 4, shape[1:]) > 0)

    def run(self, text):
        """Execute an instruction; returns the vector registers before it."""
        before = self.waves.vector.copy()
        made = executor(instruction(text), self.context)
        made(self.waves)
        return before

    def each(self):
        """(wave, lane) of the active lanes."""
        return [(int(wave), int(lane)) for wave, lane in np.argwhere(self.waves.active)]

    def offsets(self, register, step, *, apart=False):
        """Set a register to random multiples of `step` in each lane, all different if `apart`."""
        count = (BYTES - 1024) // step
        choose = self.random.permutation if apart else (lambda n: self.random.integers(0, n, n))
        made = choose(count)[: WAVES * self.lanes].reshape(WAVES, self.lanes)
        self.waves.vector[register] = made * step + step * 3
        return self.waves.vector[register].astype(int).copy()

    def scalars(self, first, *words):
        for i, word in enumerate(words):
            self.waves.scalar[first + i] = word & MASK

    def pointer(self, first, address):
        self.scalars(first, address, address >> 32)

    def resource(self, first, size, address=None):
        address = self.address if address is None else address
        if self.target == "gfx1250":
            low, high = address & MASK, address >> 32 | (size & 0x7F) << 25
            self.scalars(first, low, high, size >> 7 & MASK, size >> 39)
        else:
            self.scalars(first, address, address >> 32, size, 0x27000)

    def fill_shared(self):
        everything = np.arange(BYTES // 16 // self.lanes // WAVES)
        for part in everything:
            at = (part * WAVES * self.lanes + np.arange(WAVES * self.lanes)) * 16
            at = at.reshape(WAVES, self.lanes)
            words = self.bytes.view(np.uint32).reshape(-1, 4)[at // 16]
            self.shared.store(
                instruction("s_nop 0"),
                self.waves,
                at,
                np.moveaxis(words, -1, 0),
                16,
                np.ones(at.shape, bool),
            )

    def lds(self):
        """The bytes of LDS."""
        at = np.arange(BYTES).reshape(1, -1)
        one = self.waves.taken(np.array([0]))
        load = self.shared.load(instruction("s_nop 0"), one, at, 1, np.ones(at.shape, bool))
        return load[0, 0].astype(np.uint8)

    def image(self):
        return self.memory.read(self.address, BYTES)


def signed(data):
    return int.from_bytes(data, "little", signed=True) & MASK


def unsigned(data):
    return int.from_bytes(data, "little")


def low(old, data):
    return (old & 0xFFFF0000) | unsigned(data)


def high(old, data):
    return (old & 0x0000FFFF) | unsigned(data) << 16


WORDS = {
    "dword": 1,
    "dwordx2": 2,
    "dwordx3": 3,
    "dwordx4": 4,
    "dwordx8": 8,
    "dwordx16": 16,
    "b32": 1,
    "b64": 2,
    "b96": 3,
    "b128": 4,
    "b256": 8,
    "b512": 16,
}
NARROW = {
    **{name: (1, lambda old, data: unsigned(data)) for name in ("ubyte", "u8")},
    **{name: (1, lambda old, data: signed(data)) for name in ("sbyte", "i8")},
    **{name: (2, lambda old, data: unsigned(data)) for name in ("ushort", "u16")},
    **{name: (2, lambda old, data: signed(data)) for name in ("sshort", "i16")},
    **dict.fromkeys(("short_d16", "d16_b16", "u16_d16"), (2, low)),
    **dict.fromkeys(("short_d16_hi", "d16_hi_b16", "u16_d16_hi"), (2, high)),
    **dict.fromkeys(("ubyte_d16", "d16_u8", "u8_d16"), (1, low)),
    **dict.fromkeys(("ubyte_d16_hi", "d16_hi_u8", "u8_d16_hi"), (1, high)),
    **{
        name: (1, lambda old, data: low(old, struct.pack("<h", struct.unpack("b", data)[0])))
        for name in ("sbyte_d16", "d16_i8", "i8_d16")
    },
    **{
        name: (1, lambda old, data: high(old, struct.pack("<h", struct.unpack("b", data)[0])))
        for name in ("sbyte_d16_hi", "d16_hi_i8", "i8_d16_hi")
    },
}
STORED = {
    **{name: (1, lambda word: word & 0xFF) for name in ("byte", "b8")},
    **{name: (2, lambda word: word & 0xFFFF) for name in ("short", "b16")},
    **{name: (1, lambda word: word >> 16 & 0xFF) for name in ("byte_d16_hi", "d16_hi_b8")},
    "b8_d16_hi": (1, lambda word: word >> 16 & 0xFF),
    **{name: (2, lambda word: word >> 16) for name in ("short_d16_hi", "d16_hi_b16")},
    "b16_d16_hi": (2, lambda word: word >> 16),
}


def size_of(width, narrow):
    return 4 * WORDS[width] if width in WORDS else narrow[width][0]


def loaded(width, old, data):
    """The registers' words after a load of `data`; old: their words before."""
    if width in WORDS:
        return list(struct.unpack(f"<{WORDS[width]}I", data))
    return [NARROW[width][1](old[0], data)]


def stored(width, words):
    """The bytes that a store of registers writes."""
    if width in WORDS:
        return struct.pack(f"<{WORDS[width]}I", *words)
    size, value = STORED[width]
    return value(words[0]).to_bytes(size, "little")


def registers(first, width):
    count = WORDS.get(width, 1)
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def check_load(bench, before, first, width, data_of):
    """Compare registers from `first` on with what was loaded; data_of(wave, lane) are the bytes."""
    expected = before.copy()
    count = WORDS.get(width, 1)
    for wave, lane in bench.each():
        old = [int(word) for word in before[first : first + count, wave, lane]]
        expected[first : first + count, wave, lane] = loaded(width, old, data_of(wave, lane))
    assert (bench.waves.vector == expected).all()


def check_store(bench, before, first, width, places, image, after):
    """Compare bytes with what was stored. places(wave, lane): the offset, or None."""
    expected = image.copy()
    count = WORDS.get(width, 1)
    for wave, lane in bench.each():
        words = [int(word) for word in before[first : first + count, wave, lane]]
        data = stored(width, words)
        at = places(wave, lane)
        if at is not None:
            expected[at : at + len(data)] = list(data)
    assert (after == expected).all()
    assert (bench.waves.vector == before).all()


def keeps_halves(target, name):
    """Whether a load of half a register is defined: on CDNA it depends on ECC."""
    return not (target in ("gfx90a", "gfx942", "gfx950") and "d16" in name)


# ------------------------------------------------------------------------------ global and buffer

POLICY = {
    "gfx90a": ("", "glc", "glc slc", "offset:4"),
    "gfx942": ("", "nt", "sc1", "sc0 nt", "offset:-4 sc0 sc1"),
    "gfx950": ("", "nt", "sc1", "sc0 nt", "offset:-4 sc0 sc1"),
    "gfx1100": ("", "glc", "slc dlc", "offset:-8 glc"),
    "gfx1201": ("", "th:TH_LOAD_NT", "scope:SCOPE_DEV", "offset:-8 th:TH_LOAD_RT_NT"),
    "gfx1250": ("", "th:TH_LOAD_NT", "scope:SCOPE_DEV", "offset:-8 th:TH_LOAD_LU"),
}


def offset_of(words):
    found = [word for word in words.split() if word.startswith("offset:")]
    return int(found[0][7:]) if found else 0


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


# --------------------------------------------------------------------------------- straight to LDS

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


# ------------------------------------------------------------------------------------------ scratch


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


# --------------------------------------------------------------------------------------------- LDS

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


# ----------------------------------------------------------------------------------------- atomics


def as_signed(value, bits):
    return value - (1 << bits) if value >> bits - 1 else value


def add_f32(old, new):
    x, y = (np.array(v, np.uint32).view(np.float32) for v in (old, new))
    return int((x + y).view(np.uint32))


def add_f64(old, new):
    x, y = (np.array(v, np.uint64).view(np.float64) for v in (old, new))
    return int((x + y).view(np.uint64))


def halves(kind):
    def add(old, new):
        parts = []
        for shift in (0, 16):
            x, y = (np.array(v >> shift & 0xFFFF, np.uint16).view(kind) for v in (old, new))
            parts.append(int((x + y).astype(kind).view(np.uint16)) << shift)
        return parts[0] | parts[1]

    return add


def of_bits(bits):
    mask = (1 << bits) - 1
    return {
        "add": lambda old, new: old + new & mask,
        "sub": lambda old, new: old - new & mask,
        "umin": min,
        "umax": max,
        "smin": lambda old, new: min(old, new, key=lambda v: as_signed(v, bits)),
        "smax": lambda old, new: max(old, new, key=lambda v: as_signed(v, bits)),
        "and": lambda old, new: old & new,
        "or": lambda old, new: old | new,
        "xor": lambda old, new: old ^ new,
        "swap": lambda old, new: new,
    }


GFX9_ATOMICS = {
    name + wide: (bits, function)
    for wide, bits in (("", 32), ("_x2", 64))
    for name, function in of_bits(bits).items()
}
LATER_ATOMICS = {
    f"{name[1:] if name in ('smin', 'smax', 'umin', 'umax') else name}_{kind}{bits}": (
        bits,
        of_bits(bits)[name],
    )
    for bits in (32, 64)
    for name, kind in (
        *(("add", "u"), ("sub", "u"), ("umin", "u"), ("umax", "u"), ("smin", "i"), ("smax", "i")),
        *(("and", "b"), ("or", "b"), ("xor", "b"), ("swap", "b")),
    )
}
FLOAT_ATOMICS = {
    "add_f32": (32, add_f32, np.float32),
    "add_f64": (64, add_f64, np.float64),
    "pk_add_f16": (32, halves(np.float16), np.float16),
    "pk_add_bf16": (32, halves(ml_dtypes.bfloat16), ml_dtypes.bfloat16),
}
ATOMICS = {**GFX9_ATOMICS, **LATER_ATOMICS, **FLOAT_ATOMICS}
RETURNS = {
    "gfx90a": "glc",
    "gfx942": "sc0",
    "gfx950": "sc0",
    "gfx1100": "glc",
    "gfx1201": "th:TH_ATOMIC_RETURN scope:SCOPE_DEV",
    "gfx1250": "th:TH_ATOMIC_RETURN scope:SCOPE_DEV",
}


@pytest.mark.grid(115)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("target", "name"), mnemonics("global_atomic_", "buffer_atomic_"))
@pytest.mark.parametrize("returns", [False, True])
def test_atomics(target, name, returns):
    """Lanes come in order, and several of them update one place."""
    operation = name.removeprefix("global_atomic_").removeprefix("buffer_atomic_")
    compares = operation.startswith("cmpswap")
    bits = 64 if operation.endswith(("64", "x2")) else 32
    function = None if compares else ATOMICS[operation][1]
    size, count = bits // 8, bits // 32
    bench = Bench(target)
    at = bench.random.integers(0, 24, (WAVES, bench.lanes)) * size + 64
    bench.waves.vector[2] = at
    data = count * (2 if compares else 1)
    source = "v10" if data == 1 else f"v[10:{9 + data}]"
    result = "v40" if count == 1 else f"v[40:{39 + count}]"
    bench.pointer(4, bench.address)
    bench.resource(8, BYTES)
    policy = RETURNS[target] if returns else ""
    if operation in FLOAT_ATOMICS:  # NaNs of several kinds would meet
        kind = FLOAT_ATOMICS[operation][2]
        values = bench.random.uniform(-9, 9, (WAVES, bench.lanes, 4)).astype(kind)
        words = values.view(np.uint32)[..., :count]
        bench.waves.vector[10 : 10 + count] = np.moveaxis(words, -1, 0)
        bench.bytes[:] = np.resize(values.reshape(-1).view(np.uint8), BYTES)
        bench.memory.write(bench.address, bench.bytes)
    if compares:  # so that some compare equal
        words = bench.bytes.view(np.uint32)
        for wave, lane in bench.each()[::2]:
            first = at[wave, lane] // 4
            bench.waves.vector[10 + count : 10 + 2 * count, wave, lane] = words[first:][:count]
    if name.startswith("global"):
        operands = f"{result + ', ' if returns else ''}v2, {source}, s[4:5] {policy}"
    else:
        none = "null" if target.startswith("gfx12") else "0"
        operands = f"{source}, v2, s[8:11], {none} offen {policy}"
        result = source
    before = bench.run(f"{name} {operands}")
    expected, registers_ = bench.bytes.copy(), before.copy()
    first = 40 if name.startswith("global") else 10
    for wave, lane in bench.each():
        place = at[wave, lane]
        old = unsigned(expected[place : place + size].tobytes())
        own = [int(word) for word in before[10 : 10 + data, wave, lane]]
        new = own[0] | (own[1] << 32 if count == 2 else 0)
        if compares:
            wanted = own[count] | (own[count + 1] << 32 if count == 2 else 0)
            new = new if old == wanted else old
        else:
            new = function(old, new)
        expected[place : place + size] = list(new.to_bytes(size, "little"))
        if returns:
            registers_[first, wave, lane] = old & MASK
            if count == 2:
                registers_[first + 1, wave, lane] = old >> 32
    assert (bench.image() == expected).all()
    assert (bench.waves.vector == registers_).all()
    assert not bench.findings


def test_atomics_outside_and_beside_their_elements_are_found():
    for offset, kind in ((BYTES, "outside operands"), (2, "outside operands")):
        bench = Bench("gfx942")
        bench.pointer(4, bench.address)
        bench.waves.vector[2] = offset
        bench.run("global_atomic_add v2, v10, s[4:5]")
        assert [finding.kind for finding in bench.findings] == [kind]
        assert (bench.image() == bench.bytes).all()


# ----------------------------------------------------------------------------------- scalar memory


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


# -------------------------------------------------------------------------------------- the others

STATED = (
    *("global_load_", "global_store_", "buffer_load_", "buffer_store_"),
    *("scratch_load_", "scratch_store_", "s_load_"),
    *("ds_read", "ds_load", "ds_write", "ds_store"),
    *("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"),
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


@pytest.mark.parametrize(("target", "flushes"), [("gfx90a", 1), ("gfx942", 1), ("gfx1100", 0)])
@pytest.mark.parametrize("returns", [False, True])
def test_fp32_atomics_flush_denormals_on_cdna(target, flushes, returns):
    """Of what is in memory, of what is added, and of the sum."""
    bench = Bench(target)
    bench.pointer(4, bench.address)
    tiny = np.finfo(np.float32).tiny
    cases = [(tiny / 2, tiny), (tiny, tiny / 4), (1.5 * tiny, -tiny), (-tiny / 2, 0.0)]
    words = np.zeros(BYTES // 4, np.float32)
    words[:4] = [one for one, _ in cases]
    bench.memory.write(bench.address, words.view(np.uint8))
    bench.waves.activate(np.arange(bench.lanes)[None] < np.array([[4], [0]]))
    bench.waves.vector[2, 0, :4] = np.arange(4) * 4
    added = np.array([two for _, two in cases], np.float32)
    bench.waves.vector[10, 0, :4] = added.view(np.uint32)
    result = f"v40, v2, v10, s[4:5] {RETURNS[target]}" if returns else "v2, v10, s[4:5]"
    bench.run(f"global_atomic_add_f32 {result}")
    kept = [np.float32(one) + np.float32(two) for one, two in cases]
    flushed = [tiny, tiny, np.float32(0), np.float32(0)]
    got = bench.image()[:16].view(np.float32)
    assert got.tolist() == [float(x) for x in (flushed if flushes else kept)]


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
