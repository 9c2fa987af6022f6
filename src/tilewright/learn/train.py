"""Trains a model of what the estimate gets wrong for one class of problems.

The target is ln(measured / estimated), less what all kernels of a problem have in common: only
their order matters. A kernel weighs (best / its time)^1.5, since to rank slow ones wrong costs
nothing. LightGBM grows the trees; it is imported here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.errors import BadArgument, TilewrightError
from tilewright.learn.matrix import Block, provenance
from tilewright.select.features import Described
from tilewright.select.model import Asked, Feature, Model
from tilewright.select.trees import LEAF, Trees

MOST_TREES, LEAVES, DEPTH = 200, 15, 6
"""A deeper tree takes longer to walk, whatever its leaves."""
WEIGHT = 1.5
MOST_WORDS = 16
"""Of a field with more words than these, each word is its own case: it is no feature."""

MARGIN = 2.0
"""A factor. Beyond what they saw, trees answer as at its edge. Problems held out, by which the
least gain is set, lie there too."""

PARAMETERS = {
    "objective": "regression", "num_leaves": LEAVES, "max_depth": DEPTH, "learning_rate": 0.06,
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

    @cached_property
    def weights(self) -> Any:
        """How much each kernel counts."""
        return (self.us.min() / self.us) ** WEIGHT

    @cached_property
    def target(self) -> Any:
        """The logarithm of each kernel's time over its estimate, centred."""
        import numpy as np

        residual = np.log(self.us / self.described.us)
        return residual - np.average(residual, weights=self.weights)


def features_of(sheets: Sequence[Sheet]) -> tuple[Feature, ...]:
    """The features that all sheets have, with what a model of them may be asked about."""
    import numpy as np

    names = dict.fromkeys(name for sheet in sheets for name in sheet.described.names())
    found = []
    for name in names:
        columns = [sheet.described.column(name) for sheet in sheets]
        if any(column is None for column in columns):
            continue
        kinds = {np.asarray(column).dtype.kind for column in columns}
        if kinds <= {"U"}:
            words = sorted({str(w) for column in columns for w in np.unique(np.asarray(column))})
            if len(words) <= MOST_WORDS:
                found.append(Feature(name, tuple(words)))
        elif "U" not in kinds:
            low = min(float(np.min(column)) for column in columns)
            high = max(float(np.max(column)) for column in columns)
            if np.isfinite([low, high]).all():
                found.append(Feature(name, (), *_believed(low, high)))
    return tuple(found)


def _believed(low: float, high: float) -> tuple[float, float]:
    """The numbers that a model may be asked about: those seen, and as far beyond as `MARGIN` says.
    A number that was always the same says nothing of others."""
    if low == high:
        return low, high
    return low / MARGIN if low > 0 else low * MARGIN, high * MARGIN if high > 0 else high / MARGIN


def train(sheets: Sequence[Sheet], lesson: str, trees: int = MOST_TREES) -> Model:
    """A model of the class of problems `lesson` from these sheets, of at most so many trees. Its
    `least_gain` is 0: `judge` sets it. The same sheets give the same model. Raises `BadArgument`
    without any, and `TilewrightError` without LightGBM."""
    import numpy as np

    if not sheets:
        raise BadArgument(f"{lesson}: there is nothing to learn from")
    features = features_of(sheets)
    asked = Asked(features)
    x = np.concatenate([asked.rows(sheet.described)[0] for sheet in sheets])
    y, w = (np.concatenate([getattr(s, name) for s in sheets]) for name in ("target", "weights"))
    grown, importance = fit(x, y, w, trees)
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
    return Model(
        lesson,
        found[0].problem.family,
        tuple(sorted({block.device.arch for block in found})),
        tuple(sorted({block.device.name for block in found})),
        dict(found[0].environment.versions),
        features,
        grown,
        0.0,
        {
            **provenance(found),
            "importance": {
                name: round(share, 4)
                for name, share in sorted(shares.items(), key=lambda one: -one[1])
                if share >= 0.0005
            },
        },
    )


def fit(x: Any, y: Any, weights: Any, trees: int = MOST_TREES) -> tuple[Trees, list[float]]:
    """Trees whose sum is near `y`, and how much each feature brought. Raises `TilewrightError`
    without LightGBM."""
    try:
        import lightgbm
    except ImportError:
        raise TilewrightError("training needs LightGBM: pip install 'tilewright[learn]'") from None
    data = lightgbm.Dataset(x, y, weight=weights, free_raw_data=True)
    booster = lightgbm.train(PARAMETERS, data, num_boost_round=trees)
    gains = booster.feature_importance("gain")
    return trees_of(booster), [float(gain) for gain in gains]


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
