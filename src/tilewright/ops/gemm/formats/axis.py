"""An axis of a sweep document, before it means anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the axis stands in its document, and its values."""

    place: str
    values: list[Any]
