"""The folders where Tilewright keeps its files: ``TILEWRIGHT_HOME``, or the platform's own."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

VARIABLE = "TILEWRIGHT_HOME"
"""The folder for everything that is kept. It suffices where the user's own folders cannot be
written."""


def data() -> Path:
    """For files that nothing can make again: the signing key, tuned tables."""
    return _given() or platformdirs.user_data_path("tilewright")


def cache() -> Path:
    """For files that are made again when they are gone: built kernels, the compiled launcher."""
    return _given() or platformdirs.user_cache_path("tilewright")


def _given() -> Path | None:
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None
