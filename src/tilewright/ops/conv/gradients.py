"""Gradients of convolutions: each direction's are the other two, so they are operations of this
family too. Sums of an epilogue's bias are torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.conv.operands import options
from tilewright.ops.conv.problem import DIRECTIONS, GRADIENT_DTYPES, ConvProblem
from tilewright.verdict import Verdict, no

EPILOGUES = ("", "bias")
"""Epilogues with gradients."""

_MAKES = {"y": "forward", "x": "data", "w": "weights"}
"""The direction that makes x, w or y, or their gradients."""


def gradients(problem: ConvProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    p = problem
    if p.dtype not in GRADIENT_DTYPES or p.dtype_out != p.dtype:
        return no(
            "gradients_dtype",
            f"a convolution of {p.dtype} to {p.dtype_out} has no gradients; those of one dtype of "
            f"{', '.join(GRADIENT_DTYPES)} throughout do",
        )
    if p.epilogue not in EPILOGUES:
        return no("gradients_epilogue", f"epilogue '{p.epilogue}' has no gradients; bias has")
    steps = [Computation("given", _readable, (incoming(p.output_name),))]
    found = {}
    for name in wanted:
        found[name] = f"grad {name}"
        if name == "bias":
            steps.append(Computation(found[name], _summed, ("given",)))
        else:
            steps.append(_of(p, name))
    return Backward(tuple(steps), found)


def _of(p: ConvProblem, name: str) -> Computation:
    """The gradient of x, w or y, from the gradient of what `p` makes and the other operand."""
    direction = _MAKES[name]
    read = tuple("given" if of == p.output_name else of for of in DIRECTIONS[direction][:2])
    said = options(p)
    for word in ("direction", "spatial", "filter", "epilogue"):
        said.pop(word, None)
    if direction != "forward":
        said["direction"] = direction
    if direction == "data":
        said["spatial"] = p.spatial
    if direction == "weights":
        said["filter"] = p.filter
    return Computation(f"grad {name}", p.family, read, options=said)


def _readable(x: Any) -> Any:
    """`x`, or a copy where its elements share memory (the gradient of a sum has strides of 0)."""
    apart = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x if apart else x.contiguous()


def _summed(x: Any) -> Any:
    """The sum over all but the channels."""
    return x.sum((0, *range(2, x.dim())))
