"""What vLLM's classes ask of a server's configuration. There is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def get_current_vllm_config_or_none() -> None:
    return None


def get_cached_compilation_config() -> Any:
    return SimpleNamespace(
        custom_ops=["all"], enabled_custom_ops=set(), disabled_custom_ops=set(), mode=0
    )
