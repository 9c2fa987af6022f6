"""Convolutions that cuDNN computes, as data: what a step of a launch says in place of a kernel, and
what the library is asked for its engines with.

A tensor is as torch has it: images or filters, channels, then one dimension for each of space. The
library takes two or three of space. A convolution in one gets another, of size 1
(`ops.conv.library`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tilewright.ops.library_engine import Engine, Tensor

Made = Literal["y", "x", "w"]
"""What a convolution makes: its result y, or the gradient of x or w."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution or one of its gradients, with sums in fp32.

    library: with its major version, as ``cudnn9``.
    made: see `Made`. x, w, y: the tensors.
    stride, dilation, pad: in each dimension of space; as many zeros are before and behind.
    precision: ``ieee``, or ``tf32`` for fp32 tensors.
    alignment: bytes that the addresses are multiples of.
    engine: how it is computed; None in a question for engines.
    workspace: bytes of scratch memory that the engine may use; in a question, the most that it may
        use.
    """

    varies: ClassVar[bool] = False
    """As `Attention.varies`."""

    library: str
    made: Made
    x: Tensor
    w: Tensor
    y: Tensor
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]
    precision: str = "ieee"
    alignment: int = 16
    engine: Engine | None = None
    workspace: int = 0

    def __str__(self) -> str:
        x, w = ("×".join(map(str, one.shape)) for one in (self.x, self.w))
        return f"{self.made} of x {x} and w {w} in {self.x.dtype}"
