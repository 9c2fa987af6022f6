"""Gradients of causal convolutions: one operation, the direction ``backward`` of this family, over
x and what the call read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.causal_conv.operands import operands, options
from tilewright.ops.causal_conv.problem import CausalConvProblem
from tilewright.verdict import Verdict, no

_GRADIENT = {"x": "dx", "w": "dw", "bias": "dbias", "initial_states": "dinitial_states"}


def lowered(inputs: int, named: Sequence[str], options: Mapping[str, Any]) -> tuple[int, ...]:
    """See `tilewright.ops.protocols.Differentiation`."""
    if options.get("direction", "forward") != "forward":
        return ()
    return (*range(inputs), *(i for i, name in enumerate(named, inputs) if name in _GRADIENT))


def gradients(problem: CausalConvProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    if problem.direction != "forward":
        return no(
            "gradients_direction",
            f"a causal convolution of direction {problem.direction} has no gradients; forward has",
        )
    for name in wanted:
        if name not in _GRADIENT:
            return no("gradients_operand", f"a causal convolution has no gradient for {name}")
    read = [one.name for one in operands(problem) if one.read]
    keywords = {name: name for name in read if name not in ("x", "w")}
    steps = [Computation("dy", _readable, (incoming("y"),))]
    keywords["dy"] = "dy"
    if problem.has("final"):
        steps.append(Computation("dfinal_states", _readable, (incoming("final_states"),)))
        keywords["dfinal_states"] = "dfinal_states"
    said = {name: value for name, value in options(problem).items() if name != "final"}
    made = tuple(one for name, one in _GRADIENT.items() if name in read)
    steps.append(
        Computation(made, problem.family, ("x", "w"), keywords, said | {"direction": "backward"})
    )
    return Backward(tuple(steps), {name: _GRADIENT[name] for name in wanted})


def _readable(x: Any) -> Any:
    """`x`, or a copy where its elements share memory (the gradient of a sum has strides of 0)."""
    apart = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x if apart else x.contiguous()
