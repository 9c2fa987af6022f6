"""How good an estimate's choices are, among kernels that were measured together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilewright.arch.model import Device

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def rows(file: str, *keys: str) -> list[Any]:
    """The lines of a record in `RESULTS`; for JSON, what stands under `keys`."""
    text = (RESULTS / file).read_text()
    if file.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    found = json.loads(text)
    for key in keys or ("rows",):
        found = found[key]
    return found


def timed(family: Any, us: Mapping[str, float]) -> dict[Any, float]:
    """By config the microseconds of the kernels of `family`, without the vendor's."""
    return {family.parse_name(name): t for name, t in us.items() if name.startswith(family.name)}


def gain(family: Any, gpu: Device, measured: Iterable[tuple[Any, Mapping[Any, float]]]) -> float:
    """How much of the way from a kernel drawn by chance to the best one the estimate's first choice
    is, over problems with the microseconds of some configs each.

    A choice's share is the best kernel's time over its own; shares are averaged over problems. The
    gain is 1 if the choice is always the best kernel, 0 if it is as good as chance, and negative if
    it is worse, as the slowest is.
    """
    first, chance = [], []
    for problem, us in measured:
        best = min(us.values())
        first.append(best / us[family.rank(problem, [*us], gpu)[0][0]])
        chance.append(statistics.mean(best / each for each in us.values()))
    by_chance = statistics.mean(chance)
    return (statistics.mean(first) - by_chance) / (1 - by_chance)
