"""The launcher without a GPU: what it would hand a driver, seen by a stand-in for the driver."""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.compile.resources import Resources
from tilewright.errors import LaunchFailed, NoCompiler
from tilewright.ops.nouns import (
    WORKSPACE,
    Descriptor,
    Launch,
    Pointer,
    Scalar,
)
from tilewright.runtime import bound as bound_module
from tilewright.runtime import launcher as launcher_module
from tilewright.runtime import python_launcher
from tilewright.runtime.bound import BoundLaunch
from tilewright.runtime.launcher import NOT_KNOWN, compiled

torch = pytest.importorskip("torch")

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *([ctypes.c_uint] * 7),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
MAP = TensorMap(swizzle=3, elem_size=2, elem_type=10, block_size=(8, 8), fp4_padded=False)


@pytest.fixture(autouse=True, params=["compiled", "python"])
def native(request, monkeypatch):
    """The launcher, compiled and in Python: both do all that is said here."""
    module = compiled() if request.param == "compiled" else python_launcher
    monkeypatch.setattr(bound_module, "launcher", lambda: module)
    return module


class StandIn:
    """A driver that writes down what it was asked; `parameters` are read as 8 bytes each, or as
    `formats` says."""

    backend = "cuda"

    def __init__(self, *formats: str, status: int = 0) -> None:
        self.formats, self.status = formats, status
        self.launches: list[dict] = []
        self.encoded: list[int] = []
        self.entered: list[int] = []
        self.launch_function = LAUNCH(self._launch)

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        values = [
            struct.unpack(f, ctypes.string_at(parameters[i], struct.calcsize(f)))[0]
            for i, f in enumerate(self.formats)
        ]
        self.launches.append(
            {
                "function": function,
                "grid": (gx, gy, gz),
                "block": (bx, by, bz),
                "shared": shared,
                "stream": stream,
                "values": values,
                "addresses": [parameters[i] for i in range(len(self.formats))],
            }
        )
        return self.status if not self.entered else 0

    @contextmanager
    def current(self, device):
        self.entered.append(device)
        yield

    def tensor_map(self, descriptor, layout, address):
        self.encoded.append(address)
        return struct.pack("<Q", address) * 16

    def error(self, status):
        return f"STAND_IN ({status})"


def kernel(*tensor_maps: TensorMap) -> Kernel:
    return Kernel(
        name="k",
        arch="sm_90",
        key="0" * 64,
        triton="3.9.0",
        binary="cubin",
        entry="k",
        num_warps=4,
        num_ctas=1,
        shared=1000,
        global_scratch=0,
        global_scratch_align=1,
        profile_scratch=0,
        profile_scratch_align=1,
        cooperative=False,
        pdl=False,
        arguments=(),
        tensor_maps=tensor_maps,
        resources=Resources(32, 0, 0, 0, 0, 0),
        blobs={},
    )


def bound(driver, launch, sizes=(64, 64), built=None) -> BoundLaunch:
    return BoundLaunch(driver, 0, ctypes.c_void_p(77), built or kernel(), 32, launch, sizes)


def test_parameters_reach_the_driver_in_order_and_width():
    driver = StandIn("<Q", "<i", "<q", "<Q", "<Q", "<Q")
    arguments = (Pointer(0), Scalar("i32", -5), Scalar("i64", 2**40), Pointer(1))
    bound(driver, Launch((3, 2, 1), arguments))(9, (0x1000, 0x2000))
    (seen,) = driver.launches
    assert seen["values"] == [0x1000, -5, 2**40, 0x2000, 0, 0]  # then the two scratch pointers
    assert seen["grid"] == (3, 2, 1) and seen["block"] == (128, 1, 1)
    assert (seen["shared"], seen["stream"], seen["function"]) == (1000, 9, 77)


def test_the_workspace_is_the_last_address():
    driver = StandIn("<Q", "<Q")
    launch = Launch((1, 1, 1), (Pointer(WORKSPACE), Pointer(1)), workspace_bytes=16)
    bound(driver, launch)(0, (0x1000, 0x2000, 0x9000))
    assert driver.launches[0]["values"] == [0x9000, 0x2000]


def test_descriptors_become_tensor_maps_shapes_and_strides():
    driver = StandIn("<Q", "<i", "<i", "<q", "<q", "<Q")
    view = Descriptor(1, "bf16", (100, 64), (72, 1), (8, 8))
    call = bound(driver, Launch((1, 1, 1), (view,)), built=kernel(MAP))
    call(0, (0x1000, 0x20000))
    call(0, (0x3000, 0x20000))
    call(0, (0x3000, 0x40000))
    call(0, (0x3000, 0x20000))
    assert [s["values"][0] for s in driver.launches] == [0x20000, 0x20000, 0x40000, 0x20000]
    assert driver.launches[0]["values"][1:] == [100, 64, 72, 1, 0]
    assert driver.encoded == [0x20000, 0x40000]  # once for each address
    assert all(s["addresses"][0] % 64 == 0 for s in driver.launches)


