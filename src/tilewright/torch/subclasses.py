"""Tensors that an operation cannot take: those of several devices, and those of several lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilewright import arrays
from tilewright.errors import BadArgument
from tilewright.torch import sharding


def refuse(op: str, tensors: Sequence[Any], sharded: bool = False) -> None:
    """Raise `BadArgument` for a nested tensor and for a ``DTensor``, saying what to pass
    instead.

    sharded: whether the operator has rules for ``DTensor``.
    """
    for place, x in enumerate(tensors, 1):
        if isinstance(x, torch.Tensor) and not (sharded and sharding.is_sharded(x)):
            arrays.refuse_parts(x, f"operand {place} of {op}")


@contextmanager
def served(op: str, tensors: Sequence[Any]) -> Iterator[None]:
    """Raise `BadArgument` in place of torch's error where a class of tensors has no rule for the
    operator, and where a ``DTensor`` stands beside plain tensors."""
    try:
        yield
    except (NotImplementedError, TypeError) as error:
        if isinstance(error, TypeError) and "__torch_dispatch__" not in str(error):
            raise
        plain = (torch.Tensor, torch.nn.Parameter)
        kinds = sorted({type(x).__name__ for x in tensors if type(x) not in plain})
        if not kinds:
            raise
        raise BadArgument(
            f"{op} has no rule for tensors of the class {', '.join(kinds)}: pass the plain tensors "
            "that they are made of"
        ) from error
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" not in str(error):
            raise
        raise BadArgument(
            f"{op} is given a DTensor beside plain tensors: make these DTensor too "
            "(distribute_tensor(x, mesh, [Replicate()])), or pass x.to_local() of the others"
        ) from error
