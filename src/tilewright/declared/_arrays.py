"""What references compute with: NumPy's functions on CPU arrays, torch's on tensors."""

from __future__ import annotations

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


def largest(dtype: str) -> float:
    """The largest value of an element type that values are quantised to."""
    found = DTYPES[dtype].range
    return found[1] if found else 0.0


def clipped(values: Any, dtype: str) -> Any:
    """`values` within the range of a type that saturates."""
    bounds = DTYPES[dtype].range
    return values if bounds is None else functions(values).clip(values, *bounds)
