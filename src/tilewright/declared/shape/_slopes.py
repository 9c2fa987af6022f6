"""Gradients of chains of operations on elements, on torch tensors by their methods alone."""

from __future__ import annotations

from typing import Any

from tilewright.declared.shape import _words

NAMES = ("x", "a", "b", "c")


def slope(chain: str, of: str, *tensors: Any) -> Any:
    """The gradient of one operand of a chain.

    of: its name. tensors: x, the further operands, and the gradient that arrives.

    What the operations were given is computed anew, in fp32, as far as derivatives read it.
    """
    *given, dz = tensors
    names = iter(NAMES[1:])
    steps = [(one, [next(names) for _ in one.takes]) for one in _words.parse(chain)]
    known = dict(zip(NAMES, given, strict=False))
    before = [given[0]]
    first = 0 if of == "x" else next(i for i, (_, named) in enumerate(steps) if of in named)
    last = max((i for i in range(first, len(steps)) if _reads(steps[i][0], i == first)), default=-1)
    for one, named in steps[: last + 1]:
        operands = (known[name].float() for name in named)
        before.append(one.reference(before[-1].float(), *operands))
    for place in range(len(steps) - 1, first - 1, -1):
        one, named = steps[place]
        derivative = one.gradient
        assert derivative is not None
        if of in named:
            to = derivative.to_operands[named.index(of)]
            assert to is not None
            more = [known[name] for name in named] if one.name in _words.WORDS else []
            dz = to(dz, before[place] if derivative.operands_read else dz, *more)
        elif derivative.to_input is not None:
            reads = {"x": place, "z": place + 1}.get(derivative.reads)
            z = dz if reads is None else before[reads]
            dz = derivative.to_input(dz, z, *(known[name] for name in named))
    return summed(dz, known[of])


def _reads(operation: Any, first: bool) -> bool:
    """Whether a derivative reads what its operation was given, or made."""
    return bool(operation.gradient.reads or (first and operation.gradient.operands_read))


def summed(dz: Any, like: Any) -> Any:
    """A gradient summed over the dimensions in which the operand `like` is broadcast, in fp32."""
    shape = like.shape
    dims = [i for i in range(len(shape)) if shape[i] == 1 and dz.shape[i] != 1]
    found = dz.float().sum(dims, keepdim=True) if dims else dz
    return found.to(like.dtype)
