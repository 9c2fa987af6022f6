"""What a call of a layer states, and the steps that follow from it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.errors import BadArgument
from tilewright.moe.form import BLOCKS, Clamp, Form, form, packed
from tilewright.moe.steps import Steps
from tilewright.number_array import of_number
from tilewright.operation import is_compiling

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
    expert_map: Any = None
    capacity: int = 0
    shared: tuple[Any, Any] | None = None
    routed_scaling_factor: float = 1.0
    out: Any = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All, None for each that is not there."""
        both = (None, None)
        scales, shared = self.scales or both, self.shared or both
        return (self.b1, self.b2, *scales, self.expert_map, *shared, self.out)

    @property
    def words(self) -> tuple[Any, ...]:
        """The others."""
        gate = (self.activation, self.interleaved, self.limit, self.alpha, self.shift)
        few = (self.scale_a, self.scale_b, self.dtype_b)
        return (*gate, *few, self.capacity, self.routed_scaling_factor)

    @property
    def clamp(self) -> Clamp:
        return Clamp(self.limit, self.alpha, self.shift)


def form_of(w1: Any, w2: Any, said: Options, bias: bool, recorded: bool, rounded: bool) -> Form:
    """The form that weights of experts say; of one expert they have no first dimension."""
    if not isinstance(said.activation, str):
        if said.interleaved or said.clamp.said:
            raise BadArgument("a function is the whole activation: leave out what else is said")
        return Form("bias" * bias)
    return form(
        said.activation,
        gated=w1.shape[-2] != w2.shape[-1] * packed(said.dtype_b),
        interleaved=said.interleaved,
        bias=bias,
        clamp=said.clamp,
        columns_lie=_contiguous_rows(w1),
        recorded=recorded,
        rounded=rounded,
    )


def form_of_experts(x: Any, w1: Any, w2: Any, said: Options) -> Form:
    """The form of the experts that tokens choose."""
    recorded = is_recorded(x, w1, w2, said.b1, said.b2)
    return form_of(w1, w2, said, said.b1 is not None, recorded, said.scale_a != "")


def form_of_shared(x: Any, said: Options) -> Form:
    """The form of the expert that serves every token, if there is one."""
    if said.shared is None:
        return Form("")
    how = form_of(*said.shared, said, False, is_recorded(x, *said.shared), False)
    # GEMM does not take halves that lie apart as pairs.
    return Form("", gate=str(said.activation)) if how.gates_apart else how


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
    if not hasattr(w, "strides"):
        raise BadArgument(
            f"w1 is of type {type(w).__name__}; pass torch tensors, as torch.from_dlpack makes "
            "them, or NumPy arrays"
        )
    return bool(w.strides[-1] == w.itemsize)


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

    def sorted(self, steps: Steps, count: int, said: Options) -> tuple[Any, Any, Any]:
        """Order, ends and places."""
        if self.order is not None:
            return self.order, self.ends, self.places
        given: dict[str, Any] = {} if said.expert_map is None else {"expert_map": said.expert_map}
        if said.capacity:
            given["capacity"] = said.capacity
        order, _, _, ends, _, places = steps.run(
            "sort_by_expert", self.experts, experts=count, **given
        )
        return order, ends, places


def rows_of(
    steps: Steps, x: Any, w1: Any, w2: Any, routing: Routing, said: Options, how: Form, given: Any
) -> tuple[Any, Any]:
    """The rows of every choice, in the order of their experts, and their places.

    how: the experts' form. given: the arrays of its `numbers`.
    """
    count, k = _checked(x, w1, w2, routing.experts, packed(said.dtype_b))
    scaled, few_bits = said.scales is not None, said.scale_a or said.dtype_b
    if scaled != (said.scale_b != "") or (few_bits and not scaled):
        raise BadArgument("scales= and scale_b= belong together, and scale_a= and dtype_b= to them")
    if said.scale_a not in ("", BLOCKS):
        raise BadArgument(f"scale_a = {said.scale_a!r}; rows are rounded in blocks of {BLOCKS}")
    order, ends, places = routing.sorted(steps, count, said)
    rows = steps.view(x, x.reshape(-1, x.shape[-1]))
    chosen: dict[str, Any] = {"rows": order, "per_row": k}
    if is_recorded(x, w1, w2, said.b1, said.b2):
        of_tokens = places.reshape(-1, k)
        rows = steps.run("take_rows", rows, order, per_row=k, places=of_tokens)
        chosen = {}
    chosen |= _epilogue(how, given)
    if how.gates_apart:
        chosen["gates_apart"] = True
    if said.b1 is not None:
        chosen["bias"] = said.b1
    s1, s2 = said.scales or (None, None)
    first = _product(steps, rows, w1, s1, ends, said, chosen)
    eight_bits = said.scale_a != "" and how.gate != ""
    to = {"quant": "block", "out_dtype": w2.dtype} if eight_bits else {}
    middle = _activated(steps, first, how, said, **to)
    biased = {} if said.b2 is None else {"epilogue": "bias", "bias": said.b2}
    return _product(steps, middle, w2, s2, ends, said, biased), places


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
    steps: Steps, rows: Any, w: Any, scales: Any, ends: Any, said: Options, more: dict[str, Any]
) -> Any:
    """A grouped product, of rows that are rounded first where `scale_a` says so and they come
    without scales."""
    few = {"scale_a": said.scale_a, "scale_b": said.scale_b, "dtype_b": said.dtype_b}
    operands = [steps.view(w, w.swapaxes(1, 2)), ends]
    if said.scale_a:
        if not isinstance(rows, tuple):
            rows = steps.run("quantise_rows", rows, quant="block", out_dtype=w.dtype)
        rows, of_rows = rows
        operands.append(of_rows)
    if scales is not None:
        operands.append(steps.view(scales, scales.swapaxes(1, 2)))
    more = {**more, **{name: word for name, word in few.items() if word}}
    return steps.run("grouped_gemm", rows, *operands, **more)


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
