"""Arrays of one element for numbers that are passed where a call takes an array."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from tilewright import arrays, checks, dtypes
from tilewright.pointer_array import Pointers

LARGEST = 3.4028234663852886e38
"""The largest fp32."""


def of_number(name: str, value: float, dtype: str, like: Any) -> Any:
    """An array [1] with this number, of the library and on the device of `like`; NumPy's without
    one. An array on a GPU is made once for each number, so that no call copies it again, except
    where a graph is captured or a mode of torch is watching.

    dtype: Tilewright's name.

    Raises `BadArgument`, which begins with `name`, for a number that is not finite.
    """
    checks.number(name, value, -LARGEST, LARGEST)
    if isinstance(like, Pointers):
        like = next(iter(like.arrays), None)
    if like is None or arrays.is_numpy(like):
        import numpy as np

        return np.full(1, value, dtypes.numpy_dtype(dtypes.dtype(dtype)))
    import torch

    device = arrays.adopt(like, name).device
    graph = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if graph or torch._C._len_torch_dispatch_stack():
        return _made(value, dtype, device)
    return _kept(value, math.copysign(1.0, value), dtype, device)


@lru_cache(maxsize=256)
def _kept(value: float, sign: float, dtype: str, device: Any) -> Any:
    import torch

    # An inference tensor could be in no later call that torch records.
    with torch.inference_mode(False):
        made = _made(value, dtype, device)
    if device.type == "cuda":  # later calls may be on other streams
        torch.cuda.current_stream(device).synchronize()
    return made


def _made(value: float, dtype: str, device: Any) -> Any:
    import torch

    kind = getattr(torch, dtypes.dtype(dtype).torch)
    return torch.full((1,), value, dtype=kind, device=device)
