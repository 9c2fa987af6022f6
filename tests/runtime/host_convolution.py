"""Convolutions of arrays in memory of the host, as stand-ins for libraries compute them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def array(address: int, dtype: Any, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The array at an address. strides: in elements."""
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    size = np.dtype(dtype).itemsize
    memory = (ctypes.c_char * (span * size)).from_address(address)
    flat = np.frombuffer(memory, f"u{size}")  # as_strided does not know ml_dtypes' types
    return np.lib.stride_tricks.as_strided(flat, shape, [s * size for s in strides]).view(dtype)


def compute(
    direction: str,
    arrays: Sequence[np.ndarray],
    stride: Sequence[int],
    dilation: Sequence[int],
    pad: Sequence[int],
) -> None:
    """Compute one of x, w and y, `arrays`, of the others, in float64."""
    x, w, y = (torch.from_numpy(one.astype(np.float64)) for one in arrays)
    groups = x.shape[1] // w.shape[1]
    how = ([*stride], [*pad], [*dilation], False, [0] * len(pad), groups)
    if direction == "forward":
        arrays[2][...] = torch.ops.aten.convolution(x, w, None, *how).numpy()
        return
    wanted = [direction == "data", direction == "weights", False]
    of_x, of_w, _ = torch.ops.aten.convolution_backward(y, x, w, None, *how, wanted)
    arrays[0 if direction == "data" else 1][...] = (of_x if direction == "data" else of_w).numpy()
