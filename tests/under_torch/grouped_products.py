"""Grouped products as ``torch.nn.functional.grouped_mm`` defines them, one by one."""

from __future__ import annotations

from typing import Any

import torch


def exact(a: Any, b: Any, offs: Any) -> Any:
    """The products of all groups; rows and columns of no group are 0."""
    if offs is None:
        return a @ b
    ends = offs.tolist()
    ranges = list(enumerate(zip([0, *ends[:-1]], ends, strict=True)))
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, i:j] @ b[i:j] for _, (i, j) in ranges])
    if a.dim() == 2:
        rest = a.new_zeros(a.shape[0] - ends[-1], b.shape[2])
        return torch.cat([*(a[i:j] @ b[g] for g, (i, j) in ranges), rest])
    rest = a.new_zeros(a.shape[1], b.shape[1] - ends[-1])
    return torch.cat([*(a[g] @ b[:, i:j] for g, (i, j) in ranges), rest], dim=1)


def used(result: Any, name: str, offs: Any) -> Any:
    """Where a result belongs to a group."""
    there = torch.ones_like(result, dtype=torch.bool)
    if name == "rows":
        there[int(offs[-1]) :] = False
    elif name == "columns":
        there[:, int(offs[-1]) :] = False
    return there
