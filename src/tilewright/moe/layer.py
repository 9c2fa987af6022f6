"""The layer as a call: its steps, one operation behind the other."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from tilewright.errors import BadArgument
from tilewright.moe.form import BLOCKS, Clamp, Form, form, packed
from tilewright.operation import operation

sort_by_expert = operation("sort_by_expert")
topk_routing = operation("topk_routing")
take_rows = operation("take_rows")
grouped_gemm = operation("grouped_gemm")
gemm = operation("gemm")
quantise_rows = operation("quantise_rows")
gated_activation = operation("gated_activation")
sum_of_experts = operation("sum_of_experts")

Activation = str | Callable[[Any], Any]
"""A word of `form`, or a function from rows of the first product to what the second takes."""


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
    expert_map: Any = None,
    capacity: int = 0,
    shared: tuple[Any, Any] | None = None,
    routed_scaling_factor: float = 1.0,
    out: Any = None,
) -> Any:
    """A mixture of experts: for each token Σ_j weights[t, j] · w2[e]·act(w1[e]·x[t]), e =
    experts[t, j].

    x: tokens ``[*tokens, hidden]``, NumPy arrays or torch tensors, as all operands.
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
    scales: block scales of w1 and of w2, laid out as these: [experts, rows / …, columns / …].
    scale_b: the blocks that share one, as `grouped_gemm` takes them, of a weight's columns by its
        rows: ``128x128`` of DeepSeek-V3's fp8, ``32x1-e8m0`` of MX.
    scale_a: ``1x128``: what either product takes is rounded to the weights' 8 bits, with a scale
        for each 128 elements of a row; else it stays in x's type.
    dtype_b: ``int4`` or ``e2m1``: two elements of a weight's row are in each byte.
    expert_map: int32 [all experts]: the number of each expert here, or -1.
    capacity: tokens that an expert takes at most, the first ones; 0 for any number. What is left
        out adds nothing.
    shared: (w1, w2) of an expert that serves every token, without the first dimension; several
        shared experts are one with more inner columns. Its activation is the others'.
    routed_scaling_factor: of the sum, without the shared expert's.
    out: where the result is written.

    Where torch records gradients of x, w1, w2 or biases, tokens are copied into the order of their
    experts, and the activation is a step of its own; every operand but the routing's experts has
    gradients.

    Returns ``[*tokens, hidden]``, of x's type; no tokens give none. Sums are in fp32, in an order
    that the routing alone decides, so every call repeats bit for bit. The host never waits for the
    device. The results of both products, and the activation's, are rounded to x's type.

    Raises `BadArgument` where operands do not fit, and as the operations do.
    """
    if weights is not None and tuple(experts.shape) != tuple(weights.shape):
        raise BadArgument(
            f"experts have shape {tuple(experts.shape)} and weights {tuple(weights.shape)}; both "
            f"are {[*x.shape[:-1], 'k']}, as x has rows"
        )
    if 0 in x.shape:
        return x[:] if out is None else out
    clamp = Clamp(limit, alpha, shift)
    last, places = rows_of_experts(
        x,
        w1,
        w2,
        experts,
        activation=activation,
        interleaved=interleaved,
        b1=b1,
        b2=b2,
        scales=scales,
        scale_a=scale_a,
        scale_b=scale_b,
        dtype_b=dtype_b,
        expert_map=expert_map,
        capacity=capacity,
        **clamp.said,
    )
    summed: dict[str, Any] = {} if weights is None else {"weights": weights}
    if scale_a and out is None:
        summed["out_dtype"] = x.dtype
    if shared is not None:
        rows = x.reshape(-1, x.shape[-1])
        every = _shared(rows, shared, activation, interleaved, clamp)
        summed["shared"] = every.reshape(*experts.shape[:-1], every.shape[-1])
    if routed_scaling_factor != 1.0:
        summed["routed_scaling_factor"] = routed_scaling_factor
    if out is not None:
        summed["out"] = out
    return sum_of_experts(last, places, **summed)


def rows_of_experts(
    x: Any,
    w1: Any,
    w2: Any,
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
    expert_map: Any = None,
    capacity: int = 0,
) -> tuple[Any, Any]:
    """What `fused_moe` sums over each token's experts: rows [tokens · k, hidden] in the order of
    their experts, and the place of each choice among them, int32 ``[*tokens, k]``, -1 for none.

    Rows that are no choice's hold anything. Arguments are those of `fused_moe`; there is one token
    at least.
    """
    count, k = _checked(x, w1, w2, experts, packed(dtype_b))
    if (scales is None) != (scale_b == "") or ((scale_a or dtype_b) and scales is None):
        raise BadArgument("scales= and scale_b= belong together, and scale_a= and dtype_b= to them")
    if scale_a not in ("", BLOCKS):
        raise BadArgument(f"scale_a = {scale_a!r}; rows are rounded in blocks of {BLOCKS}")
    given: dict[str, Any] = {} if expert_map is None else {"expert_map": expert_map}
    if capacity:
        given["capacity"] = capacity
    order, _, _, ends, _, places = sort_by_expert(experts, experts=count, **given)
    clamp = Clamp(limit, alpha, shift)
    recorded = _recorded(x, w1, w2, b1, b2)
    inner, rounded = w2.shape[-1] * packed(dtype_b), scale_a != ""
    how = _form_of(w1, inner, activation, interleaved, b1 is not None, clamp, recorded, rounded)
    rows, chosen = x.reshape(-1, x.shape[-1]), {"rows": order, "per_row": k}
    if recorded:
        rows, chosen = take_rows(rows, order, per_row=k, places=places.reshape(-1, k)), {}
    chosen |= _epilogue(how)
    if how.gates_apart:
        chosen["gates_apart"] = True
    if b1 is not None:
        chosen["bias"] = b1
    few = {"scale_a": scale_a, "scale_b": scale_b, "dtype_b": dtype_b}
    few = {name: word for name, word in few.items() if word}
    s1, s2 = scales or (None, None)
    first = _product(rows, w1, s1, ends, {**chosen, **few})
    to = {"quant": "block", "out_dtype": w2.dtype} if rounded and how.gate else {}
    middle = _activated(first, how, activation, interleaved, clamp, **to)
    more = {} if b2 is None else {"epilogue": "bias", "bias": b2}
    return _product(middle, w2, s2, ends, {**more, **few}), places


def _product(rows: Any, w: Any, scales: Any, ends: Any, said: dict[str, Any]) -> Any:
    """A grouped product, of rows that are rounded first where `scale_a` says so and they come
    without scales."""
    operands = [w.swapaxes(1, 2), ends]
    if "scale_a" in said:
        if not isinstance(rows, tuple):
            rows = quantise_rows(rows, quant="block", out_dtype=w.dtype)
        rows, of_rows = rows
        operands.append(of_rows)
    if scales is not None:
        operands.append(scales.swapaxes(1, 2))
    return grouped_gemm(rows, *operands, **said)


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
    said: dict[str, Any] = {} if bias is None else {"bias": bias}
    weights, experts = topk_routing(
        logits,
        k=k,
        scoring=scoring,
        renormalize=renormalize,
        n_group=n_group,
        topk_group=topk_group,
        group_score=group_score,
        routed_scaling_factor=routed_scaling_factor,
        **said,
    )
    return fused_moe(x, w1, w2, weights, experts, **layer)


def _checked(x: Any, w1: Any, w2: Any, experts: Any, packed: int) -> tuple[int, int]:
    """The number of experts, and of experts for each token. packed: elements of a weight's row in
    each of its array."""
    for name, array, form_of in (
        ("w1", w1, "[experts, rows, hidden]"),
        ("w2", w2, "[experts, hidden, inner]"),
    ):
        if len(array.shape) != 3:
            raise BadArgument(f"{name} has shape {tuple(array.shape)}, but must be {form_of}")
    hidden, inner = w1.shape[2] * packed, w2.shape[2] * packed
    fits = w1.shape[0] == w2.shape[0] and w2.shape[1] == hidden
    if not fits or w1.shape[1] not in (inner, 2 * inner):
        raise BadArgument(
            f"w1 has shape {tuple(w1.shape)} and w2 {tuple(w2.shape)}; with w2 as [experts, hidden,"
            " inner], w1 is [experts, inner or 2 · inner, hidden]"
        )
    if x.shape[-1] != hidden:
        raise BadArgument(f"x has {x.shape[-1]} columns, but w1 takes {hidden}")
    if experts.shape[:-1] != x.shape[:-1]:
        raise BadArgument(
            f"experts have shape {tuple(experts.shape)}; it is {[*x.shape[:-1], 'k']}, as x has "
            "rows"
        )
    return w1.shape[0], experts.shape[-1]


def _form_of(
    w1: Any,
    inner: int,
    activation: Activation,
    interleaved: bool,
    bias: bool,
    clamp: Clamp,
    recorded: bool,
    rounded: bool = False,
) -> Form:
    """The form that weights of experts say; of one expert they have no first dimension."""
    if not isinstance(activation, str):
        if interleaved or clamp.said:
            raise BadArgument("a function is the whole activation: leave out what else is said")
        return Form("bias" * bias)
    return form(
        activation,
        gated=w1.shape[-2] != inner,
        interleaved=interleaved,
        bias=bias,
        clamp=clamp,
        columns_lie=_contiguous_rows(w1),
        recorded=recorded,
        rounded=rounded,
    )


def _epilogue(how: Form) -> dict[str, Any]:
    """The first product's epilogue, and what it takes."""
    return {"epilogue": how.epilogue, **dict(how.numbers)} if how.epilogue else {}


