"""How good a choice is: the time of the best kernel measured over that of the kernel chosen.

A model is judged on problems of which it saw none of their kin (`Family.kin`), in its own class or
in others: `crossed` trains it without each fold of kin in turn. Where a model is believed (`Guard`)
is set on such problems too, and judged on others than it was set on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from tilewright import ops
from tilewright.errors import BadArgument
from tilewright.learn.matrix import mark
from tilewright.learn.train import MOST_TREES, Grow, Sheet, train, wide
from tilewright.select.learned import judged
from tilewright.select.model import MOST_GAIN, Model

FOLDS = 5
GAINS = (0.0, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, MOST_GAIN)
"""Gains (as logarithms) among which the least one is set; from the last one, never."""
HALVES = ("bf16", "fp16")
"""Dtypes that kernels compute alike, at the same rates. What is learned of other dtypes or
directions is of no use on problems held out, or of harm (docs/learning.md)."""
CANDIDATES = (2, 16, 40, 64)
"""Where ranges of the number of kernels measured begin."""
FIRST = 5
FIGURES = ("mean", "median", "p10", "least", "top_1", "top_5")
"""Of shares of the best kernel's speed, in percent, and of ranks (`report`)."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Where a model is believed: from this gain on, as a logarithm, but for problems of these kinds
    (`Family.kind`)."""

    least_gain: float
    silent_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a model would do with a problem that it did not see.

    best, estimated, learned: the kernels that are fastest, first by the estimate, and first by the
        model. `learned` is `estimated` where the model says nothing.
    share: the best kernel's time over that of each of the other two.
    ranks: the best kernel's place by the estimate and by the model, from 1.
    gain: the logarithm of the estimate's first's expected time over that of the model's first.
    silent: why the model says nothing; ``""`` if it does.
    candidates: how many kernels were measured.
    """

    problem: Any
    kind: str
    best: Any
    estimated: Any
    learned: Any
    share: tuple[float, float]
    ranks: tuple[int, int]
    gain: float
    silent: str
    candidates: int

    def believed(self, guard: Guard) -> bool:
        """Whether the model chooses."""
        known = not self.silent and self.kind not in guard.silent_kinds
        return known and self.gain >= guard.least_gain

    def chosen(self, guard: Guard) -> tuple[float, int]:
        """The share, and the best kernel's rank, of the kernel that is chosen."""
        side = int(self.believed(guard))
        return self.share[side], self.ranks[side]


def verdict(model: Model, sheet: Sheet) -> Verdict:
    """What `model` does with a sheet's problem."""
    block, described = sheet.block, sheet.described
    us = block.us
    best = min(us, key=lambda config: (us[config], config.name))
    by_estimate = [described.pool[place] for place in described.places]
    found = judged(model, described)
    silent = found if isinstance(found, str) else ""
    if isinstance(found, str):
        by_model, gain = by_estimate, 0.0
    else:
        placed = [described.pool[place] for place in found.order]
        by_model = [*placed, *(c for c in by_estimate if c not in set(placed))]
        gain = found.gain
    firsts = by_estimate[0], by_model[0]
    return Verdict(
        block.problem,
        ops.family(block.problem.family).kind(block.problem),
        best,
        *firsts,
        (us[best] / us[firsts[0]], us[best] / us[firsts[1]]),
        (1 + by_estimate.index(best), 1 + by_model.index(best)),
        gain,
        silent,
        len(us),
    )


def beside(measured: Mapping[str, Sequence[Sheet]], lesson: str) -> list[Sheet]:
    """Of all sheets by class those of classes that differ from `lesson` in the `HALVES` alone,
    which its model learns from too."""
    return [
        sheet
        for other, sheets in measured.items()
        for sheet in sheets
        if other != lesson and _subject(other) == _subject(lesson)
    ]


def _subject(lesson: str) -> list[str]:
    """The words of a class's name, the halves as one."""
    return [HALVES[0] if word in HALVES else word for word in lesson.split("_")]


def no_kin(sheets: Sequence[Sheet], held: Sequence[Sheet]) -> list[Sheet]:
    """Those of `sheets` that are of no kin of `held`."""
    kins = {*map(kin, held)}
    return [sheet for sheet in sheets if kin(sheet) not in kins]


def too_few(sheets: Sequence[Sheet], count: int = FOLDS) -> str:
    """Why sheets cannot be held out in `count` parts; ``""`` if they can."""
    kins = len(_kins(sheets))
    if kins >= count:
        return ""
    return (
        f"problems of {kins} kin are too few for {count} folds: measure others, or take fewer folds"
    )


