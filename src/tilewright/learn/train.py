"""Trains a model of what the estimate gets wrong for one class of problems.

A model is the mean of two, which err in different ways. One half of the trees is near ln(measured /
estimated), less what all kernels of a problem have in common: only their order matters. A kernel
weighs (best / its time)^4, since to rank slow ones wrong costs nothing. The other half makes
choices by chance, the faster kernel the likelier, as they would be by the times measured
(`listwise`). Of a class in fp16 the problems in bf16 are learned from beside its own, with less
weight, and the reverse (`judge.beside`). LightGBM grows the trees; it is imported here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument, TilewrightError
from tilewright.learn.matrix import Block, mark, provenance
from tilewright.select.features import Described
from tilewright.select.model import Asked, Feature, Model
from tilewright.select.probes import taken
from tilewright.select.trees import LEAF, Trees, joined

MOST_TREES, LEAVES, DEPTH = 200, 31, 8
"""As many as can be walked for 200 kernels in 100 microseconds."""
WEIGHT = 4
SOFTNESS = 0.05
"""The logarithm of a ratio of times by which one kernel is e times likelier than another."""
DECIMALS, FIGURES = 5, 6
BESIDE = 0.3
"""The weight of a problem of another class."""
BEYOND = 0.1
"""The share of kernels beyond the dispatcher's space from which on it is no chance that they were
measured."""
MOST_ASKED = 512
"""Kernels that are rules and estimates of no more than a plan has time for."""
LEAST_BEND = 0.002
"""Second derivatives below this would make steps too long."""
MOST_WORDS = 16
"""Of a field with more words than these, each word is its own case: it is no feature."""

MARGIN = 4.0
"""A factor. Beyond what they saw, trees answer as at its edge. Problems held out, by which the
least gain is set, lie there too."""

PARAMETERS = {
    "num_leaves": LEAVES, "max_depth": DEPTH, "learning_rate": 0.15,
    "min_data_in_leaf": 10, "feature_fraction": 0.8, "bagging_fraction": 0.8, "bagging_freq": 1,
    "lambda_l2": 1.0, "use_missing": False, "force_row_wise": True,
    "num_threads": 1, "seed": 0, "verbosity": -1,
}  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """A block, and what a model is told of it."""

    block: Block

    @cached_property
    def described(self) -> Described:
        """Its kernels."""
        return Described(self.block.problem, [*self.block.us], self.block.device)

    @cached_property
    def us(self) -> Any:
        """Measured microseconds of each kernel in the pool."""
        import numpy as np

        return np.array([self.block.us[config] for config in self.described.pool])


def features_of(sheets: Sequence[Sheet], beside: Sequence[Sheet] = ()) -> tuple[Feature, ...]:
    """The features that all sheets have. What a model may be asked about is what was seen in
    `sheets`, but for words: those of `beside` alone follow the others (`asked_of`)."""
    import numpy as np

    every = [*sheets, *beside]
    names = dict.fromkeys(name for sheet in every for name in sheet.described.names())
    found = []
    for name in names:
        columns = [sheet.described.column(name) for sheet in every]
        if any(column is None for column in columns):
            continue
        kinds = {np.asarray(column).dtype.kind for column in columns}
        own = columns[: len(sheets)]
        if kinds <= {"U"}:
            words = tuple(dict.fromkeys((*_words(own), *_words(columns))))
            if len(words) <= MOST_WORDS:
                found.append(Feature(name, words))
        elif "U" not in kinds:
            low = min(float(np.min(column)) for column in own)
            high = max(float(np.max(column)) for column in own)
            if np.isfinite([low, high]).all():
                found.append(Feature(name, (), *_believed(low, high)))
    return tuple(found)


def asked_of(feature: Feature, sheets: Sequence[Sheet]) -> Feature:
    """A feature without the words that were not seen in `sheets`; the others keep their numbers."""
    seen = len(_words([sheet.described.column(feature.name) for sheet in sheets if feature.words]))
    return replace(feature, words=feature.words[:seen])


def wide(sheets: Sequence[Sheet]) -> bool:
    """Whether kernels that a dispatcher does not choose from were measured too, more than there may
    be of kernels that it chose from once, and a dispatcher has the time to ask about them."""
    spaces: dict[Any, set[Any]] = {}

    def expanded(space: Any, this: Any) -> set[Any]:
        if (key := (this.name, space.key)) not in spaces:
            spaces[key] = {*space.expand(this).configs}
        return spaces[key]

    beyond = count = 0
    for sheet in sheets:
        problem, this = sheet.block.problem, arch(sheet.block.device.arch)
        usual = expanded(ops.family(problem.family).default_space(problem, this), this)
        beyond += sum(config not in usual for config in sheet.block.us)
        count += len(sheet.block.us)
    if beyond <= BEYOND * count:
        return False
    for sheet in sheets:
        problem, this = sheet.block.problem, arch(sheet.block.device.arch)
        family = ops.family(problem.family)
        more = [expanded(space, this) for space in family.tuning_spaces(problem, this)]
        if sum(map(len, more)) > MOST_ASKED:
            return False
    return True


def _words(columns: Sequence[Any]) -> tuple[str, ...]:
    import numpy as np

    return tuple(sorted({str(w) for column in columns for w in np.unique(np.asarray(column))}))


def _believed(low: float, high: float) -> tuple[float, float]:
    """The numbers that a model may be asked about: those seen, and as far beyond as `MARGIN` says.
    A number that was always the same says nothing of others."""
    if low == high:
        return low, high
    return low / MARGIN if low > 0 else low * MARGIN, high * MARGIN if high > 0 else high / MARGIN


Grow = Callable[
    [Sequence[Any], Sequence[Any], Sequence[Any], Sequence[float], int],
    tuple[Trees, list[float]],
]
"""As `fit`."""


def train(
    sheets: Sequence[Sheet],
    lesson: str,
    trees: int = MOST_TREES,
    grow: Grow | None = None,
    beside: Sequence[Sheet] = (),
) -> Model:
    """A model of the class of problems `lesson` from these sheets, of at most so many trees. Its
    `least_gain` is 0: `judge` sets it. The same sheets give the same model. Raises `BadArgument`
    without any, and `TilewrightError` without LightGBM.

    grow: makes the trees; by default `fit`. beside: sheets of other classes, which are learned from
    with the weight `BESIDE`.
    """

    if not sheets:
        raise BadArgument(f"{lesson}: there is nothing to learn from")
    if trees < 2:
        raise BadArgument(f"{trees} trees: a model has two halves, each of one tree at least")
    features, every = features_of(sheets, beside), [*sheets, *beside]
    asked = Asked(features)
    x = [asked.rows(sheet.described)[0] for sheet in every]
    estimated, us = [s.described.us for s in every], [s.us for s in every]
    weights = [1.0] * len(sheets) + [BESIDE] * len(beside)
    grown, importance = (grow or fit)(x, estimated, us, weights, trees)
    features = tuple(asked_of(one, sheets) for one in features)
    # What no tree asks about stays if it was the same for all: of another value, nothing is known.
    kept = [
        at
        for at, (one, gain) in enumerate(zip(features, importance, strict=True))
        if gain or one.words or one.low == one.high
    ]
    features, importance = tuple(features[at] for at in kept), [importance[at] for at in kept]
    grown = replace(
        grown, feature=tuple(LEAF if f == LEAF else kept.index(f) for f in grown.feature)
    )
    told = sum(importance) or 1.0
    found = [sheet.block for sheet in sheets]
    shares = {one.name: gain / told for one, gain in zip(features, importance, strict=True)}
    model = Model(
        lesson,
        found[0].problem.family,
        tuple(sorted({block.device.arch for block in found})),
        tuple(sorted({block.device.name for block in found})),
        dict(found[0].environment.versions),
        features,
        grown,
        (),
        0.0,
        made={
            **provenance(found),
            "beside": len(beside),
            "marks": sorted({mark(block.problem) for block in found}),
            "importance": {
                name: round(share, 4)
                for name, share in sorted(shares.items(), key=lambda one: -one[1])
                if share >= 0.0005
            },
        },
    )
    return replace(model, probes=taken([sheet.described for sheet in sheets], model.answers))


def fit(
    x: Sequence[Any],
    estimated: Sequence[Any],
    us: Sequence[Any],
    weights: Sequence[float],
    trees: int = MOST_TREES,
) -> tuple[Trees, list[float]]:
    """Trees that correct estimates, and how much each feature brought. The arguments have an array
    for each problem: the features of its kernels, their estimates and their times; and its weight.
    Raises `TilewrightError` without LightGBM, and for too few kernels."""
    import numpy as np

    try:
        import lightgbm
    except ImportError:
        raise TilewrightError("training needs LightGBM: pip install 'tilewright[learn]'") from None
    rows = np.concatenate(x)
    logs = [(np.log(a), np.log(b)) for a, b in zip(estimated, us, strict=True)]
    found = [residuals(pair) for pair in logs]
    targets = np.concatenate([target for target, _ in found])
    heavy = np.concatenate([w * own for w, (_, own) in zip(weights, found, strict=True)])
    halves = (
        ("regression", lightgbm.Dataset(rows, targets, weight=heavy), trees - trees // 2),
        (listwise(logs, weights), lightgbm.Dataset(rows, np.zeros(len(rows))), trees // 2),
    )
    try:
        boosters = [
            lightgbm.train({**PARAMETERS, "objective": objective}, data, num_boost_round=count)
            for objective, data, count in halves
        ]
    except lightgbm.basic.LightGBMError as error:
        raise TilewrightError(
            f"{len(x)} problems with {len(rows)} kernels are too few to learn from: {error}"
        ) from error
    gains = np.array([booster.feature_importance("gain") for booster in boosters])
    shares = gains / np.maximum(gains.sum(axis=1, keepdims=True), 1e-30)
    return halved(joined([trees_of(booster) for booster in boosters])), shares.mean(axis=0).tolist()


def residuals(logs: tuple[Any, Any]) -> tuple[Any, Any]:
    """The logarithms of a problem's times over the estimates, centred, and the weight of each
    kernel. logs: of the estimates, and of the times."""
    import numpy as np

    guess, log = logs
    weights = np.exp(WEIGHT * (log.min() - log))
    return log - guess - np.average(log - guess, weights=weights), weights


def listwise(
    logs: Sequence[tuple[Any, Any]], weights: Sequence[float]
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """An objective of LightGBM: the cross-entropy of choosing a problem's kernel by the times
    expected, where it is chosen by the times measured. A kernel is chosen with a probability that
    falls with the logarithm of its time over `SOFTNESS`.

    logs: for each problem the logarithms of its kernels' estimates, and of their times. weights: of
        each problem.
    """
    import numpy as np

    heavy = np.concatenate(
        [np.full(len(log), w) for w, (_, log) in zip(weights, logs, strict=True)]
    )
    ends = np.cumsum([len(log) for _, log in logs])[:-1]
    wanted = [_softmax(-log / SOFTNESS) for _, log in logs]

    def gradients(found: Any, _data: Any) -> tuple[Any, Any]:
        made = [
            (chosen - (q := _softmax(-(guess + more) / SOFTNESS)), q * (1 - q))
            for (guess, _), chosen, more in zip(logs, wanted, np.split(found, ends), strict=True)
        ]
        slopes, bends = (np.concatenate([pair[i] for pair in made]) for i in range(2))
        return heavy * slopes, heavy * np.maximum(bends, LEAST_BEND) / SOFTNESS

    return gradients


def _softmax(x: Any) -> Any:
    import numpy as np

    found = np.exp(x - x.max())
    return found / found.sum()


def halved(trees: Trees) -> Trees:
    """Trees with half the values. Numbers are rounded, so that files are small: values to
    `DECIMALS`, thresholds to `FIGURES` significant ones."""
    nodes = zip(trees.feature, trees.threshold, strict=True)
    return replace(
        trees,
        threshold=tuple(
            round(number / 2, DECIMALS) if feature == LEAF else float(f"{number:.{FIGURES}g}")
            for feature, number in nodes
        ),
    )


def trees_of(booster: Any) -> Trees:
    """LightGBM's trees. A node comes before its children."""
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []

    def add(node: dict[str, Any]) -> int:
        at = len(feature)
        inner = "leaf_value" not in node
        feature.append(node["split_feature"] if inner else LEAF)
        threshold.append(float(node["threshold"] if inner else node["leaf_value"]))
        left.append(0)
        right.append(0)
        if inner:
            left[at], right[at] = add(node["left_child"]), add(node["right_child"])
        return at

    roots = [add(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]]
    return Trees(tuple(feature), tuple(threshold), tuple(left), tuple(right), tuple(roots))
