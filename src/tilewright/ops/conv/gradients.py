"""Gradients of convolutions: each direction's are the other two, so they are operations of this
family too. Those of an epilogue are as GEMM's (`gemm.derivatives`): an operation whose derivative
needs its input has that computed anew, by a convolution with the epilogue up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.conv.operands import options
from tilewright.ops.conv.problem import DIRECTIONS, GRADIENT_DTYPES, ConvProblem
from tilewright.ops.gemm import epilogues
from tilewright.ops.gemm.gradients import DTYPES
from tilewright.ops.gemm.operands import chain_names
from tilewright.verdict import Verdict, no

_MAKES = {"y": "forward", "x": "data", "w": "weights"}
"""The direction that makes x, w or y, or their gradients."""


def gradients(problem: ConvProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    refused = _refused(problem, wanted)
    return _Steps(problem, wanted).backward() if refused is None else refused


def _refused(p: ConvProblem, wanted: Sequence[str]) -> Verdict | None:
    if p.dtype not in GRADIENT_DTYPES or p.dtype_out != p.dtype:
        return no(
            "gradients_dtype",
            f"a convolution of {p.dtype} to {p.dtype_out} has no gradients; those of one dtype of "
            f"{', '.join(GRADIENT_DTYPES)} throughout do",
        )
    names = iter(chain_names(p.epilogue))
    for one in epilogues.parse(p.epilogue):
        if one.gradient is None:
            return no("gradients_epilogue", f"the operation {one.name} has no gradient")
        for made in one.gradient.to_operands:
            name = next(names)
            if made is None and name in wanted:
                return no("gradients_operand", f"{one.name} has no gradient for {name}")
    return None


class _Steps:
    """The backward pass of one problem as it is put together, last operation first."""

    def __init__(self, problem: ConvProblem, wanted: Sequence[str]) -> None:
        self._p, self._wanted = problem, wanted
        self._steps: list[Computation] = []
        self._found: dict[str, str] = {}
        self._chain = epilogues.parse(problem.epilogue)
        names = iter(chain_names(problem.epilogue))
        self._names = [tuple(next(names) for _ in one.takes) for one in self._chain]

    def backward(self) -> Backward:
        dz = self._add("given", _readable, incoming(self._p.output_name))
        for place in reversed(range(len(self._chain))):
            self._find_operands(place, dz)
            before = {*DIRECTIONS[self._p.direction][:2]}.union(*self._names[:place])
            if not before & set(self._wanted):
                return Backward(tuple(self._steps), self._found)
            dz = self._input(place, dz)
        if any(one.gradient and one.gradient.to_input for one in self._chain):
            dz = self._add("of the sums", methodcaller(DTYPES[self._p.dtype]), dz)
        for name in DIRECTIONS[self._p.direction][:2]:
            if name in self._wanted:
                self._found[name] = self._of(name, dz)
        return Backward(tuple(self._steps), self._found)

    def _add(self, makes: str, op: Callable[..., Any], *names: str) -> str:
        self._steps.append(Computation(makes, op, names))
        return makes

    def _find_operands(self, place: int, dz: str) -> None:
        """Find the gradients of an operation's operands from that of its result."""
        derivative = self._chain[place].gradient
        assert derivative is not None
        takes = self._chain[place].takes
        for name, taken, to in zip(self._names[place], takes, derivative.to_operands, strict=True):
            if name in self._wanted:
                assert to is not None
                x = self._before(place) if derivative.operands_read else dz
                each = self._add(f"d{name}", to, dz, x)
                self._found[name] = self._add(f"grad {name}", partial(_summed, taken.kind), each)

    def _input(self, place: int, dz: str) -> str:
        """The gradient of an operation's input from that of its result."""
        derivative = self._chain[place].gradient
        assert derivative is not None
        if derivative.to_input is None:
            return dz
        x = dz
        if derivative.reads == "x":
            x = self._before(place)
        elif derivative.reads == "z":
            last = place == len(self._chain) - 1
            x = self._p.output_name if last else self._before(place + 1)
        shape = partial(_by_channel, len(self._p.spatial))
        given = [
            self._add(f"{name} by channel", shape, name) if taken.kind == "n" else name
            for name, taken in zip(self._names[place], self._chain[place].takes, strict=True)
        ]
        return self._add(f"dz{place}", derivative.to_input, dz, x, *given)

    def _before(self, place: int) -> str:
        """The input of an operation, computed anew (once)."""
        made = f"z{place}"
        if all(step.makes != made for step in self._steps):
            chain = "+".join(one.name for one in self._chain[:place])
            said = options(self._p)
            said.pop("epilogue")
            if chain:
                said["epilogue"] = chain
            names = {name: name for named in self._names[:place] for name in named}
            read = DIRECTIONS[self._p.direction][:2]
            self._steps.append(Computation(made, self._p.family, read, names, said))
        return made

    def _of(self, name: str, dz: str) -> str:
        """The gradient of x, w or y, from that of the sums and the other operand."""
        p, direction = self._p, _MAKES[name]
        read = tuple(dz if of == p.output_name else of for of in DIRECTIONS[direction][:2])
        said = options(p)
        for word in ("direction", "spatial", "filter", "epilogue"):
            said.pop(word, None)
        if direction != "forward":
            said["direction"] = direction
        if direction == "data":
            said["spatial"] = p.spatial
        if direction == "weights":
            said["filter"] = p.filter
        made = f"grad {name}"
        self._steps.append(Computation(made, p.family, read, options=said))
        return made


def _readable(x: Any) -> Any:
    """`x`, or a copy where its elements share memory (the gradient of a sum has strides of 0)."""
    apart = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x if apart else x.contiguous()


def _by_channel(rank: int, x: Any) -> Any:
    return x.reshape(1, -1, *(1,) * rank)


def _summed(kind: str, x: Any) -> Any:
    """`x`, of the result's shape, summed to the shape of an operand of the epilogue."""
    if kind == "d":
        return x
    return x.sum((0, *range(2, x.dim()))) if kind == "n" else x.sum().reshape(1)
