"""Which problems to measure next: those where the model and the estimate disagree most, and that
are called most often."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops.pool import Pool
from tilewright.select.features import Described
from tilewright.select.learned import judged
from tilewright.select.model import Models


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A problem and how much is to be learned from it.

    count: of its calls.
    gain: the logarithm of the time that the model expects of the estimate's first kernel over the
        least that it expects.
    estimated, learned: these two kernels' names.
    """

    problem: Any
    count: int
    gain: float
    estimated: str
    learned: str

    @property
    def worth(self) -> float:
        """By what suggestions are ordered."""
        return self.count * self.gain


@dataclass(frozen=True, slots=True)
class Suggested:
    """Suggestions, the most worth first; and problems of which there is nothing to suggest, by the
    reason, the most common first: the models say nothing, or what the estimate says."""

    found: tuple[Suggestion, ...]
    unknown: Mapping[str, tuple[Any, ...]]


def suggest(problems: Mapping[Any, int], models: Models, device: Device) -> Suggested:
    """What to measure of `problems`, which are with their counts, on `device`."""
    this = arch(device.arch)
    found: list[Suggestion] = []
    unknown: dict[str, list[Any]] = {}
    for problem, count in problems.items():
        family = ops.family(problem.family)
        model = models.get(family.lesson(problem))
        if model is None:
            unknown.setdefault(f"no model of {family.lesson(problem)}", []).append(problem)
            continue
        if model.stale:
            unknown.setdefault(model.stale, []).append(problem)
            continue
        pool = Pool(family.default_space(problem, this).expand(this).configs)
        served = pool.part(family.serving(problem, pool, this)) if pool else pool
        described = Described(problem, served, device)
        judgement = judged(model, described)
        if isinstance(judgement, str):
            unknown.setdefault(_in_short(judgement), []).append(problem)
            continue
        if not judgement.gain:
            unknown.setdefault("the model and the estimate agree", []).append(problem)
            continue
        names = [described.pool[at].name for at in (judgement.first, judgement.order[0])]
        found.append(Suggestion(problem, count, judgement.gain, *names))
    found.sort(key=lambda one: (-one.worth, str(one.problem)))
    ordered = sorted(unknown.items(), key=lambda one: -len(one[1]))
    return Suggested(tuple(found), {why: tuple(listed) for why, listed in ordered})


_OUTSIDE = re.compile(r"(\w+) \S+ (is outside .*)")


def _in_short(why: str) -> str:
    """A reason that problems share, without a kernel's name or a problem's number."""
    _, comma, rest = why.partition(", the estimate's first, ")
    if comma:
        return f"the estimate's first {rest}"
    outside = _OUTSIDE.fullmatch(why)
    return f"{outside[1]} {outside[2]}" if outside else why


def listed(found: Sequence[Suggestion]) -> list[dict[str, Any]]:
    """Suggestions as plain data."""
    return [
        {
            "problem": str(one.problem),
            "count": one.count,
            "gain": one.gain,
            "worth": one.worth,
            "estimated": one.estimated,
            "learned": one.learned,
        }
        for one in found
    ]
