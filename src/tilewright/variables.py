"""The names of all environment variables that Tilewright reads, and a warning about one that is set
and looks like a misspelt name of these.

docs/environment.md says what each means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

PREFIX = "TILEWRIGHT_"

HOME = "TILEWRIGHT_HOME"
STORE = "TILEWRIGHT_STORE"
SHARED_STORE = "TILEWRIGHT_SHARED_STORE"
SHARED_STORE_TRUSTED = "TILEWRIGHT_SHARED_STORE_TRUSTED"
GPUS = "TILEWRIGHT_GPUS"
TABLES = "TILEWRIGHT_TABLES"
MODELS = "TILEWRIGHT_MODELS"
BUNDLE = "TILEWRIGHT_BUNDLE"
BUNDLE_TRUSTED = "TILEWRIGHT_BUNDLE_TRUSTED"
CAPTURE = "TILEWRIGHT_CAPTURE"
CAPTURE_ONLY = "TILEWRIGHT_CAPTURE_ONLY"
UNTUNED = "TILEWRIGHT_UNTUNED"
LISTEN = "TILEWRIGHT_LISTEN"
WAITS = "TILEWRIGHT_WAITS"
ARCHS = "TILEWRIGHT_ARCHS"
PRETUNE = "TILEWRIGHT_PRETUNE"
KERNEL_MODULES = "TILEWRIGHT_KERNEL_MODULES"
PARENT = "TILEWRIGHT_PARENT"
WORKER_PRELOADS = "TILEWRIGHT_WORKER_PRELOADS"

KNOWN = frozenset(
    value for name, value in [*globals().items()] if name != "PREFIX" and name.isupper()
)

NEAR = 0.7
"""How much of two names must be alike. Other packages have variables with this prefix too."""


def misspelt(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that are set and have no meaning, each with the one that is probably meant."""
    unknown = [
        name
        for name, value in environment.items()
        if name.upper().startswith(PREFIX) and value and name not in KNOWN
    ]
    if not unknown:
        return {}
    import difflib

    ends = [name.removeprefix(PREFIX) for name in sorted(KNOWN)]
    found = {}
    for name in unknown:
        end = name.upper().removeprefix(PREFIX)
        if near := difflib.get_close_matches(end, ends, 1, NEAR):
            found[name] = PREFIX + near[0]
    return found


def warn() -> None:
    """Say which variables are misspelt: once, so not in a child of Tilewright or `multiprocessing`,
    and of a distributed program in the first process alone."""
    if os.environ.get(PARENT) or os.environ.get("RANK", "0") != "0":
        return
    for name, meant in misspelt().items():
        import logging

        of = sys.modules.get("multiprocessing.process")
        if of is None or of.parent_process() is None:
            log = logging.getLogger("tilewright")
            log.warning("nothing reads the environment variable %s: is it %s?", name, meant)
