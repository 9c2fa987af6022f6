"""What is done to a result right behind its product: operations that an epilogue may do.

This is seen, not known. The next of these operations in the thread took the whole result; whether
something else reads the result too, as a backward pass does for the input of a gelu, is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tilewright.torch.listening.heard import Kind

Step = Callable[[Sequence[Any], Mapping[str, Any], int], str]
"""From a call, and the place of the result among its arguments, to the operation's name here; ""
where there is none."""


def _named(name: str) -> Step:
    return lambda args, keywords, place: name


def _gelu(args: Sequence[Any], keywords: Mapping[str, Any], place: int) -> str:
    return "gelu_tanh" if keywords.get("approximate") == "tanh" else "gelu"


def _add(args: Sequence[Any], keywords: Mapping[str, Any], place: int) -> str:
    result, other = args[place], args[1 - place]
    if keywords.get("alpha", 1) != 1 or not isinstance(other, torch.Tensor):
        return ""
    if other.shape == result.shape:
        return "add"
    return "bias" if other.shape == result.shape[-1:] else ""


POINTWISE: dict[str, Step] = {
    "relu": _named("relu"),
    "relu_": _named("relu"),
    "gelu": _gelu,
    "gelu_": _gelu,
    "silu": _named("silu"),
    "silu_": _named("silu"),
    "add": _add,
    "add_": _add,
}
"""By the name of an operation of aten."""


@dataclass(frozen=True, slots=True)
class _Result:
    """A result, and what was done to it.

    memory: its storage, if that is still there. place: its address. count: its elements.
    """

    kind: Kind
    chain: str
    memory: StorageWeakRef
    place: int
    count: int

    def is_(self, x: Any) -> bool:
        return (
            isinstance(x, torch.Tensor)
            and x.data_ptr() == self.place
            and x.numel() == self.count
            and not self.memory.expired()  # type: ignore[no-untyped-call]
        )


class _Local(threading.local):
    """last: the last result of the thread."""

    last: _Result | None = None


class Followed:
    """Follows the last result of each thread through such operations."""

    def __init__(self) -> None:
        self._local = _Local()

    def product(self, kind: Kind, made: Any) -> None:
        """A product, convolution or attention was computed."""
        self._follow(kind, "", made[0] if isinstance(made, tuple) else made)

    def begin(self, overload: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        last = self._local.last
        if last is None:
            return None
        self._local.last = None
        place = next((i for i, x in enumerate(args[:2]) if last.is_(x)), None)
        if place is None:
            return None
        step = POINTWISE[overload._schema.name.partition("::")[2]](args, keywords, place)
        return (last, step) if step else None

    def end(self, begun: Any, made: Any) -> None:
        last, step = begun
        chain = f"{last.chain}+{step}" if last.chain else step
        with last.kind.lock:
            last.kind.seen[chain] = last.kind.seen.get(chain, 0) + 1
        self._follow(last.kind, chain, made)

    def _follow(self, kind: Kind, chain: str, made: Any) -> None:
        if isinstance(made, torch.Tensor):
            memory = StorageWeakRef(made.untyped_storage())  # type: ignore[no-untyped-call]
            self._local.last = _Result(kind, chain, memory, made.data_ptr(), made.numel())
        else:
            self._local.last = None
