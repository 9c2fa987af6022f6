"""What was heard of calls that are alike."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright import aten, dtypes
from tilewright.capture_file import Heard
from tilewright.errors import BadArgument, TilewrightError
from tilewright.ops.nouns import View

FOLLOWED = 16
"""Calls of a kind of which it is looked at what is done to their result."""

_TENSOR = torch.Tensor


class Kind:
    """Calls of one operation whose arguments have the same shapes, strides, dtypes and alignment.

    by: the operation (``aten.mm``).
    problems: what they compute; empty where nothing here does. why: the reason then.
    gpu: whether they were on a GPU.
    calls: how many there were, perhaps less those of other threads just now (see `count`).
    written: how many the file has.
    followed: of how many it was looked at what is done to their result. follows: whether it is, for
        the first calls of an operation that may do more to its result here.
    """

    __slots__ = (
        "_counter", "_follows", "by", "calls", "early", "early_seconds", "followed", "gpu",
        "lock", "problems", "seconds", "seen", "timed", "why", "written",
    )  # fmt: skip

    def __init__(self, name: str, problems: tuple[Any, ...], why: str, gpu: bool) -> None:
        self.by, self.problems, self.why, self.gpu = f"aten.{name}", problems, why, gpu
        self._follows = name in aten.WITH_EPILOGUE
        self.lock = threading.Lock()
        self._counter = itertools.count(1)  # `next` on it needs no lock
        self.calls = self.written = self.followed = self.timed = self.early = 0
        self.seconds = self.early_seconds = 0.0
        self.seen: dict[str, int] = {}

    def leave_out(self, why: str) -> None:
        """Count it with what nothing here computes."""
        self.problems, self.why = (), why

    def called(self) -> bool:
        """Count a call. Returns whether it is followed."""
        self.calls = next(self._counter)
        if not self._follows or self.calls > FOLLOWED:
            return False
        with self.lock:
            self.followed += 1
        return True

    def count(self) -> int:
        """How many calls there were, of all threads. To be asked once, at the end."""
        return next(self._counter) - 1

    def add(self, seconds: float, early: bool) -> None:
        """A call was timed. early: it may have the host's time in it."""
        with self.lock:
            if early:
                self.early += 1
                self.early_seconds += seconds
            else:
                self.timed += 1
                self.seconds += seconds

    def facts(self) -> Heard:
        """What was heard, for one of its problems. A call that computes several has its time
        divided between them equally, as a convolution's two gradients have equal work."""
        share = max(1, len(self.problems))
        return Heard(
            self.by, self.timed, self.seconds / share, self.early, self.early_seconds / share,
            self.followed, dict(self.seen),
        )  # fmt: skip


def key(args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """What calls of an operation are told apart by."""
    found: list[Any] = []
    for x in args:
        if isinstance(x, _TENSOR):
            found += (x.shape, x.stride(), x.dtype, x.data_ptr() & 15)
        else:
            found.append(key(x, {}) if type(x) is list else x)
    if keywords:
        found += (*keywords, key([*keywords.values()], {}))
    return tuple(found)


def kind(
    overload: Any, args: Sequence[Any], keywords: Mapping[str, Any], made: Any, gpu: bool
) -> Kind:
    """A new kind, for a call and its result."""
    name = overload._schema.name.partition("::")[2]
    try:
        problems = aten.problems(name, given(overload, args, keywords, made))
        return Kind(name, problems, "", gpu)
    except TilewrightError as error:
        return Kind(name, (), str(error), gpu)


def given(
    overload: Any, args: Sequence[Any], keywords: Mapping[str, Any], made: Any
) -> dict[str, Any]:
    """The arguments of a call by the names of its schema, as `aten.problems` takes them."""
    arguments = overload._schema.arguments
    found = {a.name: a.default_value for a in arguments if a.has_default_value()}
    found |= zip((a.name for a in arguments if not a.kwarg_only), args, strict=False)
    found |= keywords
    if overload._overloadname.endswith("out"):  # it is the result
        del found["out"]
    results = made if isinstance(made, tuple | list) else (made,)
    views = {name: _viewed(x) for name, x in found.items()}
    views[aten.MADE] = tuple(_viewed(x) for x in results)
    views[aten.TF32] = any(
        isinstance(x, torch.Tensor) and x.is_cuda and _tf32(overload) for x in args
    )
    views[aten.RECORDED] = _recorded(args)
    return views


_OF_A_PASS = ("ctx",)
"""The first parameter of an `autograd.Function`'s passes."""


def _recorded(args: Sequence[Any]) -> bool:
    """Whether a gradient is recorded of a call: by torch, or by code that it compiled for a forward
    pass, which runs with nothing recorded."""
    if torch.is_grad_enabled():
        return any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        code = frame.f_code
        if code.co_varnames[:1] == _OF_A_PASS and "/_aot_autograd/" in code.co_filename:
            return True
    return False


def _viewed(x: Any) -> Any:
    """A view of a tensor, and of each in a list; anything else itself."""
    if isinstance(x, torch.Tensor):
        return _view(x)
    return [_viewed(one) for one in x] if type(x) is list else x


def _view(x: torch.Tensor) -> View:
    """A view whose address has the alignment that the tensor's has. An element type that no
    operation here has keeps torch's name, so that operands with it are refused by it."""
    try:
        dtype = dtypes.of(x).name
    except BadArgument:
        dtype = str(x.dtype).removeprefix("torch.")
    return View(tuple(x.shape), x.stride(), dtype, x.data_ptr() & 15, str(x.device))


def _tf32(overload: Any) -> bool:
    """Whether torch lets the operation multiply fp32 as TF32 on a GPU."""
    backends: Any = torch.backends
    of = backends.cudnn if "convolution" in overload._schema.name else backends.cuda.matmul
    try:
        return bool(of.allow_tf32)
    except RuntimeError:  # the program says it by `fp32_precision`
        return str(of.fp32_precision) == "tf32"
