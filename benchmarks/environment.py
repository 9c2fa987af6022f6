"""The environment of a measurement; every result file carries it."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("tilewright", "triton", "torch", "numpy")


def environment() -> dict[str, Any]:
    """CPU, cores that this process may use, platform, Python, package versions, GPU (None without
    one), time in UTC and command line. No host name and no path."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "gpu": _gpu(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(_plain(word) for word in sys.argv),
    }


def _plain(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
