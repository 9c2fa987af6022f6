"""How fp32 is multiplied: as torch's settings have it for its own functions."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.torch import autocast

_LEGACY = {"matmul": torch._C._get_cublas_allow_tf32, "conv": torch._C._get_cudnn_allow_tf32}
_SETTING = getattr(torch._C, "_get_fp32_precision_getter", None)
"""What torch is told, for a backend and an operation, in versions that can be told for each."""


def tf32(x: Any, operation: str = "matmul") -> bool:
    """Whether torch would multiply tensors like `x` as tf32: fp32 on an NVIDIA GPU that has it,
    outside of autocast, where its settings allow it.

    operation: ``matmul``, which ``torch.set_float32_matmul_precision`` is about, or ``conv``, which
        ``torch.backends.cudnn`` is about.
    """
    if getattr(x, "dtype", None) is not torch.float32 or not x.is_cuda or autocast.active():
        return False
    return bool(_allowed(operation) and _has_tf32(x.get_device()))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _allowed(operation: str) -> bool:
    if _SETTING is None:
        return bool(_LEGACY[operation]())
    return bool(_SETTING("cuda", operation) == "tf32")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_tf32(index: int) -> bool:
    if index not in _with_tf32:
        capable = torch.version.hip is None
        _with_tf32[index] = capable and torch.cuda.get_device_capability(index) >= (8, 0)
    return _with_tf32[index]


_with_tf32: dict[int, bool] = {}
"""By a GPU's index. A cached function would be one that ``torch.compile`` traces."""
