"""The library that stands for HIP's: what its functions return, and how it reads a code object.

The driver is the one that real GPUs get; `test_packed_arguments` compares what launches pass.
"""

from __future__ import annotations

import ctypes

import gemm_cases
import pytest

from shared_builds import build_once
from tilewright.compile import find
from tilewright.emulate import code_object, hip
from tilewright.emulate.code_object import Argument, Entry
from tilewright.emulate.hip import EmulatedHip, kernel_arguments
from tilewright.errors import BadFile, LaunchFailed
from tilewright.runtime.hip import HipDriver

CONFIG = gemm_cases.config(
    "gfx942", alignment=1, tile_m=32, tile_n=32, tile_k=32, num_warps=1, dtype_a="fp16"
)


class Executor:
    """Notes what it is given."""

    def __init__(self):
        self.seen = []

    def execute(self, dispatch):
        self.seen.append(dispatch)

    def fill(self, *given):
        self.seen.append(given)


@pytest.fixture(scope="module")
def kernel(store):
    build_once([(CONFIG, "gfx942")], store).raise_if_failed()
    return find(CONFIG, "gfx942", store)["main"]


@pytest.fixture
def library():
    return EmulatedHip(Executor())


def launch(library, function, *place):
    """Status of a launch with parameters of zeros."""
    zeros = ctypes.create_string_buffer(8)
    parameters = (ctypes.c_void_p * 32)(*[ctypes.addressof(zeros)] * 32)
    return library.hipModuleLaunchKernel(function, *place, None, parameters, None)


@pytest.mark.turns(8)
def test_the_driver_finds_a_kernel_and_launches_it(library, kernel, store):
    driver = HipDriver(library)
    function = driver.load(0, store.read(kernel), kernel.entry, kernel.shared)
    assert driver.capture(7) == 0
    assert driver.entry(kernel, function).attributes == b""
    assert launch(library, function, 2, 3, 4, 64, 1, 1, 512) == hip.SUCCESS
    (seen,) = library._executor.seen
    assert (seen.grid, seen.threads, seen.shared) == ((2, 3, 4), (64, 1, 1), 512)
    assert seen.image == store.read(kernel) and seen.entry.name == kernel.entry


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ((0, 1, 1, 64, 1, 1, 0), "empty"),
        ((1, 1, 1, 65, 1, 1, 0), "65 threads"),
        ((1 << 26, 1, 1, 64, 1, 1, 0), "2³² threads"),
    ],
)
def test_a_launch_that_no_gpu_takes_is_refused(library, kernel, store, place, why):
    driver = HipDriver(library)
    function = driver.load(0, store.read(kernel), kernel.entry, 0)
    assert launch(library, function, *place) == hip.INVALID_CONFIGURATION
    assert not library._executor.seen and why in str(library.failure)


def test_cooperative_launches_and_fills(library, kernel, store):
    function = HipDriver(library).load(0, store.read(kernel), kernel.entry, 0)
    zeros = ctypes.create_string_buffer(8)
    parameters = (ctypes.c_void_p * 32)(*[ctypes.addressof(zeros)] * 32)
    place = (1, 1, 1, 64, 1, 1, 0, None)
    assert library.hipModuleLaunchCooperativeKernel(function, *place, parameters) == 0
    address = ctypes.c_uint64(0x7E0000001000)
    assert library.hipMemsetD8Async(address, 255, ctypes.c_size_t(1 << 33), None) == 0
    assert library._executor.seen[1] == (0x7E0000001000, 255, 1 << 33)


def test_the_driver_says_what_the_library_refused(library, kernel, store):
    driver = HipDriver(library)
    with pytest.raises(LaunchFailed, match=r"find nothing.*hipErrorNotFound"):
        driver.load(0, store.read(kernel), "nothing", 0)
    assert "gemm_basic" in str(library.failure)
    with pytest.raises(LaunchFailed, match="hipErrorInvalidDevice"):
        driver.load(1, store.read(kernel), kernel.entry, 0)
    with pytest.raises(LaunchFailed, match="load the binary"):
        driver.load(0, b"no code object" * 9, kernel.entry, 0)
    assert isinstance(library.failure, BadFile)


def test_an_exception_of_the_executor_ends_in_a_status(library, kernel, store):
    driver = HipDriver(library)
    function = driver.load(0, store.read(kernel), kernel.entry, 0)
    library._executor.execute = lambda given: 1 / 0
    assert launch(library, function, 1, 1, 1, 64, 1, 1, 0) == hip.LAUNCH_FAILURE
    assert isinstance(library.failure, ZeroDivisionError)


def test_a_code_object_says_its_kernels(kernel, store):
    binary = store.read(kernel)
    assert code_object.image_bytes(binary[: code_object.HEADER_BYTES]) == len(binary)
    (entry,) = code_object.read(binary).entries.values()
    assert (entry.name, entry.wave, entry.most_threads) == (kernel.entry, 64, 64)
    sizes = [one.size for one in entry.arguments if not one.hidden]
    assert sizes == [8, 8, 8, 4, 4, 4, 4, 4, 4, 8, 8]


@pytest.mark.parametrize("cut", [10, 100, 1000])
def test_half_a_code_object_is_refused(kernel, store, cut):
    with pytest.raises(BadFile):
        code_object.read(store.read(kernel)[:cut])


def test_hidden_arguments_are_the_runtimes():
    kinds = ("by_value", "hidden_block_count_y", "hidden_group_size_x", "hidden_remainder_x")
    more = ("hidden_grid_dims", "hidden_dynamic_lds_size", "hidden_printf_buffer")
    arguments = tuple(Argument(4 * i, 4, kind) for i, kind in enumerate((*kinds, *more)))
    entry = Entry("k", arguments, 32, 0, 256, 64)
    value = ctypes.c_uint32(77)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    segment = kernel_arguments(entry, parameters, (5, 6, 7), (64, 1, 1), 1024)
    assert [*memoryview(segment).cast("I")] == [77, 6, 64, 0, 3, 1024, 0, 0]


def test_a_hidden_argument_without_a_meaning_is_refused():
    entry = Entry("k", (Argument(0, 8, "hidden_queue_ptr"),), 8, 0, 256, 64)
    with pytest.raises(LaunchFailed, match="hidden_queue_ptr"):
        kernel_arguments(entry, None, (1, 1, 1), (64, 1, 1), 0)
