"""The layer as a call: its steps, one operation behind the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.dtypes import named
from tilewright.errors import BadArgument
from tilewright.moe.form import sorts_at_once
from tilewright.moe.scaling import TENSOR
from tilewright.moe.stated import (
    OF_SUM,
    Activation,
    Options,
    Routing,
    adopted,
    are_copied,
    are_foreign,
    form_of_experts,
    form_of_shared,
    is_recorded,
    numbers,
    of_shared,
    options,
    rows_of,
)
from tilewright.moe.steps import Call, Steps
from tilewright.operation import is_compiling

Route = Callable[[Steps], Routing]
"""The step of a router, or what the caller passes."""


def fused_moe(
    x: Any,
    w1: Any,
    w2: Any,
    weights: Any,
    experts: Any,
    *,
    activation: Activation = "silu",
    interleaved: bool = False,
    limit: float = math.inf,
    alpha: float = 1.0,
    shift: float = 0.0,
    b1: Any = None,
    b2: Any = None,
    scales: tuple[Any, Any] | None = None,
    scale_a: str = "",
    scale_b: str = "",
    dtype_b: str = "",
    scales_a: tuple[Any, Any] | None = None,
    zeros: tuple[Any, Any] | None = None,
    expert_map: Any = None,
    capacity: int = 0,
    shared: tuple[Any, Any] | None = None,
    weights_first: bool = False,
    routed_scaling_factor: float = 1.0,
    out: Any = None,
) -> Any:
    """A mixture of experts: for each token Σ_j weights[t, j] · w2[e]·act(w1[e]·x[t]), e =
    experts[t, j].

    x: tokens ``[*tokens, hidden]``: as all operands a NumPy array, a torch tensor, or an array with
        ``__dlpack__``, such as JAX's, which is a torch tensor here.
    w1: [experts, 2 · inner, hidden], with gates and ups, or [experts, inner, hidden].
    w2: [experts, hidden, inner].
    weights: ``[*tokens, k]``, of any floating type; None: each is 1.
    experts: ``[*tokens, k]``, int32 or int64. One that is below 0, or not below the number of
        experts, adds nothing: it is elsewhere, as under expert parallelism.
    activation: of the gate, silu (SwiGLU), gelu, gelu_tanh (GeGLU), relu or sigmoid; without gates
        all but the last. Or a function, from rows of w1's products to what w2 takes, which is given
        rows of no token too.
    interleaved: whether w1 has gate, up, gate, up…; else all gates, then all ups.
    limit, alpha, shift: of a clamped gate, as `gated_activation` takes them: gpt-oss has 7, 1.702
        and 1.
    b1, b2: added to the products: [experts, rows of w1], [experts, hidden].
    scales: of w1 and of w2, laid out as these: [experts, rows / …, columns / …].
    scale_b: the blocks that share one, as `grouped_gemm` takes them, of a weight's columns by its
        rows: ``128x128`` of DeepSeek-V3's fp8, ``32x1-e8m0`` of MX. ``row``: each row of a weight
        has one, an output channel: fp32 [experts, rows]. ``tensor``: each expert: fp32 [experts].
    scale_a: what either product takes is rounded to the weights' 8 bits (fp8, int8), with a scale
        for each 128 elements of a row, ``1x128``; for each row, ``row``; or by `scales_a`,
        ``tensor``. By default it stays in x's type, beside weights in 8 bits too, which are
        converted to it exactly if it has 16.
    scales_a: of what the first product takes and of what the second: fp32, one number each.
    dtype_b: ``int4`` or ``e2m1``: two elements of a weight's row are in each byte.
    zeros: zero points of int4 weights, one beside each of `scales`: int8, of their shape; an
        element means (q - zero) · scale.
    expert_map: int32 [all experts]: the number of each expert here, or -1.
    capacity: tokens that an expert takes at most, the first ones; 0 for any number. What is left
        out adds nothing.
    shared: (w1, w2) of an expert that serves every token, without the first dimension; several
        shared experts are one with more inner columns. Its activation is the others'.
    weights_first: whether weights multiply what w1 takes, before the activation, as Llama 4 has it:
        Σ_j w2[e]·act(w1[e]·(weights[t, j] · x[t])).
    routed_scaling_factor: of the sum, without the shared expert's.
    out: where the result is written.

    Where torch records gradients of x, w1, w2 or biases, tokens are copied into the order of their
    experts, and the activation is a step of its own; every operand but the routing's experts has
    gradients. A recorded call with weights in 8 or 4 bits raises `BadArgument`.

    Returns ``[*tokens, hidden]``, of x's type; no tokens give none. Sums are in fp32, in an order
    that the routing alone decides, so every call repeats bit for bit. The host never waits for the
    device. The results of both products, and the activation's, are rounded to x's type; with
    scale_a="1x128" a gate's, whose halves lie apart, go from fp32 to 8 bits at once.

    Raises `BadArgument` where operands do not fit, and as the operations do.
    """
    said = Options(
        activation=activation,
        interleaved=interleaved,
        limit=limit,
        alpha=alpha,
        shift=shift,
        b1=b1,
        b2=b2,
        scales=scales,
        scale_a=scale_a,
        scale_b=scale_b,
        dtype_b=dtype_b,
        scales_a=scales_a,
        zeros=zeros,
        expert_map=expert_map,
        capacity=capacity,
        shared=shared,
        weights_first=weights_first,
        routed_scaling_factor=routed_scaling_factor,
        out=out,
    )
    usual = limit == math.inf and alpha == 1.0 and shift == 0.0 and routed_scaling_factor == 1.0
    numbered = () if usual else (w1, w2, *(shared or (None, None)))
    arrays = (x, w1, w2, weights, experts, *said.arrays)
    call = Call(("fused_moe", *said.words), arrays, numbered)
    made = call.again()
    if made is not None:
        return made if out is None else out
    rows = math.prod(experts.shape)
    return _layer(x, w1, w2, rows, lambda _: Routing(weights, experts), said, call)


def _layer(x: Any, w1: Any, w2: Any, rows: int, route: Route, said: Options, call: Call) -> Any:
    """A layer's result, step by step. rows: choices of all tokens."""
    foreign = are_foreign(x, w1, w2)
    if foreign:
        x, w1, w2, said = adopted(x, w1, w2, said)
    copied = are_copied(x, w1, w2, said, call.arrays)
    how = form_of_experts(w1, w2, rows, said, copied)
    how_shared = form_of_shared(x, said)
    given, given_shared = numbers(how, x), numbers(how_shared, x)
    repeats = call.repeats and not foreign and not is_recorded(*call.arrays)
    steps = Steps(call.arrays if repeats else None, (*given, *given_shared))
    routing = route(steps)
    weights, experts = routing.weights, routing.experts
    if weights is not None and tuple(experts.shape) != tuple(weights.shape):
        raise BadArgument(
            f"experts have shape {tuple(experts.shape)} and weights {tuple(weights.shape)}; both "
            f"are {[*x.shape[:-1], 'k']}, as x has rows"
        )
    if 0 in x.shape:
        return x[:] if said.out is None else said.out
    last, places = rows_of(steps, x, w1, w2, routing, said, how, given, copied)
    summed: dict[str, Any] = {}
    if weights is not None and not said.weights_first:
        summed["weights"] = weights
    if said.scale_a and said.out is None:
        summed["out_dtype"] = named(x.dtype)
    if said.shared is not None:
        every = of_shared(steps, x, said, how_shared, given_shared)
        summed["shared"] = steps.view(every, every.reshape(*x.shape[:-1], every.shape[-1]))
    if said.routed_scaling_factor != 1.0:
        summed["routed_scaling_factor"] = said.routed_scaling_factor
    if said.out is not None:
        summed["out"] = said.out
    y = steps.run("sum_of_experts", last, places, **summed)
    call.remember(steps, y, said.out)
    return y


