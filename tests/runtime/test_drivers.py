"""The CUDA and HIP drivers against stand-ins for their libraries: the calls they make, the errors
they tell. tests/gpu runs the CUDA driver on a GPU.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest
from stand_in_driver import kernel

from tilewright.compile.kernel import TensorMap
from tilewright.errors import LaunchFailed, NoDriver
from tilewright.ops.nouns import Descriptor
from tilewright.runtime import cuda, hip
from tilewright.runtime import driver as driver_module
from tilewright.runtime.cuda import CudaDriver
from tilewright.runtime.hip import HipDriver


class Function:
    """A C function of a library: notes its calls, fills what it returns by reference."""

    restype = None

    def __init__(self, library, name):
        self.library, self.name = library, name

    def __call__(self, *arguments):
        self.library.calls.append((self.name, arguments))
        fill = self.library.fills.get(self.name)
        if fill is not None:
            arguments[0]._obj.value = fill
        if self.name in ("hipGetErrorString",):
            return b"hipErrorStandIn"
        return self.library.failures.get(self.name, 0)


class Library:
    def __init__(self, fills=(), failures=(), missing=()):
        self.missing = missing
        self.calls: list[tuple[str, tuple]] = []
        self.fills, self.failures = dict(fills), dict(failures)
        self.functions: dict[str, Function] = {}

    def __getattr__(self, name):
        if name in self.missing:
            raise AttributeError(name)
        return self.functions.setdefault(name, Function(self, name))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def opened(monkeypatch, module, kind, **options):
    library = Library(**options)
    monkeypatch.setattr(module, "library", lambda names, what: library)
    monkeypatch.setattr(module, "address_of", lambda function: function.name)
    return kind(), library


FILLS = {
    "cuModuleGetFunction": 77,
    "hipModuleGetFunction": 77,
    "hipGetDevice": 3,
    "cuDevicePrimaryCtxRetain": 5,
}


@pytest.mark.parametrize(
    ("module", "kind", "call"), [(cuda, CudaDriver, "cuInit"), (hip, HipDriver, "hipInit")]
)
def test_a_driver_is_started_once_and_without_flags(monkeypatch, module, kind, call):
    """Both libraries know none, and refuse others."""
    _, library = opened(monkeypatch, module, kind)
    assert [arguments for name, arguments in library.calls if name == call] == [(0,)]
    with pytest.raises(LaunchFailed, match="start"):
        opened(monkeypatch, module, kind, failures={call: 999})


def test_cuda_loads_with_the_context_of_its_device(monkeypatch):
    driver, library = opened(monkeypatch, cuda, CudaDriver, fills=FILLS)
    library.calls.clear()
    function = driver.load(1, b"binary", "kernel", 100_000)
    assert function.value == 77
    names = library.names()
    assert names.index("cuCtxPushCurrent_v2") < names.index("cuModuleLoadData")
    assert names[-1] == "cuCtxPopCurrent_v2"
    ((_, shared),) = [c for c in library.calls if c[0] == "cuFuncSetAttribute"]
    assert shared[1:] == (8, 100_000)
    # Capture mode is relaxed for the load and put back after it.
    assert names.count("cuThreadExchangeStreamCaptureMode") == 2


@pytest.mark.parametrize(
    ("module", "kind", "call", "given"),
    [(cuda, CudaDriver, "cuCtxSetCurrent", 5), (hip, HipDriver, "hipSetDevice", 1)],
)
def test_a_thread_keeps_a_device(monkeypatch, module, kind, call, given):
    driver, library = opened(monkeypatch, module, kind, fills=FILLS)
    driver.keep_current(1)
    name, (device,) = library.calls[-1]
    assert (name, getattr(device, "value", device)) == (call, given)


def test_cuda_leaves_small_shared_memory_alone(monkeypatch):
    driver, library = opened(monkeypatch, cuda, CudaDriver, fills=FILLS)
    driver.load(0, b"binary", "kernel", 48 * 1024)
    assert "cuFuncSetAttribute" not in library.names()


@pytest.mark.parametrize(
    ("call", "doing"),
    [("cuModuleLoadData", "load the binary"), ("cuModuleGetFunction", "find kernel")],
)
def test_cuda_says_what_it_refused_and_puts_the_context_back(monkeypatch, call, doing):
    driver, library = opened(monkeypatch, cuda, CudaDriver, fills=FILLS, failures={call: 200})
    with pytest.raises(LaunchFailed, match=doing):
        driver.load(0, b"binary", "kernel", 0)
    assert library.names().count("cuCtxPushCurrent_v2") == library.names().count(
        "cuCtxPopCurrent_v2"
    )


def test_cuda_encodes_a_tensor_map_innermost_first(monkeypatch):
    driver, library = opened(monkeypatch, cuda, CudaDriver)
    view = Descriptor("a", "bf16", (100, 64), (72, 1), (16, 64))
    encoded = driver.tensor_map(view, TensorMap(3, 2, 10, (16, 64), False), 0x7000)
    assert len(encoded) == 128
    ((_, arguments),) = [c for c in library.calls if c[0] == "cuTensorMapEncodeTiled"]
    _, element, rank, address, dims, strides, box, steps, interleave, swizzle, *_ = arguments
    assert (element.value, rank.value, address.value) == (9, 2, 0x7000)  # 9: bf16 on the host
    assert (dims[:2], strides[:1], box[:2]) == ([64, 100], [144], [64, 16])
    assert (steps[:2], interleave.value, swizzle.value) == ([1, 1], 0, 3)


def test_a_cuda_driver_without_tensor_maps_has_no_function_for_them(monkeypatch):
    driver, _ = opened(monkeypatch, cuda, CudaDriver, missing=("cuTensorMapEncodeTiled",))
    assert driver.encode_function == 0
    driver, _ = opened(monkeypatch, cuda, CudaDriver)
    assert driver.encode_function == "cuTensorMapEncodeTiled"


def test_cuda_tells_the_numbers_of_a_refused_tensor_map(monkeypatch):
    driver, _ = opened(monkeypatch, cuda, CudaDriver, failures={"cuTensorMapEncodeTiled": 1})
    view = Descriptor("a", "bf16", (100, 64), (72, 1), (16, 64))
    with pytest.raises(LaunchFailed, match=r"\(100, 64\).*\(72, 1\).*0x7000"):
        driver.tensor_map(view, TensorMap(3, 2, 10, (16, 64), False), 0x7000)


def test_cuda_encodes_five_dimensions_with_element_strides(monkeypatch):
    driver, library = opened(monkeypatch, cuda, CudaDriver)
    shape, strides, block = (2, 30, 40, 50, 64), (9000, 300, 70, 65, 1), (1, 4, 8, 16, 32)
    view = Descriptor("a", "bf16", shape, strides, block, element_strides=(1, 2, 8, 3, 1))
    driver.tensor_map(view, TensorMap(3, 2, 10, block, False), 0x7000)
    ((_, arguments),) = [c for c in library.calls if c[0] == "cuTensorMapEncodeTiled"]
    _, _, rank, _, dims, pitches, box, steps, *_ = arguments
    assert (rank.value, list(dims)) == (5, [64, 50, 40, 30, 2])
    assert list(pitches) == [130, 140, 600, 18000]
    assert list(steps) == [1, 3, 8, 2, 1]
    assert list(box) == [32, 48, 64, 8, 1], "a box spans the skipped elements too"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((1, 2), "innermost dimension without gaps"),
        ((9, 1), "element strides of 1 to 8"),
        ((0, 1), "element strides of 1 to 8"),
        ((8, 1), "at most 256 elements"),
        ((2, 1, 1), "a stride for each dimension"),
    ],
)
def test_cuda_says_which_element_strides_no_tensor_map_takes(monkeypatch, steps, why):
    driver, library = opened(monkeypatch, cuda, CudaDriver)
    view = Descriptor("a", "bf16", (100, 64), (72, 1), (33, 64), element_strides=steps)
    with pytest.raises(LaunchFailed, match=why):
        driver.tensor_map(view, TensorMap(3, 2, 10, (33, 64), False), 0x7000)
    assert "cuTensorMapEncodeTiled" not in library.names()


def attributes(entry) -> dict[int, tuple[int, int, int]]:
    """The first three numbers of each launch attribute, by the attribute's number."""
    each = [entry.attributes[at : at + 72] for at in range(0, len(entry.attributes), 72)]
    assert all(len(one) == 72 and not any(one[20:]) for one in each)
    return {struct.unpack("<i", one[:4])[0]: struct.unpack("<3I", one[8:20]) for one in each}