@pytest.mark.parametrize(("triton", "flags"), [("3.6.0", 1), ("3.7.1", 2), ("3.9.0", 2)])
def test_descriptors_without_tensor_maps_are_pointers_with_flags(triton, flags):
    """As `test_what_a_launch_passes_is_what_the_kernel_takes` sees the compiler order them."""
    driver = StandIn("<Q", *["<q"] * 4, *["<b"] * flags, "<i", "<i", "<q", "<q", "<i", "<Q", "<Q")
    view = Descriptor(1, "bf16", (100, 64), (72, 1), (8, 8))
    launch = Launch((1, 1, 1), (view, Scalar("i32", 7)))
    bound(driver, launch, built=replace(kernel(), triton=triton))(0, (0x1000, 0x20000))
    extents = [100, 64, 72, 1]
    (seen,) = driver.launches
    assert seen["values"] == [0x20000, *extents, *[0] * flags, *extents, 7, 0, 0]


def test_thousands_of_addresses_are_served_right():
    driver = StandIn("<Q")
    view = Descriptor(0, "bf16", (8, 8), (8, 1), (8, 8))
    call = bound(driver, Launch((1, 1, 1), (view,)), built=kernel(MAP))
    wanted = [0x100000 + 256 * (i * 7919 % 3000) for i in range(5000)]
    for address in wanted:
        call(0, (address, 0x10))
    assert [s["values"][0] for s in driver.launches] == wanted


def test_without_tensor_maps_a_descriptor_is_a_pointer_with_its_sizes():
    driver = StandIn("<Q", "<i", "<i", "<q", "<q")
    view = Descriptor(0, "bf16", (100, 64), (72, 1), (8, 8))
    bound(driver, Launch((1, 1, 1), (view,)))(0, (0x1000, 0x2000))
    assert driver.launches[0]["values"] == [0x1000, 100, 64, 72, 1]


def test_an_output_that_may_overlap_is_not_launched_until_the_caller_says():
    driver = StandIn("<Q")
    call = bound(driver, Launch((1, 1, 1), (Pointer(0),)), sizes=(64, 64))
    assert not call(0, (0x1000, 0x1020))
    assert not call(0, (0x1020, 0x1000))
    assert not driver.launches
    assert call(0, (0x1000, 0x1020), apart=True)
    assert call(0, (0x1000, 0x1040))  # touching ends do not overlap
    assert len(driver.launches) == 2


def test_a_refused_launch_says_why():
    driver = StandIn("<Q", status=1)
    with pytest.raises(LaunchFailed, match=r"launching k: STAND_IN \(1\)"):
        bound(driver, Launch((1, 1, 1), (Pointer(0),)))(0, (0x1000, 0x2000))


def test_a_thread_without_a_context_gets_one():
    driver = StandIn("<Q", status=201)
    assert bound(driver, Launch((1, 1, 1), (Pointer(0),)))(0, (0x1000, 0x2000))
    assert driver.entered == [0] and len(driver.launches) == 2


def test_another_current_device_is_changed_for_the_launch():
    driver = StandIn("<Q")
    bound(driver, Launch((1, 1, 1), (Pointer(0),)))(0, (0x1000, 0x2000), elsewhere=True)
    assert driver.entered == [0] and len(driver.launches) == 1


def test_threads_do_not_mix_their_addresses():
    driver = StandIn("<Q", "<Q")
    view = Descriptor(0, "bf16", (8, 8), (8, 1), (8, 8))
    call = bound(driver, Launch((1, 1, 1), (view, Pointer(1))), built=kernel(MAP))
    driver.formats = ("<Q", "<i", "<i", "<q", "<q", "<Q")

    def work(number: int) -> None:
        for i in range(300):
            address = 0x1000000 * (number + 1) + 256 * i
            call(0, (address, address + 64))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(driver.launches) == 1200
    assert all(s["values"][5] == s["values"][0] + 64 for s in driver.launches)


def _torch(stream=5, grad=False, capturing=False):
    return (lambda device: stream, None, lambda: grad, lambda: capturing)


def test_a_known_call_is_launched_whole(native):
    driver = StandIn("<Q", "<Q")
    ready = bound(driver, Launch((1, 1, 1), (Pointer(0), Pointer(1))), sizes=(1024, 1024))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    known = {key: ready.native}
    assert native.call(_torch(), known, "op", (a, out)) == 0
    assert driver.launches[0]["values"] == [a.data_ptr(), out.data_ptr()] == list(addresses)
    assert driver.launches[0]["stream"] == 5


def test_launches_are_counted_by_whichever_way(native):
    ready = bound(StandIn("<Q", "<Q"), Launch((1, 1, 1), (Pointer(0), Pointer(1))), (1024, 1024))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    assert ready.launches() == 0
    for _ in range(3):
        native.call(_torch(), {key: ready.native}, "op", (a, out))
    ready(5, addresses)
    native.call(_torch(), {key: ready.native}, "op", (a, a))  # overlaps, so it is not launched
    native.call(_torch(), {}, "op", (a, out))  # not known
    assert ready.launches() == 4


