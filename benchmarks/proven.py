"""Which sources of kernels are proven to be the same code, though written anew: what `same_code.py`
has recorded in `same_code.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "same_code.json"


@cache
def known() -> Mapping[str, Mapping[str, str]]:
    """By module: a digest of its sources, and the later one that is the same code."""
    return json.loads(FILE.read_text())["same"] if FILE.exists() else {}


def same(module: str, before: str, after: str | None) -> bool:
    """Whether two digests of a module's sources are the same code, as far as was proven."""
    later: str | None = before
    while later is not None and later != after:
        later = known().get(module, {}).get(later)
    return later is not None
