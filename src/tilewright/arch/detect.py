"""The physical GPUs of this machine, asked of their drivers; torch is not needed.

Devices are numbered as their driver numbers them (so ``CUDA_VISIBLE_DEVICES`` and
``HIP_VISIBLE_DEVICES`` apply), NVIDIA before AMD.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.arch import cuda_driver, hip_driver
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, NoDriver

Probe = Callable[[], Device]
"""Fingerprints one GPU when called."""


def live_devices() -> list[Device]:
    """Fingerprints of all GPUs here. Raises `NoDriver`, or `UnknownArch` for a GPU whose
    architecture no data file describes (hide it with the driver's environment variable)."""
    return [probe() for probe in _probes()]


def live_device(index: int = 0) -> Device:
    """The fingerprint of GPU `index`. Other GPUs of the machine are not looked at.

    Raises `NoDriver`, `BadArgument` (no such index), or `UnknownArch` (no data file describes
    its architecture; a related one is never taken instead).
    """
    probes = _probes()
    if not 0 <= index < len(probes):
        raise BadArgument(f"there is no GPU {index}: this machine has {len(probes)}")
    return probes[index]()


def live_uuids() -> list[str]:
    """The UUIDs that pin a process to each of `live_devices`, in the same order. Raises
    `NoDriver`."""
    found = [
        uuid(_library(soname), index)
        for soname, probes, uuid in (
            ("libcuda.so.1", cuda_driver.probes, cuda_driver.uuid),
            ("libamdhip64.so", hip_driver.probes, hip_driver.uuid),
        )
        for index in range(len(_visible(soname, probes)[0]))
    ]
    if not found:
        _probes()  # says why
    return found


def _probes() -> list[Probe]:
    cuda, no_cuda = _visible("libcuda.so.1", cuda_driver.probes)
    hip, no_hip = _visible("libamdhip64.so", hip_driver.probes)
    if not cuda and not hip:
        raise NoDriver(f"no GPU can be used here: {no_cuda}; {no_hip}")
    return cuda + hip


def _visible(soname: str, probes: Callable[[Any], list[Probe]]) -> tuple[list[Probe], str]:
    """The GPUs that the driver `soname` can see, and why it sees none."""
    try:
        found = probes(_library(soname))
    except NoDriver as error:
        return [], str(error)
    return found, "" if found else f"{soname} lists no GPU"


def _library(soname: str) -> Any:
    try:
        return ctypes.CDLL(soname)
    except OSError as error:
        raise NoDriver(f"{soname} is not installed") from error
