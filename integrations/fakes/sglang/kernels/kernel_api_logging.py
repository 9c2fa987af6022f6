"""Logging of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def debug_kernel_api(func: Callable[..., Any] | None = None, *, op_name: str | None = None) -> Any:
    return func
