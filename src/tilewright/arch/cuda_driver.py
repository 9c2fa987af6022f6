"""NVIDIA GPUs through the CUDA driver (libcuda), by ctypes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tilewright.arch.load import named
from tilewright.arch.model import Device
from tilewright.arch.product import fingerprint
from tilewright.errors import NoDriver

_NO_DEVICE = 100

# CUdevice_attribute values; stable since they were introduced.
_CLOCK_KHZ = 13
_MULTIPROCESSORS = 16
_MEMORY_CLOCK_KHZ = 36
_BUS_BITS = 37
_L2_BYTES = 38
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


def probes(lib: Any) -> list[Callable[[], Device]]:
    """One probe for each GPU (or MIG instance) that `lib`, the loaded driver, can see.

    Raises `NoDriver` when the driver does not start.
    """
    status = lib.cuInit(0)
    if status == _NO_DEVICE:
        return []
    _check(lib, status, "cuInit")
    count = ctypes.c_int()
    _check(lib, lib.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return [functools.partial(_device, lib, index) for index in range(count.value)]


def uuid(lib: Any, index: int) -> str:
    """The UUID of a GPU (``GPU-…``) or MIG instance (``MIG-…``), as CUDA_VISIBLE_DEVICES takes
    it."""
    handle, raw = ctypes.c_int(), ctypes.create_string_buffer(16)
    _check(lib, lib.cuDeviceGet(ctypes.byref(handle), index), "cuDeviceGet")
    _check(lib, lib.cuDeviceGetUuid_v2(raw, handle), "cuDeviceGetUuid")
    text = ctypes.create_string_buffer(256)
    _check(lib, lib.cuDeviceGetName(text, len(text), handle), "cuDeviceGetName")
    return f"{'MIG' if b' MIG ' in text.value else 'GPU'}-{UUID(bytes=raw.raw)}"


def _device(lib: Any, index: int) -> Device:
    handle = ctypes.c_int()
    _check(lib, lib.cuDeviceGet(ctypes.byref(handle), index), "cuDeviceGet")
    text = ctypes.create_string_buffer(256)
    _check(lib, lib.cuDeviceGetName(text, len(text), handle), "cuDeviceGetName")
    memory = ctypes.c_size_t()
    _check(lib, lib.cuDeviceTotalMem_v2(ctypes.byref(memory), handle), "cuDeviceTotalMem_v2")

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        status = lib.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        _check(lib, status, f"cuDeviceGetAttribute({number})")
        return value.value

    # A MIG instance is called "<product> MIG <profile>".
    name, _, partition = text.value.decode(errors="replace").partition(" MIG ")
    capability = f"sm_{attribute(_CAPABILITY_MAJOR)}{attribute(_CAPABILITY_MINOR)}"
    transfers_per_clock = 2
    return fingerprint(
        name=name.strip(),
        arch=named(capability).name,
        compute_units=attribute(_MULTIPROCESSORS),
        l2_bytes=attribute(_L2_BYTES),
        memory_bytes=memory.value,
        bandwidth_gbs=transfers_per_clock
        * attribute(_MEMORY_CLOCK_KHZ)
        * attribute(_BUS_BITS)
        / 8e6,
        clock_mhz=attribute(_CLOCK_KHZ) // 1000,
        partition=partition.strip(),
    )


def _check(lib: Any, status: int, call: str) -> None:
    if status == 0:
        return
    word = ctypes.c_char_p()
    lib.cuGetErrorName(status, ctypes.byref(word))
    name = word.value.decode() if word.value else "unknown error"
    raise NoDriver(f"the CUDA driver answered {name} ({status}) to {call}")