def _kins(sheets: Sequence[Sheet]) -> dict[Hashable, list[int]]:
    """The numbers of sheets by the kin of their problems."""
    kins: dict[Hashable, list[int]] = {}
    for number, sheet in enumerate(sheets):
        kins.setdefault(kin(sheet), []).append(number)
    return kins


def kin(sheet: Sheet) -> Hashable:
    """Of a sheet's problem."""
    problem = sheet.block.problem
    return ops.family(problem.family).kin(problem)


def folds(sheets: Sequence[Sheet], count: int = FOLDS) -> list[list[int]]:
    """The numbers of sheets in `count` parts of about the same size; problems of one kin are in
    one. Raises `BadArgument` for fewer kins than parts."""
    if why := too_few(sheets, count):
        raise BadArgument(why)
    parts: list[list[int]] = [[] for _ in range(count)]
    for numbers in sorted(_kins(sheets).values(), key=lambda one: (-len(one), one)):
        min(parts, key=len).extend(numbers)
    return parts


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts on all problems, and for each the guard, which its problem had no part in."""

    verdicts: tuple[Verdict, ...]
    guards: tuple[Guard, ...]


def crossed(
    sheets: Sequence[Sheet],
    lesson: str,
    count: int = FOLDS,
    trees: int = MOST_TREES,
    grow: Grow | None = None,
    beside: Sequence[Sheet] = (),
) -> Judged:
    """Train without each fold and judge on it. grow, beside: as `train` has them. Raises as `folds`
    and `train` do."""
    parts = folds(sheets, count)
    found: dict[int, Verdict] = {}
    for part in parts:
        held = set(part)
        seen = [sheet for number, sheet in enumerate(sheets) if number not in held]
        others = no_kin(beside, [sheets[number] for number in part])
        model = train(seen, lesson, trees, grow, others)
        found |= {number: verdict(model, sheets[number]) for number in part}
    guards: dict[int, Guard] = {}
    for part in parts:
        one = guard([found[n] for other in parts if other is not part for n in other])
        guards |= dict.fromkeys(part, one)
    numbers = range(len(sheets))
    return Judged(tuple(found[n] for n in numbers), tuple(guards[n] for n in numbers))


def applied(model: Model, sheets: Sequence[Sheet]) -> Judged:
    """What `model` does with problems, which it must not have seen."""
    verdicts = tuple(verdict(model, sheet) for sheet in sheets)
    return Judged(verdicts, (Guard(model.least_gain, model.silent_kinds),) * len(sheets))


def seen(model: Model, sheets: Sequence[Sheet]) -> int:
    """On how many of these problems `model` was trained."""
    marks = {*model.made.get("marks", ())}
    return sum(mark(sheet.block.problem) in marks for sheet in sheets)


def guard(verdicts: Sequence[Verdict]) -> Guard:
    """Where believing the model pays. It is silent on kinds of problems of which it is behind the
    estimate on average, by more than the standard error."""
    gain = Guard(least_gain(verdicts))
    kinds: dict[str, list[Verdict]] = {}
    for one in verdicts:
        kinds.setdefault(one.kind, []).append(one)

    def behind(some: Sequence[Verdict]) -> bool:
        mean, error = brings(some, gain)
        return mean + error < 0

    silent = sorted(kind for kind, some in kinds.items() if behind(some))
    return Guard(gain.least_gain, tuple(silent))


def least_gain(verdicts: Sequence[Verdict]) -> float:
    """The gain from which believing the model pays: by what it brings on average, less the standard
    error of that. Never, if no gain brings more than its error."""

    def pays(gain: float) -> float:
        mean, error = brings(verdicts, Guard(gain))
        return round(mean - error, 6)

    return max(GAINS, key=lambda gain: (pays(gain), gain))


def brings(verdicts: Sequence[Verdict], guard: Guard) -> tuple[float, float]:
    """What believing the model brings over the estimate's first on average, in the share of the
    best kernel's speed, and the standard error of that."""
    more = [v.chosen(guard)[0] - v.share[0] for v in verdicts]
    mean = _mean(more)
    return mean, math.sqrt(_mean((one - mean) ** 2 for one in more) / len(more))


