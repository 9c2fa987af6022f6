"""Tensors that an operation cannot take: those of several devices, and those of several lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilewright import arrays
from tilewright.errors import BadArgument


def refuse(op: str, tensors: Sequence[Any]) -> None:
    """Raise `BadArgument` for a nested tensor and for a ``DTensor``, saying what to pass
    instead."""
    for place, x in enumerate(tensors, 1):
        if isinstance(x, torch.Tensor):
            arrays.refuse_parts(x, f"operand {place} of {op}")


@contextmanager
def served(op: str, tensors: Sequence[Any]) -> Iterator[None]:
    """Raise `BadArgument` in place of torch's error where a class of tensors has no rule for the
    operator."""
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