FUNCTION = ctypes.c_void_p(77)


def test_cuda_launches_a_plain_kernel_plainly(monkeypatch):
    driver, _ = opened(monkeypatch, cuda, CudaDriver)
    entry = driver.entry(kernel(), FUNCTION)
    assert entry.address == "cuLaunchKernel"
    assert entry.attributes == b""
    assert driver.fill_function == "cuMemsetD8Async"


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({"cooperative": True}, {2: (1, 0, 0)}),
        ({"pdl": True}, {6: (1, 0, 0)}),
        ({"num_ctas": 2}, {4: (2, 1, 1), 5: (1, 0, 0)}),
        (
            {"num_ctas": 4, "cooperative": True, "pdl": True},
            {6: (1, 0, 0), 2: (1, 0, 0), 4: (4, 1, 1), 5: (1, 0, 0)},
        ),
    ],
)
def test_cuda_launches_others_with_attributes(monkeypatch, how, wanted):
    driver, library = opened(monkeypatch, cuda, CudaDriver)
    entry = driver.entry(replace(kernel(), **how), FUNCTION)
    assert entry.address == "cuLaunchKernelEx"
    assert attributes(entry) == wanted
    assert "cuFuncSetAttribute" not in library.names()


def test_cuda_allows_clusters_larger_than_eight(monkeypatch):
    driver, library = opened(monkeypatch, cuda, CudaDriver)
    driver.entry(replace(kernel(), num_ctas=16), FUNCTION)
    assert ("cuFuncSetAttribute", (FUNCTION, 14, 1)) in library.calls
    failing, _ = opened(monkeypatch, cuda, CudaDriver, failures={"cuFuncSetAttribute": 1})
    with pytest.raises(LaunchFailed, match="allow k clusters of 16 CTAs"):
        failing.entry(replace(kernel(), num_ctas=16), FUNCTION)


