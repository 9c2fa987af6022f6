"""What several forms use."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.dtypes import DTYPES

BLOCK = 128
"""Elements that share a scale under ``quant = 'block'``."""


def kind(dtype: str) -> torch.dtype:
    """torch's element type."""
    found: torch.dtype = getattr(torch, DTYPES[dtype].torch)
    return found


def clipped(values: Any, dtype: str) -> Any:
    """Values as an 8-bit type, within its range."""
    least, most = DTYPES[dtype].range
    values = values.clamp(least, most)
    return (values.round() if DTYPES[dtype].kind == "int" else values).to(kind(dtype))


def rounded(values: Any, quant: str, out_dtype: str, scale: Any = None) -> tuple[Any, ...]:
    """Values as they are stored, with the scales that are made: see `_quantised` of the pages."""
    if not quant:
        return (values.to(kind(out_dtype)),)
    values = values.float()
    if quant == "tensor":
        return (clipped(values / scale, out_dtype),)
    top = DTYPES[out_dtype].range[1]
    groups = values.unflatten(-1, (-1, values.shape[-1] if quant == "row" else BLOCK))
    scales = groups.abs().amax(-1) / top
    scales = torch.where(scales > 0, scales, 1.0)
    made = clipped(groups / scales[..., None], out_dtype).flatten(-2)
    return made, scales[..., 0] if quant == "row" else scales


def only(results: tuple[Any, ...]) -> Any:
    """Several outputs as a tuple, one by itself."""
    return results if len(results) > 1 else results[0]
