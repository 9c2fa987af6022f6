"""What the examples share: where to run."""

from __future__ import annotations

from typing import Any

import tilewright as tw
from tilewright.arch import device


def place() -> str:
    """``"cuda:0"`` if torch can use a GPU (AMD's are called that too), else ``"cpu"``."""
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def target() -> tw.Device:
    """The live GPU, or an H200 to plan for where there is none."""
    try:
        return tw.live_device()
    except tw.errors.NoDriver:
        return device("h200_sxm")


def event_time_us(call: Any) -> float:
    """Device time of one call in microseconds, by events around it."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3
