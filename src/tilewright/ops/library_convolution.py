"""Convolutions that cuDNN computes, as data: what a step of a launch says in place of a kernel, and
what the library is asked for its engines with.

A tensor is as torch has it: images or filters, channels, then one dimension for each of space. The
library takes two or three of space. A convolution in one gets another, of size 1
(`ops.conv.library`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tilewright.errors import BadArgument

Made = Literal["y", "x", "w"]
"""What a convolution makes: its result y, or the gradient of x or w."""

MOST_WORKSPACE = 1 << 30
"""Bytes of scratch memory that an engine may use at most."""

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype: Tilewright's name. shape, strides: in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """What fixes one algorithm of cuDNN: an engine and the knobs that are turned from their usual
    places, in the library's own numbers.

    number: the engine's global index.
    knobs: (type, value) of each, in the order of the types.
    varies: whether the library notes that two runs may give other bits.
    """

    number: int
    knobs: tuple[tuple[int, int], ...] = ()
    varies: bool = False

    def __post_init__(self) -> None:
        types = [kind for kind, _ in self.knobs]
        numbers = (self.number, *(number for knob in self.knobs for number in knob))
        if types != sorted(set(types)) or not all(0 <= one <= _LARGEST for one in numbers):
            raise BadArgument(f"{self} has knobs in no order, or a number that no name can say")

    @property
    def word(self) -> str:
        """All fields, as a kernel's name has them: ``38_k2-5_k14-3_varies``."""
        knobs = "".join(f"_k{kind}-{value}" for kind, value in self.knobs)
        return f"{self.number}{knobs}{'_varies' * self.varies}"

    @classmethod
    def of_word(cls, word: str) -> Engine:
        """The engine whose `word` this is. Raises `BadArgument`."""
        found = _WORD.fullmatch(word)
        if found is None:
            raise BadArgument(f"'{word}' is not an engine of cuDNN, such as 38_k2-5_k14-3")
        knobs = (tuple(map(int, one.split("-"))) for one in found["knobs"].split("_k")[1:])
        return cls(int(found["number"]), tuple(knobs), bool(found["varies"]))  # type: ignore[arg-type]


_NUMBER = r"(?:0|[1-9]\d{0,9})"
_WORD = re.compile(
    rf"(?P<number>{_NUMBER})(?P<knobs>(?:_k{_NUMBER}-{_NUMBER})*)(?P<varies>_varies)?", re.ASCII
)


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


@dataclass(frozen=True, slots=True)
class Offered:
    """An engine that the library offers for a convolution, and the bytes of scratch memory that it
    needs there."""

    engine: Engine
    workspace: int
