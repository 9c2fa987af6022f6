"""What an error of a kernel's is called."""

from __future__ import annotations

import pytest

from tilewright.errors import (
    BuildFailed,
    IllegalAccess,
    KernelCrashed,
    LaunchFailed,
    OutOfMemory,
    UnsupportedProblem,
)
from tilewright.measure.worker import blame

REFUSED = "the cuda driver refused to load the binary of k: "


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnsupportedProblem("k odd"), "unsupported"),
        (BuildFailed("not in the store"), "build_failed"),
        (LaunchFailed(REFUSED + "CUDA_ERROR_INVALID_VALUE"), "launch_failed"),
        (LaunchFailed(REFUSED + "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "launch_failed"),
        (LaunchFailed(REFUSED + "CUDA_ERROR_OUT_OF_MEMORY"), "out_of_memory"),
        (LaunchFailed(REFUSED + "CUDA_ERROR_ILLEGAL_ADDRESS"), "illegal_access"),
        (LaunchFailed(REFUSED + "CUDA_ERROR_LAUNCH_FAILED"), "illegal_access"),
        (LaunchFailed("the hip driver refused to x: hipErrorIllegalAddress"), "illegal_access"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "illegal_access"),
        (RuntimeError("CUDA error: misaligned address"), "illegal_access"),
        (RuntimeError("CUDA error: unspecified launch failure"), "illegal_access"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (OutOfMemory("interpreted"), "out_of_memory"),
        (IllegalAccess("interpreted"), "illegal_access"),
        (KernelCrashed("interpreted: ValueError"), "crashed"),
        (ZeroDivisionError("ours"), "crashed"),
    ],
)
def test_errors_come_to_statuses(error, status):
    assert blame(error)[0] == status
