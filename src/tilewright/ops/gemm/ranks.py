"""Operands of any number of dimensions, as ``torch.matmul`` and ``np.matmul`` take them: a vector,
and batches of several dimensions that are broadcast. A contraction states them, and copies
nothing."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import BadArgument
from tilewright.ops.nouns import Call, View

_BATCH = "".join(letter for letter in string.ascii_lowercase if letter not in "mnk")


def as_contraction(call: Call) -> Call:
    """The call with an ``equation``, where an operand is a vector or a batch of more than one
    dimension; else the call itself.

    Dimensions of size 1 in which A or B is broadcast are left out of its view. Raises `BadArgument`
    for batches that do not fit, and for operands without dimensions.
    """
    if "equation" in call.options or len(call.inputs) < 2:
        return call
    a, b, *others = call.inputs
    rank_a, rank_b = len(a.shape), len(b.shape)
    shuffled = (rank_a, rank_b) == (2, 4)
    ordinary = rank_a in (2, 3) and rank_b in (2, 3)
    if a.pointers or b.pointers or ordinary or shuffled:
        return call
    for name, view in (("A", a), ("B", b)):
        if not 1 <= len(view.shape) <= len(_BATCH):
            raise BadArgument(f"{name} has {len(view.shape)} dimensions; gemm takes 1 and more")
    equation, a, b = _stated(a, b)
    return replace(call, inputs=(a, b, *others), options={**call.options, "equation": equation})


def _stated(a: View, b: View) -> tuple[str, View, View]:
    """The equation, and views of A and B without the dimensions in which they are broadcast."""
    of_a = "mk" if len(a.shape) > 1 else "k"
    of_b = "kn" if len(b.shape) > 1 else "k"
    if a.shape[-1] != b.shape[-len(of_b)]:
        raise BadArgument(f"A has shape {a.shape} and B {b.shape}: A's columns must equal B's rows")
    batch_a, batch_b = a.shape[: -len(of_a)], b.shape[: -len(of_b)]
    count = max(len(batch_a), len(batch_b))
    sizes = []
    for x, y in zip(_filled(batch_a, count), _filled(batch_b, count), strict=True):
        if 1 not in (x, y) and x != y:
            raise BadArgument(
                f"A has shape {a.shape} and B {b.shape}: their batches are {x} and {y} where they "
                "must be equal, or 1"
            )
        sizes.append(y if x == 1 else x)
    term_a, a = _term(a, of_a, sizes)
    term_b, b = _term(b, of_b, sizes)
    rows, columns = of_a.replace("k", ""), of_b.replace("k", "")
    return f"{term_a},{term_b}->{_BATCH[:count]}{rows}{columns}", a, b


def _filled(batch: Sequence[int], count: int) -> tuple[int, ...]:
    """The sizes of a batch with ones in front, as broadcasting has it."""
    return (*(1,) * (count - len(batch)), *batch)


def _term(view: View, last: str, sizes: Sequence[int]) -> tuple[str, View]:
    """The labels of an operand, and its view.

    last: labels of its matrix or vector. sizes: of the whole batch.
    """
    own = len(view.shape) - len(last)
    first = len(sizes) - own
    kept = [i for i in range(own) if view.shape[i] != 1 or sizes[first + i] == 1]
    labels = "".join(_BATCH[first + i] for i in kept)
    kept += range(own, len(view.shape))
    shape = tuple(view.shape[i] for i in kept)
    strides = tuple(view.strides[i] for i in kept)
    return labels + last, replace(view, shape=shape, strides=strides)
