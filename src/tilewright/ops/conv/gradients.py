"""Gradients of convolutions: each direction's are the other two, so they are operations of this
family too. Those of an epilogue are as GEMM's (`ops/derivatives.py`): an operation whose derivative
needs its input has that computed anew, by a convolution with the epilogue up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.ops.backward import Backward
from tilewright.ops.conv.operands import options
from tilewright.ops.conv.problem import DIRECTIONS, GRADIENT_DTYPES, ConvProblem
from tilewright.ops.epilogues import Takes
from tilewright.ops.gemm.column_sums import column_sums
from tilewright.ops.recording import Recording, refused
from tilewright.verdict import Verdict, no

_MAKES = {"y": "forward", "x": "data", "w": "weights"}
"""The direction that makes x, w or y, or their gradients."""


def gradients(problem: ConvProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    verdict = _refused(problem, wanted)
    return _Steps(problem, wanted).backward() if verdict is None else verdict


def _refused(p: ConvProblem, wanted: Sequence[str]) -> Verdict | None:
    if p.dtype not in GRADIENT_DTYPES or p.dtype_out != p.dtype:
        return no(
            "gradients_dtype",
            f"a convolution of {p.dtype} to {p.dtype_out} has no gradients; those of one dtype of "
            f"{', '.join(GRADIENT_DTYPES)} throughout do",
        )
    return refused(p.epilogue, wanted)


class _Steps(Recording):
    """The backward pass of one problem."""

    spread_kind = "n"
    option = "epilogue"

    def __init__(self, problem: ConvProblem, wanted: Sequence[str]) -> None:
        one, other, made = DIRECTIONS[problem.direction]
        super().__init__(problem.epilogue, (one, other), made, problem.dtype, wanted)
        self._p = problem

    def readable(self, x: Any) -> Any:
        """`x`, or a copy where its elements share memory (the gradient of a sum has strides of
        0)."""
        strides = x.stride()
        if 0 not in strides:  # as nearly always
            return x
        apart = all(stride or size == 1 for size, stride in zip(x.shape, strides, strict=True))
        return x if apart else x.contiguous()

    def summed(self, taken: Takes) -> Callable[[Any], Any]:
        if taken.kind == "n":
            return column_sums((0, *range(2, 2 + len(self._p.spatial))))
        return partial(_summed, taken.kind)

    def spread(self, x: Any) -> Any:
        return x.reshape(1, -1, *(1,) * len(self._p.spatial))

    def again(self, makes: str, chain: str, names: Sequence[str]) -> None:
        said = options(self._p)
        said.pop("epilogue")
        if chain:
            said["epilogue"] = chain
        self.add(makes, self._p.family, *self._inputs, keywords={n: n for n in names}, **said)

    def from_sums(self, dz: str) -> None:
        for name in self._inputs:
            if name in self._wanted:
                self._found[name] = self._of(name, dz)

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
        return self.add(f"grad {name}", p.family, *read, **said)


def _summed(kind: str, x: Any) -> Any:
    """`x`, of the result's shape, summed to the shape of an operand of the epilogue."""
    return x if kind == "d" else x.sum().reshape(1)
