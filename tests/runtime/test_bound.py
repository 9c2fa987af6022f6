"""A launch without a GPU: what it would hand a driver, seen by a stand-in for the driver."""

from __future__ import annotations

import itertools
import struct
import threading
import tracemalloc
from dataclasses import replace

import pytest
from stand_in_driver import LARGE, MAP, StandIn, bound, kernel, torch_says

from tilewright.errors import BadArgument, LaunchFailed
from tilewright.ops.nouns import (
    Descriptor,
    Given,
    Launch,
    Pointer,
    Scalar,
    Step,
    Temporary,
)
from tilewright.parameters import MAX_PARAMETER_BYTES
from tilewright.runtime.bound import Bound
from tilewright.runtime.driver import capture_invalidated
from tilewright.runtime.launcher import NOT_KNOWN

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("native")


def test_parameters_reach_the_driver_in_order_and_width():
    driver = StandIn("<Q", "<i", "<q", "<Q", "<Q", "<Q")
    arguments = (Pointer("a"), Scalar("i32", -5), Scalar("i64", 2**40), Pointer("out"))
    bound(driver, Launch((Step((3, 2, 1), arguments),)))(9, (0x1000, 0x2000))
    (seen,) = driver.launches
    assert seen["values"] == [0x1000, -5, 2**40, 0x2000, 0, 0]  # then the two scratch pointers
    assert seen["grid"] == (3, 2, 1) and seen["block"] == (128, 1, 1)
    assert (seen["shared"], seen["stream"], seen["function"]) == (1000, 9, 77)


SCALARS = [
    ("i1", 1, "<b"),
    ("i8", -128, "<b"),
    ("i16", -2, "<h"),
    ("i32", -(2**31), "<i"),
    ("i64", -(2**63), "<q"),
    ("u8", 255, "<B"),
    ("u16", 65535, "<H"),
    ("u32", 2**32 - 1, "<I"),
    ("u64", 2**64 - 1, "<Q"),
    ("fp32", 0.5, "<f"),
    ("fp64", 0.1, "<d"),
]


@pytest.mark.parametrize(("kind", "value", "form"), SCALARS)
def test_scalars_of_a_plan_and_of_a_call_are_packed_alike(kind, value, form):
    driver = StandIn(form, form, form, "<Q")
    arguments = (Scalar(kind, value), Given(kind, "x"), Given(kind, "y"))
    call = bound(driver, arguments, given=("y", "x"), defaults={"x": value, "y": 0})
    call(0, (0x1000, 0x2000), scalars=(1, None))
    call(0, (0x1000, 0x2000), scalars=(None, value))
    call(0, (0x1000, 0x2000), scalars=(value, value))
    assert [s["values"] for s in driver.launches] == [
        [value, value, 1, 0],
        [value, value, 0, 0],
        [value, value, value, 0],
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("i1", 2),
        ("i8", 128),
        ("i16", 1 << 15),
        ("i32", 1 << 31),
        ("i64", 1 << 63),
        ("u8", -1),
        ("u16", 1 << 16),
        ("u32", 1 << 32),
        ("u64", -1),
        ("u64", 1 << 64),
        ("i32", 0.5),
        ("i32", "3"),
        ("fp32", 1e300),
        ("fp64", "a"),
    ],
)
def test_a_scalar_that_its_type_does_not_hold_is_refused_by_name(native, kind, value):
    driver = StandIn()
    ready = bound(driver, (Given(kind, "scale"),), LARGE, given=("scale",))
    with pytest.raises(BadArgument, match=rf"scale of k: .* is not a value of type {kind}"):
        ready(0, (0x1000, 0x2000), scalars=(value,))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    known = {key: ready.native}
    assert native.call(torch_says(), known, "op", (a, out), (value,)) == NOT_KNOWN
    assert not driver.launches


