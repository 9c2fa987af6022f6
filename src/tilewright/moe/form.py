"""Which steps compute a layer's activation: one rule, for calls and for plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.number_array import LARGEST
from tilewright.ops import epilogues

PAIRED = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_tanh": "geglu_tanh",
    "relu": "reglu",
    "sigmoid": "glu",
}
"""Activations of a gate, those of `gated_activation`, and what an epilogue calls each."""

CLAMPED = {0.0: "clamped_swiglu", 1.0: "clamped_swiglu_plus"}
"""Of SiLU with a limit or a factor, by the shift: what an epilogue calls it."""

ALONE = ("silu", "gelu", "gelu_tanh", "relu")
"""Activations without a gate: those of epilogues."""


def packed(dtype: str) -> int:
    """Elements of a weight in each of its array: `dtype` says what is in its bytes, or ""."""
    return DTYPES[dtype].packed if dtype in DTYPES else 1


def sorts_at_once(tokens: int, experts: int, router: Mapping[str, Any]) -> bool:
    """Whether a router's choices are sorted in the launch that makes them: of a few tokens.

    experts: of the router, which are those of the layer.
    router: fields of `sorted_routing` besides sizes.
    """
    problem = ops.family("sorted_routing").problem_type
    try:
        problem(rows=tokens, experts=experts, **router)
    except BadArgument:
        return False
    return True


FEW_ROWS = 16
"""Rows of an expert, in the mean, up to which a product's tiles are low: those of one row of matrix
instructions."""


def rounds_in_product(name: str) -> bool:
    """Whether products of the architecture with this name round what a gate makes in the time that
    they take anyhow. Elsewhere tiles are twice as wide for it, which takes longer than a step. So
    are low tiles everywhere: see `FEW_ROWS`."""
    products: Any = ops.family("grouped_gemm")
    return bool(products.has_gates_apart(arch(name)))


@dataclass(frozen=True, slots=True)
class Clamp:
    """What a gate does besides its activation: act(alpha · a) / alpha · (b + shift), a ≤ limit,
    -limit ≤ b ≤ limit. By default nothing."""

    limit: float = math.inf
    alpha: float = 1.0
    shift: float = 0.0

    @property
    def said(self) -> dict[str, float]:
        """The numbers that are not the usual ones, by name."""
        named = {"limit": self.limit, "alpha": self.alpha, "shift": self.shift}
        usual = {"limit": math.inf, "alpha": 1.0, "shift": 0.0}
        return {name: value for name, value in named.items() if value != usual[name]}


@dataclass(frozen=True, slots=True)
class Form:
    """How the first product's result becomes what the second takes.

    epilogue: of the first product.
    gates_apart: whether it takes gates and ups that lie apart as pairs.
    gate: the activation of the step behind it; "" for none.
    quant: how the epilogue's result is rounded in the product; "" for not there.
    numbers: the scalars that the epilogue takes, by name.
    """

    epilogue: str
    gates_apart: bool = False
    gate: str = ""
    numbers: tuple[tuple[str, float], ...] = ()
    quant: str = ""

    @property
    def folds(self) -> int:
        """Columns of the first product for each of its result's."""
        return epilogues.fold(self.epilogue)


def form(
    activation: str,
    *,
    gated: bool,
    interleaved: bool = False,
    bias: bool = False,
    by_columns: bool = False,
    clamp: Clamp = Clamp(),
    columns_lie: bool = True,
    recorded: bool = False,
    rounded: str = "",
    whole_blocks: bool = False,
) -> Form:
    """The form of a layer.

    activation: one of `PAIRED` with a gate, of `ALONE` without one.
    gated: whether w1 has a gate's rows and an up's for each of w2's columns.
    interleaved: whether these take turns; else all gates come first.
    bias: whether the first product has one.
    by_columns: whether each of its columns has a scale.
    clamp: what the gate does besides.
    columns_lie: whether w1's rows lie contiguous, which are the product's columns.
    recorded: whether gradients are recorded: a gate in an epilogue would compute its sums again.
    rounded: how what the second product takes is rounded to 8 bits, as `gated_activation` says it:
        the activation then rounds what it makes.
    whole_blocks: whether a product may round it by blocks: the columns are whole blocks of 128,
        both products have one dtype, experts have more than `FEW_ROWS` rows in the mean, and the
        architecture's `rounds_in_product`.

    A gate is in the first product's epilogue, unless

    - gradients are recorded;
    - its result is rounded, but for halves apart in whole blocks, which the product rounds itself;
    - its halves lie apart and there is a bias or a scale for each column, or rows of w1 do not lie
      contiguous;
    - it is clamped, and is not SiLU with a shift of 0 or 1.

    Raises `BadArgument`.
    """
    known = tuple(PAIRED) if gated else ALONE
    if activation not in known:
        what = "a gate's activation" if gated else "an activation without a gate"
        raise BadArgument(
            f"activation '{activation}'{nearest(activation, known)} is not {what}; these are: "
            f"{', '.join(known)}"
        )
    first = ("bias",) * bias
    if not gated:
        if interleaved or clamp.said:
            raise BadArgument("w1 has no gates to be interleaved, limited, scaled or shifted")
        return Form("+".join((*first, activation)))
    pair = PAIRED[activation]
    numbers: tuple[tuple[str, float], ...] = ()
    if clamp.said:
        pair = CLAMPED.get(clamp.shift, "") if activation == "silu" else ""
        numbers = (("limit", min(clamp.limit, LARGEST)), ("alpha", clamp.alpha))
    paired = interleaved or (columns_lie and not bias and not by_columns)
    in_product = rounded == "block" and whole_blocks and not interleaved
    if not pair or not paired or recorded or (rounded and not in_product):
        return Form("+".join(first), gate=activation)
    return Form("+".join((*first, pair)), not interleaved, "", numbers, rounded)