def rows_of_experts(x: Any, w1: Any, w2: Any, experts: Any, **layer: Any) -> tuple[Any, Any]:
    """What `fused_moe` sums over each token's experts: rows [tokens · k, hidden] in the order of
    their experts, and the place of each choice among them, int32 ``[*tokens, k]``, -1 for none.

    Rows that are no choice's hold anything. There is one token at least.

    layer: what `fused_moe` takes besides, but for what belongs to its sum: ``weights_first``,
        ``shared``, ``routed_scaling_factor`` and ``out``.

    Raises `BadArgument` for one of these, and as `fused_moe` does.
    """
    if of_sum := [name for name in OF_SUM if name in layer]:
        raise BadArgument(
            f"{of_sum[0]}= belongs to the sum over a token's experts, which rows_of_experts leaves "
            "to the caller"
        )
    said = options(layer)
    if are_foreign(x, w1, w2):
        x, w1, w2, said = adopted(x, w1, w2, said)
    copied = are_copied(x, w1, w2, said)
    how = form_of_experts(w1, w2, math.prod(experts.shape), said, copied)
    routing, given = Routing(None, experts), numbers(how, x)
    return rows_of(Steps(), x, w1, w2, routing, said, how, given, copied)


def routed_moe(
    x: Any,
    logits: Any,
    w1: Any,
    w2: Any,
    *,
    k: int,
    scoring: str = "softmax",
    renormalize: bool = False,
    bias: Any = None,
    n_group: int = 1,
    topk_group: int = 1,
    group_score: str = "top2",
    routed_scaling_factor: float = 1.0,
    **layer: Any,
) -> Any:
    """`fused_moe` of the experts that a router's logits choose.

    logits: ``[*tokens, experts]``, of the router.
    k: experts of each token.
    scoring, renormalize, bias, n_group, topk_group, group_score, routed_scaling_factor: as
        `topk_routing` takes them; docs/operations.md has those of models.
    layer: what `fused_moe` takes besides.
    """
    routing: dict[str, Any] = {
        "k": k,
        "scoring": scoring,
        "renormalize": renormalize,
        "n_group": n_group,
        "topk_group": topk_group,
        "group_score": group_score,
        "routed_scaling_factor": routed_scaling_factor,
    }
    said = options(layer)
    arrays = (x, w1, w2, logits, bias, *said.arrays)
    words = ("routed_moe", *routing.values(), *said.words)
    call = Call(words, arrays, (w1, w2, *(said.shared or (None, None))))
    made = call.again()
    if made is not None:
        return made if said.out is None else said.out
    at_once = _sorts_at_once(arrays, logits, routing, said)
    if bias is not None:
        routing["bias"] = bias

    def route(steps: Steps) -> Routing:
        if at_once:
            weights, experts, *maps = steps.run("sorted_routing", logits, **routing)
            return Routing(weights, experts, *maps)
        return Routing(*steps.run("topk_routing", logits, **routing))

    return _layer(x, w1, w2, math.prod(logits.shape[:-1]) * k, route, said, call)


def _sorts_at_once(
    arrays: tuple[Any, ...], logits: Any, routing: dict[str, Any], said: Options
) -> bool:
    """Whether a few tokens' choices are sorted in the router's launch: where nothing else decides
    the order, and nothing records gradients."""
    w1, shape = arrays[1], logits.shape
    if is_compiling() or said.expert_map is not None or said.capacity or len(w1) != shape[-1]:
        return False
    if said.weights_first or said.scale_b == TENSOR:  # which ask for more of each row
        return False
    fields = {name: value for name, value in routing.items() if name != "routed_scaling_factor"}
    few = sorts_at_once(math.prod(shape[:-1]), shape[-1], fields)
    return few and not is_recorded(*arrays)
