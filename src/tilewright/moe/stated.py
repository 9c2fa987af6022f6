"""What a call of a layer states, and the steps that follow from it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.arrays import adopt, is_numpy, is_torch
from tilewright.dtypes import DTYPES, named
from tilewright.errors import BadArgument, nearest
from tilewright.moe.form import FEW_ROWS, Clamp, Form, form, packed, rounds_in_product
from tilewright.moe.scaling import ROW, TENSOR, Scaling, chained, operands
from tilewright.moe.steps import Steps
from tilewright.number_array import of_number
from tilewright.operation import is_compiling, of_planned_arch
from tilewright.ops.products import WIDENED

Activation = str | Callable[[Any], Any]
"""A word of `form`, or a function from rows of the first product to what the second takes."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `fused_moe` takes by keyword."""

    activation: Activation = "silu"
    interleaved: bool = False
    limit: float = math.inf
    alpha: float = 1.0
    shift: float = 0.0
    b1: Any = None
    b2: Any = None
    scales: tuple[Any, Any] | None = None
    scale_a: str = ""
    scale_b: str = ""
    dtype_b: str = ""
    scales_a: tuple[Any, Any] | None = None
    zeros: tuple[Any, Any] | None = None
    expert_map: Any = None
    capacity: int = 0
    shared: tuple[Any, Any] | None = None
    weights_first: bool = False
    routed_scaling_factor: float = 1.0
    out: Any = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All, None for each that is not there."""
        both = (None, None)
        scales, shared = self.scales or both, self.shared or both
        scales = (*scales, *(self.scales_a or both), *(self.zeros or both))
        return (self.b1, self.b2, *scales, self.expert_map, *shared, self.out)

    @property
    def words(self) -> tuple[Any, ...]:
        """The others."""
        gate = (self.activation, self.interleaved, self.limit, self.alpha, self.shift)
        few = (self.scale_a, self.scale_b, self.dtype_b)
        return (*gate, *few, self.capacity, self.routed_scaling_factor, self.weights_first)

    @property
    def clamp(self) -> Clamp:
        return Clamp(self.limit, self.alpha, self.shift)

    @property
    def scaling(self) -> Scaling:
        return Scaling(self.scale_a, self.scale_b, self.dtype_b, self.zeros is not None)

    def check_scales(self) -> None:
        """Raise `BadArgument` unless scales and their words belong together."""
        self.scaling.check()
        scaled, few_bits = self.scales is not None, self.scale_a or self.dtype_b
        if scaled != (self.scale_b != "") or (few_bits and not scaled):
            raise BadArgument(
                "scales= and scale_b= belong together, and scale_a= and dtype_b= to them"
            )
        if (self.scales_a is not None) != (self.scale_a == TENSOR):
            raise BadArgument(f"scales_a= belongs to scale_a = '{TENSOR}', not to '{self.scale_a}'")

    def check_types(self, x: Any, w1: Any) -> None:
        """Raise `BadArgument` if rows stay as they are, and no product takes them with weights that
        are whole elements of 8 bits."""
        if self.scale_a or self.dtype_b:
            return
        rows, weights = named(x.dtype), named(w1.dtype)
        taken = (rows, *WIDENED.get(rows, ()))
        if DTYPES[weights].bytes == 1 and weights not in taken:
            raise BadArgument(
                f"x is {rows} and w1 {weights}, which no product takes together: pass x in bf16 or "
                "fp16, or scale_a=, with which rows are rounded to the weights' 8 bits"
            )


def options(layer: Mapping[str, Any]) -> Options:
    """What a caller passes on to a layer. Raises `BadArgument` for another word."""
    known = Options.__dataclass_fields__
    for name in layer.keys() - known.keys():
        raise BadArgument(
            f"a layer of experts has no option '{name}'{nearest(name, known)}; it has "
            f"{', '.join(known)}"
        )
    return Options(**layer)


OF_SUM = ("weights_first", "shared", "routed_scaling_factor", "out")
"""Those of `Options` that a layer's sum over a token's experts takes."""


def form_of(w1: Any, w2: Any, said: Options, recorded: bool, **of_experts: Any) -> Form:
    """The form that weights say; of one expert they have no first dimension.

    of_experts: what the experts alone have, which tokens choose: see `form`.
    """
    bias = of_experts.get("bias", False)
    if not isinstance(said.activation, str):
        if said.interleaved or said.clamp.said:
            raise BadArgument("a function is the whole activation: leave out what else is said")
        return Form("bias" * bias)
    return form(
        said.activation,
        gated=w1.shape[-2] != w2.shape[-1] * packed(said.dtype_b if of_experts else ""),
        interleaved=said.interleaved,
        clamp=said.clamp,
        columns_lie=_contiguous_rows(w1),
        recorded=recorded,
        **of_experts,
    )


def form_of_experts(w1: Any, w2: Any, rows: int, said: Options, copied: bool) -> Form:
    """The form of the experts that tokens choose. rows: choices. copied: see `are_copied`."""
    whole = w1.dtype == w2.dtype and said.scaling.has_whole_blocks(w2.shape[-1])
    whole = whole and rows > FEW_ROWS * w1.shape[0]
    return form_of(
        w1,
        w2,
        said,
        copied,
        bias=said.b1 is not None,
        by_columns=said.scaling.by_columns,
        rounded=said.scaling.quant,
        whole_blocks=whole and of_planned_arch(rounds_in_product),
    )


def are_copied(x: Any, w1: Any, w2: Any, said: Options, routed: tuple[Any, ...] = ()) -> bool:
    """Whether tokens are copied into the order of their experts, for gradients.

    routed: what the routing's weights are made of.
    """
    first = routed if said.weights_first else ()
    return is_recorded(x, w1, w2, said.b1, said.b2, *first)


def form_of_shared(x: Any, said: Options) -> Form:
    """The form of the expert that serves every token, if there is one."""
    if said.shared is None:
        return Form("")
    how = form_of(*said.shared, said, is_recorded(x, *said.shared))
    # GEMM does not take halves that lie apart as pairs.
    return Form("", gate=str(said.activation)) if how.gates_apart else how


def are_foreign(*operands: Any) -> bool:
    """Whether some operand is of a library that torch has to be told of, through DLPack."""
    return not is_compiling() and not all(is_torch(one) or is_numpy(one) for one in operands)


def adopted(x: Any, w1: Any, w2: Any, said: Options) -> tuple[Any, Any, Any, Options]:
    """Torch tensors over arrays of other libraries. Raises `BadArgument`."""
    made: dict[str, Any] = {}
    for name in ("scales", "scales_a", "zeros", "shared"):
        if (pair := getattr(said, name)) is not None:
            made[name] = tuple([adopt(one, name) for one in pair])
    return adopt(x, "x"), adopt(w1, "w1"), adopt(w2, "w2"), replace(said, **made)


def numbers(how: Form, like: Any) -> tuple[Any, ...]:
    """The scalars that an epilogue takes: arrays, which a repeated call passes too. A graph that
    torch compiles has the numbers."""
    if is_compiling():
        return tuple([value for _, value in how.numbers])
    return tuple([of_number(name, value, "fp32", like) for name, value in how.numbers])


def is_recorded(*operands: Any) -> bool:
    """Whether torch records gradients of some operand."""
    if not any(getattr(one, "requires_grad", False) for one in operands):
        return False
    return bool(sys.modules["torch"].is_grad_enabled())


def _contiguous_rows(w: Any) -> bool:
    if hasattr(w, "stride"):
        return bool(w.stride(-1) == 1)
    return bool(w.strides[-1] == w.itemsize)


@dataclass(frozen=True, slots=True)
class Order:
    """The rows of every choice, in the order of their experts.

    order, ends, places, experts: as `sort_by_expert` makes them; experts: of each row, None if no
        step asks for them.
    weights: of the routing, for each row, where they come before the first product; else None.
    """

    order: Any
    ends: Any
    places: Any
    experts: Any = None
    weights: Any = None


@dataclass(frozen=True, slots=True)
class Routing:
    """What a router says of each token.

    weights: None: each is 1.
    order, ends, places: as of `sort_by_expert`; None where nothing is sorted yet.
    """

    weights: Any
    experts: Any
    order: Any = None
    ends: Any = None
    places: Any = None

    def sorted(self, steps: Steps, count: int, said: Options) -> Order:
        """The choices by their experts."""
        if self.order is not None:
            return Order(self.order, self.ends, self.places)
        given: dict[str, Any] = {} if said.expert_map is None else {"expert_map": said.expert_map}
        if said.capacity:
            given["capacity"] = said.capacity
        if said.weights_first and self.weights is not None:
            given["weights"] = _in_fp32(steps, self.weights)
        order, experts, _, ends, _, places, *weights = steps.run(
            "sort_by_expert", self.experts, experts=count, **given
        )
        return Order(order, ends, places, experts, *weights)


def rows_of(
    steps: Steps,
    x: Any,
    w1: Any,
    w2: Any,
    routing: Routing,
    said: Options,
    how: Form,
    given: Any,
    copied: bool,
) -> tuple[Any, Any]:
    """The rows of every choice, in the order of their experts, and their places.

    how: the experts' form. given: the arrays of its `numbers`. copied: see `are_copied`.
    """
    count, k = _checked(x, w1, w2, routing.experts, packed(said.dtype_b))
    said.check_scales()
    said.check_types(x, w1)
    by = routing.sorted(steps, count, said)
    rows = steps.view(x, x.reshape(-1, x.shape[-1]))
    chosen: dict[str, Any] = {"rows": by.order, "per_row": k}
    weights = by.weights
    if copied:
        of_tokens = by.places.reshape(-1, k)
        rows = steps.run("take_rows", rows, by.order, per_row=k, places=of_tokens)
        if weights is not None:
            rows, weights = (rows * weights[:, None]).to(rows.dtype), None
        chosen = {}
    rows, of_rows = _rounded(steps, rows, w1, 0, said)
    if said.scale_a == ROW and chosen:
        of_rows = _taken(steps, of_rows, by.order, k)
    if how.gates_apart:
        chosen["gates_apart"] = True
    if how.quant:
        chosen["quant"] = how.quant
    if said.b1 is not None:
        chosen["bias"] = said.b1
    chosen |= _epilogue(how, given)
    first = _product(steps, (rows, of_rows), w1, 0, by, said, chosen, weights)
    if how.quant:
        middle = _pair(first)
    elif said.scale_a and how.gate:
        middle = _pair(_activated(steps, first, how, said, **_rounding(steps, w2, 1, said)))
    else:
        middle = _rounded(steps, _activated(steps, first, how, said), w2, 1, said)
    biased = {} if said.b2 is None else {"epilogue": "bias", "bias": said.b2}
    return _product(steps, middle, w2, 1, by, said, biased), by.places


def _in_fp32(steps: Steps, weights: Any) -> Any:
    """The routing's weights, as a product's rows are multiplied by them."""
    if named(weights.dtype) == "fp32":
        return weights
    flat = steps.view(weights, weights.reshape(1, 1, 1, 1, 1, -1))
    made = steps.run("strided_copy", flat, out_dtype="fp32")
    return steps.view(made, made.reshape(weights.shape))


def _taken(steps: Steps, scales: Any, which: Any, per_row: int) -> Any:
    """One of the scales for each row, by a map."""
    column = steps.view(scales, scales.reshape(-1, 1))
    made = steps.run("take_rows", column, which, per_row=per_row)
    return steps.view(made, made.reshape(-1))


def _rounding(steps: Steps, w: Any, place: int, said: Options) -> dict[str, Any]:
    """What a step is told that rounds the rows which a product takes.

    place: 0 of the first product, 1 of the second.
    """
    to: dict[str, Any] = {"quant": said.scaling.quant, "out_dtype": named(w.dtype)}
    if said.scales_a is not None:
        given = said.scales_a[place]
        to["scale"] = steps.view(given, given.reshape(-1))
    return to


def _rounded(steps: Steps, rows: Any, w: Any, place: int, said: Options) -> tuple[Any, Any]:
    """Rows as a product takes them, and their scales."""
    if not said.scale_a:
        return rows, None
    return _pair(steps.run("quantise_rows", rows, **_rounding(steps, w, place, said)))


def _pair(made: Any) -> tuple[Any, Any]:
    """Rows that were rounded, and their scales; None where these were given."""
    return made if isinstance(made, tuple) else (made, None)


def of_shared(steps: Steps, x: Any, said: Options, how: Form, given: Any) -> Any:
    """What the expert that serves every token makes of them, a row for each."""
    assert said.shared is not None
    w1, w2 = said.shared
    rows = steps.view(x, x.reshape(-1, x.shape[-1]))
    first = steps.run("gemm", rows, steps.view(w1, w1.swapaxes(0, 1)), **_epilogue(how, given))
    middle = _activated(steps, first, how, said)
    return steps.run("gemm", middle, steps.view(w2, w2.swapaxes(0, 1)))


def _epilogue(how: Form, given: Any) -> dict[str, Any]:
    """The first product's epilogue, and what it takes."""
    if not how.epilogue:
        return {}
    names = [name for name, _ in how.numbers]
    return {"epilogue": how.epilogue, **dict(zip(names, given, strict=True))}


