"""Attention and its gradients that cuDNN computes, as data: what a step of a launch says in place
of a kernel, and what the library is asked for its engines with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.ops.library_engine import Fixed, Tensor

Diagonal = Literal["", "top_left", "bottom_right"]
"""The corner that the diagonal of a causal mask begins in; ``""``: there is no mask."""

FP8 = ("e4m3fn", "e5m2")
"""The dtypes in 8 bits that the library multiplies."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of O, which is given, and of Q, K and V, which are computed."""

    do: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """O = softmax(mask(scale · Q·Kᵀ))·V, with sums and scores in fp32; or its gradients.

    In fp8, Q, K and V are multiplied by scales, and weights are rounded to the dtype of V.

    library: with its major version, as ``cudnn9``.
    q, k, v, o: the tensors, of (batch, head, row, element).
    lse: of each row's logarithm of its sum of exponentials, (batch, head, row, 1); None where it is
        not returned. Gradients are computed from it.
    diagonal: see `Diagonal`.
    gradients: None for the forward pass.
    scaled: in fp8, whether the scales of Q, K and V are arrays of one element, not numbers.
    alignment: bytes that the addresses are multiples of.
    engine: how it is computed; None in a question for engines.
    workspace: bytes of scratch memory that the engine may use; in a question, the most that it may
        use.
    """

    library: str
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor | None = None
    diagonal: Diagonal = ""
    gradients: Gradients | None = None
    scaled: bool = False
    alignment: int = 16
    engine: Fixed | None = None
    workspace: int = 0

    def __str__(self) -> str:
        q, k = ("×".join(map(str, one.shape)) for one in (self.q, self.k))
        of = "gradients of " * (self.gradients is not None)
        return f"{of}attention of q {q} and k {k} in {self.q.dtype}"

    @property
    def in_fp8(self) -> bool:
        """Whether the operands are in fp8."""
        return self.q.dtype in FP8

    @property
    def varies(self) -> bool:
        """Whether two runs may give other bits, though the library does not note it: several
        workgroups add to a gradient of Q, in any order."""
        return self.gradients is not None
