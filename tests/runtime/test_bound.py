"""The launcher without a GPU: what it would hand a driver, seen by a stand-in for the driver."""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
import threading
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tilewright import arrays
from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.compile.resources import Resources
from tilewright.errors import BadArgument, LaunchFailed, NoCompiler
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
from tilewright.runtime import bound as bound_module
from tilewright.runtime import launcher as launcher_module
from tilewright.runtime import python_launcher
from tilewright.runtime.bound import Bound, BoundLaunch, Loaded
from tilewright.runtime.cuda import CudaDriver
from tilewright.runtime.driver import Entry
from tilewright.runtime.launcher import NOT_KNOWN, OVERLAPS, compiled

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


EXTENDED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(python_launcher._Config),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
FILL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p
)


class StandIn:
    """A driver that writes down what it was asked; `parameters` are read as 8 bytes each, or as
    `formats` says. `by_function`: the formats of single functions. `queued`: launches and fills, in
    order."""

    backend = "cuda"

    def __init__(self, *formats: str, status: int = 0, attributes: bytes = b"") -> None:
        self.formats, self.status, self.attributes = formats, status, attributes
        self.by_function: dict[int, tuple[str, ...]] = {}
        self.launches: list[dict] = []
        self.queued: list[dict] = []
        self.encoded: list[int] = []
        self.entered: list[int] = []
        self.launch_function = LAUNCH(self._launch)
        self._extended = EXTENDED(self._launch_extended)
        self._fill = FILL(self._note_fill)
        self.fill_function = _address(self._fill)
        self.encode_function = 0

    def entry(self, kernel, function):
        called = self._extended if self.attributes else self.launch_function
        return Entry(_address(called), self.attributes)

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        formats = self.by_function.get(function, self.formats)
        values = [
            struct.unpack(f, ctypes.string_at(parameters[i], struct.calcsize(f)))[0]
            for i, f in enumerate(formats)
        ]
        self.launches.append(
            {
                "function": function,
                "grid": (gx, gy, gz),
                "block": (bx, by, bz),
                "shared": shared,
                "stream": stream,
                "values": values,
                "addresses": [parameters[i] for i in range(len(formats))],
            }
        )
        self.queued.append(self.launches[-1])
        return self.status if not self.entered else 0

    def _launch_extended(self, config, function, parameters, extra):
        c = config.contents
        grid, block = tuple(c.grid), tuple(c.block)
        status = self._launch(function, *grid, *block, c.shared, c.stream, parameters, extra)
        at = ctypes.cast(ctypes.addressof(c) + 40, ctypes.POINTER(ctypes.c_void_p))[0]
        self.launches[-1]["attributes"] = ctypes.string_at(at, 72 * c.count)
        return status

    def _note_fill(self, address, byte, count, stream):
        self.queued.append({"fill": (address, byte, count), "stream": stream})
        return self.status if not self.entered else 0

    @contextmanager
    def current(self, device):
        self.entered.append(device)
        yield

    def keep_current(self, device):
        self.entered.append(device)

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


