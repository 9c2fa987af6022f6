"""Problems of every declared operation, by the files of ``cases/``: of each its ``CASES``."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from tilewright import ops


def fields(size: str = "cases") -> dict[str, tuple[dict[str, Any], ...]]:
    """The fields of problems, by operation. size: ``cases``, small ones with edges, or ``large``,
    those of models' sizes."""
    found: dict[str, tuple[dict[str, Any], ...]] = {}
    for file in sorted(Path(__file__).parent.glob(f"cases/{size}_*.py")):
        found |= runpy.run_path(str(file))["CASES"]
    return found


def problems(size: str = "cases") -> list[Any]:
    """All problems of a size."""
    return [
        ops.family(name).problem_type(**each)
        for name, listed in fields(size).items()
        for each in listed
    ]
