"""What tensors torch's functions take here: the others are refused, and torch's function named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.errors import BadArgument
from tilewright.torch import autocast

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def instead(function: str) -> str:
    """How to compute with torch what is refused here."""
    return f"use torch.{function}"


def floats(function: str, **tensors: Any) -> None:
    """Raise `BadArgument` unless all are dense tensors of one dtype of `FLOATS`. Autocast brings
    dtypes together.

    function: torch's, behind ``torch.``.
    tensors: by the names of arguments; None for one left out.
    """
    first = ""
    for name, x in tensors.items():
        if x is None:
            continue
        strided(function, name, x)
        if x.dtype not in FLOATS:
            raise BadArgument(
                f"{name} is {x.dtype}: tensors of float32, float16 and bfloat16 are computed here; "
                f"for others, {instead(function)}"
            )
        if not first:
            first = name
        elif x.dtype != tensors[first].dtype and not autocast.active():
            raise BadArgument(
                f"{first} is {tensors[first].dtype} and {name} is {x.dtype}: {function} takes "
                "tensors of one dtype; convert one of them"
            )


def strided(function: str, name: str, x: Any) -> None:
    """Raise `BadArgument` unless `x` is a dense tensor."""
    if not isinstance(x, torch.Tensor):
        raise BadArgument(f"{name} is a {type(x).__name__}, but must be a torch tensor")
    if x.layout is not torch.strided or x.is_nested:
        kind = "nested" if x.is_nested else str(x.layout)
        raise BadArgument(f"{name} is {kind}: pass a dense tensor, or {instead(function)}")


def dimensions(name: str, x: Any, *counts: int) -> None:
    """Raise `BadArgument` unless `x` has one of these numbers of dimensions."""
    if x.dim() not in counts:
        wanted = " or ".join(map(str, counts))
        raise BadArgument(f"{name} is {list(x.shape)}, but must have {wanted} dimensions")


def fills(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a tensor of these sizes, ones in front included, is broadcast to `shape`. Sizes are
    compared one by one: dynamo takes ``in`` of a tuple to be false where a size is a symbol."""
    return len(sizes) == len(shape) and all(
        n == 1 or n == m for n, m in zip(sizes, shape, strict=True)
    )


def readable(x: Any) -> Any:
    """`x`, or a copy where the rows or the columns of its matrices are not contiguous and apart. A
    vector is read as it lies."""
    if x.dim() < 2 or 0 in x.shape:
        return x
    rows, columns = x.shape[-2:]
    down, along = x.stride()[-2:]
    if (along == 1 or columns == 1) and (rows == 1 or down >= columns):
        return x
    if (down == 1 or rows == 1) and (columns == 1 or along >= rows):
        return x
    return x.contiguous()


def fitted(out: Any, shape: tuple[int, ...]) -> Any:
    """`out`, which gets this shape if it has no elements, as torch has it."""
    if tuple(out.shape) != shape and out.numel() == 0:
        out.resize_(shape)
    return out