def test_a_launch_that_is_forgotten_meanwhile_is_launched_all_the_same(native):
    driver = StandIn("<Q", "<Q")
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    arguments = (Pointer(0), Pointer(1))
    known = {key: bound(driver, Launch((1, 1, 1), arguments), (1024, 1024)).native}

    def stream(device):
        known.clear()
        return 5

    assert native.call((stream, None, bool, bool), known, "op", (a, out)) == 0
    assert driver.launches[0]["values"] == [a.data_ptr(), out.data_ptr()]


def test_a_workspace_is_the_one_that_its_stream_was_given(native):
    driver = StandIn("<Q", "<Q")
    arguments = (Pointer(1), Pointer(WORKSPACE))
    ready = bound(driver, Launch((1, 1, 1), arguments, workspace_bytes=64), (1024, 1024))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))

    def call(**here):
        return native.call(_torch(**here), {key: ready.native}, "op", (a, out))

    assert call() == NOT_KNOWN, "none was given yet"
    streams = [0x500, 0x600, 0x500 + 8 * 256, 0]  # the third takes the place of the first
    for stream in streams:
        ready.keep_workspace(stream, 0x9000 + stream)
    assert [call(stream=stream) for stream in streams] == [NOT_KNOWN, 0, 0, 0]
    given = [(s["stream"] or 0, s["values"]) for s in driver.launches]
    assert given == [(s, [out.data_ptr(), 0x9000 + s]) for s in streams[1:]]
    assert call(stream=0x600, capturing=True) == NOT_KNOWN, "a graph has one of its own"
    assert call(stream=0x700) == NOT_KNOWN
    ready.keep_workspace(0, 0)
    assert [call(stream=stream) for stream in streams] == [NOT_KNOWN] * 4
    assert ready(0x600, (*addresses, 0x7000)) and driver.launches[-1]["values"][1] == 0x7000


def test_a_workspace_that_gives_way_during_a_call_is_used_by_it_still(native):
    driver = StandIn("<Q")
    ready = bound(
        driver, Launch((1, 1, 1), (Pointer(WORKSPACE),), workspace_bytes=64), (1024, 1024)
    )
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    stream, device, grad, _ = _torch(stream=0x500)

    def capturing():  # meanwhile, another thread on a stream that takes its place
        ready.keep_workspace(0x500 + 8 * 256, 0x9999)
        return False

    ready.keep_workspace(0x500, 0x9500)
    here = (stream, device, grad, capturing)
    assert native.call(here, {key: ready.native}, "op", (a, out)) == 0
    assert driver.launches[0]["values"] == [0x9500]


def test_what_differs_in_any_way_is_not_known(native):
    ready = bound(StandIn(), Launch((1, 1, 1), ()), sizes=(1024, 1024))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    known = {key: ready.native}
    others = [
        torch.zeros(16, 17),
        torch.zeros(16, 16).T[:, :],
        torch.zeros(16, 16, dtype=torch.int32),
        torch.zeros(260)[1:257].view(16, 16),
    ]
    assert native.call(_torch(), known, "op", (a, out)) == 0
    for other in others:
        assert native.call(_torch(), known, "op", (other, out)) == NOT_KNOWN, other
    assert native.call(_torch(), known, "another", (a, out)) == NOT_KNOWN
    assert native.call(_torch(), known, "op", (a, [1])) == NOT_KNOWN


def test_recorded_gradients_are_left_to_python(native):
    ready = bound(StandIn(), Launch((1, 1, 1), ()), sizes=(1024, 1024))
    a, out = torch.zeros(16, 16, requires_grad=True), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    assert native.call(_torch(grad=True), {key: ready.native}, "op", (a, out)) == NOT_KNOWN
    assert native.call(_torch(grad=False), {key: ready.native}, "op", (a, out)) == 0


def test_another_current_device_is_left_to_python(native):
    ready = bound(StandIn(), Launch((1, 1, 1), ()), sizes=(1024, 1024))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    stream, _, grad, capturing = _torch()
    for device, code in ((0, 0), (1, NOT_KNOWN)):
        here = (stream, lambda device=device: device, grad, capturing)
        assert native.call(here, {key: ready.native}, "op", (a, out)) == code


def test_an_exception_from_torch_is_not_swallowed(native):
    ready = bound(StandIn(), Launch((1, 1, 1), ()), sizes=(1024, 1024))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))

    def broken(device):
        raise RuntimeError("no stream")

    with pytest.raises(RuntimeError, match="no stream"):
        native.call((broken, None, bool, bool), {key: ready.native}, "op", (a, out))


@pytest.mark.parametrize("compiler", ["", "/no/such/compiler"])
def test_without_a_compiler_launches_go_through_python(monkeypatch, tmp_path, caplog, compiler):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(NoCompiler, match=r"install one|does not start"):
        compiled()
    assert launcher_module.launcher.__wrapped__() is python_launcher
    (said,) = caplog.messages
    assert re.search(r"(install one|does not start).*10 µs more", said)


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "gcc -DPyMODINIT_FUNC=@")
    with pytest.raises(NoCompiler, match=r"compiling the launcher failed.*stray"):
        compiled()


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "file"))
    with pytest.raises(NoCompiler, match=r"cannot be kept in .*file.*TILEWRIGHT_HOME"):
        compiled()