def test_an_old_cuda_driver_is_told_of(monkeypatch):
    driver, _ = opened(monkeypatch, cuda, CudaDriver, missing=("cuLaunchKernelEx",))
    driver.entry(kernel(), FUNCTION)
    with pytest.raises(LaunchFailed, match=r"k is launched with .*too old.*CUDA 12"):
        driver.entry(replace(kernel(), pdl=True), FUNCTION)


def test_hip_launches_cooperatively_and_refuses_clusters_and_dependent_launch(monkeypatch):
    driver, _ = opened(monkeypatch, hip, HipDriver)
    plain = driver.entry(kernel(), FUNCTION)
    assert plain.address == "hipModuleLaunchKernel"
    together = driver.entry(replace(kernel(), cooperative=True), FUNCTION)
    wanted = "hipModuleLaunchCooperativeKernel"
    assert together.address == wanted and together.attributes == plain.attributes == b""
    assert driver.fill_function == "hipMemsetD8Async"
    with pytest.raises(LaunchFailed, match="clusters of 2 workgroups, which AMD GPUs do not have"):
        driver.entry(replace(kernel(), num_ctas=2), FUNCTION)
    with pytest.raises(LaunchFailed, match="programmatic dependent launch, which AMD GPUs"):
        driver.entry(replace(kernel(), pdl=True), FUNCTION)


def test_hip_loads_on_its_device_and_returns_to_the_one_before(monkeypatch):
    driver, library = opened(monkeypatch, hip, HipDriver, fills=FILLS)
    library.calls.clear()
    assert driver.load(1, b"binary", "kernel", 65536).value == 77
    devices = [a[0] for name, a in library.calls if name == "hipSetDevice"]
    assert devices[0] == 1 and ctypes.c_int(getattr(devices[1], "value", devices[1])).value == 3
    assert "hipModuleLoadData" in library.names()


def test_hip_launches_with_the_modules_function(monkeypatch):
    driver, library = opened(monkeypatch, hip, HipDriver)
    assert driver.launch_function is library.hipModuleLaunchKernel


def test_hip_says_what_it_refused(monkeypatch):
    driver, _ = opened(monkeypatch, hip, HipDriver, failures={"hipModuleLoadData": 209})
    with pytest.raises(LaunchFailed, match=r"load the binary of kernel: hipErrorStandIn \(209\)"):
        driver.load(0, b"binary", "kernel", 0)