def _recorded(*operands: Any) -> bool:
    """Whether torch records gradients of some operand."""
    if not any(getattr(one, "requires_grad", False) for one in operands):
        return False
    return bool(sys.modules["torch"].is_grad_enabled())


def _contiguous_rows(w: Any) -> bool:
    if hasattr(w, "stride"):
        return bool(w.stride(-1) == 1)
    return bool(w.strides[-1] == w.itemsize)


def _activated(
    rows: Any,
    how: Form,
    activation: Activation,
    interleaved: bool,
    clamp: Clamp,
    **to: Any,
) -> Any:
    """What the second product takes, of the first's rows. to: how a gate rounds it."""
    if not isinstance(activation, str):
        return activation(rows)
    if not how.gate:
        return rows
    return gated_activation(rows, gate=how.gate, interleaved=interleaved, **clamp.said, **to)


def _shared(
    rows: Any,
    weights: tuple[Any, Any],
    activation: Activation,
    interleaved: bool,
    clamp: Clamp,
) -> Any:
    """What an expert for every token makes of them."""
    w1, w2 = weights
    recorded = _recorded(rows, w1, w2)
    inner = w2.shape[-1]
    how = _form_of(w1, inner, activation, interleaved, False, clamp, recorded)
    if how.gates_apart:  # which GEMM does not take
        how = Form("", gate=str(activation))
    first = gemm(rows, w1.swapaxes(0, 1), **_epilogue(how))
    middle = _activated(first, how, activation, interleaved, clamp)
    return gemm(middle, w2.swapaxes(0, 1))
