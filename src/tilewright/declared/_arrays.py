"""What references compute with: NumPy's functions on CPU arrays, torch's on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tilewright.dtypes import DTYPES


def functions(x: Any) -> ModuleType:
    """The module whose functions take arrays like `x`. Of those with the same name in both, the
    arguments ``axis=`` and ``keepdims=`` are too."""
    if hasattr(x, "numpy"):
        import torch

        return torch
    import numpy as np

    return np


def zeros(shape: Sequence[int], like: Any) -> Any:
    """Zeros of the kind of array and of the type of `like`."""
    if hasattr(like, "new_zeros"):
        return like.new_zeros(shape)
    import numpy as np

    return np.zeros(shape, like.dtype)


def beside(values: Any, x: Any) -> Any:
    """A NumPy array as an array of the kind of `x`, where `x` is."""
    if not hasattr(x, "numpy"):
        return values
    import torch

    return torch.as_tensor(values, device=x.device)


def largest(dtype: str) -> float:
    """The largest value of an element type that values are quantised to."""
    found = DTYPES[dtype].range
    return found[1] if found else 0.0


def clipped(values: Any, dtype: str) -> Any:
    """`values` within the range of a type that saturates."""
    bounds = DTYPES[dtype].range
    return values if bounds is None else functions(values).clip(values, *bounds)
