"""Attention backends by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ATTENTION_BACKENDS: dict[str, Callable[..., Any]] = {}


def register_attention_backend(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
        ATTENTION_BACKENDS[name] = fn
        return fn

    return decorator
