"""`AttentionBackwardProblem`: the gradients of attention, as the caller states them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.attention import stated
from tilewright.ops.attention.gradients import refused
from tilewright.ops.attention.operands import strides_of
from tilewright.ops.attention.problem import AttentionProblem, Strides

GRADIENTS: dict[str, str] = {
    "dq": "",
    "dk": "",
    "dv": "",
    "dbias": "bias",
    "dsinks": "sinks",
    "dslopes": "alibi",
}
"""What may be computed, in the order in which it is written, and the feature that it needs."""

USUAL = "dq+dk+dv"


def _of_gradient(p: AttentionProblem, name: str) -> Strides:
    """Strides of dO, dQ, dK or dV, as `strides_of` has them."""
    of, strides = name[1:], getattr(p, f"{name}_strides")
    said: dict[str, Any] = {f.name: getattr(p, f.name) for f in fields(AttentionProblem)}
    return strides_of(AttentionProblem(**(said | {f"{of}_strides": strides})), of)


_OF_GRADIENTS = {name: partial(_of_gradient, name=name) for name in ("do", "dq", "dk", "dv")}


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBackwardProblem(AttentionProblem):
    """The gradients of `AttentionProblem`, of which it has all fields: they say the forward pass.

    grads: which are computed: words of `GRADIENTS` in their order, joined by ``+``.
    dlse: whether LSE has a gradient too.
    accumulate: whether gradients are added to what their arrays hold, instead of written there.
    do_strides, dq_strides, dk_strides, dv_strides: as `o_strides`. Other gradients are contiguous.

    Gradients have the shape and the dtype of what they belong to; dO is as O. `alignment` is that
    of all of them.

    Raises `BadArgument` for an invalid problem, and for one without gradients
    (`attention.gradients.refused`).
    """

    family: ClassVar[str] = "attention_backward"

    grads: str = USUAL
    dlse: bool = False
    accumulate: bool = False
    do_strides: Strides = ()
    dq_strides: Strides = ()
    dk_strides: Strides = ()
    dv_strides: Strides = ()

    def _complete(self) -> None:
        AttentionProblem._complete(self)
        if (verdict := refused(self)) is not None:
            raise BadArgument(verdict.reason)
        for word in ("lse", "random"):
            if word in self.words:
                raise BadArgument(f"'{word}' is an output of attention, not of its backward pass")
        found = self.grads.split("+")
        for word in found:
            if word not in GRADIENTS:
                raise BadArgument(
                    f"attention has no gradient '{word}'{nearest(word, GRADIENTS)}; it has "
                    f"{', '.join(GRADIENTS)}"
                )
            if (needs := GRADIENTS[word]) and needs not in self.words:
                raise BadArgument(f"{word} needs {needs}, which the forward pass did not have")
        if "dbias" in found and self.bias_dtype == "bool":
            raise BadArgument("a bias of booleans has no gradient")
        if "dbias" in found and self.bias_shape[2:]:
            raise BadArgument(
                "dbias is a gradient for each query and key; pass the bias expanded over the "
                "queries, and add it up over them"
            )
        if "+".join(word for word in GRADIENTS if word in found) != self.grads:
            raise BadArgument(f"grads = '{self.grads}' must be in order: {'+'.join(GRADIENTS)}")
        apart = [self.alignment]
        for dim, dtype in (
            (self.head_dim, self.dtype), (self.head_dim_v, self.dtype),
            (self.head_dim_v, self.dtype_o),
        ):  # fmt: skip
            apart.append(dim * DTYPES[dtype].bytes)
        for word in ("do", "dq", "dk", "dv"):
            strides: Strides = getattr(self, f"{word}_strides")
            if strides and word != "do" and word not in found:
                raise BadArgument(f"{word}_strides says nothing where {word} is not computed")
            size = DTYPES[self.dtype_o if word == "do" else self.dtype].bytes
            apart += [stride * size for stride in strides[:-1]]
        object.__setattr__(self, "alignment", math.gcd(*apart))

    def __str__(self) -> str:
        shown = stated.in_short(self).replace("attention ", "attention_backward ", 1)
        shown += f" {self.grads}" if self.grads != USUAL else ""
        return shown + " dlse" * self.dlse + " accumulate" * self.accumulate

    @property
    def forward(self) -> AttentionProblem:
        """The problem of the forward pass, which also returns LSE."""
        said = {f.name: getattr(self, f.name) for f in fields(AttentionProblem)}
        others = f"lse+{self.others}" if self.others else "lse"
        return AttentionProblem(**(said | {"others": others}))

    @property
    def computed(self) -> frozenset[str]:
        """The words of `grads`, as a set."""
        return frozenset(self.grads.split("+"))

    def strides_of(self, name: str) -> Strides:
        """Strides of Q, K, V, O, dO, dQ, dK or dV, in elements, of (batch, row, head, dim)."""
        if name in ("q", "k", "v", "o"):
            return strides_of(self, name)
        return self.once(_OF_GRADIENTS[name])

    @property
    def multiplied(self) -> int:
        """Elements that a pair of a query and a key multiplies, with scores computed once."""
        found = self.head_dim + (self.head_dim_v if self.computed != {"dv"} else 0)
        return found + sum(
            self.head_dim_v if word == "dv" else self.head_dim
            for word in self.computed & {"dq", "dk", "dv"}
        )

    @property
    def flops(self) -> int:
        """Operations of the five products, for the pairs that a query sees, each computed once."""
        return 2 * self.heads * self.pairs * self.multiplied

    @property
    def work(self) -> Mapping[str, int]:
        """Operations by unit: the type that the matrix units multiply, and exponentials."""
        return {self.dtype: self.flops, "exp": self.heads * self.pairs}

    @property
    def min_bytes(self) -> int:
        """Bytes to read Q, K, V, O, dO, LSE and the bias once, and to write gradients once, having
        read them if they are added to."""
        n_q, n_kv = (self.batch * n for n in self.lengths)
        size, written = DTYPES[self.dtype].bytes, self.computed
        moved = AttentionProblem.min_bytes.fget(self)  # type: ignore[attr-defined]
        moved += n_q * self.heads * (self.head_dim_v * DTYPES[self.dtype_o].bytes + 4)
        made = n_q * self.heads * self.head_dim * size * ("dq" in written)
        made += n_kv * self.kv_heads * self.head_dim * size * ("dk" in written)
        made += n_kv * self.kv_heads * self.head_dim_v * size * ("dv" in written)
        if "dbias" in written:
            made += math.prod(self.bias_shape) * self.lengths[0] * self.lengths[1] * size
        return int(moved + made * (2 if self.accumulate else 1))
