"""What cross-entropy and its gradient have in common."""

from __future__ import annotations

from typing import Any

from tilewright.custom import In
from tilewright.declared._arrays import functions
from tilewright.declared.rows import _long, _softmax

TILES = _long.Long("classes")

SCALARS: dict[str, tuple[str, int | float | None]] = {
    "ignore_index": ("i64", -100),
    "label_smoothing": ("fp32", 0.0),
    "lse_square_scale": ("fp32", 0.0),
    "factor": ("fp32", 1.0),
}
"""ignore_index: the target of rows that have no loss. label_smoothing: the share of the loss that
all classes have alike. lse_square_scale: of the z-loss. factor: what loss and gradient are
multiplied by."""

LIMITS = {"label_smoothing": (0.0, 1.0)}

DTYPES = {"target_dtype": "int64"}
_TARGETS = ("int64", "int32")

PROBLEMS = (
    *({"rows": rows, "classes": 128256} for rows in (1, 64, 1024, 4096, 8192)),
    *({"rows": rows, "classes": 151936} for rows in (1024, 4096)),
    *({"rows": rows, "classes": 256000} for rows in (1024, 4096)),
    *({"rows": rows, "classes": 262144} for rows in (1024, 4096)),
    *({"rows": rows, "classes": 50257} for rows in (1024, 16384)),
    {"rows": 16384, "classes": 32000},
    {"rows": 16384, "classes": 8192},
    {"rows": 1024, "classes": 1000},
)
"""The vocabularies of Llama 3, Qwen 3, Gemma 2, Gemma 3, GPT-2 and Llama 2, as their config.json
state them, for 1 to 16384 tokens; ImageNet's classes."""


def targets(problem: Any, rng: Any) -> Any:
    """Classes; every eighth row has none."""
    found = rng.integers(0, problem.classes, problem.rows)
    found[7::8] = SCALARS["ignore_index"][1]
    return found


TARGET = In("*rows", dtype="target_dtype", values=targets)


def refused(problem: Any) -> str:
    if problem.target_dtype not in _TARGETS:
        return f"targets are {problem.target_dtype}; they may be {' and '.join(_TARGETS)}"
    return _softmax.not_floats("dtype")(problem)


class Rows:
    """What rows need of their targets, in float64.

    ignored, known: whether a row has no loss; whether its target is a class.
    index: of each row's target among all logits, for NumPy and torch alike.
    own: what the target's own term is multiplied by.
    spread: the same of the terms of all classes.
    """

    def __init__(
        self, logits: Any, target: Any, weight: Any, ignore_index: int, label_smoothing: float
    ) -> None:
        f, classes = functions(logits), logits.shape[-1]
        self.ignored = target == ignore_index
        self.known = (target >= 0) & (target < classes)
        place = f.where(self.known, target, 0 * target)
        self.index = [*range(len(target))], place
        weights = f.ones_like(logits[0]) if weight is None else weight
        self.own = (1 - label_smoothing) * weights[place]
        self.spread = label_smoothing / classes * weights

    def only(self, values: Any) -> Any:
        """`values`, but 0 in rows that are ignored, and NaN where the target is no class."""
        f = functions(values)
        ahead = (slice(None), *[None] * (values.ndim - 1))
        found = f.where(self.known[ahead], values, f.full_like(values, float("nan")))
        return f.where(self.ignored[ahead], f.zeros_like(values), found)

    def gradient(self, logits: Any, lse: Any, lse_square_scale: float) -> Any:
        """Of each row's loss."""
        every = self.own + self.spread.sum() + 2 * lse_square_scale * lse
        made = functions(logits).exp(logits - lse[:, None]) * every[:, None] - self.spread
        made[self.index] -= self.own
        return made
