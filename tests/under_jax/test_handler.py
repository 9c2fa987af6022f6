"""Calls on a GPU, without one: what the handler hands the driver, seen by a stand-in for it."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
import stand_in_gpu
from stand_in_driver import MAP, StandIn, bound, kernel

from tilewright import GemmProblem, capture, dispatch, loader, native, plan
from tilewright.arch import device
from tilewright.capturing import load
from tilewright.errors import BuildFailed
from tilewright.jax import foreign
from tilewright.jax.stated import Stated, key_of
from tilewright.ops.nouns import Descriptor, Launch, Pointer, Scalar, Step, Temporary, View
from tilewright.runtime.bound import Bound
from tilewright.runtime.driver import address_of

A, B, C, MEMORY = 0x10000, 0x20000, 0x30000, 0x40010
BYTES = 1 << 20
STREAM = 0x77
OPERANDS = (Bound("a", "in", 64), Bound("b", "in", 64), Bound("c", "out", 64))


@pytest.fixture(scope="session")
def frame():
    folder = Path(jax.ffi.include_dir())
    built = native.compiled(
        Path(__file__).with_name("frame.c"), (folder / foreign._HEADER,), "a test", folder
    )
    spec = importlib.util.spec_from_file_location("frame", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(frame, request):
    """Calls the handler for GPUs as XLA does. Each test has a call of its own, for the handler
    forgets none."""
    shapes = (len(request.node.name), 4), (4, 4)
    views = tuple(View(shape, (4, 1), "bf16", 0, "cpu") for shape in shapes)
    text = Stated("gemm", views).text(request.node.name)

    def call(operands=(A, B), results=(C, MEMORY), memory=BYTES, index=0):
        handler = foreign._handlers().on_cuda
        return frame.call(handler, key_of(text), text, operands, results, memory, STREAM, index)

    return call


@pytest.fixture
def resolved(monkeypatch):
    """Has calls resolved to a launch, and lists the devices that they were resolved for."""

    def serve(launch):
        asked = []

        def resolve(text, index):
            asked.append(index)
            return "named in the text", launch

        monkeypatch.setattr(foreign, "_launch", lambda stated, index, kernel: resolve("", index))
        return asked

    return serve


def launching(driver, *arguments, temporaries=(), built=None):
    steps = (Step((2, 3, 4), arguments),)
    return bound(driver, Launch(steps, temporaries), OPERANDS, built)


def test_the_version_is_that_of_the_header(frame):
    handlers = foreign._handlers()
    header = (Path(jax.ffi.include_dir()) / foreign._HEADER).read_text()
    minor = int(header.partition("#define XLA_FFI_API_MINOR ")[2].split()[0])
    captured = {"on_cuda": 1, "on_rocm": 0, "on_cpu": 0}  # by XLA's graphs
    for name, traits in captured.items():
        assert frame.version(getattr(handlers, name)) == (0, minor, traits)


def test_a_launch_is_given_addresses_and_the_stream(call, resolved):
    driver = StandIn("<Q", "<Q", "<Q", "<i")
    arguments = (Pointer("b"), Pointer("a"), Pointer("c"), Scalar("i32", 5))
    asked = resolved(launching(driver, *arguments))
    for _ in range(3):
        assert call() is None
    assert [one["values"] for one in driver.launches] == [[B, A, C, 5]] * 3
    assert {one["stream"] for one in driver.launches} == {STREAM}
    assert asked == [0]  # then without Python


def test_each_device_has_a_launch_of_its_own(call, resolved):
    asked = resolved(launching(StandIn("<Q"), Pointer("a")))
    for index in (0, 1, 0, 1):
        assert call(index=index) is None
    assert asked == [0, 1]


def test_a_capture_sees_calls_that_were_launched_before(call, monkeypatch, tmp_path):
    driver = StandIn("<Q")
    planned = SimpleNamespace(
        problem=GemmProblem(8, 4, 4), config=SimpleNamespace(name="k"), selector="tuned"
    )
    dispatcher = SimpleNamespace(bound=lambda *given: (planned, launching(driver, Pointer("a"))))
    monkeypatch.setattr(foreign, "default_dispatcher", lambda: dispatcher)
    assert call() is None
    with capture(tmp_path / "seen.jsonl"):
        for _ in range(3):
            assert call() is None
    assert load(tmp_path / "seen.jsonl") == {planned.problem: 3}
    assert len(driver.launches) == 4


def test_temporaries_lie_in_the_last_result(call, resolved):
    driver = StandIn("<Q", "<Q")
    kept = Temporary("flags", (3,), "int32", "zero"), Temporary("sums", (8,), "fp32")
    resolved(launching(driver, Pointer("flags"), Pointer("sums"), temporaries=kept))
    assert call() is None
    begin = 0x40100  # the next multiple of 256
    assert driver.launches[0]["values"] == [begin, begin + 256]
    assert driver.queued[0] == {"fill": (begin, 0, 12), "stream": STREAM}
    assert "too little memory" in call(memory=256)


def test_a_launch_that_loads_code_is_allowed_to_within_a_capture(call, resolved):
    """As XLA captures on this thread what it may record into a graph."""
    driver = StandIn("<Q")
    launch = launching(driver, Pointer("a"))
    said = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
    def exchange(mode):
        said.append((mode[0], len(driver.launches)))
        mode[0] = 1 if len(said) == 1 else 2
        return 0

    launch.exchange_function = address_of(exchange)
    resolved(launch)
    assert call() is None
    assert said == [(2, 0), (1, 1)]


def test_tensor_maps_come_from_python_where_the_launcher_has_none(call, resolved):
    driver = StandIn("<Q")  # its encode_function is 0
    tiled = Descriptor("a", "bf16", (8, 8), (8, 1), (8, 8))
    resolved(launching(driver, tiled, built={"main": kernel(MAP)}))
    assert call() is None
    assert call() is None
    assert driver.encoded == [A]
    assert [one["values"] for one in driver.launches] == [[A], [A]]


def test_refusals_become_errors(call, resolved, monkeypatch):
    def fails(stated, index, kernel):
        raise BuildFailed("it does not compile")

    monkeypatch.setattr(foreign, "_launch", fails)
    assert call() == "BuildFailed: it does not compile"
    resolved(launching(StandIn("<Q", status=7), Pointer("a")))
    assert "STAND_IN (7)" in call()
    assert "not aligned" in call(operands=(A, B + 8))


@pytest.mark.turns(12)
def test_a_product_is_planned_built_and_launched(frame, monkeypatch, store):
    driver = stand_in_gpu.Driver()
    monkeypatch.setattr(loader, "driver", lambda backend: driver)
    for module in (plan, loader):
        monkeypatch.setattr(module, "live_device", lambda index: device("h200_sxm"))
    dispatcher = dispatch.Dispatcher(store=store)
    monkeypatch.setattr(foreign, "default_dispatcher", lambda: dispatcher)
    shapes = ((128, 256), (256, 192))
    views = tuple(View(shape, (shape[1], 1), "bf16", 0, "cpu") for shape in shapes)
    stated = Stated("gemm", views)
    monkeypatch.setattr(jax, "local_devices", lambda backend: [jax.devices("cpu")[0]])
    found = foreign.lowered(stated, "cuda")
    chosen = dispatcher.select(stated.problem).config.name
    assert chosen in found.text
    message = frame.call(
        foreign._handlers().on_cuda, found.key, found.text, (A, B), (C, MEMORY), BYTES, STREAM, 0
    )
    assert message is None
    assert [one["stream"] for one in driver.launches] == [STREAM]


_SPLIT = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x128_w4_s2_basic_split_k2_linear_g8_direct_padmnk_al16"


@pytest.mark.turns(24)
def test_flags_that_other_launches_keep_zero_are_zeroed_by_each(monkeypatch, store):
    driver = stand_in_gpu.Driver()
    monkeypatch.setattr(loader, "driver", lambda backend: driver)
    for module in (plan, loader):
        monkeypatch.setattr(module, "live_device", lambda index: device("h200_sxm"))
    views = (
        View((16, 512), (512, 1), "bf16", 0, "cpu"),
        View((512, 16), (1, 512), "bf16", 0, "cpu"),
    )
    stated = Stated("gemm", views)
    dispatcher = dispatch.Dispatcher(store=store)
    chosen, launch = dispatcher.bound(stated.problem, stated.bound, {}, 0, _SPLIT)
    assert chosen.config.name == _SPLIT
    kept_zero, scratch = launch.workspace
    assert kept_zero == 0 < scratch
    launch(STREAM, (A, B, C), (0, MEMORY), apart=True)
    assert driver.queued[0]["fill"][0] == MEMORY
