"""Forms of moving, casting and combining elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from forms.common import clipped, kind


def strided_copy(x: Any, scale: Any, out_dtype: str) -> Any:
    if scale is not None:
        return clipped(x.float() / scale, out_dtype).contiguous()
    return x.to(kind(out_dtype), copy=True, memory_format=torch.contiguous_format)


WORDS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "bias": (torch.add, 1),
    "add": (torch.add, 1),
    "mul": (torch.mul, 1),
    "scale": (torch.mul, 1),
    "clamp": (torch.clamp, 2),
    "relu": (F.relu, 0),
    "silu": (F.silu, 0),
    "gelu": (F.gelu, 0),
    "gelu_tanh": (partial(F.gelu, approximate="tanh"), 0),
    **{word: (getattr(torch, word), 1) for word in ("sub", "div", "pow")},
    **{
        word: (getattr(torch, word), 0)
        for word in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh")
    },
}
"""The words of chains, each with how many operands it takes."""


def elementwise_chain(
    x: Any, a: Any, b: Any, c: Any, chain: str, out_dtype: str, n0: int, n1: int, n2: int, n3: int
) -> Any:
    left = iter((a, b, c))
    found = x if x.is_floating_point() else x.float()
    for word in chain.split("+") if chain else ():
        function, takes = WORDS[word]
        found = function(found, *(next(left) for _ in range(takes)))
    made = kind(out_dtype)
    found = clipped(found.float(), out_dtype) if made.itemsize == 1 else found.to(made)
    return found.expand(n0, n1, n2, n3).contiguous()


FORMS = {"strided_copy": strided_copy, "elementwise_chain": elementwise_chain}
