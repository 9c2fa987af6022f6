"""Tiled views of operands as a launch passes them, seen by a stand-in for the driver."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest
from stand_in_driver import MAP, StandIn, address_of, bound, kernel

from tilewright.errors import LaunchFailed
from tilewright.ops.nouns import (
    Descriptor,
    Launch,
    Pointer,
    Scalar,
    Step,
    Temporary,
)
from tilewright.runtime import python_launcher
from tilewright.runtime.cuda import CudaDriver

pytestmark = pytest.mark.usefixtures("native")


def test_descriptors_become_tensor_maps_shapes_and_strides():
    driver = StandIn("<Q", "<i", "<i", "<q", "<q", "<Q")
    view = Descriptor("out", "bf16", (100, 64), (72, 1), (8, 8))
    call = bound(driver, (view,), built=kernel(MAP))
    call(0, (0x1000, 0x20000))
    call(0, (0x3000, 0x20000))
    call(0, (0x3000, 0x40000))
    call(0, (0x3000, 0x20000))
    assert [s["values"][0] for s in driver.launches] == [0x20000, 0x20000, 0x40000, 0x20000]
    assert driver.launches[0]["values"][1:] == [100, 64, 72, 1, 0]
    assert driver.encoded == [0x20000, 0x40000]  # once for each address
    assert all(s["addresses"][0] % 64 == 0 for s in driver.launches)


ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p,
    *([ctypes.c_void_p] * 4), *([ctypes.c_int] * 4),
)  # fmt: skip


def test_the_launcher_encodes_tensor_maps_as_the_driver_does(native):
    """Each once, from what `tiling` says; one that the driver refuses is left to Python."""
    driver, seen, refused = StandIn("<Q", "<i", "<i", "<q", "<q"), [], []

    def encode(to, kind, rank, address, shape, strides, box, steps, *others):
        if refused:
            return 1
        assert to % 64 == 0
        wide, narrow = (ctypes.POINTER(one) for one in (ctypes.c_uint64, ctypes.c_uint32))
        lists = (
            ctypes.cast(at, one)[:count]
            for at, one, count in (
                (shape, wide, rank), (strides, wide, rank - 1), (box, narrow, rank),
                (steps, narrow, rank),
            )
        )  # fmt: skip
        seen.append((kind, address, *lists, others))
        ctypes.memmove(to, struct.pack("<Q", address + 1) * 16, 128)
        return 0

    kept = ENCODE(encode)
    driver.encode_function, driver.tiling = address_of(kept), CudaDriver.tiling.__get__(driver)
    view = Descriptor("out", "bf16", (100, 6, 64), (720, 72, 1), (8, 8, 8), 4, (2, 1, 1))
    layout = replace(MAP, block_size=(8, 8, 8))
    call = bound(driver, (view,), built=kernel(layout))
    driver.formats = ("<Q",)
    for address in (0x20000, 0x40000, 0x20000):
        call(0, (0x1000, address))
    values = [s["values"][0] for s in driver.launches]
    if native is python_launcher:
        assert not seen and values == driver.encoded[:2] + driver.encoded[:1]
        return
    assert values == [0x20009, 0x40009, 0x20009] and not driver.encoded
    assert seen[1] == (9, 0x40008, [64, 6, 100], [144, 1440], [8, 8, 16], [1, 1, 2], (0, 3, 2, 0))
    assert len(seen) == 2
    refused.append(True)
    call(0, (0x1000, 0x60000))
    assert driver.launches[-1]["values"] == [0x60008] == driver.encoded


@pytest.mark.parametrize(("triton", "flags"), [("3.6.0", 1), ("3.7.1", 2), ("3.9.0", 2)])
def test_descriptors_without_tensor_maps_are_pointers_with_flags(triton, flags):
    """As `test_what_a_launch_passes_is_what_the_kernel_takes` sees the compiler order them."""
    driver = StandIn("<Q", *["<q"] * 4, *["<b"] * flags, "<i", "<i", "<q", "<q", "<i", "<Q", "<Q")
    view = Descriptor("out", "bf16", (100, 64), (72, 1), (8, 8))
    launch = (view, Scalar("i32", 7))
    bound(driver, launch, built=replace(kernel(), triton=triton))(0, (0x1000, 0x20000))
    extents = [100, 64, 72, 1]
    (seen,) = driver.launches
    assert seen["values"] == [0x20000, *extents, *[0] * flags, *extents, 7, 0, 0]


def test_thousands_of_addresses_are_served_right():
    driver = StandIn("<Q")
    view = Descriptor("a", "bf16", (8, 8), (8, 1), (8, 8))
    call = bound(driver, (view,), built=kernel(MAP))
    wanted = [0x100000 + 256 * (i * 7919 % 3000) for i in range(5000)]
    for address in wanted:
        call(0, (address, 0x10))
    assert [s["values"][0] for s in driver.launches] == wanted


def test_hundreds_of_addresses_are_encoded_once_each():
    """As the layers of a model are that share a plan."""
    driver = StandIn("<Q")
    view = Descriptor("a", "bf16", (8, 8), (8, 1), (8, 8))
    call = bound(driver, (view,), built=kernel(MAP))
    wanted = [0x100000 + 4096 * i for i in range(200)]
    for address in [*wanted, *wanted]:
        call(0, (address, 0x10))
    assert driver.encoded == wanted


def test_without_tensor_maps_a_descriptor_is_a_pointer_with_its_sizes():
    driver = StandIn("<Q", "<i", "<i", "<q", "<q")
    view = Descriptor("a", "bf16", (100, 64), (72, 1), (8, 8))
    bound(driver, (view,))(0, (0x1000, 0x2000))
    assert driver.launches[0]["values"] == [0x1000, 100, 64, 72, 1]


def test_a_descriptor_begins_at_its_offset():
    driver = StandIn("<Q", "<Q")
    view = Descriptor("out", "bf16", (8, 8), (8, 1), (8, 8), offset=40)
    call = bound(driver, (view,), built=kernel(MAP))
    call(0, (0x1000, 0x20000))
    assert driver.encoded == [0x20000 + 80]
    bound(driver, (view,))(0, (0x1000, 0x20000))  # a kernel without tensor maps
    assert [s["values"][0] for s in driver.launches] == [0x20000 + 80] * 2


@pytest.mark.parametrize("initial", ["anything", "zero", "kept_zero"])
@pytest.mark.parametrize("maps", [(), (MAP,)])
def test_a_descriptor_may_be_of_a_temporary(initial, maps):
    driver = StandIn("<Q")
    temporaries = (Temporary("before", (1,), "fp32", initial),) * 2
    temporaries = (replace(temporaries[0], name="t0"), replace(temporaries[0], name="t1"))
    view = Descriptor("t1", "bf16", (8, 8), (8, 1), (8, 8), offset=8)
    launch = Launch((Step((1, 1, 1), (view,)),), temporaries)
    call = bound(driver, launch, built=kernel(*maps))
    for buffers in ((0x10000, 0x20000), (0x30000, 0x40000), (0x10000, 0x20000)):
        call(0, (0x1000, 0x2000), buffers)
    base = [0x10000, 0x30000] if initial == "kept_zero" else [0x20000, 0x40000]
    wanted = [at + 256 + 16 for at in base]
    assert [s["values"][0] for s in driver.launches] == [*wanted, wanted[0]]
    assert driver.encoded == (wanted if maps else [])


def test_element_strides_need_tensor_maps():
    view = Descriptor("a", "bf16", (8, 8), (8, 1), (8, 8), element_strides=(2, 1))
    bound(StandIn(), (view,), built=kernel(MAP))
    with pytest.raises(LaunchFailed, match=r"element strides \(2, 1\), which only tensor maps"):
        bound(StandIn(), (view,))
    bound(StandIn(), (replace(view, element_strides=(1, 1)),))


@pytest.mark.parametrize("maps", [(), (MAP,)])
def test_descriptors_have_one_to_five_dimensions(maps):
    for rank in (1, 5):
        shape = (8,) * rank
        driver = StandIn("<Q", *(["<i"] * rank + ["<q"] * rank if maps else ["<q"] * 2 * rank))
        view = Descriptor("a", "bf16", shape, shape, shape)
        assert bound(driver, (view,), built=kernel(*maps))(0, (0x1000, 0x2000))
        assert driver.launches[0]["values"] == [0x1000, *shape, *shape]
    for shape, strides in (((), ()), ((8,) * 6, (8,) * 6), ((8, 8), (8,))):
        with pytest.raises(LaunchFailed, match="both need 1 to 5 dimensions"):
            bound(StandIn(), (Descriptor("a", "bf16", shape, strides, shape),), built=kernel(*maps))


def test_a_kernel_and_its_step_must_agree_on_descriptors():
    with pytest.raises(LaunchFailed, match="k takes 1 tensor maps, and its step has 0 descriptors"):
        bound(StandIn(), (Pointer("a"),), built=kernel(MAP))
