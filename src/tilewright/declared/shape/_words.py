"""The words of chains of operations on elements: those of epilogues, and more.

An epilogue's operand has the shape of the sums or of their rows; here operands are broadcast, so
one word does for all (``div``, by a matrix, a row or a number).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues
from tilewright.ops.derivatives import Derivative
from tilewright.ops.epilogues import Operation, Takes

# --- references: float64 arrays, or tensors of torch by their methods -----------------------------


def _called(name: str, x: Any) -> Any:
    if hasattr(x, name):
        return getattr(x, name)()
    import numpy as np

    with np.errstate(all="ignore"):
        return getattr(np, name)(x)


def _over(x: Any, by: Any) -> Any:
    if hasattr(by, "exp"):
        return x / by
    import numpy as np

    with np.errstate(all="ignore"):
        return np.divide(x, by)


def _power(x: Any, exponent: Any) -> Any:
    if hasattr(x, "exp"):
        return x**exponent
    import numpy as np

    with np.errstate(all="ignore"):
        return np.power(x, exponent)


def _rsqrt(x: Any) -> Any:
    return _over(1.0, _called("sqrt", x))


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + _called("exp", -x))


# --- derivatives ----------------------------------------------------------------------------------


def _by_quotient(dz: Any, x: Any, by: Any) -> Any:
    by = by.float()
    return -dz.float() * x.float() / (by * by)


def _by_power(dz: Any, x: Any, exponent: Any) -> Any:
    exponent = exponent.float()
    made = dz.float() * exponent * x.float() ** (exponent - 1)
    return made.masked_fill(exponent == 0, 0)


_OWN = "tilewright.declared.shape.kernels._words:"

WORDS: dict[str, Operation] = {
    o.name: o
    for o in (
        Operation(
            "sub",
            _OWN + "minus",
            "subtracts an operand",
            lambda x, other: x - other,
            (Takes("sub", "d"),),
            gradient=Derivative(to_operands=(lambda dz, x, other: -dz,)),
        ),
        Operation(
            "div",
            _OWN + "over",
            "divides by an operand",
            _over,
            (Takes("div", "d", "", "scale"),),
            amplifies=8,
            gradient=Derivative(
                lambda dz, x, by: dz.float() / by.float(), (_by_quotient,), operands_read=True
            ),
        ),
        Operation(
            "pow",
            _OWN + "power",
            "to the power of an operand, which has no gradient",
            _power,
            (Takes("exponent", "d", "", "scale"),),
            amplifies=16,
            gradient=Derivative(_by_power, (None,), reads="x"),
        ),
        *(
            Operation(name, _OWN + function, doc, reference, amplifies=amplifies, gradient=gradient)
            for name, function, doc, reference, amplifies, gradient in (
                ("neg", "negative", "-x", lambda x: -x, 1, Derivative(lambda dz, x: -dz)),
                (
                    "abs",
                    "absolute",
                    "|x|",
                    abs,
                    1,
                    Derivative(lambda dz, x: dz.float() * x.float().sign(), reads="x"),
                ),
                (
                    "exp",
                    "exp",
                    "exp(x)",
                    partial(_called, "exp"),
                    16,
                    Derivative(lambda dz, z: dz.float() * z.float(), reads="z"),
                ),
                (
                    "log",
                    "log",
                    "the natural logarithm",
                    partial(_called, "log"),
                    8,
                    Derivative(lambda dz, x: dz.float() / x.float(), reads="x"),
                ),
                (
                    "sqrt",
                    "sqrt",
                    "√x",
                    partial(_called, "sqrt"),
                    2,
                    Derivative(lambda dz, z: 0.5 * dz.float() / z.float(), reads="z"),
                ),
                (
                    "rsqrt",
                    "rsqrt",
                    "1 / √x",
                    _rsqrt,
                    8,
                    Derivative(lambda dz, z: -0.5 * dz.float() * z.float() ** 3, reads="z"),
                ),
                (
                    "sigmoid",
                    "sigmoid",
                    "1 / (1 + exp(-x))",
                    _sigmoid,
                    2,
                    Derivative(lambda dz, z: dz.float() * z * (1 - z), reads="z"),
                ),
                (
                    "tanh",
                    "tanh",
                    "the hyperbolic tangent",
                    partial(_called, "tanh"),
                    2,
                    Derivative(lambda dz, z: dz.float() * (1 - z * z), reads="z"),
                ),
            )
        ),
    )
}
"""Beside those of epilogues, by name. Their derivatives' `to_operands` take the operands too:
(dz, x, *operands)."""


def parse(chain: str) -> tuple[Operation, ...]:
    """The operations of a chain. Raises `BadArgument` for a word that is none."""
    known = {**WORDS, **epilogues.OPERATIONS}
    found = []
    for name in chain.split("+") if chain else ():
        if name not in known:
            raise BadArgument(
                f"unknown operation '{name}' in chain '{chain}'{nearest(name, known)}; "
                f"known: {', '.join(known)}"
            )
        if name in WORDS and name in epilogues.OPERATIONS:
            raise BadArgument(
                f"chains have an operation {name}, and one was registered for epilogues too; "
                "register it by another name"
            )
        found.append(known[name])
    return tuple(found)


def takes(chain: str) -> tuple[Takes, ...]:
    """The operands of a chain, in order."""
    return tuple(taken for one in parse(chain) for taken in one.takes)


def kinds(chain: str) -> str:
    """What the operations of a chain take, as kernels read it (`ops/device/epilogue.py`)."""
    return ",".join("".join(taken.kind for taken in one.takes) for one in parse(chain))