def _product(
    steps: Steps,
    rows: tuple[Any, Any],
    w: Any,
    place: int,
    by: Order,
    said: Options,
    more: dict[str, Any],
    weights: Any = None,
) -> Any:
    """A grouped product.

    rows: what it takes, and their scales. place: 0 of the first, 1 of the second.
    more: its epilogue and what else it is told. weights: see `Scaling.factors`.
    """
    how, (taken, of_rows) = said.scaling, rows
    beside = [of_rows] if how.quant == "block" else []
    of_experts = of_columns = None
    of_all = None if said.scales_a is None else said.scales_a[place]
    if how.block_b:
        of_blocks = [given[place] for given in (said.scales, said.zeros) if given is not None]
        beside += [steps.view(one, one.swapaxes(1, 2)) for one in of_blocks]
    elif said.scales is not None:
        scales = said.scales[place]
        wanted = w.shape[0] * (w.shape[1] if how.by_columns else 1)
        if math.prod(scales.shape) != wanted or scales.shape[:1] != w.shape[:1]:
            form_of_scales = "[experts, rows]" if how.by_columns else "[experts]"
            raise BadArgument(
                f"scales of weights {tuple(w.shape)} have shape {tuple(scales.shape)}; with "
                f"scale_b = '{how.scale_b}' they are {form_of_scales}"
            )
        if how.by_columns:
            of_columns = steps.view(scales, scales.reshape(w.shape[0], -1))
        else:
            of_experts = _taken(steps, scales, by.experts, 1)
    if of_all is not None:
        of_all = steps.view(of_all, of_all.reshape(-1))
    factors = how.factors(weights, of_rows, of_experts, of_all, of_columns)
    told = {**more, **how.blocks, **operands(factors)}
    if epilogue := chained(factors, more.get("epilogue", "")):
        told["epilogue"] = epilogue
    turned = steps.view(w, w.swapaxes(1, 2))
    return steps.run("grouped_gemm", taken, turned, by.ends, *beside, **told)


def _activated(steps: Steps, rows: Any, how: Form, said: Options, **to: Any) -> Any:
    """What the second product takes, of the first's rows. to: how a gate rounds it."""
    if not isinstance(said.activation, str):
        return said.activation(rows)
    if not how.gate:
        return rows
    gate = {"gate": how.gate, "interleaved": said.interleaved, **said.clamp.said}
    return steps.run("gated_activation", rows, **gate, **to)


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