def test_a_scalar_that_is_missing_is_refused_by_name(native):
    driver = StandIn("<f", "<Q")
    ready = bound(driver, (Given("fp32", "scale"),), LARGE, given=("scale",))
    with pytest.raises(BadArgument, match="k needs scale=, a number, at each call"):
        ready(0, (0x1000, 0x2000), scalars=(None,))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    known = {key: ready.native}
    assert native.call(torch_says(), known, "op", (a, out), (None,)) == NOT_KNOWN
    assert native.call(torch_says(), known, "op", (a, out), ()) == NOT_KNOWN
    assert not driver.launches
    assert native.call(torch_says(), known, "op", (a, out), (0.25,)) == 0
    assert driver.launches[0]["values"][0] == 0.25


def test_a_scalar_that_no_call_gives_is_its_default_or_refused_when_bound():
    driver = StandIn("<i")
    bound(driver, (Given("i32", "n"),), defaults={"n": 7})(0, (0x1000, 0x2000))
    assert driver.launches[0]["values"] == [7]
    with pytest.raises(LaunchFailed, match="scalar 'n', which no call gives"):
        bound(driver, (Given("i32", "n"),))


def test_the_number_of_addresses_and_of_scalars_must_be_right():
    ready = bound(StandIn(), (Pointer("a"),), given=("n",))
    for addresses, scalars in (((0x1000,), (1,)), ((1, 2, 3), (1,)), ((0x1000, 0x2000), ())):
        with pytest.raises(TypeError, match="takes 2 addresses and 1 scalars"):
            ready(0, addresses, scalars=scalars)


def test_temporaries_lie_in_the_buffer_of_their_kind():
    temporaries = (
        Temporary("partial", (3, 100), "fp32"),
        Temporary("flags", (10,), "int32", "kept_zero"),
        Temporary("sums", (7,), "fp32", "zero"),
        Temporary("counters", (1,), "int32", "kept_zero"),
        Temporary("tail", (4,), "int4"),
    )
    driver = StandIn(*["<Q"] * 5)
    arguments = tuple(Pointer(t.name) for t in temporaries)
    call = bound(driver, Launch((Step((1, 1, 1), arguments),), temporaries))
    assert any(call.workspace)
    call(9, (0x1000, 0x2000), (0x10000, 0x20000))
    fill, launch = driver.queued
    # What must be zero comes first in the scratch buffer; each begins at a multiple of 256 bytes.
    assert fill == {"fill": (0x20000, 0, 28), "stream": 9}
    assert launch["values"] == [0x20100, 0x10000, 0x20000, 0x10100, 0x20600]


def test_temporaries_inside_an_output_take_no_buffer():
    temporaries = (
        Temporary("first", (65,), "fp32", inside="out"),
        Temporary("second", (64,), "fp32", inside="out"),
    )
    launch = Launch((Step((1, 1, 1), (Pointer("first"), Pointer("second"))),), temporaries)
    driver = StandIn("<Q", "<Q")
    call = bound(driver, launch)
    assert not any(call.workspace)
    assert launch.workspace_bytes == 0
    call(0, (0x1000, 0x2000))
    assert driver.queued[0]["values"] == [0x2000, 0x2200]  # 65 numbers end within 512 bytes


def test_a_launch_with_temporaries_needs_its_buffers():
    for initial, buffers in (("anything", (0x10000, 0)), ("kept_zero", (0, 0x10000))):
        temporary = Temporary("t", (8,), "fp32", initial)
        call = bound(StandIn("<Q"), Launch((Step((1, 1, 1), (Pointer("t"),)),), (temporary,)))
        for given in (buffers, (0, 0)):
            with pytest.raises(TypeError, match="no buffer was given"):
                call(0, (0x1000, 0x2000), given)
    assert not any(bound(StandIn(), ()).workspace)


