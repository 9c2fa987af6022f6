"""Convolutions that cuDNN or MIOpen computes, as data: what a step of a launch says in place of a
kernel, and what the library is asked for its algorithms with.

A tensor is as torch has it: images or filters, channels, then one dimension for each of space. A
library takes two or three of space. A convolution in one gets another, of size 1
(`ops.conv.library`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tilewright.ops.library import CUDNN, MIOPEN, kind
from tilewright.ops.library_engine import Fixed, Tensor

Made = Literal["y", "x", "w"]
"""What a convolution makes: its result y, or the gradient of x or w."""

_ORDERS: dict[str, dict[Made, str]] = {
    CUDNN: {"y": "xwy", "x": "xwy", "w": "xwy"},
    MIOPEN: {"y": "wxy", "x": "ywx", "w": "yxw"},
}
"""By library and by what is made, the order in which a step hands over the tensors: that of
MIOpen's functions, which take what is made last."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution or one of its gradients, with sums in fp32.

    library: with its major version, as ``cudnn9`` or ``miopen3``.
    made: see `Made`. x, w, y: the tensors.
    stride, dilation, pad: in each dimension of space; as many zeros are before and behind.
    precision: ``ieee``, or ``tf32`` for fp32 tensors.
    alignment: bytes that the addresses are multiples of.
    engine: how it is computed; None in a question for algorithms.
    workspace: bytes of scratch memory that the algorithm may use; in a question, the most that it
        may use.
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
    engine: Fixed | None = None
    workspace: int = 0

    @property
    def order(self) -> str:
        """The names of the tensors, in the order in which a step hands them over."""
        return _ORDERS[kind(self.library)][self.made]

    def __str__(self) -> str:
        x, w = ("×".join(map(str, one.shape)) for one in (self.x, self.w))
        return f"{self.made} of x {x} and w {w} in {self.x.dtype}"
