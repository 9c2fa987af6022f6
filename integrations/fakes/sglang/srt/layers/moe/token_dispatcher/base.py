"""How rows are passed to experts."""

from __future__ import annotations

from enum import Enum


class DispatchOutputFormat(Enum):
    STANDARD = "standard"
    DEEPEP_NORMAL = "deepep_normal"
