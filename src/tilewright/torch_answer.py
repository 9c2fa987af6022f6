"""Torch's own call answers while a kernel is being built (`standing`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import arrays, calls
from tilewright.calls import Arrays
from tilewright.ops.backward import alike

INDICES = ("int32", "int64")
Laid = tuple[tuple[int, ...], tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Torch's call that computes a problem, for all calls whose arrays lie alike.

    name: torch's name for it.
    problem: what it computes, of `family`.
    names: the operand that each array is, outputs last.
    laid: shape and strides of each array as an operand, or None for an array that lies so.
    reads: the operands that are read, in torch's order.
    outputs: how many arrays are outputs.
    bind: see `Family.stand_in`.
    """

    name: str
    family: Any
    problem: Any
    names: tuple[str, ...]
    laid: tuple[Laid, ...]
    reads: tuple[str, ...]
    outputs: int
    bind: Callable[..., Callable[[], Any]]

    def __call__(self, given: Sequence[Any], scalars: Sequence[int | float | None]) -> None:
        """Compute on the current stream, and write the outputs. Raises `RuntimeError` where torch
        refuses, and has written nothing then.

        given: the arrays, in the order of `names`. scalars: those of the call.
        """
        torch: Any = sys.modules["torch"]
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                self._compute(given, scalars)
        else:
            self._compute(given, scalars)

    def _compute(self, given: Sequence[Any], scalars: Sequence[int | float | None]) -> None:
        tensors = {
            name: x if laid is None else x.detach().as_strided(*laid, x.storage_offset())
            for name, laid, x in zip(self.names, self.laid, given, strict=True)
        }
        inputs = {name: tensors[name] for name in self.reads}
        inputs |= calls.scalar_values(self.family, self.problem, scalars)
        outputs = {name: tensors[name] for name in self.names[len(given) - self.outputs :]}
        made = self.bind(inputs, outputs)()
        made = made if isinstance(made, tuple) else (made,)
        for own, theirs in zip(outputs.values(), made, strict=True):
            if own is not theirs:
                own.copy_(theirs)


def answer(family: Any, given: Arrays) -> Answer | None:
    """Torch's call that computes what `given` states. None where torch has no call, where arrays
    are not tensors or have fewer dimensions or elements than the problem's, where a call adds to
    what is there, and where the device holds lengths or offsets: kernels here keep to their
    operands whatever these are, and torch's do not."""
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(x, torch.Tensor) for x in given.all):
        return None
    operands = {one.name: one for one in family.operands(given.problem)}
    if any(one.role == "inout" or (one.read and one.dtype in INDICES) for one in operands.values()):
        return None
    laid: list[Laid] = []
    for name, x in zip(given.names, given.all, strict=True):
        one = operands[name]
        if alike(arrays.view(x), one):
            laid.append(None)
        elif x.dim() < len(one.shape) or x.numel() != math.prod(one.shape):
            return None
        else:
            laid.append((tuple(one.shape), tuple(one.strides)))
    found = family.stand_in(given.problem)
    if not found:
        return None
    name, bind = next(iter(found.items()))
    reads = tuple(one.name for one in operands.values() if one.read)
    count = len(given.outputs)
    return Answer(name, family, given.problem, given.names, tuple(laid), reads, count, bind)
