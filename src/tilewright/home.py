"""The folders for Tilewright's files: ``TILEWRIGHT_HOME``, or else the platform's own."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from tilewright import variables

VARIABLE = variables.HOME
"""Names one folder for everything that is kept. Setting it is enough if the user's own folders
cannot be written."""


def data() -> Path:
    """For files that nothing can recreate: the signing key, tuned tables."""
    return _given() or platformdirs.user_data_path("tilewright")


def cache() -> Path:
    """For files that are recreated when they are missing: built kernels, the compiled launcher."""
    return _given() or platformdirs.user_cache_path("tilewright")


def _given() -> Path | None:
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None
