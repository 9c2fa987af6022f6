"""Torch's own call answers while a kernel is being built (`standing`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright import arrays, calls
from tilewright.calls import Arrays
from tilewright.ops.backward import alike
from tilewright.ops.nouns import Operand

INDICES = ("int32", "int64")


def answer(
    family: Any, given: Arrays, scalars: Sequence[int | float | None]
) -> tuple[str, Callable[[], None]] | None:
    """Torch's name for a call that computes what `given` states on the current stream, and a
    function that calls it and writes the outputs: it raises `RuntimeError` where torch refuses, and
    has written nothing then. None where torch has no call, where arrays are not tensors or have
    fewer dimensions or elements than the problem's, where a call adds to what is there, and where
    the device holds lengths or offsets: kernels here keep to their operands whatever these are, and
    torch's do not."""
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(x, torch.Tensor) for x in given.all):
        return None
    by_name, operands = given.by_name, family.operands(given.problem)
    tensors = {}
    for one in operands:
        if one.role == "inout" or (one.read and one.dtype in INDICES):
            return None
        tensors[one.name] = _as_operand(by_name[one.name], one)
        if tensors[one.name] is None:
            return None
    found = family.stand_in(given.problem)
    if not found:
        return None
    name, bind = next(iter(found.items()))
    inputs = {one.name: tensors[one.name] for one in operands if one.read}
    inputs |= calls.scalar_values(family, given.problem, scalars)
    count = len(given.names) - len(given.outputs)
    outputs = {name: tensors[name] for name in given.names[count:]}

    def run() -> None:
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            made = bind(inputs, outputs)()
            made = made if isinstance(made, tuple) else (made,)
            for own, theirs in zip(outputs.values(), made, strict=True):
                if own is not theirs:
                    own.copy_(theirs)

    return name, run


def _as_operand(x: Any, one: Operand) -> Any:
    """A tensor as its operand, which the family may have folded or turned; None for one with fewer
    dimensions or elements."""
    if alike(arrays.view(x), one):
        return x
    if x.dim() < len(one.shape) or x.numel() != math.prod(one.shape):
        return None
    return x.detach().as_strided(one.shape, one.strides, x.storage_offset())
