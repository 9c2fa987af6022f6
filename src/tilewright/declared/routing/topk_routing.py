"""The k best experts of each token, with their weights.

    s = scores of the logits;  ids = the k largest of s + bias;  weights = s of ids · factor

Weights may be divided by their sum (`renormalize`). The bias only chooses (DeepSeek-V3,
arXiv:2412.19437). With groups, experts are chosen from each token's best groups alone. Of equal
experts the one with the lower id is chosen first; NaN is above all, and ids are always different.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared.routing import _choosing, _ck, _references, _tiles

AXES: dict[str, tuple[Any, ...]] = {**_tiles.AXES, "WHOLE": (True, False)}


def reference(
    logits: Any, bias: Any, routed_scaling_factor: float, problem: Any
) -> tuple[Any, Any]:
    of_experts, _ = _choosing.keys(logits, bias, problem)
    ids = _references.largest(of_experts, problem.k)
    if problem.scoring == "softmax_of_chosen":
        weights = _references.softmax(_references.taken(logits, ids))
    else:
        weights = _references.taken(_choosing.scores(logits, problem), ids)
        if problem.renormalize:
            weights = weights / (weights.sum(-1)[:, None] + _choosing.LEAST)
    return weights * routed_scaling_factor, ids


def supports(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile fits a problem."""
    if whole(problem) != config.WHOLE:
        return f"WHOLE = {config.WHOLE} for {problem.experts} experts"
    return _tiles.fits(_choosing.block(problem), problem, config)


def whole(problem: Any) -> bool:
    """Whether the experts fill the tile."""
    return _choosing.block(problem) == int(problem.experts)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The values of the axes that a problem is served with."""
    fitting = _tiles.narrows(_choosing.block(problem), problem)
    return {**fitting, "WHOLE": (whole(problem),)}


def nothing(bias: Any, arrived: Any) -> Any:
    """The gradient of the bias, which only chooses."""
    return bias.new_zeros(bias.shape)


declare(
    Declaration(
        name="topk_routing",
        module=__name__,
        operands={
            "logits": In(
                "*rows", "experts", strides=("logits_stride", 1), values=_choosing.logits_of
            ),
            "bias": In("experts", dtype="fp32", optional=True, values=_choosing.bias_of),
            "weights": Out("*rows", "k", dtype="fp32"),
            "ids": Out("*rows", "k", dtype="int32", exact=True),
        },
        scalars={"routed_scaling_factor": ("fp32", 1.0)},
        options=_choosing.OPTIONS,
        choices={"scoring": _choosing.SCORING, "group_score": _choosing.GROUP_SCORE},
        axes=AXES,
        parts=(
            kernel("main", f"{__package__}.kernels.topk_routing:topk_routing", _tiles.programs),
        ),
        refuses=_choosing.refused,
        supports=supports,
        narrows=narrows,
        prefers=_tiles.prefers,
        multiples=("experts", "logits_stride"),
        reference=reference,
        amplifies=8.0,
        gradients=(
            Gradient(
                "logits",
                "topk_routing_backward",
                ("logits", "ids", "grad weights"),
                keywords={"routed_scaling_factor": "routed_scaling_factor"},
                passes=("scoring", "renormalize"),
            ),
            Gradient("bias", nothing, ("bias", "grad weights")),
        ),
        drivers=(_ck.TOPK_SOFTMAX,),
        problems=(
            # Mixtral, Qwen3, gpt-oss, DeepSeek-V3, Kimi-K2.
            *_tiles.of_tokens({"experts": 8, "k": 2, "renormalize": True}),
            *_tiles.of_tokens({"experts": 128, "k": 8, "renormalize": True}),
            *_tiles.of_tokens({"experts": 32, "k": 4, "scoring": "softmax_of_chosen"}),
            *_tiles.of_tokens({"experts": 128, "k": 4, "scoring": "softmax_of_chosen"}),
            *_tiles.of_tokens(
                {
                    "experts": 256,
                    "k": 8,
                    **_choosing.DEEPSEEK_V3,
                    "has_bias": True,
                    "dtype": "fp32",
                }
            ),
            *_tiles.of_tokens(
                {
                    "experts": 384,
                    "k": 8,
                    "scoring": "sigmoid",
                    "renormalize": True,
                    "has_bias": True,
                    "dtype": "fp32",
                }
            ),
        ),
    )
)
