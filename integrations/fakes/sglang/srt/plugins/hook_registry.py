"""Hooks around functions."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks: ClassVar[dict[str, list[Callable[..., Any]]]] = {}

    @classmethod
    def register(
        cls,
        target: str,
        hook: Callable[..., Any],
        hook_type: HookType = HookType.AFTER,
        *,
        source: Any = None,
    ) -> None:
        assert hook_type is HookType.AROUND
        cls._hooks.setdefault(target, []).append(hook)

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hooks in cls._hooks.items():
            path, _, name = target.rpartition(".")
            home = pkgutil.resolve_name(path)
            for hook in hooks:
                setattr(home, name, _around(getattr(home, name), hook))

    @classmethod
    def reset(cls) -> None:
        cls._hooks.clear()


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return wrapper
