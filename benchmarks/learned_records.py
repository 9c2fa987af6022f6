"""The record of `learned_methods.py`: what each command found, and the problems it asks about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "results" / "learned_methods_h200.json"
DATA = RECORD.with_name("learned_h200.parquet")
INNER = 3
"""Parts of the problems that are not held out, of which each is held out in turn."""
SHOWN = ("mean", "p10", "least")
JUDGED = ("estimate", "learned", "served")


@cache
def measured() -> dict[str, list[Any]]:
    """The problems of each class."""
    from tilewright.learn import matrix
    from tilewright.learn.train import Sheet

    lessons = matrix.by_lesson(matrix.blocks(matrix.read([DATA])))
    return {lesson: [Sheet(block) for block in blocks] for lesson, blocks in lessons.items()}


def sheets() -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The problems of each class, and those that it learns from beside them."""
    from tilewright.learn import judge

    for lesson, some in measured().items():
        yield lesson, some, judge.beside(measured(), lesson)


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found


def record(command: str, found: Mapping[str, Any]) -> None:
    """Write what a command found so far; it goes on from there."""
    text = json.dumps({**recorded(), command: found}, indent=1, ensure_ascii=False)
    RECORD.write_text(text + "\n")


def shown(figures: Mapping[str, float]) -> list[float]:
    return [figures[word] for word in SHOWN]