def _address(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


A_OUT = (Bound("a", "in", 64), Bound("out", "out", 64))
LARGE = (Bound("a", "in", 1024), Bound("out", "out", 1024))


def bound(driver, launch, operands=A_OUT, built=None, **scalars) -> BoundLaunch:
    """Of the arguments of one kernel, or of a launch whose steps run the parts of `built`."""
    if not isinstance(launch, Launch):
        launch = Launch((Step((1, 1, 1), launch),))
    if not isinstance(built, dict):
        built = {"main": built or kernel()}
    parts = {
        name: Loaded(one, ctypes.c_void_p(77 + i)) for i, (name, one) in enumerate(built.items())
    }
    return BoundLaunch(driver, 0, parts, 32, launch, operands, **scalars)


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
    assert native.call(_torch(), known, "op", (a, out), (value,)) == NOT_KNOWN
    assert not driver.launches


def test_a_scalar_that_is_missing_is_refused_by_name(native):
    driver = StandIn("<f", "<Q")
    ready = bound(driver, (Given("fp32", "scale"),), LARGE, given=("scale",))
    with pytest.raises(BadArgument, match="k needs scale=, a number, at each call"):
        ready(0, (0x1000, 0x2000), scalars=(None,))
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    known = {key: ready.native}
    assert native.call(_torch(), known, "op", (a, out), (None,)) == NOT_KNOWN
    assert native.call(_torch(), known, "op", (a, out), ()) == NOT_KNOWN
    assert not driver.launches
    assert native.call(_torch(), known, "op", (a, out), (0.25,)) == 0
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
    driver.encode_function, driver.tiling = _address(kept), CudaDriver.tiling.__get__(driver)
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


def test_a_launch_says_when_it_was_used_last(native):
    driver = StandIn("<Q")
    first, second = (bound(driver, (Pointer("a"),), LARGE) for _ in range(2))
    assert first.last_used() == second.last_used() == 0
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    first(0, addresses)
    second(0, addresses)
    assert 0 < first.last_used() < second.last_used()
    native.call(_torch(), {key: first.native}, "op", (a, out), ())
    assert first.last_used() > second.last_used()


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


def _torch(stream=5, grad=False, capturing=False, transform=None):
    written = torch._C._increment_version
    return (
        lambda device: stream, None, lambda: grad, lambda: capturing, written, lambda: transform
    )  # fmt: skip


def test_a_known_call_is_launched_whole(native):
    driver = StandIn("<Q", "<Q")
    ready = bound(driver, (Pointer("a"), Pointer("out")), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    known = {key: ready.native}
    assert native.call(_torch(), known, "op", (a, out), ()) == 0
    assert driver.launches[0]["values"] == [a.data_ptr(), out.data_ptr()] == list(addresses)
    assert driver.launches[0]["stream"] == 5


def test_launches_are_counted_by_whichever_way(native):
    ready = bound(StandIn("<Q", "<Q"), (Pointer("a"), Pointer("out")), LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, addresses = native.describe("op", (a, out))
    assert ready.launches() == 0
    for _ in range(3):
        native.call(_torch(), {key: ready.native}, "op", (a, out), ())
    ready(5, addresses)
    native.call(_torch(), {key: ready.native}, "op", (a, a), ())  # overlaps, so it is not launched
    native.call(_torch(), {}, "op", (a, out), ())  # not known
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
        return native.call(_torch(**here), {key: ready.native}, "op", (a, out), ())

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
    stream, device, grad, _, *others = _torch(stream=0x500)

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
    assert native.call(_torch(), known, "op", (a, out), ()) == 0
    for other in others:
        assert native.call(_torch(), known, "op", (other, out), ()) == NOT_KNOWN, other
    assert native.call(_torch(), known, "another", (a, out), ()) == NOT_KNOWN
    assert native.call(_torch(), known, "op", (a, [1]), ()) == NOT_KNOWN


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
    assert native.call(_torch(grad=True), {key: ready.native}, "op", (a, out), ()) == NOT_KNOWN
    assert native.call(_torch(grad=False), {key: ready.native}, "op", (a, out), ()) == 0


def test_a_launch_counts_a_write_to_what_it_writes(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    several = arrays.pointers_to([out])
    known = {native.describe("op", (a, x))[0]: ready.native for x in (a, out, several)}
    for x, code, version in ((out, 0, 1), (a, OVERLAPS, 1), (several, 0, 2)):
        assert native.call(_torch(), known, "op", (a, x), ()) == code
        assert (a._version, out._version) == (0, version)


def test_another_current_device_is_left_to_python(native):
    ready = bound(StandIn(), (), operands=LARGE)
    a, out = torch.zeros(16, 16), torch.zeros(16, 16)
    key, _ = native.describe("op", (a, out))
    stream, _, *others = _torch()
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
