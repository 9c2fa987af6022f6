"""How numbers are quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class GroupShape(NamedTuple):
    row: int
    col: int

    def is_per_tensor(self) -> bool:
        return self == (-1, -1)

    def is_per_token(self) -> bool:
        return self == (1, -1)

    def is_per_channel(self) -> bool:
        return self == (-1, 1)


@dataclass(frozen=True)
class ScaleDesc:
    dtype: torch.dtype
    static: bool
    group_shape: GroupShape


@dataclass(frozen=True)
class QuantKey:
    dtype: torch.dtype
    scale: ScaleDesc
    scale2: ScaleDesc | None = None
    symmetric: bool = True
