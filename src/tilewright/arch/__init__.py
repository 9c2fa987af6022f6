"""What each GPU architecture can do, and which physical GPU this is.

Data only: importing this room needs no GPU, torch, triton or numpy. Live GPUs are fingerprinted
by `tilewright.arch.detect`.
"""

from __future__ import annotations

from tilewright.arch.known import device_to_json, devices
from tilewright.arch.load import archs
from tilewright.arch.model import Arch, Device, DTypeSupport, Mma
from tilewright.arch.peak import peak_tflops
from tilewright.arch.resolve import arch, device

__all__ = [
    "Arch",
    "DTypeSupport",
    "Device",
    "Mma",
    "arch",
    "archs",
    "device",
    "device_to_json",
    "devices",
    "peak_tflops",
]
