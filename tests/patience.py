"""Waiting in tests. A test waits until something is so, not for a time, and none fails because the
machine is busy: only what would never happen takes `LIMIT_SECONDS`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 900.0


def until(true: Callable[[], object]) -> None:
    """Wait until `true` says so. Raises `AssertionError` after `LIMIT_SECONDS`."""
    end = time.monotonic() + LIMIT_SECONDS
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors: time that a busy machine makes hardly longer."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
