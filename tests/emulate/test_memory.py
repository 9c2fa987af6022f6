"""The emulated GPU's memory: what lies where, and what a kernel may touch of it."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.emulate.memory import BASE, GAP, Memory
from tilewright.errors import BadArgument, IllegalAccess


def lanes(*addresses):
    return np.array(addresses, np.int64)


def all_of(addresses):
    return np.ones(addresses.shape, bool)


def test_the_first_operand_crosses_4_gib():
    memory = Memory()
    at = memory.allocate(8192, "operand a")
    assert at == BASE
    assert at >> 32 != (at + 8191) >> 32


def test_nothing_lies_within_64_kib_of_an_allocation():
    memory = Memory()
    first = memory.allocate(100, "operand a")
    second = memory.allocate(100, "operand b")
    assert second - (first + 100) >= GAP
    around = lanes(first - GAP, first - 1, first + 100, second - 1, second + 100, second + GAP)
    assert not memory.readable(around, 1, all_of(around)).any()


@pytest.mark.parametrize("size", [1, 2, 4, 8, 12, 16, 32])
@pytest.mark.parametrize("step", [1, 2, 4, 16])
def test_loads_give_the_bytes_and_stores_put_them(size, step):
    memory = Memory()
    image = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    at = memory.allocate(image.size, "operand a", contents=image)
    to = memory.allocate(image.size, "operand c", contents=np.zeros_like(image))
    offsets = (np.arange(24).reshape(2, 12) * 37 * step).astype(np.int64)
    mask = np.arange(24).reshape(2, 12) % 5 != 0
    got = memory.load(at + offsets, size, mask)
    assert got.shape == (-(-size // 4), 2, 12)
    want = bytearray(image.size)
    for row in range(2):
        for lane in range(12):
            octets = b"".join(int(word).to_bytes(4, "little") for word in got[:, row, lane])
            expected = bytes(image[offsets[row, lane] :][:size]) if mask[row, lane] else bytes(size)
            assert octets == expected.ljust(len(octets), b"\0")
            if mask[row, lane]:
                want[offsets[row, lane] : offsets[row, lane] + size] = expected
    memory.store(to + offsets, got, size, mask)
    assert memory.read(to, image.size).tobytes() == bytes(want)


def test_one_element_outside_is_not_the_operands():
    memory = Memory()
    at = memory.allocate(64, "operand a")
    edge = lanes(at - 4, at - 1, at, at + 60, at + 61, at + 64)
    assert memory.readable(edge, 4, all_of(edge)).tolist() == [0, 0, 1, 1, 0, 0]
    assert memory.writable(edge, 4, all_of(edge)).tolist() == [0, 0, 1, 1, 0, 0]
    assert not memory.readable(edge, 4, np.zeros(6, bool)).any()


def test_an_input_refuses_writes():
    memory = Memory()
    at = lanes(memory.allocate(64, "operand a", writable=False))
    assert memory.readable(at, 4, all_of(at)).all()
    assert not memory.writable(at, 4, all_of(at)).any()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_strided_arrays_come_back_element_by_element(dtype):
    whole = np.arange(48).reshape(6, 8).astype(dtype)
    array = whole[::-2, 1:6:2]
    memory = Memory()
    at = memory.place(array, "operand c", writable=True)
    size = array.itemsize
    where = at + np.add.outer(np.arange(3) * array.strides[0], np.arange(3) * array.strides[1])
    assert memory.readable(where, size, all_of(where)).all()
    beside = where + size  # the elements of `whole` that the view skips
    assert not memory.readable(beside, size, all_of(beside)).any()
    assert not memory.readable(where, size + 1, all_of(where)).any()
    loaded = memory.load(where, size, all_of(where))[0]
    bits = np.ascontiguousarray(array).view(f"u{size}")
    assert (loaded == bits).all()
    memory.store(where, loaded[None] ^ np.uint32(1), size, all_of(where))
    before = whole.copy()
    memory.fetch(at, array)
    changed = whole.view(f"u{size}") ^ before.view(f"u{size}")
    assert changed.sum() == 9
    assert (array.view(f"u{size}") == bits ^ np.array(1, f"u{size}")).all()


def test_what_nothing_wrote_is_nan_and_undefined():
    memory = Memory()
    at = memory.allocate(64, "temporary partials")
    here = lanes(at, at + 4, at + 8)
    assert (memory.load(here, 4, all_of(here)) == 0xFFFFFFFF).all()
    assert not memory.defined(here, 4, all_of(here)).any()
    memory.store(here[:1], np.zeros((1, 1), np.uint32), 4, np.ones(1, bool))
    assert memory.defined(here, 4, all_of(here)).tolist() == [True, False, False]
    memory.fill(at, 0, 64)
    assert memory.defined(here, 4, all_of(here)).all()
    memory.release(at)
    other = memory.allocate(64, "operand a", contents=np.zeros(64, np.uint8))
    assert other == at
    assert memory.defined(here, 4, all_of(here)).all()


def test_where_an_access_lies():
    memory = Memory()
    a = memory.allocate(64, "operand a", writable=False)
    b = memory.place(np.zeros((4, 4), np.float32)[:, :2], "operand b", writable=True)
    assert memory.where(a - 4, 4) == "4 bytes, 4 bytes before operand a (64 bytes)"
    assert memory.where(a + 62, 4) == "4 bytes, 2 bytes past the end of operand a (64 bytes)"
    assert memory.where(a + 8, 4) == "4 bytes at offset 8 of operand a, which is read-only"
    assert memory.where(b + 8, 4) == "4 bytes at offset 8 of operand b, between its elements"
    assert "far from every operand" in memory.where(16, 4)


def test_the_host_stays_inside_too():
    memory = Memory()
    at = memory.allocate(64, "operand a")
    with pytest.raises(IllegalAccess, match="4 bytes past the end of operand a"):
        memory.read(at, 68)
    with pytest.raises(BadArgument):
        memory.release(at + 4)


def test_released_memory_is_used_again():
    memory = Memory()
    kept = memory.allocate(64, "temporary flags")
    first = memory.allocate(1 << 16, "operand a")
    memory.release(first)
    assert memory.allocate(1 << 16, "operand a") == first
    assert memory.allocation(kept).name == "temporary flags"


def test_growing_keeps_contents():
    memory = Memory()
    at = memory.allocate(4, "operand a", contents=np.arange(4, dtype=np.uint8))
    memory.allocate(1 << 22, "operand b")
    assert memory.read(at, 4).tolist() == [0, 1, 2, 3]


def test_released_memory_is_nobodys():
    memory = Memory()
    memory.allocate(64, "temporary flags")
    first = memory.allocate(64, "operand a")
    memory.allocate(64, "operand b")
    memory.release(first)
    here = lanes(first)
    assert not memory.readable(here, 4, all_of(here)).any()
    assert not memory.writable(here, 4, all_of(here)).any()
