"""`topk_routing` and `sort_by_expert` of a few tokens, in one launch of one workgroup.

weights, ids: as of `topk_routing`. order, ends, places: as of `sort_by_expert` of these ids, with
blocks of 1; every choice is of an expert, so `order` has each.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared.routing import _choosing, _few, _references, topk_routing
from tilewright.ops.powers import power_of_two

AXES: dict[str, tuple[Any, ...]] = {
    **topk_routing.AXES,
    "ROWS": (1, 2, 4, 8, 16, 32, 64, 128),
    "num_warps": (1, 4, 8),
}


def reference(
    logits: Any, bias: Any, routed_scaling_factor: float, problem: Any
) -> tuple[Any, ...]:
    weights, ids = topk_routing.reference(logits, bias, routed_scaling_factor, problem)
    found = ids.reshape(-1)
    order = _references.stable_order(found)
    places = _references.filled(found, len(found), 0)
    places[order] = _references.numbers(found, len(found))
    of_experts = _references.one_hot(found[:, None], problem.experts)[:, 0]
    return weights, ids, order, of_experts.sum(0).cumsum(0), places.reshape(ids.shape)


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    if why := _choosing.refused(problem):
        return why
    if not _few.fit(problem.rows, _choosing.block(problem), problem.k):
        return (
            f"{problem.rows} rows of {problem.experts} experts, k = {problem.k}: one workgroup has "
            f"{_few.MOST_ELEMENTS} elements and {_few.MOST_CHOICES} choices at most, each size up "
            "to a power of two; call topk_routing and sort_by_expert"
        )
    return ""


def supports(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile has all of a problem."""
    for axis, values in narrows(problem).items():
        if getattr(config, axis) not in values:
            return f"{axis} = {getattr(config, axis)}, where it may be {values}"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The values of the axes that a problem is served with."""
    block, rows = _choosing.block(problem), power_of_two(problem.rows)
    warps = (1, 4) if block * rows <= 2048 else (4, 8)
    return {
        "BLOCK": (block,),
        "ROWS": (rows,),
        "WHOLE": (topk_routing.whole(problem),),
        "num_warps": warps,
    }


def prefers(problem: Any, config: Any) -> int:
    """Four warps, or eight of many elements: comparisons are shared by all."""
    wanted = 4 if config.BLOCK * config.ROWS <= 2048 else 8
    return abs(int(config.num_warps) - wanted)


declare(
    Declaration(
        name="sorted_routing",
        module=__name__,
        operands={
            "logits": In(
                "*rows", "experts", strides=("logits_stride", 1), values=_choosing.logits_of
            ),
            "bias": In("experts", dtype="fp32", optional=True, values=_choosing.bias_of),
            "weights": Out("*rows", "k", dtype="fp32"),
            "ids": Out("*rows", "k", dtype="int32", exact=True),
            "order": Out("rows * k", dtype="int32", exact=True),
            "ends": Out("experts", dtype="int32", exact=True),
            "places": Out("*rows", "k", dtype="int32", exact=True),
        },
        scalars={"routed_scaling_factor": ("fp32", 1.0)},
        options=_choosing.OPTIONS,
        choices={"scoring": _choosing.SCORING, "group_score": _choosing.GROUP_SCORE},
        axes=AXES,
        parts=(
            kernel(
                "main", f"{__package__}.kernels.sorted_routing:sorted_routing", lambda p, c: (1,)
            ),
        ),
        refuses=refused,
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        multiples=("experts", "logits_stride"),
        reference=reference,
        amplifies=8.0,
        problems=tuple(
            {"rows": rows, "experts": experts, "k": k, **said}
            # Mixtral, Qwen3, gpt-oss, DeepSeek-V3.
            for experts, k, said in (
                (8, 2, {"renormalize": True}),
                (128, 8, {"renormalize": True}),
                (128, 4, {"scoring": "softmax_of_chosen"}),
                (256, 8, {**_choosing.DEEPSEEK_V3, "has_bias": True, "dtype": "fp32"}),
            )
            for rows in (1, 4, 16)
        ),
    )
)
