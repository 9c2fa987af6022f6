"""How models are best trained, how much data they need, and what they make needless.

    python benchmarks/learned_methods.py methods    # ways of training, chosen without peeking
    python benchmarks/learned_methods.py silence    # when to believe a model, chosen likewise
    python benchmarks/learned_methods.py noise      # what a model that makes no mistake would reach
    python benchmarks/learned_methods.py data       # with a part of the data
    python benchmarks/learned_methods.py few        # with 5 % of it alone
    python benchmarks/learned_methods.py curve      # with shares of the kin, judged by many kernels
    python benchmarks/learned_methods.py twice FIRST SECOND     # what differs from run to run
    python benchmarks/learned_methods.py kernels    # with some kernels of each problem
    python benchmarks/learned_methods.py trade      # many kernels of few problems, or the reverse
    python benchmarks/learned_methods.py figures    # without a fitted figure of the estimate

Needs no GPU; needs LightGBM. All of it is worked out from the times in `learned_h200.parquet`, and
written under the command's name into `learned_methods_h200.json`; there `kernels` and `trade` are
of the 332 problems that it had at first, `figures` of the 1,631 that it had then, all three with
trees of 15 leaves. Speeds of the kernel chosen are in percent of the fastest one timed: mean, P10,
least.

methods: problems are held out by kin, in five parts. For each part, each way is judged within the
    other four parts, by cross-validation, and the way with the best mean there makes the model for
    the fifth (`chosen`). So no problem has a part in the choice of its way.
silence: rules of when a model is believed: on which kinds of problems, and how far beyond what
    training saw (`train.MARGIN`). For each part, the rule with the best mean within the other four
    parts of all classes (`chosen`).
noise: times are drawn anew about those measured, as their samples spread. What the kernel whose
    time was least before is then worth is what nothing but noise costs: no choice by true times is
    better. `least of a draw`: the least over all problems, in half of the draws no less. And what
    one sample chooses, judged by another. Samples of one run: how kernels differ between runs and
    places of memory is not in it.
data: of the problems that are not held out, only a part is learned from. Where these are of fewer
    kin than `INNER`, nothing can be held out to set a least gain, and `UNGUARDED` is taken.
curve: as `data`, by kin: a quarter, half, three quarters and all of the kin that are not held out.
    Judged by the problems of `MANY` kernels and more alone, the same for all shares, in `SEEDS`
    draws of parts, shares and trees.
twice: two files of measurements, of two runs. On problems that both timed, by the kernels that both
    timed: what the kernel that is fastest in one run is worth in the other, both ways. No choice
    that a model makes is expected to have a better least.
kernels: of the problems that are not held out, only some kernels are learned from, as
    `learning_data.fewer` chooses them. Those held out are judged on all kernels timed.
trade: about as many timings, of many kernels of half the problems or of fewer kernels of more, with
    `DRAWS` draws of problems, kernels and seeds each.
figures: each figure of the estimate that was fitted, read off or guessed is set to what takes no
    part: a share or a factor to 1, a time or a count of instructions to 0. Once for each, estimates
    are made anew, and models are trained and judged anew. A figure is needless to a class if it
    moves the estimate there, and the mean of what the model puts first falls by less than
    `NEEDLESS` without it. `without them` is without all of these at once. `worse alone`: the
    classes in which the mean of the estimate's first, without a model, falls without a needless
    figure, with both means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from learned_amounts import MANY, curve, data, few, kernels, trade
from learned_needless import FILES, figures
from learned_records import DATA, INNER, SHOWN, measured, record, recorded, sheets, shown

# --- ways of training -------------------------------------------------------------------------


def ways() -> dict[str, Callable[..., Any]]:
    """Ways of growing trees (`train.Grow`), by what they do."""
    import lightgbm
    import numpy as np

    from tilewright.learn.train import PARAMETERS, fit, listwise, residuals, trees_of

    def one(objective: Any, data: Any, trees: int) -> tuple[Any, list[float]]:
        booster = lightgbm.train({**PARAMETERS, "objective": objective}, data, trees)
        return trees_of(booster), booster.feature_importance("gain").tolist()

    def logarithms(estimated: Any, us: Any) -> list[tuple[Any, Any]]:
        return [(np.log(a), np.log(b)) for a, b in zip(estimated, us, strict=True)]

    def of_residuals(x: Any, estimated: Any, us: Any, weights: Any, trees: int) -> Any:
        found = [residuals(pair) for pair in logarithms(estimated, us)]
        targets = np.concatenate([target for target, _ in found])
        heavy = np.concatenate([w * own for w, (_, own) in zip(weights, found, strict=True)])
        data = lightgbm.Dataset(np.concatenate(x), targets, weight=heavy)
        return one("regression", data, trees)

    def of_choices(x: Any, estimated: Any, us: Any, weights: Any, trees: int) -> Any:
        data = lightgbm.Dataset(np.concatenate(x), np.zeros(sum(map(len, us))))
        return one(listwise(logarithms(estimated, us), weights), data, trees)

    def small(x: Any, estimated: Any, us: Any, weights: Any, trees: int) -> Any:
        with patch.dict(PARAMETERS, num_leaves=15, max_depth=6, learning_rate=0.1):
            return fit(x, estimated, us, weights, trees)

    return {
        "residuals": of_residuals,
        "choices": of_choices,
        "the mean of both, 15 leaves": small,
        "the mean of both": fit,
    }


def methods() -> None:
    from tilewright.learn import judge
    from tilewright.learn.train import MOST_TREES, train

    result = recorded().get("methods", {})
    for lesson, some, others in sheets():
        if lesson in result:
            continue
        ours, parts = ways(), judge.folds(some)
        table = {}
        for name, grow in ours.items():
            found = judge.crossed(some, lesson, grow=grow, beside=others)
            told = judge.report(found.verdicts, found.guards)
            table[name] = {word: shown(told[word]) for word in ("learned", "served")}
        verdicts, guards, picked = {}, {}, []
        for part in parts:
            rest = [s for n, s in enumerate(some) if n not in {*part}]
            away = judge.no_kin(others, [some[n] for n in part])
            inner = {
                name: judge.crossed(rest, lesson, INNER, grow=grow, beside=away)
                for name, grow in ours.items()
            }

            def mean(name: str, inner: Any = inner) -> float:
                pairs = zip(inner[name].verdicts, inner[name].guards, strict=True)
                return sum(v.chosen(guard)[0] for v, guard in pairs)

            best = max(ours, key=mean)
            picked.append(best)
            model = train(rest, lesson, MOST_TREES, ours[best], away)
            guard = judge.guard(inner[best].verdicts)
            for n in part:
                verdicts[n], guards[n] = judge.verdict(model, some[n]), guard
        numbers = range(len(some))
        told = judge.report([verdicts[n] for n in numbers], [guards[n] for n in numbers])
        result[lesson] = {
            "estimate": shown(told["estimate"]),
            "ways": table,
            "chosen": {"served": shown(told["served"]), "ways": picked},
        }
        print(lesson, json.dumps(result[lesson]), flush=True)
        record("methods", result)


# --- when to believe --------------------------------------------------------------------------

MARGINS = (2.0, 4.0)


def beliefs() -> dict[str, Callable[[Sequence[Any]], Any]]:
    """Ways to set on which kinds of problems a model is silent (`judge.guard`)."""
    from tilewright.learn import judge

    def no_kind(verdicts: Sequence[Any]) -> Any:
        return judge.Guard(judge.least_gain(verdicts))

    def no_figure(verdicts: Sequence[Any]) -> Any:
        gain, kinds = no_kind(verdicts), {v.kind for v in verdicts}

        def behind(kind: str) -> bool:
            some = [v for v in verdicts if v.kind == kind]
            ours = judge.figures_of([v.chosen(gain) for v in some])
            theirs = judge.figures_of([(v.share[0], v.ranks[0]) for v in some])
            return any(ours[name] < theirs[name] for name in SHOWN)

        return judge.Guard(gain.least_gain, tuple(sorted(filter(behind, kinds))))

    def paying(verdicts: Sequence[Any]) -> Any:
        gain, kinds = no_kind(verdicts), {v.kind for v in verdicts}

        def behind(kind: str) -> bool:
            mean, error = judge.brings([v for v in verdicts if v.kind == kind], gain)
            return mean < error

        return judge.Guard(gain.least_gain, tuple(sorted(filter(behind, kinds))))

    return {
        "silent where a figure is behind": no_figure,
        "silent where no more than the error is brought": paying,
        "silent where behind by more than the error": judge.guard,
        "no kind is silent": no_kind,
    }


def widened(model: Any, factor: float) -> Any:
    """`model`, asked about numbers that are `factor` times as far beyond those seen."""
    from dataclasses import replace

    def wide(one: Any) -> Any:
        if one.words or one.low == one.high:
            return one
        low = one.low / factor if one.low > 0 else one.low * factor
        high = one.high * factor if one.high > 0 else one.high / factor
        return replace(one, low=low, high=high)

    return replace(model, features=tuple(map(wide, model.features)))


def held_out(lesson: str, some: Sequence[Any], count: int) -> dict[float, list[Any]]:
    """Verdicts on each sheet by a model that saw none of its kin, by margin."""
    from tilewright.learn import judge
    from tilewright.learn.train import MARGIN, train

    found: dict[float, dict[int, Any]] = {margin: {} for margin in MARGINS}
    for part in judge.folds(some, count):
        model = train([s for n, s in enumerate(some) if n not in {*part}], lesson)
        for margin in MARGINS:
            wide = widened(model, margin / MARGIN)
            found[margin] |= {n: judge.verdict(wide, some[n]) for n in part}
    return {margin: [one[n] for n in range(len(some))] for margin, one in found.items()}


def silence() -> None:
    from tilewright.learn import judge

    rules = {
        f"{says}; {margin:g} times": (margin, set_guard)
        for margin in MARGINS
        for says, set_guard in beliefs().items()
    }
    outer, inner = {}, {}
    classes = measured()
    for lesson, some in classes.items():
        outer[lesson] = held_out(lesson, some, judge.FOLDS)
        for at, part in enumerate(judge.folds(some)):
            rest = [s for n, s in enumerate(some) if n not in {*part}]
            inner[at, lesson] = rest, held_out(lesson, rest, INNER)

    def served(some: Any, found: Any, rule: str, count: int) -> dict[int, tuple[Any, Any]]:
        margin, set_guard = rules[rule]
        told: dict[int, tuple[Any, Any]] = {}
        for part in (parts := judge.folds(some, count)):
            others = [found[margin][n] for p in parts if p is not part for n in p]
            guard = set_guard(others)
            told |= {n: (found[margin][n], guard) for n in part}
        return told

    def mean(at: int, rule: str) -> float:
        means = []
        for lesson in classes:
            some, found = inner[at, lesson]
            shares = [v.chosen(g)[0] for v, g in served(some, found, rule, INNER).values()]
            means.append(sum(shares) / len(shares))
        return sum(means)

    picked = [max(rules, key=lambda rule, at=at: mean(at, rule)) for at in range(judge.FOLDS)]
    result: dict[str, Any] = {"chosen": picked}
    for lesson, some in classes.items():
        every = {rule: served(some, outer[lesson], rule, judge.FOLDS) for rule in rules}
        every["chosen"] = {
            n: every[picked[at]][n] for at, part in enumerate(judge.folds(some)) for n in part
        }
        told = {}
        for rule, found in every.items():
            pairs = [found[n] for n in range(len(some))]
            one = judge.report([v for v, _ in pairs], [guard for _, guard in pairs])
            behind = [
                kind
                for kind, of in one["by_kind"].items()
                if any(of["served"][w] < of["estimate"][w] for w in SHOWN)
            ]
            told[rule] = {"served": shown(one["served"]), "behind": behind}
        result[lesson] = {"estimate": shown(one["estimate"]), "rules": told}
        print(lesson, json.dumps(result[lesson]), flush=True)
    record("silence", result)


DRAWN = 50
FEWEST = 6
"""Kernels that two runs have both timed on a problem."""


def noise() -> None:
    """The record has a pair of samples, or the least, the median and the largest of three."""
    import numpy as np

    from tilewright.learn import judge, matrix

    cells = [*matrix.read([DATA])]
    spread = {(c.problem, c.kernel): (*c.interval_us, c.us, c.samples) for c in cells}
    by_chance, result = np.random.default_rng(0), {}
    for lesson, blocks in matrix.by_lesson(matrix.blocks(cells)).items():
        ceiling, again, of_many = [], [], []
        for block in blocks:
            told = [spread[block.problem, config.name] for config in block.us]
            us = np.array([middle for _, _, middle, _ in told])
            # The expected range of two and of three samples, in standard deviations.
            errors = np.array(
                [np.log(high / low) / {2: 1.128, 3: 1.693}[n] / n**0.5 for low, high, _, n in told]
            )
            pooled = (errors + np.sqrt((errors**2).mean())) / 2
            samples = [
                [low, high] if n == 2 else [low, middle, high] for low, high, middle, n in told
            ]
            for _ in range(DRAWN):
                drawn = us * np.exp(by_chance.normal(size=len(us)) * pooled)
                ceiling.append(float(drawn.min() / drawn[us.argmin()]))
                if len(us) >= MANY:
                    of_many.append(ceiling[-1])
                two = np.array([by_chance.permutation(one)[:2] for one in samples]).T
                again.append(two[1].min() / two[1][two[0].argmin()])
        result[lesson] = {
            word: shown(judge.figures_of([(float(share), 1) for share in shares]))
            for word, shares in (("ceiling", ceiling), ("one sample", again))
        }
        if of_many:
            result[lesson]["of many"] = {
                "problems": len(of_many) // DRAWN,
                "ceiling": shown(judge.figures_of([(share, 1) for share in of_many])),
                "least of a draw": round(
                    100 * float(np.median([min(of_many[at::DRAWN]) for at in range(DRAWN)])), 2
                ),
            }
        draws = [min(ceiling[at::DRAWN]) for at in range(DRAWN)]
        result[lesson]["least of a draw"] = round(100 * float(np.median(draws)), 2)
        print(lesson, json.dumps(result[lesson]), flush=True)
    record("noise", result)


def twice(paths: Sequence[Path]) -> None:
    from tilewright.learn import judge, matrix

    first, second = (
        {block.problem: block for block in matrix.blocks(matrix.read([path]))} for path in paths
    )
    found: dict[str, list[tuple[float, float]]] = {}
    for lesson, some in matrix.by_lesson([*first.values()]).items():
        for block in some:
            other = second.get(block.problem)
            both = [config for config in block.us if other and config in other.us]
            if other and len(both) >= FEWEST:
                a, b = (min(both, key=one.us.__getitem__) for one in (block, other))
                shares = other.us[b] / other.us[a], block.us[a] / block.us[b]
                found.setdefault(lesson, []).append(shares)
    result = {}
    for lesson, pairs in found.items():
        sides = {"in the second": 0, "in the first": 1}
        result[lesson] = {
            "problems": len(pairs),
            **{
                word: shown(judge.figures_of([(pair[side], 1) for pair in pairs]))
                for word, side in sides.items()
            },
        }
        print(lesson, json.dumps(result[lesson]), flush=True)
    record("twice", result)


COMMANDS = {
    "methods": methods, "silence": silence, "noise": noise, "data": data, "few": few,
    "curve": curve,     "kernels": kernels, "trade": trade,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=[*COMMANDS, "figures", "twice"])
    parser.add_argument("runs", nargs="*", type=Path, help="two files, of `twice`")
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES, help="of `figures`")
    args = parser.parse_args()
    if args.command == "figures":
        figures(args.files)
    elif args.command == "twice":
        twice(args.runs)
    else:
        COMMANDS[args.command]()


if __name__ == "__main__":
    main()
