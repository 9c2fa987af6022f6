"""Every atomic instruction, alone, against what it does to the bytes of each lane,
stated in plain Python."""

import ml_dtypes
import numpy as np
import pytest
from memory_bench import BYTES, MASK, WAVES, Bench, mnemonics, unsigned


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


@pytest.mark.grid(58)
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
