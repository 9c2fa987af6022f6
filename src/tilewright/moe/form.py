"""Which steps compute a layer's activation: one rule, for calls and for plans."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest

GATES = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")
"""Activations of a gate: those of `gated_activation`."""

BLOCKS = "1x128"
"""The blocks that rows are rounded in."""

ALONE = ("silu", "gelu", "gelu_tanh", "relu")
"""Activations without a gate: those of epilogues."""


def packed(dtype: str) -> int:
    """Elements of a weight in each of its array: `dtype` says what is in its bytes, or ""."""
    return DTYPES[dtype].packed if dtype in DTYPES else 1


@dataclass(frozen=True, slots=True)
class Form:
    """How the first product's result becomes what the second takes.

    epilogue: of the first product.
    gates_apart: whether it takes gates and ups that lie apart as pairs.
    gate: the activation of the step behind it; "" for none.
    """

    epilogue: str
    gates_apart: bool
    gate: str

    @property
    def folds(self) -> int:
        """Columns of the first product for each of its result's."""
        return 2 if self.epilogue.endswith("swiglu") else 1


def form(
    activation: str,
    *,
    gated: bool,
    interleaved: bool = False,
    bias: bool = False,
    clamped: bool = False,
    columns_lie: bool = True,
    recorded: bool = False,
    rounded: bool = False,
) -> Form:
    """The form of a layer.

    activation: `GATES` with a gate, `ALONE` without one.
    gated: whether w1 has a gate's rows and an up's for each of w2's columns.
    interleaved: whether these take turns; else all gates come first.
    bias: whether the first product has one.
    clamped: whether the gate has a limit, a factor or a shift.
    columns_lie: whether w1's rows lie contiguous, which are the product's columns.
    recorded: whether gradients are recorded, which SwiGLU in an epilogue has not.

    rounded: whether the second product takes 8 bits: the activation then rounds what it makes.

    SwiGLU is in the first product's epilogue, unless it is clamped, recorded or rounded, or its
    halves lie apart and there is a bias or rows of w1 do not lie contiguous. Raises `BadArgument`.
    """
    known = GATES if gated else ALONE
    if activation not in known:
        what = "a gate's activation" if gated else "an activation without a gate"
        raise BadArgument(
            f"activation '{activation}'{nearest(activation, known)} is not {what}; these are: "
            f"{', '.join(known)}"
        )
    first = ("bias",) * bias
    if not gated:
        if interleaved or clamped:
            raise BadArgument("w1 has no gates to be interleaved, limited, scaled or shifted")
        return Form("+".join((*first, activation)), False, "")
    fused = activation == "silu" and not (clamped or recorded or rounded)
    if fused and (interleaved or (columns_lie and not bias)):
        return Form("+".join((*first, "swiglu")), not interleaved, "")
    return Form("+".join(first), False, activation)
