"""Small problems of every declared operation: of each file in ``cases/``, its ``CASES``."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from tilewright import ops


def fields() -> dict[str, tuple[dict[str, Any], ...]]:
    """The fields of problems, by operation."""
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for file in sorted(Path(__file__).parent.glob("cases/cases_*.py")):
        found |= runpy.run_path(str(file))["CASES"]
    return found


def problems() -> list[Any]:
    """All problems."""
    return [
        ops.family(name).problem_type(**each)
        for name, listed in fields().items()
        for each in listed
    ]