def test_hip_has_no_tensor_maps(monkeypatch):
    driver, _ = opened(monkeypatch, hip, HipDriver)
    with pytest.raises(LaunchFailed, match="pointers and strides"):
        view = Descriptor("a", "bf16", (8, 8), (8, 1), (8, 8))
        driver.tensor_map(view, TensorMap(0, 2, 10, (8, 8), False), 0)


def test_no_driver_says_both_ways_out():
    with pytest.raises(NoDriver, match="install it, or pass CPU arrays"):
        driver_module.library(("libno-such-driver.so",), "CUDA")


@pytest.mark.parametrize(("module", "kind"), [(cuda, CudaDriver), (hip, HipDriver)])
@pytest.mark.parametrize(("status", "number"), [(0, 0), (1, 99)])
def test_a_stream_has_the_number_of_the_capture_it_is_part_of(
    monkeypatch, module, kind, status, number
):
    driver, library = opened(monkeypatch, module, kind)

    def info(stream, status_at, number_at, *rest):
        assert stream.value == 5 and not any(rest)
        status_at._obj.value, number_at._obj.value = status, 99
        return 0

    for name in ("cuStreamGetCaptureInfo_v2", "hipStreamGetCaptureInfo"):
        library.functions[name] = info
    assert driver.capture(5) == number


@pytest.mark.parametrize(("module", "kind"), [(cuda, CudaDriver), (hip, HipDriver)])
def test_captures_are_allowed_inside_the_context_and_as_before_after_it(monkeypatch, module, kind):
    driver, library = opened(monkeypatch, module, kind)
    modes = [0]  # the thread's: global

    def exchange(mode_at):
        modes.append(mode_at._obj.value)
        mode_at._obj.value = modes[-2]
        return 0

    for name in ("cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode"):
        library.functions[name] = exchange
    with pytest.raises(ZeroDivisionError), driver.capture_allowed():
        assert modes == [0, 2]  # relaxed
        raise ZeroDivisionError
    assert modes == [0, 2, 0]


@pytest.mark.parametrize(("module", "kind"), [(cuda, CudaDriver), (hip, HipDriver)])
def test_a_capture_that_was_invalidated_is_said(monkeypatch, module, kind):
    """No launch goes to it, and no workspace is made as for a stream that none captures."""
    driver, library = opened(monkeypatch, module, kind)

    def info(stream, status_at, number_at, *rest):
        status_at._obj.value = 2
        return 0

    for name in ("cuStreamGetCaptureInfo_v2", "hipStreamGetCaptureInfo"):
        library.functions[name] = info
    library.functions["cuLogsDumpToMemory"] = lambda *given: 1
    with pytest.raises(LaunchFailed, match=r"cannot be captured any more.*perhaps when Python"):
        driver.capture(5)


LOG = """\
[01:22:45.649][14][CUDA][E] No CUDA context is current to the calling thread
[01:22:45.649][14][CUDA][E] Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuCtxGetDevice_v2
[01:22:45.650][14][CUDA][E] API call conflicts with a stream capture sequence \
initiated from WHO thread
[01:22:45.650][14][CUDA][E] Returning 900 (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) from CALL
"""
"""What a driver of CUDA 13 wrote."""


@pytest.mark.parametrize(
    ("who", "call", "said"),
    [
        ("another", "cuMemAlloc_v2", "another thread called cuMemAlloc_v2, which captures forbid"),
        ("the calling", "cuGraphExecDestroy", "this thread called cuGraphExecDestroy, which"),
    ],
)
def test_the_call_that_invalidated_a_capture_is_named(monkeypatch, who, call, said):
    driver, library = opened(monkeypatch, cuda, CudaDriver)

    def info(stream, status_at, *rest):
        status_at._obj.value = 2
        return 0

    def dump(iterator, text, size_at, flags):
        written = LOG.replace("WHO", "another").replace("CALL", "cuMemFree_v2") + LOG
        text.value = written.replace("WHO", who).replace("CALL", call).encode()
        assert iterator is None and size_at._obj.value > len(written) and flags == 0
        return 0

    library.functions |= {"cuStreamGetCaptureInfo_v2": info, "cuLogsDumpToMemory": dump}
    with pytest.raises(LaunchFailed, match=said):
        driver.capture(5)
