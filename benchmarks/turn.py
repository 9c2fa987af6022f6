"""Processes that compile side by side use the GPU one at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Turn:
    """The GPU's lock, a file: one process at a time holds it, and loses it when it dies."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def alone(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """`inner`, in a turn of its own each time. It must leave no work on the GPU."""

        def call(*args: Any, **more: Any) -> Any:
            with self:
                return inner(*args, **more)

        return call
