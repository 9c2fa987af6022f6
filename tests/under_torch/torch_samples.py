"""torch's own samples of its products (`op_db`), through our functions. An answer, with its
gradients, is right, or refused by a typed error, or wrong, or an error of another type.

python tests/under_torch/torch_samples.py          # the table, and why
"""

from __future__ import annotations

import sys
import types
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

import tilewright.torch as tt
from tilewright.errors import TilewrightError

ROOMS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""How far an answer may be from float64's: some roundings, as a share of the norm of the result, or
of all gradients together. Attention subtracts dO·O from each dO·V, as FlashAttention does, and O is
rounded: where they cancel, the gradients of q and k are as far off as the terms were rounded."""

Sample = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""torch's function, and the arguments of a call."""


ADAPTERS: dict[str, Callable[..., Any]] = {
    **{name: getattr(tt, name) for name in ("mm", "bmm", "matmul", "addmm", "baddbmm")},
    **{
        f"nn.functional.{name}": getattr(tt, name)
        for name in (
            "linear",
            "scaled_dot_product_attention",
            *(f"{form}{rank}d" for form in ("conv", "conv_transpose") for rank in (1, 2, 3)),
        )
    },
}
"""Ours, with the signature of torch's, by torch's name."""


def samples(name: str, dtype: Any) -> Iterator[Sample]:
    """The samples of one of torch's functions. A dropout is random, so they have none."""
    if "expecttest" not in sys.modules:  # torch's module of samples wants the name, no more
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if info.name == name and not info.variant_test_name:
            for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
                if not sample.kwargs.get("dropout_p"):
                    yield info.op, (sample.input, *sample.args), sample.kwargs


def _answer(call: Callable[..., Any], given: tuple[Any, ...], named: Any, kind: Any) -> list[Any]:
    """The result, and the gradients of the operands from that of a sum that weighs the results
    unequally. kind: what makes a fresh leaf of an operand."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return kind(x.detach()).requires_grad_(x.requires_grad)

    given, named = tuple(map(leaf, given)), {name: leaf(x) for name, x in named.items()}
    result = call(*given, **named)
    wanted = [x for x in (*given, *named.values()) if getattr(x, "requires_grad", False)]
    weights = torch.linspace(-1, 1, result.numel()).bfloat16().reshape(result.shape)
    grads = torch.autograd.grad((result * weights.to(result.dtype)).sum(), wanted)
    return [result.detach(), *grads]


def _far(found: list[Any], exact: list[Any]) -> float:
    """How far tensors are from others, as a share of the norm of all of them."""
    square = 0.0
    for one, other in zip(found, exact, strict=True):
        if one.shape != other.shape or not torch.equal(one.isnan(), other.isnan()):
            return float("inf")
        square += float((one.double() - other).nan_to_num().square().sum())
    whole = sum(float(other.nan_to_num().square().sum()) for other in exact)
    return float((square / max(whole, 1e-4)) ** 0.5)


def verdict(name: str, sample: Sample, dtype: Any) -> tuple[str, str]:
    """``right``, ``refused``, ``wrong`` or ``untyped``, and why."""
    function, given, named = sample
    exact = _answer(
        function, given, named, lambda x: x.double() if x.is_floating_point() else x.clone()
    )
    try:
        found = _answer(ADAPTERS[name], given, named, torch.clone)
    except TilewrightError as error:
        return "refused", str(error)
    except Exception as error:
        return "untyped", f"{type(error).__name__}: {error}"
    if found[0].dtype is not dtype:
        return "wrong", f"its dtype is {found[0].dtype}"
    off = max(_far(found[:1], exact[:1]), _far(found[1:], exact[1:]))
    return ("right", "") if off <= ROOMS[dtype] else ("wrong", f"off by {off:.2g}")


def described(sample: Sample) -> str:
    """The arguments of a call, for a message."""
    _, given, named = sample

    def shown(x: Any) -> str:
        return str(tuple(x.shape)) if isinstance(x, torch.Tensor) else str(x)

    return ", ".join((*map(shown, given), *(f"{n}={shown(x)}" for n, x in named.items())))


def judged(name: str, dtype: Any, each: int = 1) -> tuple[Counter[str], list[str]]:
    """How often each verdict was given on the samples of a function, and the reasons for those
    that are not right.

    each: of so many samples, one; the first is among them.
    """
    found: Counter[str] = Counter()
    reasons = []
    for sample in islice(samples(name, dtype), None, None, each):
        word, why = verdict(name, sample, dtype)
        found[word] += 1
        if why:
            reasons.append(f"{word}: {name}({described(sample)}): {why}")
    return found, reasons


if __name__ == "__main__":
    for kind in ROOMS:
        for called in ADAPTERS:
            count, whys = judged(called, kind)
            print(f"{kind!s:15} {called:45} {dict(count)}", *whys, sep="\n    ", flush=True)
