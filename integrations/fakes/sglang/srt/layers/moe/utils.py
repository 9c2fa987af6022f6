"""Which kernels experts have."""

from __future__ import annotations

from enum import Enum


class MoeRunnerBackend(Enum):
    TRITON = "triton"
    DEEP_GEMM = "deep_gemm"

    def is_triton(self) -> bool:
        return self == MoeRunnerBackend.TRITON