def learn(
    sheets: Sequence[Sheet],
    lesson: str,
    count: int = FOLDS,
    trees: int = MOST_TREES,
    beside: Sequence[Sheet] = (),
) -> tuple[Model, Judged]:
    """A model of all sheets, with the guard that cross-validation sets, and the verdicts of
    that."""
    found = crossed(sheets, lesson, count, trees, beside=beside)
    model = train(sheets, lesson, trees, beside=beside)
    told = report(found.verdicts, found.guards)
    made = {**model.made, "folds": count, "judged": told, "worst": worst(found)}
    return replace(model, **asdict(guard(found.verdicts)), wide=wide(sheets), made=made), found


# --- figures ----------------------------------------------------------------------------------


def report(verdicts: Sequence[Verdict], guards: Sequence[Guard]) -> dict[str, Any]:
    """Figures as plain data, over all problems, by kind, by the best kernel's pipeline, and by the
    number of kernels that were measured: the more, the harder to choose the fastest.

    guards: that of each verdict.
    """
    groups: dict[str, dict[str, list[int]]] = {"by_kind": {}, "by_pipeline": {}}
    for number, one in enumerate(verdicts):
        groups["by_kind"].setdefault(one.kind, []).append(number)
        groups["by_pipeline"].setdefault(one.best.pipeline, []).append(number)
    groups = {name: dict(sorted(group.items())) for name, group in groups.items()}
    groups["by_candidates"] = {}
    for number, one in sorted(enumerate(verdicts), key=lambda each: each[1].candidates):
        groups["by_candidates"].setdefault(_range(one.candidates), []).append(number)

    def figures(numbers: Iterable[int]) -> dict[str, Any]:
        listed = [(verdicts[n], guards[n]) for n in numbers]
        return {
            "problems": len(listed),
            "candidates": round(_mean(v.candidates for v, _ in listed), 1),
            "estimate": figures_of([(v.share[0], v.ranks[0]) for v, _ in listed]),
            "learned": figures_of([(v.share[1], v.ranks[1]) for v, _ in listed]),
            "served": figures_of([v.chosen(guard) for v, guard in listed]),
            "spoke": sum(v.believed(guard) and v.gain > 0 for v, guard in listed),
        }

    silent = Counter(_because(v.silent) for v in verdicts if v.silent)
    return {
        **figures(range(len(verdicts))),
        "silent": dict(silent.most_common()),
        **{
            name: {word: figures(numbers) for word, numbers in group.items()}
            for name, group in groups.items()
        },
    }


def _range(candidates: int) -> str:
    """The range that a number of candidates is in."""
    for low, high in pairwise(CANDIDATES):
        if candidates < high:
            return f"{low} to {high - 1}"
    return f"{CANDIDATES[-1]} and more"


def _because(why: str) -> str:
    """A reason without the problem's own figures."""
    if "unlike the kernels" in why:
        return "the estimate's first is unlike what it learned from"
    return "the problem is outside what it learned from"


def figures_of(chosen: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Mean, median, P10 and least of the shares in percent, and how often (percent) the best kernel
    is first, and among the first five."""
    shares = sorted(share for share, _ in chosen)
    ranks = [rank for _, rank in chosen]
    return {
        "mean": _percent(_mean(shares)),
        "median": _percent(quantile(shares, 0.5)),
        "p10": _percent(quantile(shares, 0.1)),
        "least": _percent(shares[0]),
        "top_1": _percent(_mean(rank == 1 for rank in ranks)),
        "top_5": _percent(_mean(rank <= FIRST for rank in ranks)),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted numbers, between neighbours in proportion, as NumPy has it."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _mean(values: Iterable[float]) -> float:
    listed = [*values]
    return sum(listed) / len(listed)


def worst(found: Judged, most: int = 20) -> list[dict[str, Any]]:
    """The problems that lose most, as plain data, the worst first; `stays` is why the estimate's
    first stays."""
    pairs = zip(found.verdicts, found.guards, strict=True)
    lost = [(v.chosen(guard)[0], n, v) for n, (v, guard) in enumerate(pairs)]
    return [
        {
            "problem": str(v.problem),
            "kind": v.kind,
            "served": _percent(share),
            "estimate": _percent(v.share[0]),
            "best": v.best.name,
            "chosen": (v.learned if v.believed(found.guards[n]) else v.estimated).name,
            "candidates": v.candidates,
            "stays": _stays(v, found.guards[n]),
        }
        for share, n, v in sorted(lost, key=lambda one: one[:2])[:most]
    ]


def _stays(one: Verdict, guard: Guard) -> str:
    if one.silent:
        return _because(one.silent)
    if one.learned == one.estimated:
        return "the model has it first too"
    if one.believed(guard):
        return ""
    return "its kind" if one.kind in guard.silent_kinds else "the least gain"
