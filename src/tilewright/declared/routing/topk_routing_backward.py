"""Gradients of `topk_routing`: of the logits, from those of the weights. Choosing has none."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.routing import _choosing, _references, _tiles
from tilewright.ops.powers import power_of_two


def reference(
    logits: Any, ids: Any, dweights: Any, routed_scaling_factor: float, problem: Any
) -> Any:
    f = functions(logits)
    at = _references.one_hot(ids, problem.experts)
    chosen = at.any(1)
    ds = (at * dweights[:, :, None]).sum(1) * routed_scaling_factor
    if problem.scoring == "softmax_of_chosen":
        logits = f.where(chosen, logits, f.full_like(logits, float("-inf")))
        s = _references.softmax(logits)
    else:
        s = _choosing.scores(logits, problem)
        if problem.renormalize:
            total = (s * chosen).sum(-1)[:, None] + _choosing.LEAST
            ds = chosen * (ds - (s * ds).sum(-1)[:, None] / total) / total
    if problem.scoring == "sigmoid":
        return s * (1 - s) * ds
    return s * (ds - (s * ds).sum(-1)[:, None])


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    if not 1 <= problem.k <= problem.experts <= _tiles.MOST_COLUMNS:
        return f"{problem.k} of {problem.experts} experts; there may be {_tiles.MOST_COLUMNS}"
    if problem.dtype not in _choosing.FLOATS:
        return f"logits are {problem.dtype}; they may be {', '.join(_choosing.FLOATS)}"
    return ""


def block(problem: Any) -> int:
    """Elements of a row with padding."""
    return max(8, power_of_two(problem.experts))


def different(problem: Any, rng: Any) -> Any:
    """Ids [rows, k], of each row different ones."""
    import numpy as np

    every = np.tile(np.arange(problem.experts), (problem.rows, 1))
    return rng.permuted(every, axis=1)[:, : problem.k]


declare(
    Declaration(
        name="topk_routing_backward",
        module=__name__,
        operands={
            "logits": In("*rows", "experts", strides=("logits_stride", 1)),
            "ids": In("*rows", "k", dtype="int32", values=different),
            "dweights": In("*rows", "k", dtype="fp32"),
            "dlogits": Out("*rows", "experts"),
        },
        scalars={"routed_scaling_factor": ("fp32", 1.0)},
        options={"scoring": "softmax", "renormalize": False},
        choices={"scoring": _choosing.SCORING},
        axes=_tiles.AXES,
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.topk_routing_backward:topk_routing_backward",
                _tiles.programs,
            ),
        ),
        refuses=refused,
        supports=lambda problem, config: _tiles.fits(block(problem), problem, config),
        narrows=lambda problem: _tiles.narrows(block(problem), problem),
        prefers=_tiles.prefers,
        multiples=("experts", "logits_stride"),
        reference=reference,
        terms="k",
        amplifies=16.0,
        problems=(
            {"rows": 16384, "experts": 8, "k": 2, "renormalize": True},
            {"rows": 16384, "experts": 128, "k": 8, "renormalize": True},
            {"rows": 16384, "experts": 128, "k": 4, "scoring": "softmax_of_chosen"},  # gpt-oss
            {"rows": 16384, "experts": 256, "k": 8, "scoring": "sigmoid", "renormalize": True},
        ),
    )
)
