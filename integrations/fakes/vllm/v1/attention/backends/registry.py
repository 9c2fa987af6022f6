"""Where backends are found by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class AttentionBackendEnum(Enum):
    CUSTOM = None

    def get_path(self, include_classname: bool = True) -> str:
        return _ATTN_OVERRIDES[self]


_ATTN_OVERRIDES: dict[AttentionBackendEnum, str] = {}


def register_backend(
    backend: AttentionBackendEnum, class_path: str | None = None, is_mamba: bool = False
) -> Callable[[type], type]:
    if class_path is not None:
        _ATTN_OVERRIDES[backend] = class_path
    return lambda decorated: decorated
