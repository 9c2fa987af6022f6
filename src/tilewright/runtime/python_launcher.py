"""The launcher in Python, for machines without a C compiler: `launcher.c`, function by function.

The functions have the names, arguments and codes of the compiled module, which its first comment
states. A launch takes some microseconds more. Nothing is compiled, and no file is written.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NEEDS_MAPS, OVERLAPS, NOT_KNOWN = -1, -2, -3
"""Codes of `launch` and `call` that are no driver's status; see launcher.c."""

MAPS_KEPT = 256
"""Tensor maps kept for each descriptor, by address."""
WORKSPACES_KEPT = 8
MAP_BYTES = 128
_ALIGNED = 64
"""Bytes that the driver wants a tensor map aligned to."""

_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *([ctypes.c_uint] * 7), *([ctypes.c_void_p] * 3)
)
"""`cuLaunchKernel` and `hipModuleLaunchKernel`: function, grid, block, shared bytes, stream,
parameters, extra."""

_pack_address = struct.Struct("<Q").pack_into


class _Parameters:
    """A launch's parameters in memory of their own, and the pointers to each."""

    __slots__ = ("content", "places", "start")

    def __init__(self, content: bytes, offsets: Sequence[int]) -> None:
        memory = ctypes.create_string_buffer(len(content) + _ALIGNED)
        base = ctypes.addressof(memory)
        self.content = memoryview(memory).cast("B")
        self.start = -base % _ALIGNED
        self.content[self.start : self.start + len(content)] = content
        here = base + self.start
        self.places = (ctypes.c_void_p * len(offsets))(*(here + at for at in offsets))


@dataclass(slots=True)
class _Launch:
    """All of a launch but addresses and stream; see `prepare` in launcher.c.

    shape: grid, block and shared bytes, as the driver takes them. maps: for each descriptor, the
    tensor maps by address. workspaces: (stream, address), by the stream's slot. free: parameters
    that no thread is using."""

    call: Any
    function: int
    device: int
    shape: tuple[int, ...]
    content: bytes
    offsets: Sequence[int]
    pointers: Sequence[tuple[int, int]]
    descriptors: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    scratch: bool
    maps: list[dict[int, bytes]]
    workspaces: dict[int, tuple[int, int]] = field(default_factory=dict)
    free: list[_Parameters] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0

    def parameters(self) -> _Parameters:
        try:
            return self.free.pop()
        except IndexError:
            return _Parameters(self.content, self.offsets)


def prepare(
    call: int,
    function: int,
    device: int,
    grid: tuple[int, int, int],
    block: int,
    shared: int,
    content: bytes,
    offsets: tuple[int, ...],
    pointers: tuple[tuple[int, int], ...],
    descriptors: tuple[tuple[int, int], ...],
    sizes: tuple[int, ...],
) -> _Launch:
    """A launch, packed; see launcher.c."""
    shape = (*grid, block, 1, 1, shared)
    scratch = any(operand < 0 for _, operand in pointers)
    maps: list[dict[int, bytes]] = [{} for _ in descriptors]
    return _Launch(
        _FUNCTION(call), function, device, shape, content, offsets, pointers, descriptors, sizes,
        scratch, maps,
    )  # fmt: skip


def launch(launch: _Launch, stream: int, addresses: tuple[int, ...], apart: bool) -> int:
    """Launch it. Returns a driver's status, or one of the codes above."""
    if len(addresses) < len(launch.sizes):
        raise TypeError("a launch needs the address of every operand")
    if not apart and _touches(launch, addresses):
        return OVERLAPS
    maps = []
    for (at, operand), known in zip(launch.descriptors, launch.maps, strict=True):
        encoded = known.get(addresses[operand])
        if encoded is None:
            return NEEDS_MAPS
        maps.append((at, encoded))
    given = launch.parameters()
    start, content = given.start, given.content
    for at, operand in launch.pointers:
        _pack_address(content, start + at, addresses[operand])  # -1, the workspace, is the last
    for at, encoded in maps:
        content[start + at : start + at + MAP_BYTES] = encoded
    with launch.lock:
        launch.count += 1
    status: int = launch.call(launch.function, *launch.shape, stream, given.places, None)
    launch.free.append(given)  # the driver has copied them
    return status


def _touches(launch: _Launch, addresses: tuple[int, ...]) -> bool:
    """Whether the last operand's bytes lie among another's."""
    sizes, last = launch.sizes, len(launch.sizes) - 1
    out = addresses[last]
    end = out + sizes[last]
    return any(addresses[i] < end and out < addresses[i] + sizes[i] for i in range(last))


def launches(launch: _Launch) -> int:
    """How often it was launched."""
    return launch.count


def keep_workspace(launch: _Launch, stream: int, address: int) -> None:
    """What `call` may give it on a stream; an address of 0: nothing on any."""
    if address:
        launch.workspaces[_slot(stream)] = stream, address
    else:
        launch.workspaces.clear()


def _slot(stream: int) -> int:
    return (stream >> 8) % WORKSPACES_KEPT


def write_map(launch: _Launch, number: int, address: int, encoded: bytes) -> None:
    """Set a descriptor's tensor map of an operand at an address."""
    known = launch.maps[number]
    if len(known) >= MAPS_KEPT:
        known.clear()
    known[address] = encoded


def describe(op: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """What tells one call from another, and where its operands lie."""
    key: list[Any] = [op, 0]
    addresses = []
    low = 0
    for tensor in tensors:
        address = tensor.data_ptr()
        low |= address
        addresses.append(address)
        key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
    key[1] = low & 15
    return tuple(key), tuple(addresses)


def call(
    torch: tuple[Any, Any, Any, Any], known: Mapping[Any, _Launch], op: Any, tensors: Any
) -> int:
    """A cached call, whole."""
    current_stream, current_device, grad_enabled, capturing = torch
    try:
        key, addresses = describe(op, tensors)
    except AttributeError:  # not torch's tensors: the caller sorts it out
        return NOT_KNOWN
    found = known.get(key)
    if found is None or (any(t.requires_grad for t in tensors) and grad_enabled()):
        return NOT_KNOWN
    if current_device is not None and current_device() != found.device:
        return NOT_KNOWN
    stream = current_stream(found.device)
    if found.scratch:
        kept = found.workspaces.get(_slot(stream))
        if kept is None or kept[0] != stream or capturing():
            return NOT_KNOWN
        addresses = (*addresses, kept[1])
    return launch(found, stream, addresses, False)
