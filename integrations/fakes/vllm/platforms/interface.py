"""What a platform says of itself."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import torch


class PlatformEnum(Enum):
    CUDA = auto()
    ROCM = auto()


class DeviceCapability(NamedTuple):
    major: int
    minor: int


class Platform:
    device_name: str = "fake"

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def is_cpu(self) -> bool:
        return False

    def is_tpu(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False

    def is_out_of_tree(self) -> bool:
        return False

    def is_cuda_alike(self) -> bool:
        return True

    @classmethod
    def use_sync_weight_loader(cls) -> bool:
        return False

    @classmethod
    def is_fp8_fnuz(cls) -> bool:
        return False

    @classmethod
    def fp8_dtype(cls) -> torch.dtype:
        return torch.float8_e4m3fn
