"""Launches that are ready: plans with their kernels loaded, found again by what a call looks like.

`dispatch` prepares them. The compiled launcher finds and launches them without Python's help.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright import arrays
from tilewright.plan import KEPT, Plan
from tilewright.runtime.bound import Bound, BoundLaunch
from tilewright.runtime.launcher import launcher


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan with its kernels loaded on GPU `index`, ready to launch."""

    plan: Plan
    bound: BoundLaunch
    operands: tuple[Bound, ...]
    index: int


class Fast:
    """Functions and objects of the compiled path, looked up once, when a GPU is first used.

    torch's public `current_stream`, `current_device` and `increment_version` call the private
    functions; the public ones would cost more than the launch itself.
    """

    def __init__(self) -> None:
        import torch

        native = launcher()
        self.call = native.call
        self.describe = native.describe
        self.repeat = native.repeat
        self.signature = native.signature
        self.recipe = native.recipe
        self.current_stream = torch._C._cuda_getCurrentRawStream
        self.current_device = torch._C._cuda_getDevice
        self.empty = torch.empty_strided
        self.several_gpus = torch.cuda.device_count() > 1
        self.torch = (
            self.current_stream,
            self.current_device if self.several_gpus else None,
            torch.is_grad_enabled,
            torch.cuda.is_current_stream_capturing,
            torch._C._increment_version,
        )


class Launches:
    """The ready launches, by `describe`'s keys, since the last `forget_launches`. A call keeps the
    instance that it found at its start: if launches are forgotten during the call, its own launch
    is forgotten too.

    At most `KEPT` launches are kept. Beyond, the least recently used quarter is dropped. The native
    launcher stamps each launch at use, so a call spends no time on this.
    """

    def __init__(self) -> None:
        self.ready: dict[Any, Ready] = {}
        self.known: dict[Any, Any] = {}
        """The same launches, in the form that the compiled path takes."""
        self.made: dict[Any, tuple[Any, ...]] = {}
        """Layouts of the outputs to make for a call, by a key of its inputs."""
        self.recipes: dict[Any, Any] = {}
        """How calls that make their outputs are repeated, by their signatures (see repeat.h)."""
        self._lock = threading.Lock()

    def add(self, key: Any, ready: Ready) -> None:
        """Add a launch. If several threads add one, the first stays: `ready` keeps the known launch
        alive."""
        with self._lock:
            self.known[key] = self.ready.setdefault(key, ready).bound.native
            if len(self.ready) > KEPT:
                self._drop()

    def _drop(self) -> None:
        oldest = sorted(self.ready.items(), key=lambda item: item[1].bound.last_used())
        for key, _ in oldest[: len(oldest) - KEPT * 3 // 4]:
            self.known.pop(key, None)
            del self.ready[key]
        if len(self.made) > KEPT:
            self.made.clear()
        self.recipes.clear()  # they keep their launches; the next call like each makes it again

    def add_recipe(self, key: Any, recipe: Any) -> None:
        """Let calls with the signature `key` be repeated."""
        with self._lock:
            if len(self.recipes) >= KEPT:
                self.recipes.clear()
            self.recipes[key] = recipe


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A call whose like may be repeated without its Python code.

    arrays: what the call is given: tensors, or None for one that is not there.
    operands: those of the launch, in its order, outputs included.
    roots: of each operand, the number of the array that it is a view of; -1, -2, … for an output
        that the call makes, in their order.
    returned: those outputs as the call returns them, perhaps in another shape.

    Shapes, strides and dtypes of the arrays must decide everything else about the operands and what
    is returned.
    """

    arrays: tuple[Any, ...]
    operands: tuple[Any, ...]
    roots: Sequence[int]
    returned: tuple[Any, ...]

    def recipe(self, fast: Fast, launch: Any) -> Any:
        """The recipe of such calls, for the launcher; None if an operand is no view of its array,
        but a copy."""
        if len(self.roots) != len(self.operands):
            return None
        sources = []
        for operand, root in zip(self.operands, self.roots, strict=True):
            base = self.returned[-root - 1] if root < 0 else self.arrays[root]
            if base is None or _storage(base) != _storage(operand):
                return None
            address = operand.data_ptr()
            offset = address - base.data_ptr()
            if root < 0 and (offset or _bytes(base) != _bytes(operand)):
                return None
            sources.append((root, offset, address))
        return fast.recipe(launch, tuple(map(_maker, self.returned)), tuple(sources))


def _storage(tensor: Any) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _bytes(tensor: Any) -> int:
    low, high = arrays.span(arrays.view(tensor))
    return high - low


def _maker(like: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function and its arguments that make a tensor of this layout.

    torch's compiled code calls the private function, which takes half of the time of the public
    one. Both make the tensor on the current device, which the launcher has seen to be the right
    one.
    """
    import torch

    shape, strides, place = tuple(like.shape), like.stride(), like.device
    make = getattr(torch._C._dynamo.guards, f"_empty_strided_{place.type}", None)
    if make is None:
        return partial(torch.empty_strided, dtype=like.dtype, device=place), (shape, strides)
    return make, (shape, strides, like.dtype)