@pytest.mark.parametrize(
    "argument", [Pointer("nowhere"), Descriptor("nowhere", "bf16", (8, 8), (8, 1), (8, 8))]
)
@pytest.mark.parametrize("maps", [(), (MAP,)])
def test_an_operand_or_temporary_that_is_nowhere_is_refused_when_bound(argument, maps):
    with pytest.raises(LaunchFailed, match=r"'nowhere', which is neither .* these are a, out"):
        built = kernel(*maps) if isinstance(argument, Descriptor) else None
        bound(StandIn(), (argument,), built=built)


def test_steps_are_launched_in_order_as_one_launch():
    driver = StandIn()
    driver.by_function = {77: ("<Q", "<i"), 78: ("<Q", "<Q", "<q")}
    temporary = Temporary("t", (8,), "fp32", "zero")
    steps = (
        Step((4, 1, 1), (Pointer("t"), Scalar("i32", 3)), "partial"),
        Step((2, 3, 1), (Pointer("t"), Pointer("out"), Scalar("i64", 5)), "reduce"),
        Step((1, 1, 1), (Pointer("t"), Scalar("i32", 4)), "partial"),
    )
    built = {"partial": kernel(), "reduce": replace(kernel(), num_warps=8, shared=0)}
    call = bound(driver, Launch(steps, (temporary,)), built=built)
    assert call(9, (0x1000, 0x2000), (0, 0x20000))
    fill, *launches = driver.queued
    assert fill["fill"] == (0x20000, 0, 32)
    seen = [(s["function"], s["grid"], s["block"][0], s["shared"], s["values"]) for s in launches]
    assert seen == [
        (77, (4, 1, 1), 128, 1000, [0x20000, 3]),
        (78, (2, 3, 1), 256, 0, [0x20000, 0x2000, 5]),
        (77, (1, 1, 1), 128, 1000, [0x20000, 4]),
    ]
    assert call.launches() == 1


def test_a_step_that_is_refused_ends_the_launch():
    driver = StandIn("<Q", status=1)
    steps = (Step((1, 1, 1), (Pointer("a"),)),) * 3
    call = bound(driver, Launch(steps))
    with pytest.raises(LaunchFailed, match=r"launching k: STAND_IN \(1\)"):
        call(0, (0x1000, 0x2000))
    assert len(driver.launches) == 1 and call.launches() == 0


def test_a_launch_into_an_ended_capture_says_what_ended_it():
    class Ended(StandIn):
        def capture(self, stream):
            assert stream == 9
            raise capture_invalidated()

    call = bound(Ended("<Q", status=901), Launch((Step((1, 1, 1), (Pointer("a"),)),)))
    with pytest.raises(LaunchFailed, match="cannot be captured any more"):
        call(9, (0x1000, 0x2000))


def test_a_part_that_was_not_loaded_is_named():
    with pytest.raises(LaunchFailed, match="part 'reduce'; there is main"):
        bound(StandIn(), Launch((Step((1, 1, 1), (), "reduce"),)))


@pytest.mark.parametrize(
    ("kind", "count"), [("i64", 5), ("i64", 300), ("i64", 510), ("u8", 300), ("u8", 4080)]
)
def test_there_may_be_as_many_parameters_as_fit(kind, count):
    form = {"i64": "<q", "u8": "<B"}[kind]
    driver = StandIn(*[form] * count)
    values = [i % 256 for i in range(count)]
    bound(driver, tuple(Scalar(kind, i) for i in values))(0, (0x1000, 0x2000))
    assert driver.launches[0]["values"] == values


def test_there_may_be_any_number_of_operands_and_steps():
    names = [f"x{i}" for i in range(100)]
    driver = StandIn(*["<Q"] * 100)
    steps = (Step((1, 1, 1), tuple(map(Pointer, names))),) * 20
    addresses = tuple(0x1000 * (i + 1) for i in range(100))
    operands = [Bound(name, "in", 64) for name in names]
    assert bound(driver, Launch(steps), operands)(0, addresses)
    assert [tuple(s["values"]) for s in driver.launches] == [addresses] * 20


