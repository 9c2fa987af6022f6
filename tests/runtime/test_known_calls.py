"""Calls that are known: described, found and launched whole, by a stand-in for the driver."""

from __future__ import annotations

import itertools

import pytest
from stand_in_driver import LARGE, StandIn, bound, torch_says

from tilewright import arrays
from tilewright.ops.nouns import (
    Launch,
    Pointer,
    Step,
    Temporary,
)
from tilewright.runtime.launcher import NOT_KNOWN, OVERLAPS, compiled

torch = pytest.importorskip("torch")


def test_a_launch_says_when_it_was_used_last(native):
    driver = StandIn("<Q")
    first, second = (bound(driver, (Pointer("a"),), LARGE) for _ in range(2))
    assert first.last_used() == second.last_used() == 0
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    first(0, addresses)
    second(0, addresses)
    assert 0 < first.last_used() < second.last_used()
    native.call(torch_says(), {key: first.native}, "op", (a, out), ())
    assert first.last_used() > second.last_used()


def test_a_known_call_is_launched_whole(native):
    driver = StandIn("<Q", "<Q")
    ready = bound(driver, (Pointer("a"), Pointer("out")), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    known = {key: ready.native}
    assert native.call(torch_says(), known, "op", (a, out), ()) == 0
    assert driver.launches[0]["values"] == [a.data_ptr(), out.data_ptr()] == list(addresses)
    assert driver.launches[0]["stream"] == 5


def test_launches_are_counted_by_whichever_way(native):
    ready = bound(StandIn("<Q", "<Q"), (Pointer("a"), Pointer("out")), LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    assert ready.launches() == 0
    for _ in range(3):
        native.call(torch_says(), {key: ready.native}, "op", (a, out), ())
    ready(5, addresses)
    native.call(
        torch_says(), {key: ready.native}, "op", (a, a), ()
    )  # overlaps, so it is not launched
    native.call(torch_says(), {}, "op", (a, out), ())  # not known
    assert ready.launches() == 4


def test_a_launch_that_is_forgotten_meanwhile_is_launched_all_the_same(native):
    driver = StandIn("<Q", "<Q")
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    arguments = (Pointer("a"), Pointer("out"))
    known = {key: bound(driver, arguments, LARGE).native}

    def stream(device):
        known.clear()
        return 5

    assert native.call((stream, None, *[bool] * 4), known, "op", (a, out), ()) == 0
    assert driver.launches[0]["values"] == [a.data_ptr(), out.data_ptr()]


TEMPORARIES = (Temporary("flags", (8,), "int32", "kept_zero"), Temporary("partial", (8,), "fp32"))


def test_buffers_are_those_that_the_stream_was_given(native):
    driver = StandIn("<Q", "<Q", "<Q")
    arguments = (Pointer("out"), Pointer("flags"), Pointer("partial"))
    ready = bound(driver, Launch((Step((1, 1, 1), arguments),), TEMPORARIES), LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))

    def call(**here):
        return native.call(torch_says(**here), {key: ready.native}, "op", (a, out), ())

    assert call() == NOT_KNOWN, "none was given yet"
    streams = [0x500, 0x600, 0x500 + 8 * 256, 0]  # the third takes the place of the first
    for stream in streams:
        ready.keep_workspace(stream, 0x9000 + stream, 0x90000 + stream)
    assert [call(stream=stream) for stream in streams] == [NOT_KNOWN, 0, 0, 0]
    given = [(s["stream"] or 0, s["values"]) for s in driver.launches]
    at = out.data_ptr()
    assert given == [(s, [at, 0x9000 + s, 0x90000 + s]) for s in streams[1:]]
    assert call(stream=0x600, capturing=True) == NOT_KNOWN, "a graph has buffers of its own"
    assert call(stream=0x700) == NOT_KNOWN
    ready.keep_workspace(0, 0, 0)
    assert [call(stream=stream) for stream in streams] == [NOT_KNOWN] * 4
    assert ready(0x600, addresses, (0x7000, 0x8000))
    assert driver.launches[-1]["values"][1:] == [0x7000, 0x8000]


def test_buffers_that_give_way_during_a_call_are_used_by_it_still(native):
    driver = StandIn("<Q")
    ready = bound(driver, Launch((Step((1, 1, 1), (Pointer("flags"),)),), TEMPORARIES), LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    stream, device, grad, _, *others = torch_says(stream=0x500)

    def capturing():  # meanwhile, another thread on a stream that takes its place
        ready.keep_workspace(0x500 + 8 * 256, 0x9999, 0x9999)
        return False

    ready.keep_workspace(0x500, 0x9500, 0x90500)
    here = (stream, device, grad, capturing, *others)
    assert native.call(here, {key: ready.native}, "op", (a, out), ()) == 0
    assert driver.launches[0]["values"] == [0x9500]


def test_what_differs_in_any_way_is_not_known(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    known = {key: ready.native}
    others = [
        torch.zeros(16, 17),
        torch.zeros(16, 16).T[:, :],
        torch.zeros(16, 16, dtype=torch.int32),
        torch.zeros(260)[1:257].view(16, 16),
    ]
    assert native.call(torch_says(), known, "op", (a, out), ()) == 0
    for other in others:
        assert native.call(torch_says(), known, "op", (other, out), ()) == NOT_KNOWN, other
    assert native.call(torch_says(), known, "another", (a, out), ()) == NOT_KNOWN
    assert native.call(torch_says(), known, "op", (a, [1]), ()) == NOT_KNOWN


class Subclass(torch.Tensor):
    pass


def test_keys_tell_apart_whatever_may_need_another_plan(native):
    """Whether the launcher sees the tensors itself or asks Python about them."""
    base = torch.zeros(1024, dtype=torch.float32)
    tensors = [
        base[:256].view(16, 16),
        base[:256].view(16, 16).T,
        base[:256].view(4, 64),
        base[:256],
        base[:256].view(16, 16, 1),
        base[:512].view(16, 32)[:, :16],
        base[1:257].view(16, 16),
        base[2:258].view(16, 16),
        *(torch.zeros(16, 16, dtype=getattr(torch, t)) for t in DTYPES),
        torch.zeros(3, 5).as_subclass(Subclass),
    ]
    other = torch.zeros(16, 16)
    calls = [
        *(("op", (t,)) for t in tensors),
        *(("op", (t, other)) for t in tensors),
        *(("op", (other, t)) for t in tensors[1:]),  # [0] is like `other`
        ("op", ()),
        ("o", (other,)),
        (("op", ("scale", 1)), (other,)),
        (("op", ("scale", 2)), (other,)),
    ]
    keys = [native.describe(op, given)[0] for op, given in calls]
    for (i, one), (j, two) in itertools.combinations(enumerate(keys), 2):
        assert one != two, (calls[i], calls[j])
    again = [native.describe(op, given)[0] for op, given in calls]
    assert again == keys and [*map(hash, again)] == [*map(hash, keys)]


DTYPES = (
    *("bfloat16", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64"),
    *("bool", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "complex64"),
)


def test_plain_tensors_and_parameters_have_short_keys():
    """The compiled launcher sees them without asking Python."""
    tensor = torch.zeros(16, 16)
    seen = compiled().describe("op", (tensor, torch.nn.Parameter(tensor)))
    assert isinstance(seen[0], bytes) and seen[1] == (tensor.data_ptr(),) * 2
    slow = compiled().describe("op", (tensor, tensor.as_subclass(Subclass)))
    assert isinstance(slow[0], tuple) and slow[1] == (tensor.data_ptr(),) * 2


def test_recorded_gradients_are_left_to_python(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16, requires_grad=True), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    assert native.call(torch_says(grad=True), {key: ready.native}, "op", (a, out), ()) == NOT_KNOWN
    assert native.call(torch_says(grad=False), {key: ready.native}, "op", (a, out), ()) == 0


def test_a_launch_counts_a_write_to_what_it_writes(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    several = arrays.pointers_to([out])
    known = {native.describe("op", (a, x))[0]: ready.native for x in (a, out, several)}
    for x, code, version in ((out, 0, 1), (a, OVERLAPS, 1), (several, 0, 2)):
        assert native.call(torch_says(), known, "op", (a, x), ()) == code
        assert (a._version, out._version) == (0, version)


def test_another_current_device_is_left_to_python(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    stream, _, *others = torch_says()
    for device, code in ((0, 0), (1, NOT_KNOWN)):
        here = (stream, lambda device=device: device, *others)
        assert native.call(here, {key: ready.native}, "op", (a, out), ()) == code


def test_an_exception_from_torch_is_not_swallowed(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))

    def broken(device):
        raise RuntimeError("no stream")

    with pytest.raises(RuntimeError, match="no stream"):
        native.call((broken, None, *[bool] * 4), {key: ready.native}, "op", (a, out), ())
