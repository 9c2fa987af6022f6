"""A launch, packed and queued: `launcher.c`."""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.parameters import TENSOR_MAP_BYTES
from tilewright.runtime.python_launcher.library_steps import FUNCTION, WITH_HANDLES, handle_of

NEEDS_MAPS, OVERLAPS, NOT_KNOWN, UNSUITABLE, NEEDS_HANDLE = -1, -2, -3, -4, -5
"""Codes of `launch` and `call` that are no driver's status; see launcher.c."""

MAPS_KEPT = 256
"""Tensor maps kept for each descriptor, by address."""
WORKSPACES_KEPT = 8
_ALIGNED = 64
"""Bytes that the driver wants a tensor map aligned to."""

_EXTENDED = ctypes.CFUNCTYPE(ctypes.c_int, *([ctypes.c_void_p] * 4))
"""`cuLaunchKernelEx`: configuration, function, parameters, extra."""

_FILL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p
)
"""`cuMemsetD8Async` and `hipMemsetD8Async`: address, byte, count, stream."""

_ATTRIBUTE_BYTES = 72
_pack_address = struct.Struct("<Q").pack_into
_uses = itertools.count(1)


class Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_char_p),
        ("count", ctypes.c_uint),
    )


@dataclass(slots=True)
class Step:
    """One kernel; see `read_step` in launcher.c."""

    call: Any
    function: int
    attributes: bytes
    grid: tuple[int, int, int]
    block: int
    shared: int
    offsets: tuple[int, ...]
    context: Any = None

    def __post_init__(self) -> None:
        self.context = WITH_HANDLES.get(self.call)
        self.call = (_EXTENDED if self.attributes else FUNCTION)(self.call)

    def lacks_handle(self, stream: int) -> bool:
        """Whether a library computes it that has no handle for a stream yet."""
        of = self.context
        return of is not None and handle_of(of.from_address(self.function), stream) is None

    def launch(self, stream: int, places: Any) -> int:
        block = (self.block, 1, 1)
        status: int
        if self.attributes:
            count = len(self.attributes) // _ATTRIBUTE_BYTES
            config = Config(self.grid, block, self.shared, stream, self.attributes, count)
            status = self.call(ctypes.addressof(config), self.function, places, None)
        else:
            status = self.call(self.function, *self.grid, *block, self.shared, stream, places, None)
        return status


class Parameters:
    """A launch's parameters in memory of their own, and for each step the pointers to its."""

    __slots__ = ("content", "places", "start")

    def __init__(self, content: bytes, steps: Sequence[Step]) -> None:
        memory = ctypes.create_string_buffer(len(content) + _ALIGNED)
        base = ctypes.addressof(memory)
        self.content = memoryview(memory).cast("B")
        self.start = -base % _ALIGNED
        self.content[self.start : self.start + len(content)] = content
        here = base + self.start
        self.places = [
            (ctypes.c_void_p * len(step.offsets))(*(here + at for at in step.offsets))
            for step in steps
        ]


@dataclass(slots=True)
class Launch:
    """Everything about a launch except addresses, stream and scalars; see `prepare` in launcher.c.

    maps: for each descriptor, the tensor maps by address. workspaces: (stream, kept-zero buffer,
    scratch buffer), by the stream's slot. free: parameters that no thread is using."""

    device: int
    operands: Sequence[tuple[int, bool]]
    optional: Sequence[bool]
    content: bytes
    steps: Sequence[Step]
    pointers: Sequence[tuple[int, int, int]]
    descriptors: Sequence[tuple[int, int, int]]
    scalars: Sequence[tuple[int, int, str]]
    fill: Any
    fill_bytes: int
    kept_zero: bool
    scratch: bool
    kept: Any
    maps: list[dict[int, bytes]]
    workspaces: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    free: list[Parameters] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    used: int = 0

    def parameters(self) -> Parameters:
        try:
            return self.free.pop()
        except IndexError:
            return Parameters(self.content, self.steps)


def prepare(
    device: int,
    operands: tuple[tuple[int, bool], ...],
    optional: tuple[bool, ...],
    content: bytes,
    steps: tuple[tuple[Any, ...], ...],
    pointers: tuple[tuple[int, int, int], ...],
    descriptors: tuple[tuple[int, int, int, bytes], ...],
    scalars: tuple[tuple[int, int, str], ...],
    fill: int,
    fill_bytes: int,
    encode: int,
    kept_zero: bool,
    scratch: bool,
    kept: Any,
) -> Launch:
    """A launch, packed; see launcher.c. Tensor maps are left to the caller."""
    made = [Step(*step) for step in steps]
    maps: list[dict[int, bytes]] = [{} for _ in descriptors]
    places = tuple((at, source, offset) for at, source, offset, _ in descriptors)
    return Launch(
        device, operands, optional, content, made, pointers, places, scalars, _FILL(fill),
        fill_bytes, kept_zero, scratch, kept, maps,
    )  # fmt: skip


