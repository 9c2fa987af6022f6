"""How experts are chosen: the options, what is refused of them, the reference, and logits of which
it is clear what is chosen."""

from __future__ import annotations

from typing import Any

from tilewright.declared._arrays import functions
from tilewright.declared.routing import _references, _tiles
from tilewright.ops.powers import power_of_two

SCORING = ("softmax", "softmax_of_chosen", "sigmoid")
"""Weights: of the softmax over all experts, of the softmax over the chosen ones, or sigmoids."""
GROUP_SCORE = ("top2", "max")
"""What a group is judged by: the sum of its two best (DeepSeek-V3), or its best (DeepSeek-V2)."""
FLOATS = ("fp32", "fp16", "bf16")

OPTIONS: dict[str, bool | int | str] = {
    "k": 0,
    "scoring": "softmax",
    "renormalize": False,
    "n_group": 1,
    "topk_group": 1,
    "group_score": "top2",
}

DEEPSEEK_V3: dict[str, bool | int | str] = {
    "scoring": "sigmoid",
    "renormalize": True,
    "n_group": 8,
    "topk_group": 4,
}

LEAST = 1e-20
"""Added to the sum that weights are divided by, as DeepSeek does."""

MARGIN = 1e-5
"""Experts whose scores are nearer than this share of the largest, and not equal, may be chosen
either way in fp32."""


def refused(problem: Any) -> str:
    """Why a problem's options do not fit together; "" if they do."""
    p = problem
    if not 1 <= p.k <= p.experts:
        return f"k = {p.k}; state k=, from 1 to the {p.experts} experts"
    if p.experts > _tiles.MOST_COLUMNS:
        return f"{p.experts} experts; registers hold up to {_tiles.MOST_COLUMNS}"
    if p.dtype not in FLOATS:
        return f"logits are {p.dtype}; they may be {', '.join(FLOATS)}"
    if p.n_group < 1 or p.experts % p.n_group:
        return f"n_group = {p.n_group} does not divide {p.experts} experts"
    if not 1 <= p.topk_group <= p.n_group:
        return f"topk_group = {p.topk_group} of {p.n_group} groups"
    each = p.experts // p.n_group
    if p.k > p.topk_group * each:
        return f"k = {p.k}, where {p.topk_group} groups have {p.topk_group * each} experts"
    if p.n_group > 1 and p.group_score == "top2" and each < 2:
        return "group_score = 'top2' of groups of one expert"
    return ""


def block(problem: Any) -> int:
    """Elements of a tile's row: groups and experts of a group, each up to a power of two."""
    return max(8, power_of_two(problem.n_group) * power_of_two(problem.experts // problem.n_group))


def by_scores(problem: Any) -> bool:
    """Whether scores decide, and not the logits, which are in the same order."""
    return bool(problem.has_bias or (problem.n_group > 1 and problem.group_score == "top2"))


def scores(logits: Any, problem: Any) -> Any:
    """The scores of all experts."""
    if problem.scoring == "sigmoid":
        return 1 / (1 + functions(logits).exp(-logits))
    return _references.softmax(logits) if problem.scoring == "softmax" else logits


def keys(logits: Any, bias: Any, problem: Any) -> tuple[Any, Any]:
    """What decides: of each expert [rows, experts], and of each group [rows, n_group]. Experts
    outside of the best groups have -inf."""
    f = functions(logits)
    by = scores(logits, problem) if by_scores(problem) else logits
    by = by if bias is None else by + bias
    apart = by.reshape(len(by), problem.n_group, -1)
    if problem.n_group == 1:
        return by, apart[:, :, 0] * 0
    first = f.amax(apart, axis=-1)
    if problem.group_score == "max":
        of_groups = first
    else:
        ranked = f.sort(apart, axis=-1) if f.__name__ == "numpy" else f.sort(apart, dim=-1).values
        of_groups = ranked[..., -1] + ranked[..., -2]
    places = _references.largest(of_groups, problem.topk_group)
    among = _references.one_hot(places, problem.n_group).any(1)[:, :, None]
    return f.where(among, apart, f.full_like(apart, float("-inf"))).reshape(by.shape), of_groups


def bias_of(problem: Any) -> Any:
    """A bias as large as scores are, the same for every problem of as many experts."""
    import numpy as np

    most = {"sigmoid": 0.1, "softmax": 1 / problem.experts, "softmax_of_chosen": 1.0}
    drawn = np.random.default_rng(problem.experts).uniform(-1, 1, problem.experts)
    return np.float32(drawn * most[problem.scoring])


def logits_of(problem: Any, rng: Any) -> Any:
    """Logits [rows, experts] of which it is clear what is chosen: scores are equal or apart."""
    import numpy as np

    def drawn(rows: int) -> Any:
        # Numbers of 7 bits are the same in all types, and often equal.
        if problem.dtype != "fp32":
            return rng.integers(-128, 128, (rows, problem.experts)) / 32
        return rng.standard_normal((rows, problem.experts), np.float32).astype(np.float64)

    made = drawn(problem.rows)
    if by_scores(problem):
        bias = bias_of(problem).astype(np.float64) if problem.has_bias else None
        unclear = np.arange(problem.rows)
        while len(unclear):
            of_experts, of_groups = keys(made[unclear], bias, problem)
            here = _unclear(of_experts, problem.k) | _unclear(of_groups, problem.topk_group)
            unclear = unclear[here]
            made[unclear] = drawn(len(unclear))
    return made


def _unclear(values: Any, count: int) -> Any:
    """Whether any of the `count` largest of each row nearly equals the next."""
    import numpy as np

    ranked = -np.sort(-values, axis=-1)[:, : count + 1]
    with np.errstate(invalid="ignore"):
        gaps = ranked[:, :-1] - ranked[:, 1:]
    least = MARGIN * abs(ranked[:, :1])
    return ((gaps > 0) & (gaps < least)).any(-1)