def test_more_bytes_of_parameters_than_a_kernel_takes_are_refused():
    limit = MAX_PARAMETER_BYTES // 8 - 2  # two scratch pointers follow
    bound(StandIn(), (Scalar("i64", 0),) * limit)
    with pytest.raises(LaunchFailed, match=r"k takes 4104 bytes of parameters, and .* most 4096"):
        bound(StandIn(), (Scalar("i64", 0),) * (limit + 1))


def test_a_ready_launch_takes_a_few_kilobytes(native):
    views = tuple(Descriptor(n, "bf16", (8, 8), (8, 1), (8, 8)) for n in ("a", "out", "a"))
    driver = StandIn("<Q")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [bound(driver, views, built=kernel(MAP, MAP, MAP)) for _ in range(100)]
        for call in kept:
            call(0, (0x1000, 0x2000))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / 100 < 16_000


def test_a_written_operand_must_not_touch_another():
    driver = StandIn("<Q")
    operands = [
        Bound(n, r, 64) for n, r in (("a", "in"), ("x", "inout"), ("b", "in"), ("y", "out"))
    ]
    call = bound(driver, (Pointer("a"),), operands)
    apart = (0x1000, 0x2000, 0x3000, 0x4000)
    for i, j in itertools.permutations(range(4), 2):
        moved = list(apart)
        moved[i] = moved[j] + 0x20
        reads_only = {i, j} == {0, 2}
        assert call(0, tuple(moved)) is reads_only, (i, j)
        assert call(0, tuple(moved), apart=True)
        moved[i] = moved[j] + 0x40  # touching ends do not overlap
        assert call(0, tuple(moved))
    assert len(driver.launches) == 12 * 2 + 2


def test_attributes_are_launched_with():
    attributes = struct.pack("<i4xI60x", 2, 1) + struct.pack("<i4xIII52x", 4, 2, 1, 1)
    driver = StandIn("<Q", "<Q", attributes=attributes)
    launch = Launch((Step((3, 2, 1), (Pointer("a"), Pointer("out"))),))
    assert bound(driver, launch, built=replace(kernel(), num_ctas=2))(9, (0x1000, 0x2000))
    (seen,) = driver.launches
    assert seen["attributes"] == attributes
    assert seen["grid"] == (6, 2, 1), "the driver counts CTAs, a step's grid counts clusters"
    assert (seen["block"], seen["shared"], seen["stream"]) == ((128, 1, 1), 1000, 9)
    assert (seen["function"], seen["values"]) == (77, [0x1000, 0x2000])


def test_a_refused_launch_says_why():
    driver = StandIn("<Q", status=1)
    with pytest.raises(LaunchFailed, match=r"launching k: STAND_IN \(1\)"):
        bound(driver, (Pointer("a"),))(0, (0x1000, 0x2000))


def test_a_thread_without_a_context_gets_one_for_good(monkeypatch):
    driver = StandIn("<Q", status=201)
    monkeypatch.setattr(driver, "current", None)
    launch = bound(driver, (Pointer("a"),))
    assert launch(0, (0x1000, 0x2000))
    assert driver.entered == [0] and len(driver.launches) == 2
    assert launch(0, (0x1000, 0x2000))
    assert driver.entered == [0] and len(driver.launches) == 3


def test_another_current_device_is_changed_for_the_launch():
    driver = StandIn("<Q")
    bound(driver, (Pointer("a"),))(0, (0x1000, 0x2000), elsewhere=True)
    assert driver.entered == [0] and len(driver.launches) == 1


def test_threads_do_not_mix_their_addresses():
    driver = StandIn("<Q", "<Q")
    view = Descriptor("a", "bf16", (8, 8), (8, 1), (8, 8))
    call = bound(driver, (view, Pointer("out")), built=kernel(MAP))
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