def launch(
    launch: Launch,
    stream: int,
    addresses: tuple[int, ...],
    workspaces: tuple[int, int],
    scalars: tuple[Any, ...],
    apart: bool,
) -> int:
    """Launch it. Returns a driver's status, or one of the codes above."""
    if len(addresses) != len(launch.operands) or len(scalars) != len(launch.optional):
        raise TypeError(
            f"this launch takes {len(launch.operands)} addresses and {len(launch.optional)} "
            f"scalars, and was given {len(addresses)} and {len(scalars)}"
        )
    if (launch.kept_zero and not workspaces[0]) or (launch.scratch and not workspaces[1]):
        raise TypeError("this launch has temporaries, and no buffer was given for them")
    if not apart and overlap(launch, addresses):
        return OVERLAPS
    values = _scalars(launch, scalars)
    if values is None:
        return UNSUITABLE
    sources = (*addresses, *workspaces)
    maps = []
    for (at, source, offset), known in zip(launch.descriptors, launch.maps, strict=True):
        encoded = known.get(sources[source] + offset)
        if encoded is None:
            return NEEDS_MAPS
        maps.append((at, encoded))
    if any(step.lacks_handle(stream) for step in launch.steps):
        return NEEDS_HANDLE
    given = launch.parameters()
    start, content = given.start, given.content
    for at, source, offset in launch.pointers:
        _pack_address(content, start + at, sources[source] + offset)
    for at, encoded in maps:
        content[start + at : start + at + TENSOR_MAP_BYTES] = encoded
    for at, value in values:
        content[start + at : start + at + len(value)] = value
    with launch.lock:
        launch.used = next(_uses)
    status: int = 0
    if launch.fill_bytes:
        status = launch.fill(workspaces[1], 0, launch.fill_bytes, stream)
    for step, places in zip(launch.steps, given.places, strict=True):
        status = status or step.launch(stream, places)
    if not status:
        with launch.lock:
            launch.count += 1
    launch.free.append(given)  # the driver has copied them
    return status


def overlap(launch: Launch, addresses: tuple[int, ...]) -> bool:
    """Whether the bytes that a written operand spans touch those of another operand."""
    spans = [(at, at + size) for at, (size, _) in zip(addresses, launch.operands, strict=True)]
    return any(
        written and i != j and spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]
        for j, (_, written) in enumerate(launch.operands)
        for i in range(len(spans))
    )


def _scalars(launch: Launch, scalars: tuple[Any, ...]) -> list[tuple[int, bytes]] | None:
    """(offset, value) of each scalar that is not left at its default; None if one is missing or is
    no value of its type. Parameters that are used again must not keep an earlier call's value, so
    a default is written too."""
    values = []
    for at, number, form in launch.scalars:
        value = scalars[number]
        width = 1 if form == "1" else struct.calcsize(f"<{form}")
        if value is None:
            if not launch.optional[number]:
                return None
            values.append((at, launch.content[at : at + width]))
            continue
        try:
            if form == "1" and value not in (0, 1):
                return None
            values.append((at, struct.pack("<b" if form == "1" else f"<{form}", value)))
        except (struct.error, OverflowError, TypeError, ValueError):
            return None
    return values


def launches(launch: Launch) -> int:
    """How often it was launched."""
    return launch.count


def last_used(launch: Launch) -> int:
    """When it was launched last, as a count of all launches."""
    return launch.used


def keep_workspace(launch: Launch, stream: int, kept_zero: int, scratch: int) -> None:
    """The buffers that `call` may use on a stream; two zeros: forget those of every stream."""
    if kept_zero or scratch:
        launch.workspaces[slot(stream)] = stream, kept_zero, scratch
    else:
        launch.workspaces.clear()


def slot(stream: int) -> int:
    return (stream >> 8) % WORKSPACES_KEPT


def write_map(launch: Launch, number: int, address: int, encoded: bytes) -> None:
    """Set the tensor map of a descriptor at an address."""
    known = launch.maps[number]
    if len(known) >= MAPS_KEPT:
        known.clear()
    known[address] = encoded
