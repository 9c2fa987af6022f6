"""A bench for instructions that access memory: waves, memory and LDS with random content; and what
loads and stores of each width do to registers and bytes."""

import struct
from dataclasses import dataclass, field

import numpy as np
from small import LANES

from tilewright.emulate import isa
from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.registry import Context, executor, known
from tilewright.emulate.lds import Shared
from tilewright.emulate.memory import Memory
from tilewright.emulate.order import Order
from tilewright.emulate.scratch import Scratch
from tilewright.emulate.waits import Counters
from tilewright.emulate.waves import Waves
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
