"""How much data models need: `learned_methods.py` says what each command does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from learned_records import INNER, JUDGED, measured, record, recorded, sheets, shown

SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
UNGUARDED = 0.05
FEW = 80
"""Of fewer problems a twentieth teaches nothing."""
COUNTS = (8, 12, 16, 24, 64)
TRADES = ((12, 1.0), (16, 0.75), (24, 0.5))
DRAWS = 3
CURVE = (0.25, 0.5, 0.75, 1.0)
SEEDS = 2
MANY = 64
"""Kernels of a problem, from which on the curve judges by it."""


def chance(of: Any) -> str:
    return hashlib.sha256(str(of).encode()).hexdigest()


def judged(
    lesson: str,
    some: Sequence[Any],
    taught: Callable[[Sequence[Any]], Sequence[Any]],
    others: Sequence[Any] = (),
) -> dict[str, Any]:
    """What models are worth on problems held out that learn from `taught` of the rest, and of those
    of other classes."""
    from tilewright.learn import judge
    from tilewright.learn.train import MOST_TREES, train

    verdicts, guards, counts = {}, {}, []
    for part in judge.folds(some):
        few = taught([s for n, s in enumerate(some) if n not in {*part}])
        beside = taught(judge.no_kin(others, [some[n] for n in part])) if others else ()
        counts.append((len(few), sum(len(sheet.block.us) for sheet in few)))
        guard = judge.Guard(UNGUARDED)
        if not judge.too_few(few, INNER):
            guard = judge.guard(judge.crossed(few, lesson, INNER, beside=beside).verdicts)
        model = train(few, lesson, MOST_TREES, beside=beside)
        for n in part:
            verdicts[n], guards[n] = judge.verdict(model, some[n]), guard
    numbers = range(len(some))
    one = judge.report([verdicts[n] for n in numbers], [guards[n] for n in numbers])
    problems, cells = (round(sum(each) / len(counts), 1) for each in zip(*counts, strict=True))
    return {
        "problems": problems,
        "cells": cells,
        **{word: shown(one[word]) for word in JUDGED},
        "spoke": one["spoke"],
    }


def data() -> None:
    _data("data", SHARES)


def few() -> None:
    _data("few", SHARES[:1])


def _data(command: str, shares: Sequence[float]) -> None:
    result = recorded().get(command, {})
    for lesson, some, others in sheets():
        if lesson in result or len(some) < FEW:
            continue
        result[lesson] = {
            f"{share:.0%}": judged(
                lesson,
                some,
                lambda rest, share=share: sorted(rest, key=lambda s: chance(s.block.problem))[
                    : max(2, round(share * len(rest)))
                ],
                others,
            )
            for share in shares
        }
        print(lesson, json.dumps(result[lesson]), flush=True)
        record(command, result)


def curve() -> None:
    result = recorded().get("curve", {})
    for lesson, some, others in sheets():
        judges = [sheet for sheet in some if len(sheet.block.us) >= MANY]
        if lesson in result or len(judges) < FEW // 2:
            continue
        drawn = [_curve(lesson, some, others, seed) for seed in range(SEEDS)]
        result[lesson] = {"problems": len(judges), "draws": drawn}
        print(lesson, json.dumps(result[lesson]), flush=True)
        record("curve", result)


def _curve(lesson: str, some: Sequence[Any], others: Sequence[Any], seed: int) -> dict[str, Any]:
    """What models choose that learned from shares of the kin, of problems of many kernels."""
    from unittest.mock import patch

    from tilewright.learn import judge
    from tilewright.learn.train import PARAMETERS, train

    def order(sheet: Any) -> str:
        return chance(f"{seed} {judge.kin(sheet)}")

    some = sorted(some, key=order)
    shares: dict[float, list[tuple[float, int]]] = {share: [] for share in CURVE}
    taught: dict[float, list[int]] = {share: [] for share in CURVE}
    for part in judge.folds(some):
        held = [some[n] for n in part]
        rest = [sheet for n, sheet in enumerate(some) if n not in {*part}]
        kins = [*dict.fromkeys(judge.kin(sheet) for sheet in rest)]
        for share in CURVE:
            few = {*kins[: round(share * len(kins))]}
            own = [sheet for sheet in rest if judge.kin(sheet) in few]
            away = judge.no_kin(others, held)
            with patch.dict(PARAMETERS, seed=seed):
                model = train(own, lesson, beside=away[: round(share * len(away))])
            found = [judge.verdict(model, s) for s in held if len(s.block.us) >= MANY]
            shares[share] += [(v.share[1], v.ranks[1]) for v in found]
            taught[share].append(sum(len(sheet.block.us) for sheet in own))
    return {
        f"{share:.0%}": {
            "pairs": round(sum(taught[share]) / len(taught[share])),
            "learned": shown(judge.figures_of(shares[share])),
        }
        for share in CURVE
    }


def cut(some: Sequence[Any], count: int, draw: str = "") -> list[Any]:
    """Sheets of at most `count` kernels: the estimate's first, and others by chance."""
    from dataclasses import replace

    from learning_data import fewer
    from tilewright.learn.train import Sheet
    from tilewright.measure.designs import Sample

    pairs = []
    for sheet in some:
        problem, described = sheet.block.problem, sheet.described
        order = [described.pool[place] for place in described.places]
        first = count - count // 2
        others = sorted(order[first:], key=lambda c, p=problem: chance(draw + str((p, c.name))))
        pairs.append((problem, (*order[:first], *others)))
    return [
        Sheet(replace(sheet.block, us={config: sheet.block.us[config] for config in chosen}))
        for sheet, (_, chosen) in zip(some, fewer(Sample(tuple(pairs)), count).pairs, strict=True)
    ]


def kernels() -> None:
    result = recorded().get("kernels", {})
    for lesson, some in measured().items():
        if lesson in result:
            continue
        result[lesson] = {
            str(count): judged(lesson, some, lambda rest, count=count: cut(rest, count))
            for count in COUNTS
        }
        print(lesson, json.dumps(result[lesson]), flush=True)
        record("kernels", result)


def trade() -> None:
    from tilewright.learn.train import PARAMETERS

    result = recorded().get("trade", {})
    for lesson, some in measured().items():
        if lesson in result:
            continue
        found: dict[str, Any] = {}
        for count, share in TRADES:
            draws = []
            for draw in map(str, range(DRAWS)):
                PARAMETERS["seed"] = int(draw)

                def taught(
                    rest: Any, count: int = count, share: float = share, draw: str = draw
                ) -> Any:
                    order = sorted(rest, key=lambda s: chance(draw + str(s.block.problem)))
                    return cut(order[: round(share * len(rest))], count, draw)

                draws.append(judged(lesson, some, taught))
            found[f"{count} kernels, {share:.0%} of the problems"] = {
                "cells": round(sum(one["cells"] for one in draws) / DRAWS, 1),
                **{word: [one[word] for one in draws] for word in ("learned", "served")},
            }
        result[lesson] = found
        print(lesson, json.dumps(found), flush=True)
        record("trade", result)
